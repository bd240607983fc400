"""The page of results says what the kept scores say."""

import importlib.util
from pathlib import Path

from calibseg.analysis import table

RESULTS = Path(__file__).parents[2] / "docs" / "results"


def writer(name="hippocampus"):
    spec = importlib.util.spec_from_file_location(f"{name}_results", RESULTS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_tables_of_the_page_are_those_of_the_kept_scores():
    text = (RESULTS / "hippocampus.md").read_text(encoding="utf-8")
    assert text == writer().page(), "run python docs/results/hippocampus.py"


def test_the_kept_scores_are_a_score_table_of_fifty_cases():
    kept = table.read(RESULTS / "hippocampus-scores.csv.gz")
    assert kept.rules is not None
    cases = kept.rows.groupby(["loss", "calibrator", "seed"])["case"].nunique()
    assert set(cases) == {50}


def test_the_tables_of_the_other_pages_are_those_of_their_kept_scores():
    few, acdc = writer("few_cases"), writer("acdc")
    assert few.PAGE.read_text(encoding="utf-8") == few.page(few.values()), "run python docs/results/few_cases.py"
    assert acdc.PAGE.read_text(encoding="utf-8") == acdc.page(), "run python docs/results/acdc.py"


def test_the_tables_of_the_raters_page_are_those_of_its_kept_scores():
    lidc = writer("lidc")
    assert lidc.PAGE.read_text(encoding="utf-8") == lidc.page(lidc.values()), "run python docs/results/lidc.py"


def test_kept_cells_are_cells_of_their_grid_with_all_test_and_validation_cases():
    few = writer("few_cases")
    slugs = {cell.slug for cell in few.read_grid("cpu/hippocampus-few", few.FIRST_TRIAL).cells}
    for path in few.KEPT.glob("*.csv.gz"):
        assert path.name.removesuffix(".csv.gz") in slugs
        rows = table.read(path).rows
        cases = rows.groupby(["subset", "calibrator"], observed=True)["case"].nunique()
        assert set(cases["test"]) == {150}
        assert set(cases["validation"]) == {25}


def test_the_table_of_decisions_is_that_of_the_kept_splits():
    assert writer("decisions").main(["--check"]) == 0, "run python docs/results/decisions.py"
