r"""Average calibration error of every image and class, as something to train on.

With d = s - y, and w_{i,b} the part of voxel i that lies in bin b (of an image and a class),

$$ e_b = \frac{|\sum_i w_{i,b} d_i|}{\sum_i w_{i,b}}, \qquad \mathrm{ACE} = \mathrm{mean}_b \, e_b
   \ \text{ over the bins that are not empty.} $$

Hard bins: M of equal width, (low, high], w is 0 or 1. Soft bins: w falls linearly from 1 at the bin centre to 0 at the
centres beside it; below the first and above the last centre a voxel is in the end bin. A soft bin of less than 0.01
voxels is empty.

Sums are float64, by a bincount over (image, class, bin); the gradient goes through `softmax_sums.py`:

$$ \frac{\partial}{\partial s_i} \sum_i w_{i,b} d_i = w_{i,b} + w'_{i,b} d_i, \qquad
   \frac{\partial}{\partial s_i} \sum_i w_{i,b} = w'_{i,b}. $$
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

EMPTY = 0.01  # voxels; hard bins hold whole ones


class Place(NamedTuple):
    """A bin that each voxel is in: its index among those of all images and classes, w (None: 1) and w'."""

    bins: Tensor  # int32
    weight: Tensor | None
    steep: Tensor | None


class Bins(NamedTuple):
    """How voxels are binned: bins of equal width, hard or soft.

    The sums of w d and of w are [2, 1 + n k bins]; the first bin is for ignored voxels.
    """

    number: int
    soft: bool

    def start(self, logits: Tensor) -> Tensor:
        return logits.new_zeros((2, 1 + math.prod(logits.shape[:2]) * self.number), dtype=torch.float64)

    def plain(self, s: Tensor, y: Tensor, voters: Tensor | None) -> Tensor:
        sums, d = self.start(s), s - y
        for place in self._places(s, (slice(None),), voters):
            w = torch.ones_like(d) if place.weight is None else place.weight
            sums = sums.index_add(1, place.bins.flatten(), torch.stack([d * w, w]).flatten(1).double())
        return sums

    def add(self, sums: Tensor, at: tuple[slice, ...], s: Tensor, y: Tensor, voters: Tensor | None) -> None:
        d, length = (s - y).flatten().double(), sums.shape[1]
        for place in self._places(s, at, voters):
            index = place.bins.flatten()
            if place.weight is None:
                unit = 2.0 ** (2 * s[0, 0].numel()).bit_length()  # above twice any |sum d|: one sum tells both
                total = torch.bincount(index, d.add_(unit), length)
                number = (total / unit).round_()
                sums += torch.stack([total - number * unit, number])
            else:
                w = place.weight.flatten().double()
                sums += torch.stack([torch.bincount(index, of, length) for of in (d * w, w)])

    def slope(self, grad: Tensor, at: tuple[slice, ...], s: Tensor, y: Tensor, voters: Tensor | None) -> Tensor:
        of_differences, of_weights = grad.to(s.dtype)
        parts = []
        for place in self._places(s, at, voters):
            index = place.bins.flatten()
            g = of_differences.index_select(0, index).view(s.shape)
            if place.weight is not None and place.steep is not None:
                g.mul_(torch.addcmul(place.weight, place.steep, s - y))
                g.addcmul_(of_weights.index_select(0, index).view(s.shape), place.steep)
            parts.append(g)
        return parts[0] if len(parts) == 1 else parts[0].add_(parts[1])

    def mean_error(self, sums: Tensor, images: int) -> Tensor:
        """ACE [n k] from the sums, float64; 0 where no voxel counts."""
        differences, weights = sums[:, 1:].view(2, images, -1, self.number)
        filled = (weights >= EMPTY).double()
        share = filled / filled.sum(-1, keepdim=True).clamp(min=1)
        return (differences.abs() / weights.clamp(min=EMPTY) * share).sum(-1)

    def _places(self, s: Tensor, at: tuple[slice, ...], voters: Tensor | None) -> list[Place]:
        """One of hard bins, two of soft ones."""
        (n, k), start = s.shape[:2], at[0].start or 0
        first = torch.arange(start * k, (start + n) * k, device=s.device, dtype=torch.int32) * self.number
        first = first.view(n, k, *[1] * (s.ndim - 2))
        if not self.soft:
            inside = s.detach().mul(self.number / (1 + 1.2e-7)).ceil_().clamp_(1, self.number)
            return [Place(_counted(inside.int().add_(first), voters), None, None)]
        scaled = s * self.number - 0.5
        place = scaled.clamp(0, self.number - 1)
        low = place.detach().floor().clamp_(max=self.number - 2)
        index, share = low.int().add_(first).add_(1), place - low
        up = self.number * ((scaled > 0) & (scaled < self.number - 1)).to(s.dtype)
        return [
            Place(_counted(index, voters), 1 - share, -up),
            Place(_counted(index + 1, voters), share, up),
        ]


def _counted(index: Tensor, voters: Tensor | None) -> Tensor:
    return index if voters is None else index * voters
