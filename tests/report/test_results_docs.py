"""The page of results says what the kept scores say."""

import importlib.util
from pathlib import Path

from calibseg.analysis import table

RESULTS = Path(__file__).parents[2] / "docs" / "results"


def writer():
    spec = importlib.util.spec_from_file_location("hippocampus_results", RESULTS / "hippocampus.py")
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
