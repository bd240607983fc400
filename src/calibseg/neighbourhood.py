"""Sums over the window around each voxel, in 2-D and 3-D, with an explicit border rule.

`border` says who votes outside the image: "replicate" repeats the edge voxel, "background" counts the outside as class
0 (what zero-padding a label map does). An ignored voxel counts for nobody: shares are relative to the voxels that do.

Window sums run over one axis after the other by adding shifted views, on uint8 where the window has at most 255 voxels.
They are registered as one operator so that torch.compile calls them instead of unrolling them.

>>> import torch
>>> labels = torch.tensor([[[0, 0, 1]]])
>>> window = class_counts(Target.read(labels, 2, -100), (1, 3), "replicate")
>>> window.counts[0, 1].tolist(), window.total[0, 0].tolist()
([[0, 1, 2]], [[3, 3, 3]])
"""

import math
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from calibseg.streaming import pieces
from calibseg.target import Target
from calibseg.types import BadInput

Border = Literal["replicate", "background"]
KernelSize = int | tuple[int, ...]


class Window(NamedTuple):
    """How many voxels of each class are in the window around each voxel."""

    counts: Tensor  # [n k *space] uint8 (int16, int32 for large windows; floating for soft labels or weights)
    total: Tensor  # [n 1 *space], sum of `counts` over classes


def check_kernel_size(kernel_size: KernelSize) -> KernelSize:
    """Sizes must be odd, so that a window has a centre."""
    sizes = tuple(kernel_size) if isinstance(kernel_size, tuple | list) else (kernel_size,)
    if not sizes or any(not isinstance(size, int) or size < 1 or size % 2 == 0 for size in sizes):
        raise BadInput(f"kernel_size must be odd, an int or one per axis such as (1, 3, 3), not {kernel_size!r}")
    return kernel_size if isinstance(kernel_size, int) else sizes


def kernel_shape(kernel_size: KernelSize, axes: int) -> tuple[int, ...]:
    """One size per spatial axis."""
    shape = (kernel_size,) * axes if isinstance(kernel_size, int) else kernel_size
    if len(shape) != axes:
        raise BadInput(f"kernel_size {kernel_size!r} has {len(shape)} sizes but the image has {axes} spatial axes")
    return shape


def class_counts(target: Target, kernel_size: KernelSize, border: Border) -> Window:
    """Counts of every class in the window; with soft labels, sums of their shares."""
    shape = kernel_shape(kernel_size, target.valid.ndim - 1)
    votes = target.one_hot if target.soft is None else target.soft
    dtype = votes.dtype if target.soft is not None else _integer_for(math.prod(shape))
    return _window(target, votes, [[1.0] * size for size in shape], border, dtype)


def weighted_shares(
    target: Target, weights: list[list[float]], border: Border, dtype: torch.dtype, extra: float = 0.0
) -> Window:
    """Sums over a separable window, weights[a] along spatial axis a; `extra` is added to the centre's weight."""
    votes = target.one_hot if target.soft is None else target.soft
    return _window(target, votes, weights, border, dtype, extra)


def inner_region(window: Window) -> Tensor:
    """uint8 [n 1 *space]: 1 where the window holds a single class (its minimum equals its maximum), else 0."""
    return 1 - (window.total - window.counts.amax(1, keepdim=True)).clamp(max=1).to(torch.uint8)


def _window(
    target: Target,
    votes: Tensor,
    weights: list[list[float]],
    border: Border,
    dtype: torch.dtype,
    extra: float = 0.0,
) -> Window:
    sizes, flat = [len(axis) for axis in weights], [weight for axis in weights for weight in axis]
    voters = target.valid.unsqueeze(1).view(torch.uint8)
    replicate = border == "replicate"
    counts, total = (window_sum(each, sizes, flat, replicate, dtype, extra) for each in (votes, voters))
    if not replicate:
        ones = torch.ones_like(voters[:1])
        outside = window_sum(ones, sizes, flat, True, dtype) - window_sum(ones, sizes, flat, False, dtype)
        counts[:, :1] += outside
        total = total + outside
    return Window(counts, total)


@torch.library.custom_op("calibseg::window_sum", mutates_args=())
def window_sum(
    votes: Tensor, sizes: list[int], weights: list[float], replicate: bool, dtype: torch.dtype, extra: float = 0.0
) -> Tensor:
    """Sum over a separable window along the spatial axes of [n k *space]; `weights` lists axis after axis."""
    result = torch.empty(votes.shape, dtype=dtype, device=votes.device)
    starts = [sum(sizes[:axis]) for axis in range(len(sizes))]
    along = [weights[start : start + size] for start, size in zip(starts, sizes, strict=True)]
    for piece in pieces(votes):
        image = votes[piece[0]]
        first, last, _ = (piece[2] if len(piece) == 3 else slice(None)).indices(votes.shape[2])
        slab = _slab_sum(image, first, last, along[0], replicate, dtype)
        for dim, axis in enumerate(along[1:], start=3):
            slab = _axis_sum(slab, dim, axis, replicate)
        result[piece] = slab.add_(image.narrow(2, first, last - first), alpha=extra) if extra else slab
    return result


