r"""A fine histogram of probabilities: equal-mass bins that add up over cases, with a stated error.

Adaptive bins hold equally many voxels, so their edges are quantiles: cut j of B bins lies after the first
floor(j n / B) voxels in the order of their probability. Voxels with the same probability share their hits evenly
wherever a cut parts them, so the order of the voxels does not matter.

Buckets are of float32 p (p < 1/2) or 1 - p (p >= 1/2), by exponent and 7 bits of mantissa, so that a bucket is at most
1/128 as wide as its distance from 0 or 1. The counts and sums of buckets are additive. For one case `exact` looks
into the few buckets that a cut parts, and is exact. For the sum of many cases only the histogram is known: inside a
parted bucket hits and probabilities are taken to be spread evenly, and `bound` says how far the value can be from the
exact one. With o the number of voxels of that bucket below the cut, c its voxels, h its hits, C its sum of
probabilities and [lo, hi] its range: the hits below lie between max(0, o - c + h) and min(o, h), the probabilities
between max(o lo, C - (c - o) hi) and o C / c. The bound is twice the sum over the cuts of the distance to the further
end, over n.
"""

from dataclasses import dataclass, replace
from functools import cache
from typing import Self

import numpy as np
import torch
from torch import Tensor

from calibseg.core.types import Activation, Array, BadInput
from calibseg.metrics.statistics.calibration import VoxelRule, as_float, carried, cells_of_rule
from calibseg.metrics.statistics.curve import EqualMassCurves

RULES: tuple[VoxelRule, ...] = ("truth", "predicted", "union", "all")
HALF = int(np.float32(0.5).view(np.int32)) >> 16
LAST = (int(np.float32(2.0**-24).view(np.int32)) >> 16) - 1  # of 1 - p = 0; the next is the least 1 - p there is
SINGLE = int(np.float32(2.0**-16).view(np.int32)) >> 16  # below it a bucket of 1 - p holds one number only


