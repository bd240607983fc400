"""A chunk: some voxels that are not ignored, with everything that a pass over a volume needs to know of them."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from calibseg.core.types import Array
from calibseg.metrics.statistics.binning.probabilities import NOWHERE

BLOCK = 256  # voxels whose least and largest probabilities are noted for the second pass of equal-mass bins


@dataclass(frozen=True)
class VoxelChunk:
    """Voxels that are not ignored. y holds labels [n], or soft labels [k n]; nll and clipped are shaped as y."""

    p: Tensor  # [k n] float64, for sums
    rounded: Tensor  # [k n] float32, for the bin and the predicted class
    y: Tensor  # [n] int64 or [k n] float64
    nll: Tensor  # float64
    clipped: Tensor  # bool: the probability of the truth is below the least one; NOWHERE where none is
    zone: Tensor | None  # [n] int64; None where there is one zone

    def part(self, a: int, b: int) -> "VoxelChunk":
        """A range of the voxels."""
        return self._each(lambda values: values[..., a:b].contiguous())

    def at(self, places: Array) -> "VoxelChunk":
        """Some of the voxels, on the CPU. (torch.index_select is three times slower.)"""
        return self._each(lambda values: torch.from_numpy(values.numpy().take(places, -1)))

    def _each(self, change: Callable[[Tensor], Tensor]) -> "VoxelChunk":
        p = change(self.p)
        clipped = change(self.clipped) if len(self.clipped) else NOWHERE
        zone = None if self.zone is None else change(self.zone)
        return VoxelChunk(p, p.float(), change(self.y), change(self.nll), clipped, zone)


def joined_chunks(chunks: list[VoxelChunk]) -> VoxelChunk:
    """The voxels of several chunks, without zones, as one."""
    fields = ("p", "rounded", "y", "nll")
    p, rounded, y, nll = (torch.cat([getattr(chunk, name) for chunk in chunks], -1) for name in fields)
    clipped = NOWHERE
    if any(len(chunk.clipped) for chunk in chunks):
        flags = [chunk.clipped if len(chunk.clipped) else torch.zeros_like(chunk.y).bool() for chunk in chunks]
        clipped = torch.cat(flags, -1)
    return VoxelChunk(p, rounded, y, nll, clipped, None)
