"""What the tables of a report mark and hold."""

import pandas as pd

from calibseg.report.text_tables import comparison, typeset
from support.score_rows import scores


def test_a_table_marks_best_and_second_by_what_is_printed():
    table = scores(
        {"ce": {"dsc": [0.8004]}, "ls": {"dsc": [0.8001]}, "nacl_x|": {"dsc": [0.7]}, "crac": {"dsc": [0.6]}}
    )
    found = comparison(table, ["dsc"])
    assert found["place"].tolist() == [1, 1, 3, 4]  # 0.800 twice
    text = typeset(found, "md", "none")
    assert text.splitlines() == [
        "| method | DSC ↑ |",
        "| --- | ---: |",
        "| CE | **0.800** |",
        "| LS | **0.800** |",
        r"| nacl\_x\| | 0.700 |",
        "| CRaC | 0.600 |",
    ]
    assert r"nacl\_x| & 0.700 \\" in typeset(found, "latex", "none")


def test_a_table_holds_intervals_and_the_papers_values():
    table = scores({"ce": {"dsc": [0.8, 0.9], "ece@truth": [0.1, 0.1]}, "ls": {"dsc": [0.7, 0.7],
                    "ece@truth": [0.2, 0.2]}}, dataset="hpc")  # fmt: skip
    paper = pd.DataFrame([("hpc", "ce", "ece@truth", 0.052)], columns=["dataset", "method", "metric", "value"])
    found = comparison(table, ["dsc", "ece@truth"], paper=paper)
    named = paper.rename(columns={"method": "loss"}).assign(calibrator="none")
    pd.testing.assert_frame_equal(comparison(table, ["dsc", "ece@truth"], paper=named), found)
    text = typeset(found, "md")
    assert "| method | DSC ↑ | ECE, truth ↓ | paper |" in text
    assert "| CE | **0.850** (0.800–0.900) | **0.100** (0.100–0.100) | 0.052 |" in text
    assert "| LS | <u>0.700</u> (0.700–0.700) | <u>0.200</u> (0.200–0.200) |  |" in text
    assert r"\textbf{0.850} {\scriptsize(0.800--0.900)}" in typeset(found, "latex")
    csv = typeset(found, "csv").splitlines()
    assert csv[0].split(",")[:7] == ["dataset", "network", "subset", "method", "metric", "mean", "low"]
    assert len(csv) == 5
