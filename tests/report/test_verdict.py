"""The first screen of a report: its checks, and the method of choice class by class."""

from dataclasses import replace

import pandas as pd
import pytest
from typer.testing import CliRunner

from calibseg.analysis import table
from calibseg.analysis.evidence import gather
from calibseg.analysis.recommendation import Recommendation
from calibseg.analysis.run_records import Run
from calibseg.cli import app
from calibseg.report.html.content import content
from calibseg.report.html.verdict import why
from support.reporting import scores, study


@pytest.fixture
def toy(tmp_path):
    return study(tmp_path)


def verdict_of(*sources):
    (found,) = content(gather(sources)).verdicts
    return found


def miss(path, name="core"):
    """The class is not found in any case of a table."""
    found = table.read(path)
    rows = table.plain(found.rows)
    rows.loc[(rows["metric"] == "dsc") & (rows["class"] == name), "value"] = 0.0
    bins = pd.read_csv(table.bins_path(path), keep_default_na=False)
    table.write(table.ScoreTable(rows, found.rules, found.notes, found.name), path, bins)


def test_a_method_that_misses_a_class_is_not_recommended_silently(toy):
    miss(toy / "runs" / "nacl-s0" / "scores-test.csv")
    found = verdict_of(toy)
    assert found.method == "nacl"
    assert found.checks[0].status == "fail"
    assert any("NACL misses core: organ in 4 of 4, core in 0 of 4" in check.says for check in found.failed)
    assert [(row.name, row.found, row.of, row.status) for row in found.classes] == [
        ("organ", 4, 4, "pass"), ("core", 0, 4, "fail"),
    ]  # fmt: skip
    result = CliRunner().invoke(app, ["report", str(toy), "-o", str(toy / "r.html")])
    assert "check failed: toy: Every class is found: NACL misses core" in result.output.replace("\n", "")
    assert "Chosen on validation, but 2 checks failed" in (toy / "r.html").read_text(encoding="utf-8")


def test_an_invented_class_is_no_missed_one(toy):
    """DSC is 0 where a case does not have the class and a network predicts it; volume_error is undefined there."""
    path = toy / "runs" / "nacl-s0" / "scores-test.csv"
    found = table.read(path)
    rows = table.plain(found.rows)
    volumes = rows[rows["metric"] == "dsc"].assign(metric="volume_error", value=0.1, higher_is_better=False)
    rows = pd.concat([rows, volumes], ignore_index=True)
    invented = (rows["class"] == "core") & rows["case"].isin(sorted(set(rows["case"]) - {""})[:2])
    rows.loc[invented & (rows["metric"] == "dsc"), "value"] = 0.0
    rows.loc[invented & (rows["metric"] == "volume_error"), "value"] = float("nan")
    bins = pd.read_csv(table.bins_path(path), keep_default_na=False)
    table.write(table.ScoreTable(rows, found.rules, found.notes, found.name), path, bins)
    assert [(row.name, row.found, row.of) for row in verdict_of(toy).classes] == [("organ", 4, 4), ("core", 2, 2)]


def test_failures_stand_first_and_every_check_is_there(toy):
    found = verdict_of(toy)
    status = [check.status for check in found.checks]
    assert status == sorted(status, key=["fail", "warn", "pass"].index)
    said = {check.name: (check.status, check.says) for check in found.checks}
    assert said["Enough validation cases for the choice"][0] == "fail"  # two patients
    assert said["Equal seeds per method"] == (
        "warn", "one seed each: a difference may be that of two trainings of the same method",
    )  # fmt: skip
    assert said["Every class is found"][0] == "pass"
    assert said["Score tables are complete"] == ("pass", "6 methods on the same 4 cases")
    assert "ECE 0.100 (case mean) on predicted foreground, over-confident" in said["Calibration on predicted voxels"][1]


