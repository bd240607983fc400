r"""How sure a prediction is at each depth inside what it predicts.

The depth of a voxel is the number of steps over voxel faces to the nearest voxel predicted as another class: 1 at a
boundary. The faces of the image are no boundary. For every class, background too, the number of voxels and the sum of
the predicted class's probability by depth (9: deeper than 8). With sigmoid each channel is judged apart. An ignored
voxel is as one outside the image: it counts nowhere, whatever is predicted there, and is no boundary.

>>> p = np.array([0.1, 0.6, 0.9, 0.7, 0.8], np.float32).reshape(1, 1, 1, 5)
>>> depth = DepthStatistics.of(np.concatenate([1 - p, p]), kind="probabilities")
>>> depth.counts[1].tolist()                                              # class 1 has voxels of depth 1, 2, 3 and 4
[0, 1, 1, 1, 1, 0, 0, 0, 0, 0]
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from calibseg.core.types import Activation, Array, ScoreKind

DEEPEST = 8


@dataclass(frozen=True)
class DepthStatistics:
    """Counts and sums of the predicted class's probability, by class and depth."""

    counts: Array  # int64 [k, depth]; depth 0 holds nothing
    sums: Array  # float64
    activation: Activation = "softmax"

    @classmethod
    def of(
        cls,
        scores: Any,
        target: Any = None,
        *,
        kind: ScoreKind,
        activation: Activation = "softmax",
        ignore_label: int | None = None,
    ) -> "DepthStatistics":
        """Of scores [k *space] that have been found good: values are not checked.

        target: as in `calibration_statistics`, for the voxels that it ignores; None: every voxel counts
        """
        classes, counted = scores.shape[0], None  # None takes half the passes over memory
        if target is not None:
            from calibseg.metrics.statistics.binning.reader import VoxelReader  # it would make a list wait for torch

            counted = VoxelReader(scores, target, kind, activation, ignore_label).counted()
        if activation == "softmax":
            p, predicted = _likeliest(scores, kind)
            tables = [_table(p, steps(predicted, counted) + predicted.astype(np.int64) * (DEEPEST + 2), classes)]
        else:
            channels = (_sigmoid(scores[k], kind) for k in range(classes))
            tables = [_table(p, steps(p > 0.5, counted) * (p > 0.5), 1) for p in channels]
        counts, sums = (np.concatenate(parts) for parts in zip(*tables, strict=True))
        counts[:, 0], sums[:, 0] = 0, 0  # what is ignored; of a channel also where it is not predicted
        return cls(counts, sums, activation)


def steps(labels: Array, counted: Array | None = None) -> Array:
    """uint8 [*space]: over how many faces the nearest voxel of another label lies, DEEPEST + 1 if farther.

    counted: which voxels are there at all; the others are 0
    """
    near = np.zeros(labels.shape, bool)
    for low, high in _neighbours(labels.ndim):
        both = labels[low] != labels[high]
        if counted is not None:
            both &= counted[low] & counted[high]
        near[low] |= both
        near[high] |= both
    depth = np.full(labels.shape, DEEPEST + 1, np.uint8)
    for _ in range(DEEPEST):
        depth -= near.view(np.uint8)
        before = near.copy()
        for low, high in _neighbours(labels.ndim):
            near[low] |= before[high]
            near[high] |= before[low]
        if counted is not None:
            near &= counted
    return depth if counted is None else depth * counted


def _neighbours(axes: int) -> Iterator[tuple[tuple[slice, ...], tuple[slice, ...]]]:
    """For each axis, the voxels that have a next one along it, and those next ones."""
    for axis in range(axes):
        before, after = [slice(None)] * axis, [slice(None)] * (axes - axis - 1)
        yield (*before, slice(None, -1), *after), (*before, slice(1, None), *after)


def _likeliest(scores: Any, kind: ScoreKind) -> tuple[Array, Array]:
    """The predicted class's probability and the class, plane by plane."""
    from calibseg.core.labels import likeliest_class  # metrics are listed and built without waiting for torch

    best, where = np.empty(scores.shape[1:], np.float32), np.empty(scores.shape[1:], np.int32)
    for z in range(scores.shape[1]):
        plane = np.asarray(scores[:, z], np.float32)
        where[z] = likeliest_class(np.asarray(scores[:, z]))
        top = plane.max(0)
        with np.errstate(invalid="ignore"):  # only an ignored voxel is infinite
            best[z] = top if kind == "probabilities" else 1 / np.exp(plane - top).sum(0)
    return best, where


def _sigmoid(one: Any, kind: ScoreKind) -> Array:
    values = np.asarray(one, np.float64)
    with np.errstate(over="ignore"):  # of a logit below -709 p is 0
        p = values if kind == "probabilities" else np.exp(values) if kind != "logits" else 1 / (1 + np.exp(-values))
    return p.astype(np.float32)


def _table(p: Array, index: Array, classes: int) -> tuple[Array, Array]:
    """Counts and sums of p [classes, depth] by class * (DEEPEST + 2) + depth."""
    flat, length = index.ravel(), classes * (DEEPEST + 2)
    counts, sums = np.bincount(flat, minlength=length), np.bincount(flat, p.ravel(), length)
    return counts.reshape(classes, -1), sums.reshape(classes, -1)
