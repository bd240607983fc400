"""Which method is recommended: by hand-made numbers."""

import pandas as pd
import pytest

from calibseg.analysis import table
from calibseg.analysis.merge import merge
from calibseg.analysis.recommendation import case_means, held_out_values, oracle, prefer, recommend
from calibseg.core.types import BadInput
from support.reporting import scores


def values(*rows: tuple[str, float, float], dataset: str = "toy") -> pd.DataFrame:
    return pd.DataFrame(
        [(dataset, "unet", *row) for row in rows], columns=["dataset", "network", "method", "dsc", "nll"]
    )


def test_the_smallest_nll_wins_among_those_near_the_best_dsc():
    found = recommend(values(("a", 0.900, 0.5), ("b", 0.896, 0.4), ("c", 0.8949, 0.1)))
    assert [(choice.method, choice.candidates) for choice in found] == [("b", ("a", "b"))]  # c is 0.0051 below


def test_exactly_0_005_below_the_best_still_counts():
    assert recommend(values(("a", 0.900, 0.5), ("b", 0.895, 0.4)))[0].method == "b"  # 0.9 - 0.895 > 0.005 in binary


def test_equal_nll_takes_the_higher_dsc_and_then_the_first():
    assert recommend(values(("a", 0.899, 0.4), ("b", 0.900, 0.4)))[0].method == "b"
    assert recommend(values(("a", 0.900, 0.4), ("b", 0.900, 0.4)))[0].method == "a"


def test_a_method_without_a_value_is_never_chosen():
    nan = float("nan")
    assert recommend(values(("a", 0.9, nan), ("b", nan, 0.1), ("c", 0.8, 0.7)))[0].method == "c"
    assert recommend(values(("a", nan, nan))) == []


def test_each_dataset_has_its_own_choice():
    both = pd.concat(
        [values(("a", 0.9, 0.1), ("b", 0.9, 0.2)), values(("a", 0.9, 0.3), ("b", 0.9, 0.2), dataset="two")]
    )
    assert [(choice.dataset, choice.method) for choice in recommend(both)] == [("toy", "a"), ("two", "b")]


def test_the_oracle_looks_at_nll_on_test_alone():
    found = oracle(values(("a", 0.9, 0.2), ("b", 0.1, 0.1)), "toy", "unet")
    assert found is not None
    assert (found.method, found.nll) == ("b", 0.1)
    assert oracle(values(("a", 0.9, float("nan"))), "toy", "unet") is None


def test_case_means_average_foreground_classes_cases_and_seeds(tmp_path):
    first = scores(tmp_path / "a.csv", dsc=0.8, nll=0.3, seed="0")
    second = scores(tmp_path / "b.csv", dsc=0.9, nll=0.1, seed="1")
    found = case_means(merge([table.read(first), table.read(second)]))
    assert found["method"].tolist() == ["ce"]
    assert found[["dsc", "nll"]].iloc[0].round(12).tolist() == [0.85, 0.2]


def test_case_means_say_what_is_missing(tmp_path):
    whole = table.read(scores(tmp_path / "a.csv"))
    part = table.ScoreTable(whole.rows[whole.rows["metric"] != "nll"], whole.rules, name="a.csv")
    with pytest.raises(BadInput, match="holds no nll@all, and a method is recommended by DSC and NLL"):
        case_means(part)


def test_cross_fitted_values_stand_in_for_those_a_calibrator_was_fitted_on():
    table_of = [
        {"method": "none", "dsc": 0.8, "nll@all": 0.30},
        {"method": "temperature", "dsc": 0.8, "nll@all": 0.28},
    ]
    held_out = held_out_values([("toy", "unet", "ce", {"cross_fitted": True, "table": table_of})])
    measured = values(("ce", 0.8, 0.30), ("ce+temperature", 0.8, 0.01), ("nacl", 0.8, 0.29))
    found = prefer(held_out, measured)
    assert dict(zip(found["method"], found["nll"], strict=True)) == {"ce": 0.30, "ce+temperature": 0.28, "nacl": 0.29}
    assert recommend(found)[0].method == "ce+temperature"


def test_a_calibrator_that_was_not_cross_fitted_is_no_candidate():
    rows = [{"method": "none", "dsc": 0.8, "nll@all": 0.3}, {"method": "temperature", "dsc": 0.8, "nll@all": 0.01}]
    found = held_out_values([("toy", "unet", "ce", {"cross_fitted": False, "table": rows})])
    assert found["method"].tolist() == ["ce"]


def test_without_any_choice_there_is_nothing_held_out():
    assert len(held_out_values([("toy", "unet", "ce", None)])) == 0
    assert recommend(prefer(held_out_values([]), None)) == []


def test_where_the_best_may_change_labels_the_best_that_keeps_them_is_named_too():
    rows = [
        {"method": "none", "dsc": 0.8, "nll@all": 0.30, "keeps_argmax": True},
        {"method": "temperature", "dsc": 0.8, "nll@all": 0.28, "keeps_argmax": True},
        {"method": "isotonic", "dsc": 0.8, "nll@all": 0.25, "keeps_argmax": False},
    ]
    seeds = [("toy", "unet", "ce", {"cross_fitted": True, "table": rows})] * 2
    (choice,) = recommend(held_out_values(seeds))
    assert (choice.method, choice.keeps_labels) == ("ce+isotonic", False)
    assert (choice.keeping, choice.keeping_nll) == ("ce+temperature", 0.28)
    (choice,) = recommend(held_out_values([("toy", "unet", "ce", {"cross_fitted": True, "table": rows[:2]})]))
    assert (choice.method, choice.keeps_labels) == ("ce+temperature", True)


def test_a_score_table_tells_by_the_calibrators_name_who_keeps_labels(tmp_path):
    made = {name: scores(tmp_path / f"{name}.csv", calibrator=name) for name in ("temperature", "isotonic", "theirs")}
    found = case_means(merge([table.read(path) for path in made.values()]))
    kept = dict(zip(found["method"], found["keeps_labels"], strict=True))
    assert kept == {"ce+temperature": True, "ce+isotonic": False, "ce+theirs": False}
