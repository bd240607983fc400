r"""How many raters say that a voxel is of a class, against the probability of it: one pass over a case.

A voxel that v of R raters call class (or region) k, and whose probability of it is p, is counted in the cell of v and
of the bin (j / 1000, (j + 1) / 1000] that holds p; beside it, for each v, the sum of p and the number of voxels
predicted as k. So v = R is the raters' consensus that it is k, v = 0 their consensus that it is not, and in between
they disagree. Votes are whole numbers: whether 4 of 5 raters are more than a share of 0.8 is not left to rounding.

A voxel that any of the raters ignores is left out. The probability of a region is the sum of its classes'.

>>> p = np.array([0.9, 0.6, 0.2], np.float32).reshape(1, 1, 1, 3)
>>> raters = np.array([[1, 1, 0], [1, 0, 0]]).reshape(2, 1, 1, 3)
>>> votes = VoteStatistics.of(np.concatenate([1 - p, p]), raters, {1: ((1,), (1,))}, kind="probabilities")
>>> table = votes.rows[1]
>>> table.voxels.tolist(), table.predicted.tolist(), table.sizes.tolist()              # by 0, 1 and 2 votes; by rater
([1, 1, 1], [0, 1, 1], [2, 1])
>>> table.above(0.5).tolist()
[0, 1, 1]
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from calibseg.core.types import Activation, Array, BadInput, ScoreKind, VoxelName
from calibseg.metrics.statistics.calibration import Bins
from calibseg.metrics.statistics.label_maps import Row

LEVELS = Bins(1000, threshold=1e-4)
CHUNK = 1 << 18  # numbers read at a time: they stay in the cache
Structures = Mapping[Row, tuple[tuple[int, ...], tuple[int, ...]]]  # channels that are summed, labels that are it


@dataclass(frozen=True)
class Votes:
    """One class or region of one case, by the number of its raters' votes (0 to R)."""

    counts: Array  # int64 [votes, bin of p]
    mass: Array  # float64 [votes]: sum of p
    predicted: Array  # int64 [votes]
    sizes: Array  # int64 [rater]: the voxels that each calls so

    @property
    def raters(self) -> int:
        return len(self.sizes)

    @property
    def voxels(self) -> Array:
        """int64 [votes]."""
        return self.counts.sum(1)

    def above(self, level: float) -> Array:
        """int64 [votes]: voxels with p > level, a whole number of thousandths."""
        return self.counts[:, thousandths(level) :].sum(1)


def thousandths(level: float) -> int:
    """A level between 0 and 1 as a whole number of thousandths."""
    number = round(level * LEVELS.number) if 0 < level < 1 else 0
    if not 0 < number < LEVELS.number or abs(number - level * LEVELS.number) > 1e-6:
        raise BadInput(f"a level must be a whole number of thousandths between 0 and 1, not {level!r}")
    return number


@dataclass(frozen=True)
class VoteStatistics:
    """What the raters of one case say and what is predicted, per class and region."""

    rows: dict[Row, Votes]
    voxel_mm3: float

    @classmethod
    def of(
        cls,
        scores: Any,
        raters: Array,
        structures: Structures,
        *,
        kind: ScoreKind,
        activation: Activation = "softmax",
        ignore_label: int | None = None,
        spacing_mm: tuple[float, ...] = (1.0, 1.0, 1.0),
        voxel: VoxelName | None = None,
    ) -> "VoteStatistics":
        """Read scores [k *space] and the raters' labels [r *space] once."""
        from calibseg.core.scores import ScoreReader  # metrics are listed and built without waiting for torch
        from calibseg.metrics.statistics.binning.reader import chunk_probabilities

        reader = ScoreReader(scores, kind, activation, voxel=voxel)
        tables = {row: _Table(len(raters)) for row in structures}
        for at in reader.chunks(CHUNK // reader.classes):
            labels = reader.part(raters, at, leading=True)
            keep = None
            if ignore_label is not None and not (counted := (labels != ignore_label).all(0)).all():
                if not counted.any():
                    continue
                keep, labels = counted, labels[:, counted]
            p, top = chunk_probabilities(reader, at, keep)
            for row, (channels, members) in structures.items():
                own = p[list(channels)].sum(0).clip(max=np.float32(1))
                inside = own > 0.5 if top is None else np.isin(top, channels)
                tables[row].add(own, inside, np.isin(labels, members))
        return cls({row: table.votes() for row, table in tables.items()}, float(prod(spacing_mm)))


class _Table:
    """Sums over the chunks of a case."""

    def __init__(self, raters: int) -> None:
        self.shape = (raters + 1, LEVELS.number)
        self.counts, self.sums = np.zeros(prod(self.shape), np.int64), np.zeros((2, raters + 1))
        self.sizes = np.zeros(raters, np.int64)

    def add(self, p: Array, inside: Array, called: Array) -> None:
        votes = called.sum(0, dtype=np.int64)
        place = np.searchsorted(LEVELS.edges[1:-1], p, side="left")  # bin j holds (j / 1000, (j + 1) / 1000]
        self.counts += np.bincount(votes * LEVELS.number + place, minlength=len(self.counts))
        for total, weights in zip(self.sums, (p.astype(np.float64), inside.astype(np.float64)), strict=True):
            total += np.bincount(votes, weights, self.shape[0])
        self.sizes += called.sum(1)

    def votes(self) -> Votes:
        mass, predicted = self.sums
        return Votes(self.counts.reshape(self.shape), mass, predicted.astype(np.int64), self.sizes)