@dataclass(frozen=True)
class EqualMassStatistics:
    """A fine histogram (additive), and the exact bins while they are those of one case.

    Axes: t truth is foreground, p prediction is foreground, m this class is the predicted one, k class, g bucket.
    """

    classes: int
    bins: int = 15
    threshold: float = 1e-3
    activation: Activation = "softmax"
    count: Array = None  # pyright: ignore[reportAssignmentType]  # [t p m k g]
    confidence: Array = None  # pyright: ignore[reportAssignmentType]  # [2 t p m k g]
    hits: Array = None  # pyright: ignore[reportAssignmentType]  # [2 t p m k g]
    exact: Array | None = None  # [rule row 3 cut]: voxels, probabilities and hits below each cut, and in all
    cases: int = 0

    def __post_init__(self) -> None:
        if not 2.0**-126 <= self.threshold <= 0.5:
            raise BadInput(f"the threshold of equal-mass bins must lie between 2^-126 and 1/2, not {self.threshold}")
        for name, shape in self.shapes.items():
            if getattr(self, name) is None:
                object.__setattr__(self, name, np.zeros(shape, np.int64))

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        full = (2, 2, 2, self.classes, bucket_number(self.threshold))
        return {"count": full, "confidence": (2, *full), "hits": (2, *full)}

    @property
    def sums(self) -> dict[str, Array]:
        """The additive int64 arrays."""
        return {name: getattr(self, name) for name in self.shapes}

    def merge(self, other: Self) -> Self:
        """Both together; from two cases on, values are those of the histogram, with a bound."""
        for name in ("classes", "bins", "threshold", "activation"):
            if getattr(self, name) != getattr(other, name):
                raise BadInput(
                    f"equal-mass statistics taken under different rules do not add up: {name} is "
                    f"{getattr(self, name)} in one and {getattr(other, name)} in the other"
                )
        if not self.cases or not other.cases:
            return self if self.cases else other
        sums = {name: carried(name, array + other.sums[name]) for name, array in self.sums.items()}
        return replace(self, **sums, exact=None, cases=self.cases + other.cases)

    __add__ = merge

    def on(self, voxels: VoxelRule) -> EqualMassCurves:
        """The equal-mass bins of the voxels that a rule chooses."""
        if voxels not in RULES:
            raise BadInput(f"equal-mass bins know no voxel rule {voxels!r}. Known: {', '.join(RULES)}")
        if self.exact is not None:
            below = self.exact[RULES.index(voxels)]
            bound = np.zeros(len(below))
        else:
            rows = [self._below(*row) for row in self.rows(voxels)]
            below = np.stack([row[0] for row in rows])
            bound = np.array([row[1] for row in rows])
        count, confidence, hits = np.diff(below, axis=-1).transpose(1, 0, 2)
        return EqualMassCurves(count, confidence, hits, bound, self.classes, self.activation)

    def rows(self, voxels: VoxelRule) -> list[tuple[Array, Array, Array]]:
        """count, confidence and hits [g] of every row of `EqualMassCurves`."""
        cells = np.flatnonzero(cells_of_rule(voxels).reshape(4)).tolist()
        rows = range(2 * self.classes if self.activation == "sigmoid" else self.classes + 1)
        return [
            (self._row(i, cells, "count"), self._row(i, cells, "confidence"), self._row(i, cells, "hits")) for i in rows
        ]

    def number(self, row: int, cell: int, wanted: Array) -> int:
        """How many voxels of a row and cell lie in the buckets [g] that are wanted."""
        return int(self._row(row, [cell], "count")[wanted].sum())

    def _row(self, row: int, cells: list[int], name: str) -> Array:
        """The sums [g] of one row, a cell at a time: these are small, and new memory costs more than arithmetic."""
        table = self.sums[name]
        table = table.reshape(*table.shape[:-5], 4, *table.shape[-3:])  # [cell m k g], for words [2 cell m k g]
        if row == self.classes and self.activation == "softmax":
            sums = np.sum([table[..., cell, 1, :, :].sum(-2) for cell in cells], 0)
        else:
            sums = np.sum([table[..., cell, :, row % self.classes, :].sum(-2) for cell in cells], 0)
        if row < self.classes:
            sums[..., 0] = 0  # these rows are of pairs above the threshold
        return sums if name == "count" else as_float(name, sums)

    def _below(self, count: Array, confidence: Array, hits: Array) -> tuple[Array, float]:
        """Voxels, probabilities and hits below each cut, spread evenly inside a bucket; and the bound."""
        cuts, bucket, inside = cut_places(count, self.bins)
        before = [np.concatenate([[0], np.cumsum(part)]) for part in (count, confidence, hits)]
        c, total, h = (np.maximum(count[bucket], 1), confidence[bucket], hits[bucket])
        part = inside / c
        below = np.stack([cuts, before[1][bucket] + part * total, before[2][bucket] + part * h]).astype(np.float64)
        low, high, single = bucket_ranges(self.threshold)
        spread = part * total - np.maximum(inside * low[bucket], total - (c - inside) * high[bucket])
        skew = np.maximum(np.minimum(inside, h) - part * h, part * h - np.maximum(0, inside - c + h))
        error = np.where(single[bucket] | (inside == 0), 0.0, spread.clip(min=0) + skew)
        return below, float(2 * error.sum() / max(cuts[-1], 1))

    def to_arrays(self) -> dict[str, Array]:
        """Plain numeric arrays, for safetensors or npz without pickling; the histogram as its filled cells only."""
        filled = np.flatnonzero(self.count)
        words = {
            f"{name}_{i}": getattr(self, name)[i].reshape(-1)[filled] for name in ("confidence", "hits") for i in (0, 1)
        }
        return {
            "rules": np.array([self.classes, self.bins, int(self.activation == "sigmoid"), self.cases]),
            "threshold": np.array(self.threshold),
            "filled": filled,
            "count": self.count.reshape(-1)[filled],
            **words,
            "exact": np.zeros(0) if self.exact is None else self.exact,
        }

    @classmethod
    def from_arrays(cls, arrays: dict[str, Array]) -> Self:
        """The inverse of `to_arrays`."""
        missing = {"rules", "threshold", "filled", "count", "exact"} - set(arrays)
        if missing:
            raise BadInput(f"these are not equal-mass statistics: {', '.join(sorted(missing))} missing")
        classes, bins, sigmoid, cases = (int(value) for value in arrays["rules"])
        empty = cls(classes, bins, float(arrays["threshold"]), "sigmoid" if sigmoid else "softmax", cases=cases)
        filled = np.asarray(arrays["filled"])
        empty.count.reshape(-1)[filled] = arrays["count"]
        for name in ("confidence", "hits"):
            for i in (0, 1):
                getattr(empty, name)[i].reshape(-1)[filled] = arrays[f"{name}_{i}"]
        return replace(empty, exact=np.asarray(arrays["exact"]) if arrays["exact"].size else None)


