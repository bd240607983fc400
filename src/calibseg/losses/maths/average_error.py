r"""Average calibration error of every image and class, as something to train on.

With d = s - y, and w_{i,b} the part of voxel i that lies in bin b (of an image and a class),

$$ e_b = \frac{|\sum_i w_{i,b} d_i|}{\sum_i w_{i,b}}, \qquad \mathrm{ACE} = \mathrm{mean}_b \, e_b
   \ \text{ over the bins that are not empty.} $$

Hard bins: M of equal width, (low, high] to two roundings of float32, w is 0 or 1. Soft bins: w falls linearly from 1
at the bin centre to 0 at the centres beside it; below the first and above the last centre a voxel is in the end bin. A
soft bin of less than 0.01 voxels is empty. Between two centres, in one of M + 1 cells c = floor(M s + 1/2), a voxel is
in the bins c - 1 and c by 1 - f and f = M s + 1/2 - c: the sums of 1, f, d and f d in each cell give those of the bins.

Sums are float64, by a scatter_add in every image and class. Neighbours, most of which are in the same cell, are counted
in turn into several copies of it, its lanes, so that no sum waits for the one before. A lane has at most LANE voxels:
then one sum of unit + d (of unit + f), with a unit of more than twice as many, tells how many they are and, to 2^-28,
the mean of d. Cells are numbered in int32 first, to which a CPU turns several floats at once. The gradient goes through
`softmax_sums.py`. With a = dL/d(sum w d) and b = dL/d(sum w) of a bin, and D their rise from bin c - 1 to bin c,

$$ \frac{\partial L}{\partial s_i} = a_c \ \text{(hard)}, \qquad
   a_{c-1} + \Big(\frac{1}{2} - c\Big) D a + M D b + M D a \, (2 s_i - y_i) \ \text{(soft)}. $$
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from calibseg.losses.maths import numba

EMPTY = 0.01  # voxels; hard bins hold whole ones
LANES = 4  # at least
LANE = 1 << 12  # voxels at most
UNIT = 4.0 * LANE
BELOW = 1 - 2.4e-7  # an edge belongs to the bin below it


class Bins(NamedTuple):
    """How voxels are binned: bins of equal width, hard or soft. The sums of w d and of w are [2 n k bins]."""

    number: int
    soft: bool

    @property
    def cells(self) -> int:
        """Soft bins have one more: the ends below the first and above the last centre."""
        return self.number + self.soft

    def start(self, logits: Tensor) -> Tensor:
        return logits.new_zeros((2, *logits.shape[:2], self.number), dtype=torch.float64)

    def plain(self, s: Tensor, y: Tensor, voters: Tensor | None) -> Tensor:
        place, d = self._place(s), s - y
        index = self._in_lanes(place, LANES)
        one = torch.ones_like(d) if voters is None else voters.to(d.dtype).expand_as(d)
        number, of_d = (self._summed(index, part, LANES).sum(2) for part in (one, one * d))
        if not self.soft:
            return torch.stack([of_d, number])
        f = place.frac()
        of_f, of_fd = (self._summed(index, one * part, LANES).sum(2) for part in (f, f * d))
        return self._of_bins(number, of_f, of_d, of_fd)

    def add(self, sums: Tensor, at: tuple[slice, ...], s: Tensor, y: Tensor, voters: Tensor | None) -> None:
        found = None if self.soft else numba.bin_sums(s, y, voters, self.number, self.number * BELOW)
        if found is not None:
            sums[:, at[0]] += found
            return
        lanes = max(LANES, 1 << (math.prod(s.shape[2:]) // LANE).bit_length())
        place, d = self._place(s), s - y
        index = self._in_lanes(place, lanes)
        both = place.frac_().double() + UNIT if self.soft else d.double().add_(UNIT)
        both = self._summed(index, both if voters is None else both.mul_(voters), lanes)
        number = (both / UNIT).round_()
        rest, number = both.sub_(number, alpha=UNIT).sum(2), number.sum(2)
        if not self.soft:
            sums[:, at[0]] += torch.stack([rest, number])
        else:
            d = d if voters is None else d.mul_(voters)
            of_d, of_fd = (self._summed(index, part, lanes).sum(2) for part in (d, place.mul_(d)))
            sums[:, at[0]] += self._of_bins(number, rest, of_d, of_fd)

    def slope(
        self, g: Tensor | None, grad: Tensor, at: tuple[slice, ...], s: Tensor, y: Tensor, voters: Tensor | None
    ) -> Tensor:
        index = self._cells(self._place(s)).long()
        a, b = grad[:, at[0]]
        tables = [a]
        if self.soft:
            a, b = (pad(part, (1, 1), mode="replicate") for part in (a, b))
            rise, c = a.diff(), torch.arange(self.cells, device=s.device)
            tables = [a[..., :-1] + (0.5 - c) * rise + self.number * b.diff(), 2 * self.number * rise]
        own, *steep = (table.to(s.dtype).gather(2, index).view(s.shape) for table in tables)
        for factor in steep:
            own.addcmul_(factor, torch.sub(s, y, alpha=0.5))
        own = own if voters is None else own.mul_(voters)
        return own if g is None else g.add_(own)

    def simple_slope(self, grad: Tensor) -> numba.Steps | None:
        return None if self.soft else numba.Steps(grad[0], self.number * BELOW)

    def mean_error(self, sums: Tensor) -> Tensor:
        """ACE [n k] from the sums, float64; 0 where no voxel counts."""
        differences, weights = sums
        filled = (weights >= EMPTY).double()
        share = filled / filled.sum(-1, keepdim=True).clamp(min=1)
        return (differences.abs() / weights.clamp(min=EMPTY) * share).sum(-1)

    def _place(self, s: Tensor) -> Tensor:
        """The cell of each voxel and, behind the point, f of soft bins; hard bins are their own cells."""
        return s * (self.number * BELOW) if not self.soft else torch.add(s.new_full((), 0.5), s, alpha=self.number)

    def _cells(self, place: Tensor) -> Tensor:
        """int32 [n k voxels]. The NaN of a diverged network is no index: it counts in cell 0, and the sum is NaN."""
        return place.detach().int().clamp_(min=0).flatten(2)

    def _in_lanes(self, place: Tensor, lanes: int) -> Tensor:
        """The index of each voxel in `_summed`. Lanes are a power of two."""
        index = self._cells(place)
        lane = torch.arange(index.shape[2], device=place.device, dtype=torch.int32).bitwise_and_(lanes - 1)
        return index.add_(lane.mul_(self.cells)).long()

    def _summed(self, index: Tensor, values: Tensor, lanes: int) -> Tensor:
        """The sums of values [n k *space] in every lane and cell [n k lane cell]."""
        sums = values.new_zeros((*index.shape[:2], lanes * self.cells), dtype=torch.float64)
        return sums.scatter_add(2, index, values.flatten(2).double()).unflatten(2, (lanes, self.cells))

    def _of_bins(self, number: Tensor, of_f: Tensor, of_d: Tensor, of_fd: Tensor) -> Tensor:
        """The sums over soft bins from those over cells [n k cell]: the end cells are in the end bins wholly."""
        parts = []
        for whole, up in ((of_d, of_fd), (number, of_f)):
            up = torch.cat([whole[..., :1], up[..., 1:-1], torch.zeros_like(up[..., -1:])], -1)
            parts.append(up[..., :-1] + (whole - up)[..., 1:])
        return torch.stack(parts)
