"""Sums over voxels that are read once: the gradient is computed with the value, chunk by chunk, in the cache.

Every objective here is a few sums over voxels, t = sum_i w_i f(l_i), whose derivatives are cheap to write down. A
loss gives

- `value(logits, *constants) -> (t_1, t_2, ...)`: the equations, plain differentiable PyTorch;
- `fused(scales, slope, logits, *constants) -> (t_1, t_2, ...)`: the same; fills slope with sum_j scales_j dt_j/dl.

On the CPU forward runs `fused` over chunks of the logits and keeps the slope of the sum of all terms, which is what
backward needs when every term has the same incoming gradient; otherwise, and always on a GPU (where asking would
stall the device), backward recomputes. Under torch.compile the equations are traced, and a second derivative goes
through them too. Large batches take compiled loops where these apply (`maths/numba`): one pass, no chunks.
"""

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from calibseg.losses.maths.numba import applies

# A chunk of 2 MB of float32 stays in the cache with its temporaries and is large enough for a few threads. A GPU hides
# memory latency by itself and pays for every launch: there the whole tensor is one chunk.
CPU_CHUNK = 2**19

Scale = Tensor | float
Value = Callable[..., tuple[Tensor, ...]]
Fused = Callable[..., tuple[Tensor, ...]]


def scaled(weight: Tensor, scale: Scale) -> Tensor:
    """weight * scale, without a copy where the scale is the plain number 1, as it is in every forward pass."""
    return weight if isinstance(scale, float) and scale == 1 else weight * scale


def voxel_sums(
    terms: int, value: Value, fused: Fused, logits: Tensor, *constants: Tensor, compiled: bool = False
) -> tuple[Tensor, ...]:
    """`terms` scalars, differentiable in `logits` [n k *space] only. Constants have the axes [n ? *space], or 1s.

    compiled: all that `fused` does is done in compiled loops where these apply (`maths/numba`), without temporaries
    """
    if torch.compiler.is_compiling():
        return value(logits, *constants)
    constants = tuple(constant.expand(logits.shape[0], -1, *logits.shape[2:]) for constant in constants)
    return _VoxelSums.apply(terms, value, fused, compiled, logits, *constants)  # pyright: ignore[reportReturnType]


class _VoxelSums(torch.autograd.Function):
    @staticmethod
    def forward(ctx, terms: int, value: Value, fused: Fused, compiled: bool, *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.value, ctx.fused, ctx.compiled = value, fused, compiled
        slope = None
        wanted = ctx.needs_input_grad[4] and tensors[0].device.type == "cpu"
        if wanted or (compiled and applies(tensors)):
            totals, slope = _over_chunks(fused, compiled, [1.0] * terms, tensors)
        else:
            parts = [value(*(tensor[at] for tensor in tensors)) for at in chunks(tensors[0])]
            totals = _added(parts)
        ctx.save_for_backward(slope if wanted else None, *tensors)
        return tuple(total.to(tensors[0].dtype) for total in totals)

    @staticmethod
    def backward(ctx, *scales: Tensor):
        slope, *tensors = ctx.saved_tensors
        if torch.is_grad_enabled():
            (grad,) = torch.autograd.grad(ctx.value(*tensors), tensors[0], scales, create_graph=True)
        elif slope is not None and len(values := {float(scale) for scale in scales}) == 1:
            grad = slope if values == {1.0} else slope * scales[0]
        else:
            _, grad = _over_chunks(ctx.fused, ctx.compiled, scales, tensors)
        return None, None, None, None, grad, *[None] * (len(tensors) - 1)


def chunks(values: Tensor, bytes_each: int = 4) -> Iterator[tuple[slice, ...]]:
    """Index tuples that cut [n k *space] along n, and along the first spatial axis where one image is too large."""
    n, depth = values.shape[0], values.shape[2]
    per_image = max(values.numel() // max(n, 1), 1)
    most = CPU_CHUNK * 4 // bytes_each
    if values.device.type != "cpu" or values.numel() <= most:
        yield (slice(None),)
    elif per_image <= most:
        step = most // per_image
        yield from ((slice(start, start + step),) for start in range(0, n, step))
    else:
        step = max(most * depth // per_image, 1)
        for i in range(n):
            for start in range(0, depth, step):
                yield slice(i, i + 1), slice(None), slice(start, start + step)


def _over_chunks(
    fused: Fused, compiled: bool, scales: Sequence[Scale], tensors: Sequence[Tensor]
) -> tuple[list[Tensor], Tensor]:
    slope = torch.empty_like(tensors[0])
    cuts = [(slice(None),)] if compiled and applies(tensors) else chunks(tensors[0])
    parts = [fused(scales, slope[at], *(tensor[at] for tensor in tensors)) for at in cuts]
    return _added(parts), slope


def _added(parts: Sequence[Sequence[Tensor]]) -> list[Tensor]:
    return [torch.stack(term).sum(dtype=torch.float64) for term in zip(*parts, strict=True)]
