"""Paired differences: against loops over every possible draw of patients and trainings."""

import itertools

import numpy as np
import pandas as pd
import pytest

from calibseg.analysis.bootstrap import crossed_means, ends
from calibseg.analysis.paired import difference
from calibseg.core.types import BadInput


def rows(method, training, values):
    return [
        {"method": method, "training": training, "patient": f"p{i}", "case": f"p{i}", "ece": value}
        for i, value in enumerate(values)
    ]


def test_patients_and_trainings_are_drawn_independently_by_every_draw_there_is():
    values = np.array([[0.0, 3.0, 6.0], [1.0, 1.0, 8.0]])
    listed = [
        np.mean([values[r, p] for r in trainings for p in patients])
        for trainings in itertools.product(range(2), repeat=2)
        for patients in itertools.product(range(3), repeat=3)
    ]
    drawn = crossed_means(values[..., None], ["a", "b", "c"], repeats=20000)[:, 0]
    assert drawn.mean() == pytest.approx(np.mean(listed), abs=0.03)
    assert drawn.std() == pytest.approx(np.std(listed), rel=0.02)
    assert {round(value, 9) for value in drawn} == {round(value, 9) for value in listed}


def test_cases_of_one_patient_are_drawn_together_and_undefined_ones_left_out():
    values = np.array([[[0.0], [2.0], [np.nan], [10.0]]])
    drawn = crossed_means(values, ["a", "a", "b", "b"], repeats=500)[:, 0]
    assert set(drawn.tolist()) == {1.0, 4.0, 10.0}  # a twice; one each: 12 / 3; b twice


def test_of_one_training_the_interval_is_that_of_its_patients():
    rng = np.random.default_rng(1)
    first, second = rng.random(40), rng.random(40)
    found = difference(pd.DataFrame(rows("a", "0", first) + rows("b", "0", second)), "a", "b", ["ece"])["ece"]
    gap = first - second
    assert found.mean == pytest.approx(gap.mean())
    error = gap.std() / np.sqrt(40)
    assert found.low == pytest.approx(gap.mean() - 1.96 * error, abs=0.15 * error)
    assert found.high == pytest.approx(gap.mean() + 1.96 * error, abs=0.15 * error)
    assert found.is_clear == (found.low > 0 or found.high < 0)


def test_seeds_of_one_draw_of_training_cases_are_drawn_together():
    values = pd.DataFrame([*rows("ce", "s0", [0.0, 0.0]), *rows("ce", "s1", [1.0, 1.0]), *rows("ce", "s2", [5.0, 5.0])])
    draws = values["training"].map({"s0": "draw 0", "s1": "draw 0", "s2": "draw 1"})
    found = difference(values.assign(draw=draws), "ce", None, ["ece"])["ece"]
    assert found[:4] == (2.0, 0.5, 5.0, 3)  # draw 0 twice: (0 + 1) / 2; draw 1 twice: 5
    assert difference(values, "ce", None, ["ece"])["ece"][:3] == (2.0, 0.0, 5.0)  # seed 0 three times: 0


def test_one_patient_shows_no_difference():
    """With a training or two: the same patient drawn again and again would give an interval without 0."""
    values = [*rows("a", "0", [0.3]), *rows("b", "0", [0.2]), *rows("a", "1", [0.4]), *rows("b", "1", [0.2])]
    for number in (2, 4):
        found = difference(pd.DataFrame(values[:number]), "a", "b", ["ece"])["ece"]
        assert np.isnan([found.low, found.high]).all()
        assert not found.is_clear


def test_a_column_that_one_patient_has_shows_no_difference_though_others_do():
    values = pd.DataFrame(rows("a", "0", [0.3, 0.2]) + rows("b", "0", [0.1, 0.1])).assign(hd95=[5.0, np.nan, 4.0, 3.0])
    found = difference(values, "a", "b", ["ece", "hd95"])
    assert found["ece"].is_clear
    assert found["hd95"].mean == 1.0
    assert np.isnan([found["hd95"].low, found["hd95"].high]).all()
    assert not found["hd95"].is_clear


def test_trainings_that_only_one_of_both_has_do_not_count():
    table = pd.DataFrame(rows("a", "0", [1.0, 2.0]) + rows("a", "1", [9.0, 9.0]) + rows("b", "0", [0.5, 1.0]))
    found = difference(table, "a", "b", ["ece"])["ece"]
    assert (found.mean, found.trainings, found.cases) == (0.75, 1, 2)


def test_what_cannot_be_paired_is_refused():
    table = pd.DataFrame(rows("a", "0", [1.0, 2.0]) + rows("b", "1", [0.5, 1.0]))
    with pytest.raises(BadInput, match="a and b have no case in common"):
        difference(table, "a", "b", ["ece"])
    with pytest.raises(BadInput, match="c has no values"):
        difference(table, "a", "c", ["ece"])
    with pytest.raises(BadInput, match="judged twice in one training"):
        difference(pd.concat([table, table]), "a", "b", ["ece"])


def test_the_ends_hold_the_middle_of_the_draws():
    low, high = ends(np.arange(1001.0)[:, None])
    assert (low[0], high[0]) == pytest.approx((25.0, 975.0))