def cut_places(count: Array, bins: int) -> tuple[Array, Array, Array]:
    """The cuts 0, ..., n; the bucket that each lies in; and how many voxels of that bucket lie below it."""
    ends = np.cumsum(count)
    n = int(ends[-1])
    cuts = np.arange(bins + 1) * n // bins
    bucket = np.minimum(np.searchsorted(ends, cuts, "right"), len(count) - 1)
    bucket[cuts == n] = len(count) - 1
    return cuts, bucket, cuts - (ends[bucket] - count[bucket])


def parted(count: Array, bins: int, threshold: float) -> Array:
    """Which buckets a cut parts, so that the numbers inside matter."""
    _, bucket, inside = cut_places(count, bins)
    is_parted = np.zeros(len(count), bool)
    is_parted[bucket[(inside > 0) & (inside < count[bucket])]] = True
    return is_parted & ~bucket_ranges(threshold)[2]


def bucket_index(p: Tensor, threshold: float) -> Tensor:
    """The bucket of each float32 probability, as int64: 0 up to the threshold, then growing with p."""
    low = first_bits(threshold)
    upper = p >= 0.5
    bits = torch.where(upper, 1 - p, p).view(torch.int32).long() >> 16
    index = torch.where(upper, (2 * HALF - low + 1) - bits.clamp_min(LAST), bits - (low - 1))
    return index.masked_fill_(p <= float(np.float32(threshold)), 0)


def first_of_bucket(bucket: int, threshold: float) -> int:
    """The bits of the least float32 in a bucket, or of one between it and the bucket before."""
    if bucket == 0:
        return 0
    if bucket == 1:  # shares its high bits with the threshold
        return int(np.float32(threshold).view(np.int32)) + 1
    bits = bucket + first_bits(threshold) - 1
    if bits <= HALF:
        return bits << 16
    largest = (((2 * HALF - bits) << 16) | 0xFFFF) if 2 * HALF - bits > LAST else 0  # of 1 - p
    p = 1 - np.int32(largest).view(np.float32).astype(np.float64)
    return int(np.float32(np.ceil(p * 2.0**24) / 2.0**24).view(np.int32))


@cache
def bucket_starts(threshold: float) -> Array:
    """`first_of_bucket` of every bucket."""
    return np.array([first_of_bucket(g, threshold) for g in range(bucket_number(threshold))], np.int64)


def bucket_number(threshold: float) -> int:
    """How many buckets there are."""
    return 2 * HALF - first_bits(threshold) + 2 - LAST


@cache
def bucket_ranges(threshold: float) -> tuple[Array, Array, Array]:
    """The least and the largest number of each bucket, and whether it holds one float32 only."""
    low_side = np.arange(first_bits(threshold), HALF)
    low = _from_bits(low_side)
    high = _from_bits(low_side + 1)
    high_side = np.arange(HALF, LAST, -1)  # bits of 1 - p
    low = np.concatenate([[0.0], low, 1 - _from_bits(high_side + 1), [1.0]])
    high = np.concatenate([[threshold], high, 1 - _from_bits(high_side), [1.0]])
    single = np.concatenate([np.zeros(1 + len(low_side), bool), high_side < SINGLE, [True]])
    return low, high, single


def first_bits(threshold: float) -> int:
    """The high bits of the threshold, which its bucket shares."""
    return int(np.float32(threshold).view(np.int32)) >> 16


def high_bits(threshold: float) -> tuple[Array, Array]:
    """The high bits of p or 1 - p that each bucket but the first is named after, and which are of 1 - p."""
    g, first = np.arange(bucket_number(threshold)), first_bits(threshold)
    near_one = g > HALF - first
    return np.where(near_one, 2 * HALF - first + 1 - g, g + first - 1), near_one


def _from_bits(high_bits: Array) -> Array:
    return (high_bits.astype(np.int32) << 16).view(np.float32).astype(np.float64)
