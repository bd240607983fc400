"""Sums over the window around each voxel, in 2-D and 3-D, with an explicit border rule.

`border` says who votes outside the image: "replicate" repeats the edge voxel, "background" counts the outside as class
0 (what zero-padding a label map does). An ignored voxel has no vote: shares are relative to the voxels that do.
Where nobody is ignored the total is one number, which broadcasts.

Window sums run over one axis after the other by adding shifted views, on uint8 where the window has at most 255 voxels.
They are registered as one operator so that torch.compile calls them instead of unrolling them.

>>> import torch
>>> labels = torch.tensor([[[0, 0, 1]]])
>>> window = class_counts(Target.read(labels, 2, -100), (1, 3), "replicate")
>>> window.counts[0, 1].tolist(), window.total[0, 0].tolist()
([[0, 1, 2]], [[3]])
"""

import math
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from calibseg.core.labels import Target
from calibseg.core.types import BadInput
from calibseg.losses.maths.fused_sums import chunks

Border = Literal["replicate", "background"]
KernelSize = int | tuple[int, ...]


class Window(NamedTuple):
    """How many voxels of each class are in the window around each voxel."""

    counts: Tensor  # [n k *space] uint8 (int16, int32 for large windows; floating for soft labels or weights)
    total: Tensor  # [n 1 *space], sum of `counts` over classes; [1 1 ...] where it is the same everywhere


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
    """Sums over a separable window, weights[a] along spatial axis a, 1 at the centre, to which `extra` is added."""
    votes = target.one_hot if target.soft is None else target.soft
    return _window(target, votes, weights, border, dtype, extra)


def inner_region(window: Window) -> Tensor:
    """uint8 [n 1 *space]: 1 where the window holds a single class (its minimum equals its maximum), else 0."""
    return 1 - (window.total - window.counts.amax(1, keepdim=True)).clamp(max=1).to(torch.uint8)


def _window(
    target: Target, votes: Tensor, weights: list[list[float]], border: Border, dtype: torch.dtype, extra: float = 0.0
) -> Window:
    sizes, flat = [len(axis) for axis in weights], [weight for axis in weights for weight in axis]
    replicate = border == "replicate"
    counts = window_sum(votes, sizes, flat, replicate, dtype, extra)
    one_voxel = torch.ones([1] * votes.ndim, dtype=torch.uint8, device=votes.device)
    everybody = target.all_valid
    voters = one_voxel if everybody else target.valid.unsqueeze(1).view(torch.uint8)
    total = window_sum(voters, sizes, flat, replicate or everybody, dtype, extra)
    if not replicate:
        ones = one_voxel.expand(1, 1, *votes.shape[2:])
        outside = window_sum(ones, sizes, flat, True, dtype) - window_sum(ones, sizes, flat, False, dtype)
        counts[:, :1] += outside
        total = total if everybody else total + outside
    return Window(counts, total)


@torch.library.custom_op("calibseg::window_sum", mutates_args=())
def window_sum(
    votes: Tensor, sizes: list[int], weights: list[float], replicate: bool, dtype: torch.dtype, extra: float = 0.0
) -> Tensor:
    """Sum over a separable window along the spatial axes of [n k *space]; `weights` lists axis after axis."""
    result = torch.empty(votes.shape, dtype=dtype, device=votes.device)
    starts = [sum(sizes[:axis]) for axis in range(len(sizes))]
    along = [weights[start : start + size] for start, size in zip(starts, sizes, strict=True)]
    radius, length = sizes[0] // 2, votes.shape[2]
    for at in chunks(votes, dtype.itemsize):
        first, last, _ = (at[2] if len(at) == 3 else slice(None)).indices(length)
        low, high = max(first - radius, 0), min(last + radius, length)  # the chunk with its neighbours
        block = votes[at[0]].narrow(2, low, high - low).to(dtype)
        chunk = _axis_sum(block, 2, along[0], replicate, first - low, last - first)
        for dim, axis in enumerate(along[1:], start=3):
            chunk = _axis_sum(chunk, dim, axis, replicate)
        if extra:
            torch.add(chunk, block.narrow(2, first - low, last - first), alpha=extra, out=result[at])
        else:
            result[at] = chunk
    return result


@window_sum.register_fake
def _(
    votes: Tensor, sizes: list[int], weights: list[float], replicate: bool, dtype: torch.dtype, extra: float = 0.0
) -> Tensor:
    return votes.new_empty(votes.shape, dtype=dtype)  # contiguous, as the kernel makes it


def _axis_sum(
    votes: Tensor, dim: int, weights: list[float], replicate: bool, start: int = 0, length: int | None = None
) -> Tensor:
    """Window sums along one axis for the rows [start, start + length): add the rows 1, 2, ... steps to either side.

    Weights are symmetric and 1 at the centre; counts, all of weight 1, stay integers. Rows beyond the ends repeat the
    last row, or are 0.
    """
    size, radius = votes.shape[dim], len(weights) // 2
    length = size if length is None else length
    centre = votes.narrow(dim, start, length)
    if radius == 0:
        return centre
    result = None
    for shift in [*range(-radius, 0), *range(1, radius + 1)]:
        scale = weights[radius + shift] if votes.is_floating_point() else 1
        if result is None:  # the first addition also copies the centre: a pass less
            base, result = centre, torch.empty_like(centre)
        else:
            base = result
        low, high = max(start, -shift), min(start + length, size - shift)  # rows whose neighbour lies inside
        inside = max(high - low, 0)
        at = min(low - start, length) if shift < 0 else 0
        if inside:
            neighbours = votes.narrow(dim, low + shift, inside)
            torch.add(base.narrow(dim, at, inside), neighbours, alpha=scale, out=result.narrow(dim, at, inside))
        outside = length - inside
        if outside:
            edge = votes.narrow(dim, 0 if shift < 0 else size - 1, 1)
            at = 0 if shift < 0 else length - outside
            rest = result.narrow(dim, at, outside)
            torch.add(base.narrow(dim, at, outside), edge, alpha=scale if replicate else 0, out=rest)
    assert result is not None
    return result


def _integer_for(most: int) -> torch.dtype:
    return torch.uint8 if most <= 255 else torch.int16 if most <= 32767 else torch.int32


def distance_to_boundary(target: Target, radius: int) -> Tensor:
    """float32 distance [n *space] in voxels to the nearest voxel that touches another class, cut at `radius`."""
    return cut_distance(_touches_another_class(target), radius)


@torch.library.custom_op("calibseg::cut_distance", mutates_args=())
def cut_distance(seeds: Tensor, radius: int) -> Tensor:
    """float32 Euclidean distance [n *space] to the nearest seed (bool [n *space]), cut at `radius`.

    Exact up to the cut: squared distances go through one min-plus pass per axis over shifts of at most `radius`, in
    the smallest integers that hold twice the cut.
    """
    far = radius * radius
    dtype = _integer_for(2 * far)
    squared = torch.full(seeds.shape, far, dtype=dtype, device=seeds.device).masked_fill_(seeds, 0)
    for dim in range(1, squared.ndim):
        length, passed = squared.shape[dim], squared.clone()
        for shift in range(1, min(radius, length - 1) + 1):
            through = squared + shift * shift
            for to, source in ((0, shift), (shift, 0)):
                view = passed.narrow(dim, to, length - shift)
                torch.minimum(view, through.narrow(dim, source, length - shift), out=view)
        squared = passed
    return squared.clamp_(max=far).to(torch.float32).sqrt_()


@cut_distance.register_fake
def _(seeds: Tensor, radius: int) -> Tensor:
    return seeds.new_empty(seeds.shape, dtype=torch.float32)


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
