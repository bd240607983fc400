r"""Hard overlap of two label maps: how many voxels of true class i were called class j.

$$ N_{ij} = \#\{v : y_v = i, \hat y_v = j\} $$

This K x K table of int64 counts is filled in one pass and says everything about overlap: a row R (a class or a region)
has T = N[R, :] true voxels, P = N[:, R] predicted ones and I = N[R, R] in common. Tables of chunks, cases, workers and
ranks add up exactly, in any order.

>>> truth, predicted = np.array([[[0, 1, 1, 2]]]), np.array([[[0, 1, 2, 2]]])
>>> statistics = OverlapStatistics.of(truth, predicted, num_classes=3, regions={"any": (1, 2)})
>>> statistics.rows[1], statistics.rows["any"]
(Overlap(true=2, predicted=1, common=1), Overlap(true=3, predicted=3, common=3))
>>> (statistics + statistics).rows[1]
Overlap(true=4, predicted=2, common=2)
"""

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from calibseg.core.types import Array, BadInput
from calibseg.metrics.statistics.label_maps import Regions, Row, checked, rows

_CHUNK = 1 << 16  # voxels counted at a time: what is made of them stays in the cache


class Overlap(NamedTuple):
    """The voxels of one row: in the truth, in the prediction, in both."""

    true: int
    predicted: int
    common: int


@dataclass(frozen=True)
class OverlapStatistics:
    """Additive counts of true class against predicted class."""

    counts: Array  # int64 [K, K]: true class, predicted class
    regions: Regions = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        truth: Any,
        predicted: Any,
        num_classes: int,
        regions: Regions | None = None,
        ignore_index: int | None = None,
    ) -> "OverlapStatistics":
        """Count two integer label maps of one shape; voxels whose true label is `ignore_index` are ignored."""
        rows(num_classes, regions)
        truth, predicted = checked(truth, predicted, num_classes, ignore_index)
        counts = np.zeros(num_classes * num_classes, np.int64)
        small = np.min_scalar_type(counts.size - 1)  # usually a byte: the pairs of a chunk cost little
        truth, predicted = truth.reshape(-1), predicted.reshape(-1)
        for start in range(0, truth.size, _CHUNK):
            true_chunk, predicted_chunk = truth[start : start + _CHUNK], predicted[start : start + _CHUNK]
            if ignore_index is not None:
                kept = true_chunk != ignore_index
                true_chunk, predicted_chunk = true_chunk[kept], predicted_chunk[kept]
            pairs = true_chunk.astype(small, copy=False) * small.type(num_classes)
            pairs += predicted_chunk.astype(small, copy=False)
            counts += np.bincount(pairs, minlength=counts.size)
        return cls(counts.reshape(num_classes, num_classes), dict(regions or {}))

    def __add__(self, other: "OverlapStatistics") -> "OverlapStatistics":
        if self.counts.shape != other.counts.shape or self.regions != other.regions:
            raise BadInput(
                f"overlap of {len(self.counts)} classes and regions {list(self.regions)} does not add to "
                f"{len(other.counts)} classes and regions {list(other.regions)}"
            )
        return OverlapStatistics(self.counts + other.counts, self.regions)

    @property
    def num_classes(self) -> int:
        return len(self.counts)

    @cached_property
    def rows(self) -> dict[Row, Overlap]:
        """Each foreground class and each region."""
        overlaps = {}
        for row, members in rows(self.num_classes, self.regions).items():
            ids = list(members)
            true, predicted = self.counts[ids].sum(), self.counts[:, ids].sum()
            overlaps[row] = Overlap(int(true), int(predicted), int(self.counts[np.ix_(ids, ids)].sum()))
        return overlaps
