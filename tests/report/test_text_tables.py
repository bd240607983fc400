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


def test_an_undefined_value_has_a_footnote_and_no_bold_beside_complete_rivals():
    nan = float("nan")
    table = scores({"ce": {"hd95": [1.0, nan, 1.0]}, "ls": {"hd95": [2.0, 2.0, 2.0]}})
    text = typeset(comparison(table, ["hd95"]), "md", "none")
    assert "| CE | 1.33† |" in text  # 2 in place of the undefined value
    assert "| LS | **2.00** |" in text
    assert "† HD95, cases defined: CE 2 of 3; the others take the column's worst value." in text
    latex = typeset(comparison(table, ["hd95"]), "latex", "none")
    assert r"CE & 1.33$^\dagger$ \\" in latex
    assert r"\par{\footnotesize $^\dagger$ HD95, cases defined: CE 2 of 3" in latex
