r"""Average calibration error of every image and class, as something to train on.

With d = s - y, and w_{i,b} the part of voxel i that lies in bin b (of an image and a class),

$$ e_b = \frac{|\sum_i w_{i,b} d_i|}{\sum_i w_{i,b}}, \qquad \mathrm{ACE} = \mathrm{mean}_b \, e_b
   \ \text{ over the bins that are not empty.} $$

Hard bins: M of equal width, (low, high], w is 0 or 1. Soft bins: w falls linearly from 1 at the bin centre to 0 at the
centres beside it; below the first and above the last centre a voxel is in the end bin. A soft bin of less than 0.01
voxels is empty.

Sums are float64. Forward walks over the logits chunk by chunk, with one bincount over (image, class, bin) for each sum,
and keeps s, which backward turns into the gradient in place: with sign_b of sum w d and W_b = sum w,

$$ \frac{\partial\,\mathrm{ACE}}{\partial s_i} = \frac{1}{\#b} \sum_b \mathrm{sign}_b \frac{w_{i,b} + w'_{i,b} d_i}{W_b}
   - \frac{w'_{i,b} e_b}{W_b}. $$
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from calibseg.core.labels import Target
from calibseg.losses.maths.fused_sums import chunks

EMPTY = 0.01  # voxels; hard bins hold whole ones


class Bins(NamedTuple):
    """How voxels are binned: bins of equal width, hard or soft."""

    number: int
    soft: bool

    def parts(self, s: Tensor, first: Tensor, voters: Tensor | None) -> list[tuple[Tensor, Tensor | None, float]]:
        """Each bin that a voxel is in: its index among those of all images and classes, w (None: 1) and its slope.

        first: int32 [n k 1 ...], how many bins come before an image and class; index 0 is for ignored voxels.
        """
        if not self.soft:
            inside = s.detach().mul(self.number / (1 + 1.2e-7)).ceil_().clamp_(1, self.number)
            return [(_counted(inside.to(torch.int32).add_(first), voters), None, 0.0)]
        place = (s * self.number - 0.5).clamp(0, self.number - 1)
        low = place.detach().floor().clamp_(max=self.number - 2)
        index = low.to(torch.int32).add_(first).add_(1)
        share = place - low
        parts = [(index, 1 - share, -float(self.number)), (index + 1, share, float(self.number))]
        return [(_counted(at, voters), weight, slope) for at, weight, slope in parts]


def average_errors(logits: Tensor, target: Target, bins: Bins) -> Tensor:
    """ACE [n k] of softmax probabilities, float64; 0 where no voxel counts."""
    labels = target.one_hot if target.soft is None else target.soft.to(logits.dtype)
    voters = None if target.all_valid else target.valid.unsqueeze(1)
    if torch.compiler.is_compiling():
        return _mean_error(*_sums(logits, labels, voters, bins))[0]
    return _AverageErrors.apply(logits, labels, voters, bins)  # pyright: ignore[reportReturnType]


def _sums(logits: Tensor, labels: Tensor, voters: Tensor | None, bins: Bins) -> tuple[Tensor, Tensor]:
    """sum w d and sum w [n k bins], plain differentiable PyTorch."""
    s = torch.softmax(logits, 1)
    d, shape = s - labels, (*logits.shape[:2], bins.number)
    differences = weights = logits.new_zeros(math.prod(shape) + 1, dtype=torch.float64)
    for index, weight, _ in bins.parts(s, _first(logits, bins), voters):
        at, w = index.flatten().long(), torch.ones_like(d) if weight is None else weight
        differences = differences.index_add(0, at, (d * w).flatten().double())
        weights = weights.index_add(0, at, w.flatten().double())
    return differences[1:].view(shape), weights[1:].view(shape)


def _mean_error(differences: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """ACE [n k], and 1 / (number of bins) [n k bins] for each bin that is not empty, else 0."""
    filled = (weights >= EMPTY).double()
    share = filled / filled.sum(-1, keepdim=True).clamp(min=1)
    return (differences.abs() / weights.clamp(min=EMPTY) * share).sum(-1), share


class _AverageErrors(torch.autograd.Function):
    @staticmethod
    def forward(ctx, logits: Tensor, labels: Tensor, voters: Tensor | None, bins: Bins) -> Tensor:
        ctx.bins, first = bins, _first(logits, bins)
        ctx.softmax = torch.empty_like(logits) if ctx.needs_input_grad[0] else None
        shape = (*logits.shape[:2], bins.number)
        length = math.prod(shape) + 1
        totals = logits.new_zeros((2, length), dtype=torch.float64)
        for at in chunks(logits):
            s = _softmax(logits[at], None if ctx.softmax is None else ctx.softmax[at])
            d = (s - labels[at]).double().flatten()
            for index, weight, _ in bins.parts(s, first[at[0]], None if voters is None else voters[at]):
                w = None if weight is None else weight.double().flatten()
                totals[0] += torch.bincount(index.flatten(), d if w is None else d * w, length)
                totals[1] += torch.bincount(index.flatten(), w, length)
        differences, weights = totals[:, 1:].view(2, *shape)
        ctx.save_for_backward(logits, labels, voters, differences, weights)
        return _mean_error(differences, weights)[0]

    @staticmethod
    def backward(ctx, *grads: Tensor):
        logits, labels, voters, differences, weights = ctx.saved_tensors
        bins: Bins = ctx.bins
        if torch.is_grad_enabled():
            value = _mean_error(*_sums(logits, labels, voters, bins))[0]
            return torch.autograd.grad(value, logits, grads[0], create_graph=True)[0], None, None, None
        slope, ctx.softmax = ctx.softmax, None
        slope = _softmax(logits, None) if slope is None else slope  # a second pass: the first has used it up
        share = _mean_error(differences, weights)[1] * grads[0].unsqueeze(-1) / weights.clamp(min=EMPTY)
        pull = _table(share * differences.sign(), logits.dtype)
        relief = _table(share * differences.abs() / weights.clamp(min=EMPTY), logits.dtype)
        first = _first(logits, bins)
        for at in chunks(logits):
            s = slope[at]
            g = torch.zeros((), dtype=s.dtype, device=s.device)
            for index, weight, steep in bins.parts(s, first[at[0]], None if voters is None else voters[at]):
                of_bin = index.flatten().long()
                part = pull[of_bin].view(s.shape)
                if weight is not None:
                    between = steep * ((s * bins.number > 0.5) & (s * bins.number < bins.number - 0.5))
                    part = part * weight + between * (part * (s - labels[at]) - relief[of_bin].view(s.shape))
                g = g + part
            s.mul_(g - (s * g).sum(1, keepdim=True))
        return slope, None, None, None


def _softmax(logits: Tensor, out: Tensor | None) -> Tensor:
    s = torch.sub(logits, logits.amax(1, keepdim=True), out=out).exp_()
    return s.mul_(s.sum(1, keepdim=True).reciprocal_())


def _first(logits: Tensor, bins: Bins) -> Tensor:
    """int32 [n k 1 ...]: how many bins come before those of each image and class."""
    n, k = logits.shape[:2]
    before = torch.arange(n * k, device=logits.device, dtype=torch.int32) * bins.number
    return before.view(n, k, *[1] * (logits.ndim - 2))


def _table(values: Tensor, dtype: torch.dtype) -> Tensor:
    """Per bin of each image and class, after a 0 for ignored voxels."""
    return torch.cat([values.new_zeros(1), values.flatten()]).to(dtype)


def _counted(index: Tensor, voters: Tensor | None) -> Tensor:
    return index if voters is None else index * voters
