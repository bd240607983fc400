r"""How sure a prediction is at each depth inside what it predicts.

The depth of a voxel is the number of steps over voxel faces to the nearest voxel predicted as another class: 1 at a
boundary. The faces of the image are no boundary. For every class, background too, the number of voxels and the sum of
the predicted class's probability by depth (9: deeper than 8). With sigmoid each channel is judged apart.

>>> p = np.array([0.1, 0.6, 0.9, 0.7, 0.8], np.float32).reshape(1, 1, 1, 5)
>>> depth = DepthStatistics.of(np.concatenate([1 - p, p]), kind="probabilities")
>>> depth.counts[1].tolist()                                              # class 1 has voxels of depth 1, 2, 3 and 4
[0, 1, 1, 1, 1, 0, 0, 0, 0, 0]
"""

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
    def of(cls, scores: Any, *, kind: ScoreKind, activation: Activation = "softmax") -> "DepthStatistics":
        """Of scores [k *space] that have been found good: values are not checked."""
        classes = scores.shape[0]
        if activation == "softmax":
            p, predicted = _likeliest(scores, kind)
            tables = [_table(p, steps(predicted) + predicted.astype(np.int64) * (DEEPEST + 2), classes)]
        else:
            tables = [
                _table(p, steps(p > 0.5) * (p > 0.5), 1) for p in (_sigmoid(scores[k], kind) for k in range(classes))
            ]
        counts, sums = (np.concatenate(parts) for parts in zip(*tables, strict=True))
        counts[:, 0], sums[:, 0] = 0, 0  # of a channel: where it is not predicted
        return cls(counts, sums, activation)


def steps(labels: Array) -> Array:
    """uint8 [*space]: over how many faces the nearest voxel of another label lies, DEEPEST + 1 if farther."""
    near = _spread(np.zeros(labels.shape, bool), lambda a, b: a != b, labels)
    depth = np.full(labels.shape, DEEPEST + 1, np.uint8)
    for _ in range(DEEPEST):
        depth -= near.view(np.uint8)
        near = _spread(near.copy(), lambda a, b: a | b, near)
    return depth


def _spread(marked: Array, joined: Any, values: Array) -> Array:
    """`marked`, or joined(a, b) of the values of any two voxels that share a face, for both of them."""
    for axis in range(values.ndim):
        low, high = ([slice(None)] * values.ndim for _ in range(2))
        low[axis], high[axis] = slice(None, -1), slice(1, None)
        both = joined(values[tuple(low)], values[tuple(high)])
        marked[tuple(low)] |= both
        marked[tuple(high)] |= both
    return marked


def _likeliest(scores: Any, kind: ScoreKind) -> tuple[Array, Array]:
    """The predicted class's probability and the class, plane by plane."""
    from calibseg.core.labels import likeliest_class  # metrics are listed and built without waiting for torch

    best, where = np.empty(scores.shape[1:], np.float32), np.empty(scores.shape[1:], np.int32)
    for z in range(scores.shape[1]):
        plane = np.asarray(scores[:, z], np.float32)
        where[z] = likeliest_class(np.asarray(scores[:, z]))
        top = plane.max(0)
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
