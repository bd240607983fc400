"""Which method is recommended: by hand-made numbers, and by loops over patients."""

import itertools
import math

import numpy as np
import pandas as pd
import pytest

from calibseg.analysis import table
from calibseg.analysis.merge import merge
from calibseg.analysis.recommendation import oracle, recommend
from calibseg.analysis.validation_cases import case_means, held_out_cases, judged_cases, prefer
from calibseg.core.types import BadInput
from support.reporting import scores


def values(*rows: tuple[str, float, float], dataset: str = "toy") -> pd.DataFrame:
    """Methods by their means alone."""
    return pd.DataFrame(
        [(dataset, "unet", *row) for row in rows], columns=["dataset", "network", "method", "dsc", "nll"]
    )


def cases(dsc: dict[str, list[float]], nll: dict[str, list[float]], **columns) -> pd.DataFrame:
    """One case a patient, or as `patients` says."""
    patients = columns.pop("patients", [f"p{i}" for i in range(len(next(iter(dsc.values()))))])
    rows = [
        {"dataset": "toy", "network": "unet", "method": method, "patient": patient, "case": f"c{i}", "dsc": d, "nll": n}
        | {name: value[method] for name, value in columns.items()}
        for method in dsc
        for i, (patient, d, n) in enumerate(zip(patients, dsc[method], nll[method], strict=True))
    ]
    return pd.DataFrame(rows)


# ---------------------------------------------------------------- means alone: one patient shows nothing


def test_of_a_single_patient_plain_means_decide_and_that_is_said():
    (found,) = recommend(values(("a", 0.900, 0.5), ("b", 0.896, 0.4), ("c", 0.8949, 0.1)))
    assert (found.method, found.candidates, found.patients) == ("b", ("a", "b"), 1)  # c is 0.0051 below
    assert found.keeps_labels  # unless somebody says otherwise
    assert found.remarks == ["toy, unet: a single validation patient shows no difference: plain means decided."]


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


# ---------------------------------------------------------------- many patients: a test of non-inferiority


def test_a_method_is_dropped_only_where_patients_agree_that_it_is_worse():
    """b and c lie 0.010 below a in the mean; b in every patient, c by one outlier."""
    n = 10
    dsc = {"a": [0.9] * n, "b": [0.89] * n, "c": [0.9] * (n - 1) + [0.8]}
    (found,) = recommend(cases(dsc, {"a": [0.5] * n, "b": [0.1] * n, "c": [0.3] * n}))
    assert found.candidates == ("a", "c")
    assert found.method == "c"


def test_the_bound_is_the_fifth_percentile_of_every_possible_draw_of_patients():
    """Four patients: all 256 draws can be listed, and the rule follows their 5th percentile."""
    gaps = [0.0, 0.012, 0.014, 0.030]
    listed = [np.mean([gaps[i] for i in draw]) for draw in itertools.product(range(4), repeat=4)]
    bound = np.percentile(listed, 5)
    assert 0.004 < bound < 0.007
    for margin, dropped in ((bound - 0.0011, True), (bound + 0.0011, False)):
        table_of = cases({"a": [0.9] * 4, "b": [0.9 - gap for gap in gaps]}, {"a": [0.5] * 4, "b": [0.1] * 4})
        (found,) = recommend(table_of, margin)
        assert ("b" not in found.candidates) is dropped


def test_equals_lie_within_one_standard_error_by_a_loop_over_patients():
    rng = np.random.default_rng(0)
    patients = [f"p{i // 2}" for i in range(12)]  # two cases each
    base = rng.normal(0.1, 0.01, 12)
    gap = rng.normal(0.001, 0.004, 12)
    total = sum((sum(g - gap.mean() for g, p in zip(gap, patients, strict=True) if p == name)) ** 2
                for name in set(patients))  # fmt: skip
    error = math.sqrt(total * 6 / 5) / 12
    for shift, equal in ((error - gap.mean() - 1e-6, True), (error - gap.mean() + 1e-6, False)):
        nll = {"a": list(base), "b": list(base + gap + shift)}
        (found,) = recommend(cases({"a": [0.9] * 12, "b": [0.9] * 12}, nll, patients=patients))
        assert (found.equals == ("a", "b")) is equal


def test_of_equals_the_one_that_learnt_the_fewest_parameters_is_recommended():
    noise = np.tile([0.01, -0.01], 10)
    nll = {"ce+local_temperature": [0.100] * 20, "ce+temperature": list(0.1005 + noise), "ce": list(0.102 + noise)}
    dsc = dict.fromkeys(nll, [0.9] * 20)
    parameters = {"ce+local_temperature": 834, "ce+temperature": 1, "ce": 0}
    (found,) = recommend(cases(dsc, nll, parameters=parameters))
    assert found.equals == ("ce", "ce+temperature", "ce+local_temperature")  # the error is 0.0023
    assert found.method == "ce"
    assert "ce+temperature, ce+local_temperature cannot be told from ce" in found.remarks[0]
    nll["ce"] = list(0.104 + noise)
    (found,) = recommend(cases(dsc, nll, parameters=parameters))
    assert found.method == "ce+temperature"


def test_a_method_that_misses_a_class_in_more_than_a_tenth_of_the_cases_is_dropped():
    nll = {"a": [0.5] * 10, "b": [0.1] * 10, "c": [0.3] * 10}
    dsc = {"a": [0.7] * 10, "b": [0.9] * 10, "c": [0.7] * 10}
    (found,) = recommend(cases(dsc, nll, found={"a": 1.0, "b": 0.89, "c": 0.9}))
    assert (found.method, found.candidates, dict(found.lost)) == ("c", ("a", "c"), {"b": 0.89})
    assert found.best_dsc == pytest.approx(0.7)  # b's does not count
    assert "b was not considered: it finds a class in only 89% of its cases" in found.remarks[0]
    (found,) = recommend(cases(dsc, nll, found=dict.fromkeys(dsc, 0.5)))  # all of them: somebody must be named
    assert found.method == "b"


