r"""Each class's probability against how often it is right, as additive counts in bins: one pass, any number of voxels.

Bins may be even in p, or even in the logit log p / (1 - p) within +-REACH, where what lies beyond falls into the
outermost ones: even in the logit resolves the ends, where most voxels of a segmentation are.
"""

from typing import Any, Literal, NamedTuple

import numpy as np
from numpy import ndarray as Array

from calibseg.calibrators.solvers.log_scores import probability
from calibseg.calibrators.solvers.voxels import ScoreChunk, VoxelStream
from calibseg.core.types import Activation

REACH = 16.0  # p from 1e-7 to 1 - 1e-7
Scale = Literal["p", "logit"]


class Reliability(NamedTuple):
    """Of every class and bin [k b]: voxels, those that are right, and the sum of their probabilities."""

    number: Array
    hits: Array
    confidence: Array

    @property
    def mean(self) -> Array:
        """The mean probability; NaN in an empty bin."""
        return np.divide(self.confidence, self.number, out=np.full(self.number.shape, np.nan), where=self.number > 0)

    def absent(self) -> list[int]:
        """Classes that are right nowhere: nothing can be learnt of them but to vanish."""
        return [int(k) for k in np.flatnonzero(self.hits.sum(1) == 0)]


def reliability(stream: VoxelStream, bins: int, scale: Scale) -> Reliability:
    """Count every voxel once for each class."""
    counts = Reliability(*(np.zeros((stream.classes, bins)) for _ in range(3)))
    for chunk in stream:
        for k, z in enumerate(chunk.scores):
            place = bin_of(z, bins, scale, stream.activation)
            counts.number[k] += np.bincount(place, chunk.weight, bins)
            counts.confidence[k] += np.bincount(place, _weighted(probability(z, stream.activation), chunk), bins)
            right = chunk.target[k] if chunk.target.ndim == 2 else (chunk.target == k).astype(np.float64)
            counts.hits[k] += np.bincount(place, _weighted(right, chunk), bins)
    return counts


def bin_of(z: Array, bins: int, scale: Scale, activation: Activation) -> Array:
    """The bin of every log score (softmax) or logit (sigmoid)."""
    if scale == "p":
        return np.minimum((probability(z, activation) * bins).astype(np.int64), bins - 1)
    if activation == "softmax":
        with np.errstate(divide="ignore"):
            z = z - np.log(-np.expm1(z))  # p = 1 has the logit infinity, and a bin as well
    return ((np.clip(z, -REACH, REACH) + REACH) * (bins / (2 * REACH))).astype(np.int64).clip(max=bins - 1)


def _weighted(values: Array, chunk: ScoreChunk) -> Any:
    return values if chunk.weight is None else values * chunk.weight