@window_sum.register_fake
def _(
    votes: Tensor, sizes: list[int], weights: list[float], replicate: bool, dtype: torch.dtype, extra: float = 0.0
) -> Tensor:
    return torch.empty_like(votes, dtype=dtype)


def _slab_sum(
    votes: Tensor, first: int, last: int, weights: list[float], replicate: bool, dtype: torch.dtype
) -> Tensor:
    """The window sum along the first spatial axis for the slab [first, last), as a new tensor of `dtype`."""
    length, radius = votes.shape[2], len(weights) // 2
    slab = votes.narrow(2, first, last - first).to(dtype, copy=True)
    if weights[radius] != 1:
        slab.mul_(weights[radius])
    for shift in [*range(-radius, 0), *range(1, radius + 1)]:
        scale = weights[radius + shift] if dtype.is_floating_point else 1
        low, high = max(first, -shift), min(last, length - shift)  # rows whose neighbour lies inside
        if high > low:
            slab.narrow(2, low - first, high - low).add_(votes.narrow(2, low + shift, high - low), alpha=scale)
        outside = slice(0, low - first) if shift < 0 else slice(max(high - first, 0), None)
        if replicate:
            edge = votes.narrow(2, 0 if shift < 0 else length - 1, 1)
            slab[:, :, outside].add_(edge, alpha=scale)
    return slab


def _axis_sum(votes: Tensor, dim: int, weights: list[float], replicate: bool) -> Tensor:
    """Add the views shifted by 1, 2, ... to both sides. Weights are symmetric; 1 for counts, which stay integers."""
    length, radius = votes.shape[dim], len(weights) // 2
    if radius == 0:
        return votes
    result = votes.clone() if weights[radius] == 1 else votes * weights[radius]
    for shift in range(1, radius + 1):
        scale = weights[radius + shift] if votes.is_floating_point() else 1
        inside, outside = max(length - shift, 0), min(shift, length)
        if inside:
            result.narrow(dim, 0, inside).add_(votes.narrow(dim, shift, inside), alpha=scale)
            result.narrow(dim, shift, inside).add_(votes.narrow(dim, 0, inside), alpha=scale)
        if replicate:
            result.narrow(dim, 0, outside).add_(votes.narrow(dim, 0, 1), alpha=scale)
            result.narrow(dim, length - outside, outside).add_(votes.narrow(dim, length - 1, 1), alpha=scale)
    return result


def _integer_for(most: int) -> torch.dtype:
    return torch.uint8 if most <= 255 else torch.int16 if most <= 32767 else torch.int32


def distance_to_boundary(target: Target, radius: int) -> Tensor:
    """float32 distance [n *space] in voxels to the nearest voxel that touches another class, cut at `radius`."""
    return cut_distance(_touches_another_class(target), radius)


@torch.library.custom_op("calibseg::cut_distance", mutates_args=())
def cut_distance(seeds: Tensor, radius: int) -> Tensor:
    """float32 Euclidean distance [n *space] to the nearest seed (bool [n *space]), cut at `radius`.

    Exact up to the cut: squared distances go through one min-plus pass per axis over shifts of at most `radius`.
    """
    far = radius * radius
    squared = torch.full(seeds.shape, far, dtype=torch.int32, device=seeds.device).masked_fill_(seeds, 0)
    for dim in range(1, squared.ndim):
        length, passed = squared.shape[dim], squared.clone()
        for shift in range(1, min(radius, length - 1) + 1):
            for to, source in ((0, shift), (shift, 0)):
                view = passed.narrow(dim, to, length - shift)
                torch.minimum(view, squared.narrow(dim, source, length - shift) + shift * shift, out=view)
        squared = passed
    return squared.clamp_(max=far).sqrt()


@cut_distance.register_fake
def _(seeds: Tensor, radius: int) -> Tensor:
    return torch.empty_like(seeds, dtype=torch.float32)


def _touches_another_class(target: Target) -> Tensor:
    """bool [n *space]: a voxel across a face has another label, and neither is ignored."""
    touches = torch.zeros_like(target.valid)
    for dim in range(1, target.labels.ndim):
        length = target.labels.shape[dim]
        low, high = slice(0, length - 1), slice(1, length)
        first, second = ((slice(None),) * dim + (part,) for part in (low, high))
        differ = (target.labels[first] != target.labels[second]) & target.valid[first] & target.valid[second]
        touches[first] |= differ
        touches[second] |= differ
    return touches
