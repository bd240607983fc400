"""Voxels chosen by their distance to the true surface."""

import numpy as np
import pytest

from calibseg.core.types import BadInput
from calibseg.metrics import ECE
from calibseg.metrics.statistics.binning import calibration_statistics
from calibseg.metrics.statistics.distance_bands import distance_bands, signed_distance_mm


def example():
    """Logits of three classes, and labels with a wide background."""
    rng = np.random.default_rng(0)
    logits = rng.normal(scale=3.0, size=(3, 8, 20, 20)).astype(np.float32)
    labels = rng.integers(0, 3, (8, 20, 20))
    labels[:, :10] = 0
    return logits, labels


def test_the_boundary_rule_and_the_distance_curve_choose_voxels_by_distance():
    logits, labels = example()
    spacing = (3.0, 1.0, 1.0)
    distance = signed_distance_mm(labels, spacing)
    bands = distance_bands(2.0, (1.0, 4.0))
    statistics = calibration_statistics(logits, labels, kind="logits", distance_mm=distance, bands=bands)
    near = np.abs(distance) <= 2.0
    expected = calibration_statistics(logits[:, near], labels[near], kind="logits")
    assert ECE().value(statistics.on("boundary")) == pytest.approx(ECE().value(expected.on("all")), nan_ok=True)
    counts = {limits: curves.number for limits, curves in statistics.by_distance()}
    assert counts[(2.0, 4.0)] == int(((distance > 2) & (distance <= 4)).sum())
    assert counts[(-np.inf, -4.0)] == int((distance < -4).sum())
    assert sum(counts.values()) == labels.size


def test_a_distance_that_is_not_a_number_is_refused_with_its_place():
    logits, labels = example()
    distance = signed_distance_mm(labels, (1.0, 1.0, 1.0))
    distance[3, 4, 5] = np.nan
    with pytest.raises(BadInput, match=r"the distance is NaN at voxel \(z 3, y 4, x 5\)"):
        calibration_statistics(logits, labels, kind="logits", distance_mm=distance, bands=distance_bands(2.0))


def test_the_distance_is_that_to_the_nearest_voxel_of_the_other_side_by_a_loop():
    labels, spacing = np.random.default_rng(1).integers(0, 3, (3, 4, 5)), (3.0, 1.0, 0.5)
    distance = signed_distance_mm(labels, spacing, ignore_label=2)
    inside = labels == 1
    centres = np.argwhere(np.ones_like(inside)).reshape(*labels.shape, 3) * spacing
    for place in np.ndindex(labels.shape):
        others = centres[inside != inside[place]] - centres[place]
        nearest = np.sqrt((others**2).sum(1)).min()
        assert distance[place] == pytest.approx(-nearest if inside[place] else nearest)
    assert (signed_distance_mm(np.zeros((2, 2)), (1.0, 1.0)) == np.inf).all()
    assert (signed_distance_mm(np.ones((2, 2)), (1.0, 1.0)) == -np.inf).all()
    with pytest.raises(BadInput, match="3 spacings do not fit labels with 2 axes"):
        signed_distance_mm(np.zeros((2, 2)), spacing)
