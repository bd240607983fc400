"""What must not be told from luck: folds, candidates, patients of several datasets, and organs that are not there."""

import json
import math

import numpy as np
import pytest

from calibseg.analysis import ranking, table
from calibseg.analysis.case_values import case_values
from calibseg.analysis.evidence import gather
from calibseg.analysis.recommendation import recommend
from calibseg.analysis.run_names import counted_cells
from calibseg.analysis.sources import read_source
from calibseg.analysis.table import ScoreTable
from calibseg.analysis.validation_cases import held_out_cases, judged_cases, prefer
from calibseg.benchmark.selection import _means_of_cases
from calibseg.cli.parsing import words
from calibseg.core.types import BadInput
from calibseg.report.figure_data.scores import means
from calibseg.report.html import report
from calibseg.report.text_tables import read_paper

RULES = {"datasets": {name: {"classes": ["background", "lv"]} for name in ("A", "B")}}


def row(loss, case, value=0.9, metric="dsc", **more):
    """A row of the table; that of a patient's only case unless said."""
    nll = metric == "nll"
    facts = {"dataset": "A", "network": "unet", "loss": loss, "seed": "0", "subset": "test", "class": "lv"}
    what = {"metric": metric, "value": value, "unit": "", "scope": "case", "higher_is_better": metric.endswith("dsc")}
    place = {"patient": case, "case": case, **({"voxels": "all", "class": "all"} if nll else {})}
    return {**facts, **what, **place, **more}


def made(rows):
    return ScoreTable(table.frame(rows), RULES, {}, "made")


def validated(loss, case, patient, value=0.9, dataset="A", nll=0.1):
    where = {"patient": patient, "dataset": dataset, "subset": "validation"}
    return [row(loss, case, value, **where), row(loss, case, nll, "nll", **where)]


def test_what_was_pooled_over_a_fold_is_no_comparison_of_its_own():
    pooled = [row(loss, "", scope="pooled", subset="test fold0", patient="") for loss in ("ce", "nacl")]
    scores = made([row(loss, case) for loss in ("ce", "nacl") for case in ("a", "b")] + pooled)
    assert set(means(scores, ["dsc"])["subset"]) == {"test"}
    (ranked,) = ranking.rank(scores, ["dsc"], by="subset")
    assert ranked.part == "test"


def test_a_candidate_that_misses_an_organ_is_not_the_better_for_it():
    """HD95 5 everywhere, against 2 in the one case of ten in which the organ is found at all."""
    found = made([row("focal", f"c{n}", 5.0, "hd95") for n in range(10)])
    missed = made([row("focal", f"c{n}", math.nan if n else 2.0, "hd95") for n in range(10)])
    reached, higher = _means_of_cases({"found": found, "missed": missed}, "hd95")
    assert not higher
    assert reached == pytest.approx({"found": 5.0, "missed": (2 + 9 * 5) / 10})


def test_whose_a_cross_fitted_case_is_depends_on_its_dataset_and_fold():
    owners = {"A": {"001": "anna", "002": "anna"}, "B": {"001": "p1", "002": "p2"}}
    record = {"none": {"cases": {case: {"dsc": 0.9, "nll@all": 0.1} for case in owners["A"]},
                       "keeps_labels": True, "parameters": 0}}  # fmt: skip
    for fold in ("", " fold0"):
        told = [
            one
            for dataset, of in owners.items()
            for case, patient in of.items()
            for one in validated("ce", case + fold, patient, dataset=dataset)
        ]
        runs = [(dataset, "unet", "ce", fold.strip() or "default", record) for dataset in owners]
        cases = held_out_cases(runs, judged_cases(made(told)))
        assert {choice.dataset: choice.patients for choice in recommend(cases)} == {"A": 1, "B": 2}


def test_folds_of_a_run_are_compared_with_those_that_only_the_table_has():
    cases, folds = [f"c{n}" for n in range(6)], ("fold0", "fold1")
    told = [
        one
        for loss, dsc, nll in (("ce", 0.9, 0.10), ("kept", 0.5, 0.05))
        for fold in folds
        for case in cases
        for one in validated(loss, f"{case} {fold}", case, dsc, nll=nll)
    ]
    measured = judged_cases(made(told))
    record = {"none": {"cases": {case: {"dsc": 0.9, "nll@all": 0.10} for case in cases},
                       "keeps_labels": True, "parameters": 0}}  # fmt: skip
    held_out = held_out_cases([("A", "unet", "ce", fold, record) for fold in folds], measured)
    (choice,) = recommend(prefer(held_out, measured))
    assert (choice.method, choice.candidates) == ("ce", ("ce",))  # the other's NLL is smaller, its DSC is far below