def test_what_cross_fitting_tells_are_validation_cases_also_where_another_dataset_has_a_table_of_them(toy, monkeypatch):
    cases = {case: {"dsc": 0.8, "nll@all": 0.3} for case in ("v0", "v1", "v2")}
    told = {"none": {"cases": cases, "keeps_labels": True, "parameters": 0}}
    monkeypatch.setattr(Run, "held_out", lambda run: told)
    evidence = gather([toy])
    elsewhere = replace(evidence.validation, rows=evidence.validation.rows.assign(dataset="other"))
    for validation in (None, elsewhere):
        (found,) = content(replace(evidence, validation=validation)).verdicts
        (says,) = (check.says for check in found.checks if check.name == "Enough validation cases for the choice")
        assert says.startswith("3 validation cases among 6 methods")


def test_unequal_seeds_fail(toy):
    scores(toy / "runs" / "ce-s0" / "scores-test-more.csv", "ce", seed="1")
    check = next(c for c in verdict_of(toy).checks if c.name == "Equal seeds per method")
    assert check.status == "fail"
    assert "most have 2, but" in check.says


def test_without_validation_no_method_is_recommended_and_the_page_says_why(tmp_path):
    paths = [scores(tmp_path / f"{loss}.csv", loss, ece) for loss, ece in (("ce", 0.2), ("nacl", 0.1))]
    made = content(gather(paths))
    (found,) = made.verdicts
    assert made.choices == ()
    assert found.method == "nacl"  # whose ranks are best
    assert "a choice by test cases would flatter itself" in found.failed[0].says


def test_the_sentence_below_the_recommended_method_says_how_validation_chose_it():
    alone = Recommendation("toy", "unet", "nacl", 0.8, 0.25, 0.8, ("nacl",), ("nacl",), {}, 4)
    assert why(alone) == (
        "Every other method's validation DSC is shown to be more than 0.005 below its own (0.800);"
        " its validation NLL is 0.250."
    )
    equal = replace(alone, best_dsc=0.81, candidates=("ce", "nacl", "ls"), equals=("nacl", "ce"))
    assert why(equal) == (
        "The fewest learnt parameters of the 2 methods that share the smallest validation NLL (its own: 0.250) among"
        " the 3 methods whose validation DSC is not shown to be more than 0.005 below the best (0.810; its own: 0.800)."
    )


def test_the_class_table_has_dsc_hd95_ece_and_volume_error_where_they_were_measured(toy):
    found = verdict_of(toy)
    assert [column.key for column in found.columns] == ["dsc", "hd95"]  # the study measures no more by class
    cells = found.classes[0].cells
    assert [round(cell.mean, 3) for cell in cells] == [0.798, 2.02]
    assert cells[0].interval


def test_a_single_method_is_no_failed_choice(tmp_path):
    found = verdict_of(path := scores(tmp_path / "theirs.csv", "theirs"))
    assert not found.failed
    assert any(check.says == "1 method on 4 cases" for check in found.checks)
    result = CliRunner().invoke(app, ["report", str(path), "-o", str(tmp_path / "r.html")])
    assert "check failed" not in result.output
    assert "0 cases" not in result.output  # there are four, and pictures of none
    page = (tmp_path / "r.html").read_text(encoding="utf-8")
    assert "The only method" in page
    assert "best ranked on test" not in page


def test_a_class_without_a_name_is_called_a_class(tmp_path):
    path = scores(tmp_path / "theirs.csv", "theirs")
    for file in (path, table.meta_path(path)):
        file.write_text(file.read_text(encoding="utf-8").replace("organ", "1"), encoding="utf-8")
    assert any("finds class 1 in 4 of 4, core in 4 of 4" in check.says for check in verdict_of(path).checks)


def test_who_never_predicts_foreground_is_called_neither_over_nor_under_confident(tmp_path):
    path = scores(tmp_path / "theirs.csv", "theirs")
    found = table.read(path)
    rows = table.plain(found.rows)
    rows.loc[rows["voxels"] == "predicted", "value"] = float("nan")
    table.write(table.ScoreTable(rows, found.rules, found.notes, found.name), path)
    table.bins_path(path).unlink()
    check = next(c for c in verdict_of(path).checks if c.name == "Calibration on predicted voxels")
    assert "confident" not in check.says
