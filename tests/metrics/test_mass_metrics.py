"""How much probability there is, and where: soft Dice confidence, mean confidence, soft volume."""

import numpy as np
import pytest

from calibseg.core.registry import members
from calibseg.metrics import CECE, MeanConfidence, SoftDiceConfidence, SoftVolumeError
from calibseg.metrics.statistics.binning import calibration_statistics
from calibseg.metrics.statistics.crps import gaussian_crps, sample_crps

MASS = {"soft_dice_confidence", "mean_confidence", "soft_volume_error"}


def example(seed=0, classes=4):
    rng = np.random.default_rng(seed)
    p = rng.dirichlet([0.4] * classes, (3, 5, 6)).transpose(3, 0, 1, 2).astype(np.float32)
    labels = rng.integers(0, classes, (3, 5, 6)).astype(np.uint8)
    labels[0, 0] = 255
    return p, labels


def curves(p, labels, **options):
    return calibration_statistics(p, labels, kind="probabilities", ignore_label=255, **options).on("all")


def test_these_are_all_metrics_of_how_much_probability_there_is():
    assert {key for key, member in members("metrics").items() if member.load().needs == "mass"} == MASS


@pytest.mark.parametrize("activation", ["softmax", "sigmoid"])
def test_they_are_what_a_loop_over_voxels_says(activation):
    p, labels = example()
    target = labels
    if activation == "sigmoid":
        target = np.where(labels == 255, 255, np.arange(4)[:, None, None, None] == labels).astype(np.uint8)
    found = curves(p, target, activation=activation)
    for k in range(activation == "softmax", 4):
        everywhere = inside = predicted = true = 0.0
        for voxel in np.ndindex(labels.shape):
            if labels[voxel] == 255:
                continue
            own = [float(p[(j, *voxel)]) for j in range(4)]
            is_predicted = own[k] > 0.5 if activation == "sigmoid" else own.index(max(own)) == k
            everywhere += own[k]
            inside += own[k] * is_predicted
            predicted += is_predicted
            true += labels[voxel] == k
        assert SoftDiceConfidence().value(found)[k] == pytest.approx(2 * inside / (everywhere + predicted), abs=1e-8)
        assert MeanConfidence().value(found)[k] == pytest.approx(inside / predicted, abs=1e-8)
        assert SoftVolumeError("signed").value(found)[k] == pytest.approx((everywhere - true) / true, abs=1e-8)
        assert SoftVolumeError().value(found)[k] == pytest.approx(abs(everywhere - true) / true, abs=1e-8)
    assert (0 in SoftDiceConfidence().value(found)) == (activation == "sigmoid")


def test_a_class_that_is_missed_has_no_confidence_and_one_without_any_probability_is_undefined():
    p = np.array([[0.6, 0.7], [0.4, 0.3], [0.0, 0.0]], np.float32)
    values = SoftDiceConfidence().value(curves(p, np.array([0, 1])))
    assert values[1] == 0.0
    assert np.isnan(values[2])
    assert np.isnan(MeanConfidence().value(curves(p, np.array([0, 1])))[1])


@pytest.mark.parametrize("seed", range(5))
def test_the_bias_of_the_expected_volume_is_at_most_voxels_times_the_calibration_error(seed):
    """|sum p - sum y| <= n * ECE of the class, for whatever bins: the triangle inequality."""
    p, labels = example(seed)
    found = curves(p, labels)
    number, errors = int((labels != 255).sum()), CECE().value(found)
    for k in range(1, 4):
        true = int((labels == k).sum())
        bias = abs(SoftVolumeError("signed").value(found)[k]) * true
        assert bias <= number * errors[k] + 1e-6


def test_the_crps_of_a_sample_and_of_a_gaussian_are_the_integrals_that_they_stand_for():
    rng = np.random.default_rng(0)
    sample, observed = rng.normal(3, 2, 9), 4.2
    x = np.linspace(-20, 30, 200001)
    empirical = (sample[:, None] <= x).mean(0)
    assert sample_crps(sample, observed) == pytest.approx(np.trapezoid((empirical - (x >= observed)) ** 2, x), abs=1e-3)
    from scipy.stats import norm

    area = np.trapezoid((norm.cdf(x, 3, 2) - (x >= observed)) ** 2, x)
    assert gaussian_crps(3, 2, observed) == pytest.approx(area, abs=1e-3)


def test_the_crps_of_a_volume_far_from_all_raters_does_not_saturate():
    """Raters 95, 100 and 111: at 130, 200 and 1000 the distance goes on growing."""
    mean, sd = np.mean([95, 100, 111]), np.std([95, 100, 111])
    found = [gaussian_crps(mean, sd, at) for at in (130, 200, 1000)]
    assert found == pytest.approx([24.2, 94.2, 894.2], abs=0.1)
