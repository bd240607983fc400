"""Quantiles and thresholds with finite-sample promises: golden values, ranks by counting, refusals."""

import math
from fractions import Fraction

import numpy as np
import pytest

from calibseg.core.types import BadInput
from calibseg.decisions.maths.conformal import (
    conformal_quantile,
    conformal_rank,
    corrected_risk,
    patients_needed,
    probability,
    risk_p_value,
    tightest_in_mean,
    tightest_with_confidence,
)
from calibseg.decisions.maths.thresholds import CELLS, cells, threshold

LOSSES = np.array([[0.5, 0.2, 0.1, 0, 0], [0.6, 0.4, 0.2, 0.1, 0], [0.3, 0.1, 0, 0, 0], [0.9, 0.5, 0.3, 0.2, 0]])


def test_the_corrected_risks_of_four_patients_are_the_golden_ones():
    np.testing.assert_allclose(corrected_risk(LOSSES.mean(0), 4), [0.66, 0.44, 0.32, 0.26, 0.20], atol=1e-12)


@pytest.mark.parametrize(("alpha", "place"), [(0.5, 1), (0.4, 2), (0.3, 3), (0.25, 4), (0.2, 4), (0.1, None)])
def test_the_tightest_set_is_the_golden_one_and_an_infeasible_level_has_none(alpha, place):
    assert tightest_in_mean(LOSSES.mean(0), 4, Fraction(str(alpha))) == place


@pytest.mark.parametrize("alpha", [0.05, 0.1, 0.2, 0.3, 0.35])
def test_as_many_patients_as_are_said_to_be_needed_are_enough_and_one_less_is_not(alpha):
    level = probability("alpha", alpha)
    n = patients_needed(level)
    nothing = np.zeros(3)
    assert tightest_in_mean(nothing, n, level) == 0
    assert conformal_rank(n, level) == n
    assert tightest_in_mean(nothing, n - 1, level) is None
    assert conformal_quantile([0.0] * (n - 1), level) == math.inf
    delta = Fraction(1, 10)
    sure = patients_needed(level, delta)
    assert tightest_with_confidence(nothing, sure, level, delta) == 0
    assert tightest_with_confidence(nothing, sure - 1, level, delta) is None


def test_nine_patients_are_enough_for_a_tenth_although_floats_say_otherwise():
    """9 for 0.1, 19 for 0.05, 99 for 0.01; 1 - 0.1 and its products are not exact in floats."""
    assert [patients_needed(probability("alpha", a)) for a in (0.1, 0.05, 0.01)] == [9, 19, 99]
    for n in range(9, 200):
        for alpha in ("0.1", "0.05", "0.3"):
            rank = next(k for k in range(1, n + 2) if k * 100 >= (n + 1) * (100 - int(float(alpha) * 100 + 0.5)))
            assert conformal_rank(n, Fraction(alpha)) == rank


def test_the_quantile_covers_a_new_number_as_often_as_promised_counted_over_all_orders():
    """Of n + 1 exchangeable different numbers the last is at most q in exactly rank / (n + 1) of the orders."""
    n, alpha = 6, Fraction("0.3")
    numbers = list(range(n + 1))
    covered = sum(
        numbers[new] <= conformal_quantile([x for i, x in enumerate(numbers) if i != new], alpha) for new in numbers
    )
    assert covered == conformal_rank(n, alpha) == 5
    assert covered / (n + 1) >= 0.7


def test_the_p_value_is_the_smaller_of_two_bounds_computed_by_hand():
    n, alpha, risk = 20, 0.2, 0.05
    h = risk * math.log(risk / alpha) + (1 - risk) * math.log((1 - risk) / (1 - alpha))
    binomial = sum(math.comb(n, k) * alpha**k * (1 - alpha) ** (n - k) for k in range(2))  # ceil(20 * 0.05) = 1
    assert risk_p_value(np.array([risk]), n, alpha)[0] == pytest.approx(min(math.exp(-n * h), math.e * binomial))
    assert risk_p_value(np.array([0.2, 0.5, 1.0]), n, alpha).tolist() == [1.0, 1.0, 1.0]


def test_the_walk_from_the_safe_end_stops_at_the_first_p_value_above_delta():
    mean = np.array([0.0, 0.3, 0.0, 0.0])  # not monotone: what lies behind the refused one is never reached
    assert tightest_with_confidence(mean, 50, Fraction("0.1"), Fraction("0.1")) == 2


@pytest.mark.parametrize("value", [0, 1, -0.1, 1.5, math.nan, True, "0.1", None], ids=str)
def test_what_is_no_probability_is_refused(value):
    with pytest.raises(BadInput, match="alpha must lie strictly between 0 and 1"):
        probability("alpha", value)


def test_a_probability_reaches_a_threshold_if_and_only_if_its_cell_does():
    rng = np.random.default_rng(0)
    spread = [rng.random(3000), 10 ** -rng.uniform(0, 12, 3000), 1 - 10 ** -rng.uniform(0, 9, 3000)]
    ends = [0, 1, 0.5, 0.25, 2.0**-24, 2.0**-25, 1 - 2.0**-24, np.nextafter(np.float32(0.5), 0)]
    p = np.concatenate([*spread, ends]).astype(np.float32)
    found = cells(p)
    assert (found.min(), found.max()) == (0, CELLS - 1)
    for cell in [*rng.integers(0, CELLS + 1, 200).tolist(), 0, 1, 2, CELLS // 2, CELLS // 2 + 1, CELLS - 1, CELLS]:
        np.testing.assert_array_equal(found >= cell, p >= threshold(cell))


def test_neighbouring_thresholds_are_close_at_both_ends():
    edges = np.array([threshold(cell) for cell in range(CELLS + 1)], float)
    assert (np.diff(edges) >= 0).all()
    inner = edges[1 : CELLS // 2]
    assert (np.diff(inner) / inner[:-1]).max() < 0.002
    assert np.diff(edges[CELLS // 2 : -1]).max() < 0.001
