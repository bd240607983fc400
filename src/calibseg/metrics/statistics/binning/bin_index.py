r"""Where a probability falls: its bin, its bucket in a fine histogram, or both at once.

Bin and bucket (see `calibration`, `equal_mass`) both grow with p, so as p grows their sum grows whenever either does:
the sum names the pair. One table over such places then holds the sums over bins and those over buckets.

Everything is arithmetic on float32 numbers and on their bits, which grow alike: comparisons, which make booleans, are
several times slower on a CPU.
"""

from functools import cache

import numpy as np
import torch
from torch import Tensor

from calibseg.core.types import Array
from calibseg.metrics.statistics.binning.equal_mass.histogram import (
    HALF,
    LAST,
    bucket_number,
    bucket_starts,
    first_bits,
)
from calibseg.metrics.statistics.calibration import Bins


class BinIndex:
    """Places by bin (`bins`), by bucket (`fine` is the threshold below which there is one bucket), or by both."""

    def __init__(self, bins: Bins | None, fine: float | None, device: torch.device) -> None:
        self.bins, self.fine = bins, fine
        self.threshold = float(np.float32(bins.threshold if bins is not None else fine))
        buckets = 0 if fine is None else bucket_number(fine)
        self.size = buckets + (0 if bins is None else bins.stored)
        if bins is not None:
            self.scale = bins.scale
            self.inner = torch.from_numpy(bins.edges[1:-1]).to(device)

    def of(self, p: Tensor) -> Tensor:
        """The places of float32 probabilities, as int32: 0 up to the threshold."""
        kept = torch.threshold(p, self.threshold, 0.0)
        if self.fine is not None:
            first = first_bits(self.fine)
            bucket = kept.view(torch.int32).clamp((first - 1) << 16, HALF << 16).__irshift__(16)
            near_one = (1 - kept).view(torch.int32).clamp_(LAST << 16, HALF << 16).__irshift__(16)
            bucket.sub_(near_one).add_(HALF - first + 1)
            return bucket if self.bins is None else bucket.add_(self._bin(kept))
        return self._bin(kept)

    def _bin(self, kept: Tensor) -> Tensor:
        if self.scale is not None:
            return kept.double().mul_(self.scale).ceil_().int()
        return torch.bucketize(kept.contiguous(), self.inner, out_int32=True).add_(1).masked_fill_(kept == 0, 0)

    def by_bin(self, table: Array) -> Array:
        """A table over places, summed over what shares a bin."""
        if self.bins is None or self.fine is None:
            return table
        return _summed(table, bin_and_bucket(self.bins, self.fine)[0], self.bins.stored)

    def by_bucket(self, table: Array) -> Array:
        """A table over places, summed over what shares a bucket."""
        if self.bins is None or self.fine is None:
            return table
        return _summed(table, bin_and_bucket(self.bins, self.fine)[1], bucket_number(self.fine))


@cache
def bin_and_bucket(bins: Bins | None, fine: float) -> tuple[Array, Array]:
    """The bin and the bucket of every place: seen at the least number of each bin and of each bucket."""
    if bins is None:
        return np.zeros(bucket_number(fine), np.int64), np.arange(bucket_number(fine))
    cpu = torch.device("cpu")
    least = bucket_starts(fine).astype(np.int32).view(np.float32)
    probes = torch.from_numpy(np.concatenate([least, np.nextafter(bins.edges[1:-1], np.float32(2))]))
    place = BinIndex(bins, fine, cpu).of(probes).numpy()
    pairs = np.zeros((2, BinIndex(bins, fine, cpu).size), np.int64)
    pairs[0, place] = BinIndex(bins, None, cpu).of(probes).numpy()
    pairs[1, place] = BinIndex(None, fine, cpu).of(probes).numpy()
    bin_of, bucket_of = np.maximum.accumulate(pairs, axis=1)  # no number falls into some places
    return bin_of, bucket_of


def _summed(table: Array, groups: Array, number: int) -> Array:
    """Sums over neighbours of the last axis that share a group; groups grow."""
    ends = np.searchsorted(groups, np.arange(number), "right")
    below = np.cumsum(table, axis=-1)[..., np.maximum(ends - 1, 0)] * (ends > 0)
    return np.diff(below, axis=-1, prepend=0)
