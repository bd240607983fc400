"""Risk-coverage in one convention: golden values, ties, and score tables."""

from dataclasses import replace
from itertools import permutations
from math import isnan, log

import numpy as np
import pytest

from calibseg.analysis import bootstrap
from calibseg.analysis.failure_detection import (
    drawn_areas,
    excess_aurc,
    failure_auroc,
    failure_detection,
    risk_coverage,
    spearman,
)
from calibseg.analysis.table import called
from calibseg.core.types import BadInput
from support.score_rows import scores

CONFIDENCE = [0.9, 0.8, 0.7, 0.6, 0.5]
RISK = [0.05, 0.10, 0.30, 0.20, 0.60]


def test_the_golden_values_of_five_cases():
    curve = risk_coverage(CONFIDENCE, RISK)
    np.testing.assert_allclose(curve.selective_risk, [0.05, 0.05, 0.075, 0.15, 0.1625, 0.25])
    assert curve.aurc == pytest.approx(0.1175)
    assert curve.augrc == pytest.approx(0.077)


def test_tied_cases_are_accepted_together_in_every_order():
    for order in permutations(range(5)):
        confidence = [[0.9, 0.8, 0.8, 0.8, 0.5][i] for i in order]
        assert risk_coverage(confidence, [RISK[i] for i in order]).aurc == pytest.approx(0.115)


def test_one_confidence_for_all_accepts_all_at_the_mean_risk():
    curve = risk_coverage([0.5] * 5, RISK)
    assert curve.aurc == pytest.approx(0.25)
    assert curve.augrc == pytest.approx(0.125)


def test_the_binary_identities_hold():
    """AUGRC = (1 - AUROC) a (1 - a) + (1 - a)^2 / 2 with the success rate a."""
    failed = [0, 0, 1, 0, 1]
    auroc, success = failure_auroc(CONFIDENCE, [bool(one) for one in failed]), 0.6
    assert auroc == pytest.approx(5 / 6)
    augrc = risk_coverage(CONFIDENCE, failed).augrc
    assert augrc == pytest.approx(0.12)
    assert augrc == pytest.approx((1 - auroc) * success * (1 - success) + (1 - success) ** 2 / 2)


def test_the_best_order_has_no_excess_and_its_area_is_the_known_one():
    rng = np.random.default_rng(0)
    risk = rng.random(200)
    assert excess_aurc(1 - risk, risk) == pytest.approx(0)
    assert excess_aurc(risk, risk) > 0.3
    binary = np.r_[np.zeros(15000), np.ones(5000)]
    assert risk_coverage(-np.arange(20000.0), binary).aurc == pytest.approx(0.25 + 0.75 * log(0.75), abs=1e-4)


def test_spearman_and_auroc_with_ties_are_those_of_counting():
    assert spearman([1, 2, 2, 3], [1, 3, 2, 4]) == pytest.approx(np.corrcoef([1, 2.5, 2.5, 4], [1, 3, 2, 4])[0, 1])
    confidence, failed = [0.9, 0.7, 0.7, 0.2], [False, True, False, True]
    pairs = [(c, d) for c, f in zip(confidence, failed, strict=True) if not f
             for d, g in zip(confidence, failed, strict=True) if g]  # fmt: skip
    wanted = sum(1.0 if c > d else 0.5 if c == d else 0.0 for c, d in pairs) / len(pairs)
    assert failure_auroc(confidence, failed) == pytest.approx(wanted)
    assert isnan(failure_auroc([0.1, 0.2], [True, True]))
    assert isnan(spearman([1, 1], [1, 2]))


def test_what_is_no_confidence_is_refused():
    for confidence, risk in (([], []), ([0.5], [0.1, 0.2]), ([np.nan], [0.1])):
        with pytest.raises(BadInput, match="confidence"):
            risk_coverage(confidence, risk)


def test_a_score_table_gives_every_methods_detection():
    quality = [1 - risk for risk in RISK]
    values = {
        "ce": {"soft_dice_confidence": CONFIDENCE, "dsc": quality},
        "ls": {"soft_dice_confidence": CONFIDENCE[::-1], "dsc": quality},
    }
    found = {one.method: one for one in failure_detection(scores(values, higher_is_better=True))}
    assert found["ce"].aurc == pytest.approx(0.1175)
    assert found["ce"].e_aurc == pytest.approx(excess_aurc(CONFIDENCE, RISK))
    assert found["ls"].spearman == pytest.approx(-found["ce"].spearman)
    assert found["ce"].auroc == pytest.approx(5 / 6)  # risks above 0.25: cases 2 and 4
    with pytest.raises(BadInput, match="small where a case is good"):
        failure_detection(scores({"ce": {"hd95": RISK, "dsc": quality}}), "hd95")


def test_areas_of_drawn_patients_are_those_of_the_cases_written_out():
    rng = np.random.default_rng(3)
    confidence, risk = rng.choice([0.2, 0.5, 0.6, 0.9], 12), rng.random(12)
    owner = rng.integers(0, 7, 12)
    weights = bootstrap.draws(7, 200)[:, owner]
    weights = weights[weights.sum(1) > 0]
    aurc, augrc = drawn_areas(confidence, risk, weights)
    for draw, first, second in zip(weights, aurc, augrc, strict=True):
        curve = risk_coverage(np.repeat(confidence, draw), np.repeat(risk, draw))
        assert first == pytest.approx(curve.aurc)
        assert second == pytest.approx(curve.augrc)


def test_intervals_are_those_of_the_drawn_patients_and_hold_the_value():
    quality = [1 - risk for risk in RISK]
    values = {"ce": {"soft_dice_confidence": CONFIDENCE, "dsc": quality}}
    (found,) = failure_detection(scores(values, higher_is_better=True))
    draws = bootstrap.draws(5)
    drawn = [risk_coverage(np.repeat(CONFIDENCE, draw), np.repeat(RISK, draw)).aurc for draw in draws]
    assert found.aurc_interval == pytest.approx(tuple(np.percentile(drawn, [2.5, 97.5])))
    assert found.augrc_interval[0] < found.augrc < found.augrc_interval[1]


def test_one_patient_has_no_interval():
    values = {"ce": {"soft_dice_confidence": CONFIDENCE, "dsc": [1 - risk for risk in RISK]}}
    table = scores(values, higher_is_better=True)
    (found,) = failure_detection(replace(table, rows=called(table.rows, patient="anna")))
    assert all(map(isnan, (*found.aurc_interval, *found.augrc_interval)))
