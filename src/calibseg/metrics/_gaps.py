"""What the calibration metrics share: the gap between confidence and accuracy, bin by bin."""

from collections.abc import Callable

import numpy as np

from calibseg.core.types import Array
from calibseg.metrics import Values
from calibseg.metrics.statistics.calibration import ReliabilityCurves

Curve = tuple[Array, Array, Array]  # count, sum of confidence, sum of labels, each [b]


def shares(curve: Curve) -> tuple[Array, Array]:
    """Each bin's share of the voxels, times its mean confidence minus its accuracy; and the share. NaN where empty."""
    count, confidence, hits = curve
    total = count.sum()
    if total == 0:
        return np.full(len(count), np.nan), np.full(len(count), np.nan)
    return (confidence - hits) / total, count / total


def gaps(curve: Curve) -> Array:
    """Mean confidence minus accuracy of the bins that are not empty."""
    count, confidence, hits = curve
    filled = count > 0
    return (confidence[filled] - hits[filled]) / count[filled]


def confidence_curves(curves: ReliabilityCurves) -> dict[int | None, Curve]:
    """None: the top-label curve; k: the same of the voxels predicted k. With sigmoid, k: channel k's own curve."""
    if curves.activation == "sigmoid":
        return class_curves(curves)
    rows: dict[int | None, Curve] = {
        k: (curves.top_count[k], curves.top_confidence[k], curves.top_hits[k]) for k in range(curves.classes)
    }
    rows[None] = (curves.top_count.sum(0), curves.top_confidence.sum(0), curves.top_hits.sum(0))
    return rows


def of_confidence(curves: ReliabilityCurves, value: Callable[[Curve], float]) -> Values:
    """A value of every confidence curve; where no curve is that of all classes together, their mean is."""
    values: Values = {k: value(curve) for k, curve in confidence_curves(curves).items()}
    values.setdefault(None, mean(list(values.values())))
    return values


def class_curves(curves: ReliabilityCurves) -> dict[int | None, Curve]:
    """k: the probability of class k against whether the label is k, over every voxel that counts."""
    return {k: (curves.count[k], curves.confidence[k], curves.hits[k]) for k in range(curves.classes)}


def mean(values: list[float]) -> float:
    """The mean of those that are defined; NaN where none is."""
    defined = [value for value in values if not np.isnan(value)]
    return float(np.mean(defined)) if defined else float("nan")