def test_too_few_patients_are_told_with_the_number_that_would_do():
    gap = np.array([0.02, -0.02, 0.03, -0.022])  # mean 0.002, so 0.003 inside the margin
    (found,) = recommend(cases({"a": [0.9] * 4, "b": list(0.9 - gap)}, {"a": [0.5] * 4, "b": [0.1] * 4}))
    error = gap.std(ddof=1) / 2
    assert found.method == "b"
    assert found.patients_needed == math.ceil(4 * (1.6448536 * error / 0.003) ** 2)
    assert "4 validation patients are too few to show whether the DSC of b is within 0.005 of the best" in str(
        found.remarks
    )
    (found,) = recommend(cases({"a": [0.9] * 4, "b": [0.8999] * 4}, {"a": [0.5] * 4, "b": [0.1] * 4}))
    assert found.patients_needed is None


def test_the_best_itself_needs_nobody_else():
    (found,) = recommend(cases({"a": [0.9, 0.5]}, {"a": [0.5, 0.1]}))
    assert (found.method, found.patients_needed, found.remarks) == ("a", None, [])


# ---------------------------------------------------------------- where the values come from


def test_the_oracle_looks_at_nll_on_test_alone():
    found = oracle(values(("a", 0.9, 0.2), ("b", 0.1, 0.1)), "toy", "unet")
    assert found is not None
    assert (found.method, found.nll) == ("b", 0.1)
    assert oracle(values(("a", 0.9, float("nan"))), "toy", "unet") is None


def test_judged_cases_average_foreground_classes_and_seeds(tmp_path):
    first = scores(tmp_path / "a.csv", dsc=0.8, nll=0.3, seed="0")
    second = scores(tmp_path / "b.csv", dsc=0.9, nll=0.1, seed="1")
    found = case_means(judged_cases(merge([table.read(first), table.read(second)])))
    assert found["method"].tolist() == ["ce"]
    assert found[["dsc", "nll"]].iloc[0].round(12).tolist() == [0.85, 0.2]


def test_judged_cases_say_what_is_missing(tmp_path):
    whole = table.read(scores(tmp_path / "a.csv"))
    part = table.ScoreTable(whole.rows[whole.rows["metric"] != "nll"], whole.rules, name="a.csv")
    with pytest.raises(BadInput, match="holds no nll@all, and a method is recommended by DSC and NLL"):
        judged_cases(part)


def test_a_class_counts_as_found_where_its_dsc_is_above_0(tmp_path):
    whole = table.read(scores(tmp_path / "a.csv"))
    rows = table.plain(whole.rows)
    chosen = (rows["metric"] == "dsc") & (rows["scope"] == "case")
    one_class = chosen & (rows["class"] == rows.loc[chosen, "class"].iloc[0])
    first = rows.index[one_class][0]
    rows.loc[first, "value"] = 0.0
    found = judged_cases(table.ScoreTable(table.categorical(rows), whole.rules, name="a.csv"))
    assert found["found"].unique().tolist() == [1 - 1 / one_class.sum()]


def held(dsc: float, nll: float, keeps: bool = True, parameters: float = 0) -> dict:
    return {"cases": {"p0": {"dsc": dsc, "nll@all": nll}}, "keeps_labels": keeps, "parameters": parameters}


def test_cross_fitted_values_stand_in_for_those_a_calibrator_was_fitted_on():
    told = {"none": held(0.8, 0.30), "temperature": held(0.8, 0.28, parameters=1)}
    measured = values(("ce", 0.8, 0.30), ("ce+temperature", 0.8, 0.01), ("nacl", 0.8, 0.29))
    measured = measured.assign(patient="p0", case="p0", found=1.0, keeps_labels=True, parameters=0)
    found = prefer(held_out_cases([("toy", "unet", "ce", "default", told)], measured), measured)
    assert dict(zip(found["method"], found["nll"], strict=True)) == {"ce": 0.30, "ce+temperature": 0.28, "nacl": 0.29}
    assert recommend(found)[0].method == "ce+temperature"


def test_without_any_choice_there_is_nothing_held_out():
    assert len(held_out_cases([("toy", "unet", "ce", "default", {})])) == 0
    assert recommend(prefer(held_out_cases([]), None)) == []


def test_where_the_best_may_change_labels_the_best_that_keeps_them_is_named_too():
    told = {"none": held(0.8, 0.30), "temperature": held(0.8, 0.28, parameters=1)}
    any_of = told | {"isotonic": held(0.8, 0.25, keeps=False, parameters=45)}
    (choice,) = recommend(held_out_cases([("toy", "unet", "ce", "default", any_of)] * 2))  # two seeds
    assert (choice.method, choice.keeps_labels) == ("ce+isotonic", False)
    assert (choice.keeping, choice.keeping_nll) == ("ce+temperature", 0.28)
    (choice,) = recommend(held_out_cases([("toy", "unet", "ce", "default", told)]))
    assert (choice.method, choice.keeps_labels) == ("ce+temperature", True)


def test_a_score_table_tells_by_the_calibrators_name_who_keeps_labels(tmp_path):
    made = {name: scores(tmp_path / f"{name}.csv", calibrator=name) for name in ("temperature", "isotonic", "theirs")}
    found = judged_cases(merge([table.read(path) for path in made.values()])).drop_duplicates("method")
    kept = dict(zip(found["method"], found["keeps_labels"], strict=True))
    assert kept == {"ce+temperature": True, "ce+isotonic": False, "ce+theirs": False}
