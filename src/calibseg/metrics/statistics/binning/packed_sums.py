r"""Exact sums of probabilities by place: round(p 2^32), added as integers, so that their order does not matter.

Adding 2^52 + 2^48 to a float64 rounds it to an integer, halves to even, and leaves in the float's bits that integer
plus 0x4331 2^48. So the bits can be added as they are: after c of them the upper 16 bits hold 0x4331 c, modulo 2^16,
from which c follows because 0x4331 is odd, and the lower 48 bits hold the sum. One addition counts and sums.
"""

import numpy as np
import torch
from torch import Tensor

from calibseg.core.types import Array
from calibseg.metrics.statistics.binning.bin_index import BinIndex

PACKER = 2.0**52 + 2.0**48  # see above
PACKER_BITS = int(np.float64(PACKER).view(np.int64))
PACKED_BITS = 48
PACKED_ODD = PACKER_BITS >> PACKED_BITS
COUNTED = pow(PACKED_ODD, -1, 1 << 16)  # times what is in the upper bits: the count
MOST_VOXELS = 0xFFFF  # voxels that a packed cell has room for: 16 bits count them


class PackedSums:
    """Counts and sums of numbers by cell, hit, m (see `calibration`), class and place."""

    def __init__(self, places: BinIndex, cells: int, classes: int, device: torch.device) -> None:
        self.places, self.shape = places, (cells, 2, 2, classes, places.size)
        full, self.step = int(np.prod(self.shape)), classes * places.size
        self.packed = torch.zeros(full, dtype=torch.int64, device=device)
        self.soft = torch.zeros(0, dtype=torch.int64, device=device)
        self.channel = (torch.arange(classes, device=device)[:, None] * places.size).int()
        self.count, self.total = np.zeros(full, np.int64), np.zeros(full, np.int64)
        self.rounding = torch.tensor(PACKER, dtype=torch.float64, device=device)
        self.room = MOST_VOXELS

    def add(self, p: Tensor, rounded: Tensor, state: Tensor, y: Tensor) -> None:
        """Count float64 p [k n] where `rounded` and its state say; with soft labels y [k n] sum those too."""
        place = self.places.of(rounded).add_(self.channel)
        index = place.add_(state, alpha=self.step).long()
        self.put(p, index)
        if y.ndim == 2:
            if not len(self.soft):
                self.soft = torch.zeros_like(self.packed)
            self.soft.scatter_add_(0, index.reshape(-1), fixed(y).reshape(-1))

    def put(self, p: Tensor, index: Tensor) -> None:
        """Count float64 p [k n] at flat places [k n]; n is at most MOST_VOXELS."""
        words = torch.add(self.rounding, p, alpha=2.0**32).view(torch.int64)
        if p.shape[1] > self.room:
            self._unpack()
        self.room -= p.shape[1]
        self.packed.scatter_add_(0, index.reshape(-1), words.reshape(-1))

    def _unpack(self) -> None:
        words = self.packed.cpu().numpy()
        at = np.flatnonzero(words != 0)  # five times faster than without the comparison
        words = words[at]
        self.count[at] += (words >> PACKED_BITS) * COUNTED & 0xFFFF
        self.total[at] += words & ((1 << PACKED_BITS) - 1)
        self.packed.zero_()
        self.room = MOST_VOXELS

    def sums(self) -> tuple[Array, Array, Array]:
        """count, confidence and hits (both in units of 2^-32) [cell m k place]."""
        self._unpack()
        count, total = self.count.reshape(self.shape), self.total.reshape(self.shape)
        hits = count[:, 1] << 32
        if len(self.soft):
            hits = hits + self.soft.cpu().numpy().reshape(self.shape).sum(1)
        return count.sum(1), total.sum(1), hits


def fixed(values: Tensor, bits: int = 32) -> Tensor:
    """round(v 2^bits), halves to even, as int64; 0 <= v 2^bits < 2^51."""
    return (values * 2.0**bits).add_(PACKER).view(torch.int64).sub_(PACKER_BITS)


def total(words: Tensor) -> Tensor:
    """The sums over the last axis of what is in words beside PACKER: int64 wraps around, so it comes off in the end.

    >>> total(torch.tensor([PACKER + 1, PACKER + 2, PACKER + 3], dtype=torch.float64).view(torch.int64)).item()
    6
    """
    extra = words.shape[-1] * PACKER_BITS & 0xFFFFFFFFFFFFFFFF
    return words.sum(-1) - (extra - (1 << 64) if extra >> 63 else extra)
