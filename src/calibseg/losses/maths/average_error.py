r"""Average calibration error of every image and class, as something to train on.

With d = s - y, and w_{i,b} the part of voxel i that lies in bin b (of an image and a class),

$$ e_b = \frac{|\sum_i w_{i,b} d_i|}{\sum_i w_{i,b}}, \qquad \mathrm{ACE} = \mathrm{mean}_b \, e_b
   \ \text{ over the bins that are not empty.} $$

Hard bins: M of equal width, (low, high] to two roundings of float32, w is 0 or 1. Soft bins: w falls linearly from 1
at the bin centre to 0 at the centres beside it; below the first and above the last centre a voxel is in the end bin. A
soft bin of less than 0.01 voxels is empty.

Sums are float64, by a scatter_add in every image and class. Neighbours, most of which are in the same bin, are counted
in turn into several copies of it, its lanes, so that no sum waits for the one before. A lane of hard bins has at most
LANE voxels: then one sum of unit + d, with a unit of more than twice as many, tells how many they are and, to 2^-28,
the mean of d. The gradient goes through `softmax_sums.py`:

$$ \frac{\partial}{\partial s_i} \sum_i w_{i,b} d_i = w_{i,b} + w'_{i,b} d_i, \qquad
   \frac{\partial}{\partial s_i} \sum_i w_{i,b} = w'_{i,b}. $$
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

EMPTY = 0.01  # voxels; hard bins hold whole ones
LANES = 4  # at least
LANE = 1 << 12  # voxels at most
BELOW = 1 - 2.4e-7  # an edge belongs to the bin below it


class Place(NamedTuple):
    """A bin that each voxel is in [n k *space], w (None: 1) and w'."""

    bins: Tensor  # int64
    weight: Tensor | None
    steep: Tensor | None


class Bins(NamedTuple):
    """How voxels are binned: bins of equal width, hard or soft. The sums of w d and of w are [2 n k bins]."""

    number: int
    soft: bool

    def start(self, logits: Tensor) -> Tensor:
        return logits.new_zeros((2, *logits.shape[:2], self.number), dtype=torch.float64)

    def plain(self, s: Tensor, y: Tensor, voters: Tensor | None) -> Tensor:
        sums, d = self.start(s), s - y
        for place in self._places(s):
            w = torch.ones_like(d) if place.weight is None else place.weight
            w = w if voters is None else w * voters
            index = self._in_lanes(place.bins, LANES)
            sums = sums + torch.stack([self._summed(index, values.double(), LANES).sum(2) for values in (d * w, w)])
        return sums

    def add(self, sums: Tensor, at: tuple[slice, ...], s: Tensor, y: Tensor, voters: Tensor | None) -> None:
        sums, d = sums[:, at[0]], (s - y).double()
        lanes = max(LANES, 1 << (math.prod(s.shape[2:]) // LANE).bit_length())
        for bins, weight, _ in self._places(s):
            index = self._in_lanes(bins, lanes)
            if weight is None:
                unit = 4.0 * LANE
                d.add_(unit)
                both = self._summed(index, d if voters is None else d * voters, lanes)
                number = (both / unit).round_()
                sums += torch.stack([both.sub_(number, alpha=unit).sum(2), number.sum(2)])
            else:
                w = weight.double() if voters is None else (weight * voters).double()
                sums += torch.stack([self._summed(index, values, lanes).sum(2) for values in (d * w, w)])

    def slope(self, grad: Tensor, at: tuple[slice, ...], s: Tensor, y: Tensor, voters: Tensor | None) -> Tensor:
        of_differences, of_weights = grad[:, at[0]].to(s.dtype)
        parts = []
        for bins, weight, steep in self._places(s):
            index = bins.flatten(2)
            g = of_differences.gather(2, index).view(s.shape)
            if weight is not None and steep is not None:
                g.mul_(torch.addcmul(weight, steep, s - y))
                g.addcmul_(of_weights.gather(2, index).view(s.shape), steep)
            parts.append(g)
        g = parts[0] if len(parts) == 1 else parts[0].add_(parts[1])
        return g if voters is None else g.mul_(voters)

    def mean_error(self, sums: Tensor) -> Tensor:
        """ACE [n k] from the sums, float64; 0 where no voxel counts."""
        differences, weights = sums
        filled = (weights >= EMPTY).double()
        share = filled / filled.sum(-1, keepdim=True).clamp(min=1)
        return (differences.abs() / weights.clamp(min=EMPTY) * share).sum(-1)

    def _places(self, s: Tensor) -> list[Place]:
        """One of hard bins, two of soft ones."""
        if not self.soft:
            return [Place((s.detach() * (self.number * BELOW)).long(), None, None)]
        scaled = s * self.number - 0.5
        place = scaled.clamp(0, self.number - 1)
        low = place.detach().floor().clamp_(max=self.number - 2)
        index, share = low.long(), place - low
        up = self.number * ((scaled > 0) & (scaled < self.number - 1)).to(s.dtype)
        return [Place(index, 1 - share, -up), Place(index + 1, share, up)]

    def _in_lanes(self, bins: Tensor, lanes: int) -> Tensor:
        """The index of each voxel in `_summed`; uses up the bins. Lanes are a power of two."""
        index = bins.flatten(2)
        lane = torch.arange(index.shape[2], device=bins.device).bitwise_and_(lanes - 1)
        return index.add_(lane.mul_(self.number))

    def _summed(self, index: Tensor, values: Tensor, lanes: int) -> Tensor:
        """The sums of values [n k *space] in every lane and bin [n k lane bin]."""
        sums = values.new_zeros((*index.shape[:2], lanes * self.number))
        return sums.scatter_add(2, index, values.flatten(2)).unflatten(2, (lanes, self.number))
