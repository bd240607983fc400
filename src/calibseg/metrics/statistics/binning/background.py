r"""The short way for sure background, which most voxels of a volume are: sums without looking for bins.

A voxel is sure background where its label is 0, every other class has a probability of at most the threshold, and class
0 one in the last bin (and above the threshold and 7/8, so that it is predicted). All such voxels are in one cell (see
`calibration`), and each class of them in one bin: class 0 in the last, as hit and prediction; the others in the one up
to the threshold. So each class needs one count and one sum over a whole chunk instead of a scatter-add. A histogram
of equal-mass bins needs class 0 alone: the others are below its threshold and not predicted, which it does not count.
From 1/2 on a float32 p is a multiple of 2^-24, so counting the numbers 2^24 (1 - p) tells all.

The numbers that are summed are the integers that `torch_pass` and `packed_sums` sum, so both ways give the same words.

Where other voxels lie between, they are handed back and overwritten by p = (1, 0, ..., 0) of label 0, which adds
nothing to squares and -log p, and to the sum of p_0 a whole 1 each, taken out again in the end. That is faster than
to copy the sure ones.
"""

import numpy as np
import torch
from torch import Tensor

from calibseg.core.types import Array
from calibseg.metrics.statistics.binning.chunk import VoxelChunk
from calibseg.metrics.statistics.binning.equal_mass.histogram import bucket_index
from calibseg.metrics.statistics.binning.packed_sums import PACKER, fixed, total
from calibseg.metrics.statistics.binning.reader import VoxelReader
from calibseg.metrics.statistics.calibration import FRACTION_BITS, Bins

WORTH = 0.25  # share of sure voxels from which on the short way pays
UNITS = 1 << 24  # of float32 numbers from 1/2 to 1


class Background:
    """Takes the sure background out of chunks of softmax probabilities with hard labels and no zones, on the CPU."""

    def __init__(self, classes: int, bins: Bins, fine_threshold: float | None, longest: int) -> None:
        self.threshold = float(np.float32(bins.threshold))
        self.edge = max(float(bins.edges[-2]), self.threshold, 0.875)  # p_0 lies above it
        self.voxels = self.overwritten = self.nll = 0
        self.confidence, self.squares = np.zeros(classes, np.int64), np.zeros(classes, np.int64)
        self.rounding = torch.tensor(PACKER, dtype=torch.float64)
        self.fine_threshold = fine_threshold
        self.near = torch.zeros(int((1 - self.edge) * UNITS) + 1, dtype=torch.int32)  # voxels by UNITS (1 - p)
        self.ones = torch.ones(longest, dtype=torch.int32)

    @staticmethod
    def applies(reader: VoxelReader) -> bool:
        """Whether the voxels of a volume can go this way."""
        return reader.hard and reader.bands.number == 1

    def take(self, chunk: VoxelChunk) -> VoxelChunk | None:
        """Add the sure background of a chunk and return its other voxels; p and nll of the chunk are used up."""
        unsure = self._unsure(chunk)
        if unsure is None:
            self._add(chunk.p, chunk.nll, 0)
            return None
        others = np.flatnonzero(unsure.numpy())
        if len(others) > (1 - WORTH) * len(chunk.y):
            return chunk
        rest = chunk.at(others)
        ones = unsure.double()
        zeros = 1 - ones
        chunk.p.mul_(zeros)
        chunk.p[0].add_(ones)
        self._add(chunk.p, chunk.nll.mul_(zeros), len(others))
        return rest

    def _unsure(self, chunk: VoxelChunk) -> Tensor | None:
        """Which voxels are not sure background; None: all are."""
        background, foreground = chunk.rounded[0], chunk.rounded[1:].amax(0)
        if foreground.amax() <= self.threshold and background.amin() > self.edge and chunk.y.amax() == 0:
            return None  # the usual case costs a few looks
        return ((foreground + chunk.y) > self.threshold).logical_or_(background <= self.edge)  # y is 0 or at least 1

    def _add(self, p: Tensor, nll: Tensor, overwritten: int) -> None:
        self.voxels += len(nll) - overwritten
        self.overwritten += overwritten
        self.confidence += self._sum(p)
        self.nll += int(fixed(nll, FRACTION_BITS["nll"]).sum())
        if self.fine_threshold is not None:
            near = torch.rsub(p[0].float(), 1).mul_(UNITS).int().long()  # at once it would take three times as long
            self.near.scatter_add_(0, near, self.ones[: len(near)])
        p[0].sub_(1.0)
        self.squares += self._sum(p.square_())

    def _sum(self, numbers: Tensor) -> Array:
        """The sums [k] of round(v 2^32), see `packed_sums`."""
        return total(torch.add(self.rounding, numbers, alpha=2.0**32).view(torch.int64)).numpy()

    def add_to(self, sums: dict[str, Array]) -> None:
        """Add to tables: count, confidence and hits [cell m k b], squares [cell k], nll [2 cell k]."""
        ones = self.overwritten << 32
        confidence = self.confidence.copy()
        confidence[0] -= ones
        sums["count"][0, 1, 0, -1] += self.voxels
        sums["count"][0, 0, 1:, 0] += self.voxels
        sums["hits"][0, 1, 0, -1] += self.voxels << 32
        sums["confidence"][0, 1, 0, -1] += confidence[0]
        sums["confidence"][0, 0, 1:, 0] += confidence[1:]
        sums["squares"][0] += self.squares
        sums["nll"][:, 0, 0] += divmod(self.nll, 1 << FRACTION_BITS["nll"])

    def add_to_fine(self, tables: Array) -> None:
        """Add to count, confidence and hits [3 cell m k g]."""
        if self.fine_threshold is None:
            return
        counts = self.near.numpy().astype(np.int64)
        counts[0] -= self.overwritten
        near = np.flatnonzero(counts)
        count, p = counts[near], (UNITS - near) << 8
        bucket = bucket_index(torch.from_numpy(p / 2.0**32).float(), self.fine_threshold).numpy()
        for table, values in zip(tables, (count, count * p, count << 32), strict=True):
            np.add.at(table[0, 1, 0], bucket, values)
