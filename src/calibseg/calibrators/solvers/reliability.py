r"""Each class's probability against how often it is right, as additive counts in bins: one pass, any number of voxels.

Bins may be even in p, or even in the logit log p / (1 - p) within +-REACH, where what lies beyond falls into the
outermost ones: even in the logit resolves the ends, where most voxels of a segmentation are.
"""

from collections.abc import Iterable
from functools import partial
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
import torch
from numpy import ndarray as Array
from torch import Tensor, nn

from calibseg.calibrators import Calibrator, ScoreChunk, VoxelStream
from calibseg.calibrators.fitted.module import Formula
from calibseg.core.labels import along_classes
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
    stream.peek()
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


def probability(z: Array, activation: Activation) -> Array:
    return np.exp(z) if activation == "softmax" else 1 / (1 + np.exp(-z))


class CurveCalibrator(Calibrator):
    """What histogram and isotonic regression share: for every class a probability in each bin."""

    learnt = ("table", "keep")
    scale: ClassVar[Scale]

    def __init__(self, **common: Any) -> None:
        super().__init__(**common)
        self.table, self.keep = np.zeros((0, 0)), np.zeros((0, 0), np.uint8)

    def set_curves(self, table: Array, keep: Array, absent: list[int], more: Iterable[str] = ()) -> None:
        """keep: bins in which the probability stays as it is; absent: classes that keep the identity everywhere."""
        self.table, self.keep = table, keep.astype(np.uint8)
        self.keep[absent] = 1
        notes = [f"class {k} never occurs in the labels: it keeps the identity" for k in absent]
        self.facts = {"fallbacks": [*notes, *more]}

    def parameters(self) -> int:
        return int((self.keep == 0).sum())

    def apply(self, scores: Array, case_context: Any, where: slice | Array) -> Array:
        """Each class's probability by its table, or itself where `keep` says so; softmax sums to 1 again."""
        p = np.empty_like(scores)
        for k, z in enumerate(scores):
            place = bin_of(z, self.table.shape[1], self.scale, self.activation)
            p[k] = self.table[k][place]
            if self.keep[k].any():
                own = self.keep[k][place] > 0
                p[k][own] = probability(z[own], self.activation)
        if self.activation == "softmax":
            p /= p.sum(0)
        return p

    def _module(self, spacing_mm: Any) -> nn.Module:
        numbers = {"table": self.table.astype(np.float32), "keep": self.keep > 0}
        return Formula(partial(_looked_up, self.scale, self.activation), **numbers)


def _weighted(values: Array, chunk: ScoreChunk) -> Any:
    return values if chunk.weight is None else values * chunk.weight


def _looked_up(
    scale: Scale, activation: Activation, scores: Tensor, image: Tensor | None, table: Tensor, keep: Tensor
) -> Tensor:
    """`CurveCalibrator.apply` for a module. (ONNX has no expm1: 1 - exp is exact enough in float64.)"""
    classes, bins = table.shape
    p = torch.exp(scores) if activation == "softmax" else torch.sigmoid(scores)
    if scale == "p":
        place = p * bins
    else:
        z = scores.double()
        z = z - torch.log(1 - torch.exp(z)) if activation == "softmax" else z
        place = (z.clamp(-REACH, REACH) + REACH) * (bins / (2 * REACH))
    first = along_classes(torch.arange(classes, device=scores.device) * bins, scores.ndim)
    index = place.long().clamp(0, bins - 1) + first
    calibrated = torch.where(keep.flatten()[index], p, table.flatten()[index])
    return calibrated / calibrated.sum(1, keepdim=True) if activation == "softmax" else calibrated
