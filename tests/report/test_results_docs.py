"""The page of results says what the kept scores say."""

import importlib.util
from pathlib import Path

import pytest

from calibseg.analysis import table
from calibseg.benchmark.grid import read_grid

RESULTS = Path(__file__).parents[2] / "docs" / "results"


@pytest.fixture(autouse=True)
def scripts_import_from_their_folder_as_when_they_are_run(monkeypatch):
    monkeypatch.syspath_prepend(str(RESULTS))


def writer(name):
    spec = importlib.util.spec_from_file_location(f"{name}_results", RESULTS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", sorted(path.stem for path in RESULTS.glob("*.py") if path.stem != "result_pages"))
def test_the_tables_of_a_page_are_those_of_its_kept_scores(name):
    assert writer(name).main(["--check"]) == 0, f"run python docs/results/{name}.py"


def test_a_table_without_its_place_in_the_page_is_an_error(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("Words.\n<!-- one: begin (made) -->\nold\n<!-- one: end -->\nMore words.\n", encoding="utf-8")
    pages = writer("result_pages")
    assert pages.write_tables(page, {"one": "new"}, check=True) == 1
    assert pages.write_tables(page, {"one": "new"}) == pages.write_tables(page, {"one": "new"}, check=True) == 0
    assert page.read_text() == "Words.\n<!-- one: begin (made) -->\nnew\n<!-- one: end -->\nMore words.\n"
    with pytest.raises(ValueError, match="'two' has 0 places"):
        pages.write_tables(page, {"two": "new"})


def test_the_kept_scores_are_a_score_table_of_fifty_cases():
    kept = table.read(RESULTS / "hippocampus-scores.csv.gz")
    assert kept.rules is not None
    cases = kept.rows.groupby(["loss", "calibrator", "seed"])["case"].nunique()
    assert set(cases) == {50}


def test_kept_cells_are_cells_of_their_grid_with_all_test_and_validation_cases():
    few = writer("few_cases")
    slugs = {cell.slug for cell in read_grid("cpu/hippocampus-few").cells}
    for path in few.KEPT.glob("*.csv.gz"):
        assert path.name.removesuffix(".csv.gz") in slugs
        rows = table.read(path).rows
        cases = rows.groupby(["subset", "calibrator"], observed=True)["case"].nunique()
        assert set(cases["test"]) == {150}
        assert set(cases["validation"]) == {25}


def test_kept_scores_of_nnunet_are_of_the_same_65_test_cases():
    nnunet = writer("nnunet")
    kept = [table.read(nnunet.kept_path(nnunet.KEPT, trainer)).rows for trainer in nnunet.TRAINERS]
    cases = [set(part["case"]) for rows in kept for _, part in rows.groupby("calibrator", observed=True)]
    assert len(cases) == 9
    assert all(found == cases[0] and len(found) == 65 for found in cases)