def test_a_class_is_looked_for_also_where_only_another_method_has_volumes():
    rows = [
        one for loss in ("ce", "kept") for n in range(10) for one in validated(loss, f"c{n}", f"c{n}", 0.9 * (n < 5))
    ]
    rows += [row("ce", f"c{n}", 0.1, "volume_error", subset="validation") for n in range(10)]
    assert set(judged_cases(made(rows)).groupby("method")["found"].first()) == {0.5}


@pytest.mark.parametrize("metric", ["dsc", "iou", "rater_dsc", "consensus_dsc", "thresholded_dsc"])
def test_who_rightly_leaves_a_class_out_is_not_behind_who_invents_it(metric):
    rows = [row(loss, "full", 0.8, metric, higher_is_better=True) for loss in ("invents", "right")]
    rows += [row("invents", "none", 0.0, metric, higher_is_better=True)]
    rows += [row("right", "none", math.nan, metric, higher_is_better=True)]
    values = case_values(made(rows).rows, [metric])
    assert np.array_equal(values.values[0], [[0.8, 0.8], [0.0, 1.0]])


def test_one_patient_shows_no_difference():
    rows = [row(loss, case, value, patient="anna") for loss, value in (("ce", 0.8), ("nacl", 0.9)) for case in "abc"]
    (ranked,) = ranking.rank(made(rows), ["dsc"], compare=[("nacl", "ce")])
    ((difference,),) = ranked.differences
    assert difference.mean == pytest.approx(0.1)
    assert all(map(math.isnan, (difference.low, difference.high, difference.p)))


def benchmark_folder(tmp_path):
    """Candidates `a` (chosen now) and `b` (tested earlier), and what both scored on validation."""
    columns = "cell,dataset,network,label,seed,split,choice,hash\n"
    lines = "".join(f'{slug},A,unet,focal,0,default,"{{""gamma"": {n}}}",0\n' for n, slug in enumerate("ab"))
    (tmp_path / "cells.csv").write_text(columns + lines)
    (tmp_path / "selection.csv").write_text("choice,chosen,cells\n0,true,a\n1,false,b\n")
    (tmp_path / "grid.toml").write_text('title = "made"\n')
    test = [one for n in range(4) for loss in ("focal", "ce") for one in validated(loss, f"t{n}", f"t{n}")]
    table.write(made([{**one, "subset": "test"} for one in test]), tmp_path / "scores.parquet")
    names = ("focal", "A unet focal s0 gamma=1", "ce")
    rows = [
        one
        for n in range(4)
        for turn, name in enumerate(names)
        for one in validated(name, f"v{n}", f"v{n}", 0.9 + 0.01 * (turn == 1))
    ]
    rows = [{**one, "value": 0.01} if one["loss"] == names[1] and one["metric"] == "nll" else one for one in rows]
    table.write(made(rows), tmp_path / "scores-validation.parquet")
    return tmp_path


def test_a_candidate_that_was_not_chosen_is_neither_recommended_nor_shown(tmp_path):
    folder = benchmark_folder(tmp_path)
    assert list(counted_cells(folder)) == ["a"]
    (choice,) = report([folder], tmp_path / "report.html").recommended
    assert choice.candidates == ("focal", "ce")


def test_a_table_without_rules_costs_no_other(tmp_path):
    for name in ("a", "b", "c"):
        table.write(made([row(name, "x"), row(name, "y")]), tmp_path / f"{name}.csv")
    (tmp_path / "a.meta.json").unlink()
    evidence = gather([tmp_path / f"{name}.csv" for name in ("a", "b", "c")])
    assert set(evidence.test.rows["loss"]) == {"b", "c"}
    assert len(evidence.warnings) == 1


def test_the_only_subset_is_read_without_being_named(tmp_path):
    table.write(made([row("ce", "x", subset="validation")]), tmp_path / "scores-validation.csv")
    assert set(read_source([tmp_path]).table.rows["subset"]) == {"validation"}
    with pytest.raises(BadInput, match="no score table"):
        read_source([tmp_path], subset="test")


def test_a_paper_of_an_unnamed_dataset_keeps_its_blank(tmp_path):
    (tmp_path / "paper.csv").write_text("dataset,method,metric,value\n,ce,dsc,0.8\n,nacl,dsc,\n")
    paper = read_paper(tmp_path / "paper.csv")
    assert paper["dataset"].tolist() == ["", ""]
    assert math.isnan(paper["value"].iloc[1])


def test_a_comma_in_brackets_parts_no_two_methods():
    assert words("nacl (margin=5, kernel_size=3),ce") == ("nacl (margin=5, kernel_size=3)", "ce")
    assert json.dumps(words("dsc, ece")) == '["dsc", "ece"]'
