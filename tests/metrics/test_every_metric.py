"""What every calibration metric promises, whichever the registry finds. Shape metrics have their own file."""

import numpy as np
import pytest

from calibseg.core.registry import find, members
from calibseg.metrics import Brier, BrierReliability, BrierResolution, BrierUncertainty
from calibseg.metrics.statistics.binning import (
    VOXELS,
    CalibrationStatistics,
    all_statistics,
    calibration_statistics,
)
from calibseg.metrics.statistics.binning.equal_mass import EqualMassStatistics

OURS = ("calibration", "equal_mass")
MEMBERS = {key: member for key, member in members("metrics").items() if member.facts.get("needs") in OURS}
BEST_IS_NOT_ZERO = {"brier_resolution", "brier_uncertainty"}  # of a faultless, certain predictor
CLASSES = 4


def statistics_of(metric, p, labels):
    if metric.needs == "calibration":
        return calibration_statistics(p, labels, kind="probabilities")
    return all_statistics(p, labels, kind="probabilities")[1]


def example(seed=0):
    rng = np.random.default_rng(seed)
    p = rng.dirichlet([0.4] * CLASSES, (5, 8, 9)).transpose(3, 0, 1, 2).astype(np.float32)
    return p, rng.integers(0, CLASSES, (5, 8, 9))


@pytest.fixture(params=sorted(MEMBERS))
def metric(request):
    return MEMBERS[request.param].load()()


def test_the_calibration_metrics_of_the_plan_exist():
    assert {"ece", "cece", "mce", "ace", "brier", "nll", "tcece", "aece", "tace", "signed_gap"} <= set(MEMBERS)


def test_it_says_what_it_is(metric):
    member = next(m for m in MEMBERS.values() if m.class_name == type(metric).__name__)
    assert member.summary.endswith(".")
    assert type(metric.higher_is_better) is bool
    assert isinstance(metric.unit, str)


def test_every_metric_states_in_its_own_file_how_it_is_written_and_which_way_is_better():
    for key, member in members("metrics").items():
        assert member.facts["acronym"].replace(" ", "_").lower() == key
        assert type(member.facts["higher_is_better"]) is bool


def test_the_headline_metrics_have_places_without_gaps_and_known_voxel_rules():
    headline = {
        member.facts["headline"]: key for key, member in members("metrics").items() if "headline" in member.facts
    }
    assert [place for place, _ in sorted(headline)] == [1, 2, 3, 4, 5]
    assert all(rule in VOXELS for (_, rule), key in headline.items() if key in MEMBERS)
    assert all(rule == "" for (_, rule), key in headline.items() if key not in MEMBERS)


@pytest.mark.parametrize("voxels", ["truth", "predicted", "union", "all"])
def test_it_gives_a_number_for_all_classes_together_and_only_for_classes_that_exist(metric, voxels):
    values = metric.value(statistics_of(metric, *example()).on(voxels))
    assert isinstance(values[None], float)
    assert np.isfinite(values[None])
    assert set(values) - {None} <= set(range(CLASSES))
    assert all(isinstance(value, float) for value in values.values())


def test_without_a_voxel_it_is_undefined_and_not_a_lucky_number(metric):
    p, labels = example()
    p[:] = np.array([0.97, 0.01, 0.01, 0.01], np.float32)[:, None, None, None]
    curves = statistics_of(metric, p, labels).on("predicted")  # nothing is predicted to be foreground
    assert all(np.isnan(value) for value in metric.value(curves).values())


def test_the_empty_statistics_are_undefined(metric):
    empty = CalibrationStatistics(3) if metric.needs == "calibration" else EqualMassStatistics(3)
    for voxels in VOXELS[:4]:
        assert np.isnan(metric.value(empty.on(voxels))[None])


def test_a_certain_and_faultless_predictor_scores_zero(metric):
    _, labels = example()
    p = (np.arange(CLASSES)[:, None, None, None] == labels).astype(np.float32)
    for voxels in VOXELS[:4]:
        value = metric.value(statistics_of(metric, p, labels).on(voxels))[None]
        if next(k for k, m in MEMBERS.items() if m.class_name == type(metric).__name__) not in BEST_IS_NOT_ZERO:
            assert value == 0


def test_the_order_of_the_voxels_changes_nothing(metric):
    p, labels = example()
    order = np.random.default_rng(1).permutation(labels.size)
    shuffled = statistics_of(metric, p.reshape(CLASSES, -1)[:, order], labels.reshape(-1)[order])
    assert metric.value(shuffled.on("all")) == metric.value(statistics_of(metric, p, labels).on("all"))


def test_renaming_foreground_classes_renames_the_values(metric):
    p, labels = example()
    new = np.array([0, 3, 1, 2])  # class k becomes new[k]
    before = metric.value(statistics_of(metric, p, labels).on("all"))
    after = metric.value(statistics_of(metric, p[np.argsort(new)], new[labels]).on("all"))
    assert after[None] == pytest.approx(before[None], abs=1e-12)
    for k in set(before) - {None}:
        assert after[int(new[k])] == pytest.approx(before[k], abs=1e-12)


def test_a_case_pooled_with_itself_keeps_its_value(metric):
    once = statistics_of(metric, *example())
    twice = once + once
    bound = metric.error_bound(twice.on("all")) if metric.needs == "equal_mass" else 0.0
    assert metric.value(twice.on("all"))[None] == pytest.approx(metric.value(once.on("all"))[None], abs=1e-12 + bound)


def test_the_brier_score_is_the_sum_of_its_parts():
    rng = np.random.default_rng(0)
    p = (rng.integers(0, 15, 5000) + 0.5) / 15  # one probability per bin: nothing is lost within bins
    labels = (rng.random(5000) > p).astype(int)
    curves = calibration_statistics(np.stack([p, 1 - p]), labels, kind="probabilities").on("all")
    parts = [Brier(), BrierReliability(), BrierResolution(), BrierUncertainty()]
    score, reliability, resolution, uncertainty = (part.value(curves)[0] for part in parts)
    assert score == pytest.approx(reliability - resolution + uncertainty, abs=1e-8)
    assert uncertainty == pytest.approx((labels == 0).mean() * (labels == 1).mean())


def test_the_options_and_facts_of_a_group_of_metrics_are_those_of_each_member():
    hd95 = find("metrics", "hd95")
    assert {option.name: bool(option.note) for option in hd95.options} == {"definition": True, "empty": True}
    assert hd95.facts["needs"] == "surface"
    assert find("metrics", "assd").options == tuple(option for option in hd95.options if option.name == "empty")
