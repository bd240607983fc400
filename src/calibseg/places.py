r"""Where a probability falls: its bin, its bucket in a fine histogram, or both at once.

Bin and bucket (see `curves` and `fine_histogram`) both grow with p, so as p grows their sum grows whenever either does:
the sum names the pair. One table over such places then holds the sums over bins and those over buckets.

Everything is arithmetic on float32 numbers and on their bits, which grow alike: comparisons, which make booleans, are
several times slower on a CPU.
"""

import numpy as np
import torch
from torch import Tensor

from calibseg.curves import Bins
from calibseg.fine_histogram import HALF, LAST, bucket_number, first_bits, first_of_bucket
from calibseg.types import Array


class Places:
    """Places by bin (`bins`), by bucket (`fine` is the threshold below which there is one bucket), or by both."""

    def __init__(self, bins: Bins | None, fine: float | None, device: torch.device) -> None:
        self.bins, self.fine, self.device = bins, fine, device
        self.threshold = float(np.float32(bins.threshold if bins is not None else fine))
        buckets = 0 if fine is None else bucket_number(fine)
        self.size = buckets + (0 if bins is None else bins.cells)
        if bins is not None:
            self.scale = bins.scale
            self.inner = torch.from_numpy(bins.edges[1:-1]).to(device)

    def of(self, p: Tensor) -> Tensor:
        """The places of float32 probabilities, as int32: 0 up to the threshold."""
        kept = torch.threshold(p, self.threshold, 0.0)
        place = self._bin(kept) if self.bins is not None else torch.zeros_like(kept, dtype=torch.int32)
        if self.fine is not None:
            first = first_bits(self.fine)
            place += kept.view(torch.int32).clamp((first - 1) << 16, HALF << 16).bitwise_right_shift_(16)
            near_one = (1 - kept).view(torch.int32).clamp_(LAST << 16, HALF << 16).bitwise_right_shift_(16)
            place -= near_one.sub_(HALF - first + 1)
        return place

    def _bin(self, kept: Tensor) -> Tensor:
        if self.scale is not None:
            return kept.double().mul_(self.scale).ceil_().int()
        return torch.bucketize(kept, self.inner, out_int32=True).add_(1).masked_fill_(kept == 0, 0)

    def by_bin(self, table: Array) -> Array:
        """A table over places, summed over what shares a bin."""
        return _summed(table, self._pairs()[0], self.bins.cells) if self.fine is not None else table

    def by_bucket(self, table: Array) -> Array:
        """A table over places, summed over what shares a bucket."""
        return _summed(table, self._pairs()[1], bucket_number(self.fine)) if self.bins is not None else table

    def _pairs(self) -> tuple[Array, Array]:
        """The bin and the bucket of every place: seen at the least number of each bin and of each bucket."""
        least = [np.int32(first_of_bucket(g, self.fine)).view(np.float32) for g in range(bucket_number(self.fine))]
        after_edges = np.nextafter(self.bins.edges[1:-1], np.float32(2))
        probes = torch.from_numpy(np.concatenate([np.array(least, np.float32), after_edges])).to(self.device)
        place = self.of(probes).cpu().numpy()
        pairs = np.zeros((2, self.size), np.int64)
        pairs[0, place] = Places(self.bins, None, self.device).of(probes).cpu().numpy()
        pairs[1, place] = Places(None, self.fine, self.device).of(probes).cpu().numpy()
        return pairs[0], pairs[1]


def _summed(table: Array, groups: Array, number: int) -> Array:
    flat = table.reshape(-1, table.shape[-1])
    total = np.zeros((number, len(flat)), table.dtype)
    np.add.at(total, groups, flat.T)
    return total.T.reshape(*table.shape[:-1], number)
