r"""Large batches on the CPU in loops that numba compiles (extra `fast`).

Entry points: `cross_entropy`, `to_prior`, `margin`, `bin_sums` and `softmax_slope`.

**What is computed** is what the torch lines below each call compute, to float32's rounding: a sum over voxels, and its
derivative. An entry point that gives None (or False) has done nothing, and its caller goes on in torch: without numba,
on a device, in float64, for fewer than `LARGE` logits, or where torch has no OpenMP to share.

**Why.** In torch a loss takes ten to twenty passes over a chunk; each reads and writes memory and calls all threads
together. Here 256 voxels at a time come into the processor's first cache (`kernels`; a thread's `room` holds them),
everything is done there, and the derivative is written: one pass, without temporaries, so that a batch need not be
cut into chunks.

**Threads** are torch's own (`threads`): its OpenMP threads wait for the next loop by spinning, and would keep the
processor from any others. Each block's sum has its own place, so that no bit depends on the number of threads.

**Small work never waits for compilation**, which takes some seven seconds, once on a computer. The choice depends on
the batch alone (size, type and layout), never on what was called before, so that a resumed run has the same bits.

Loops are written so that LLVM vectorises them: each touches few arrays, bits of floats are reached through views of
the same memory, branches are taken per block. What was compiled from
other sources is thrown away (`core/numba_cache`).
"""

from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

LARGE = 1 << 17  # logits from which on compiled loops are taken


class Linear(NamedTuple):
    """a y + b, with a and b [n k]."""

    a: Tensor
    b: Tensor


class Steps(NamedTuple):
    """steps[floor(scale s)], with steps [n k number]."""

    steps: Tensor
    scale: float


SlopeOfPart = Linear | Steps


def cross_entropy(
    scale: Any, slope: Tensor | None, logits: Tensor, weight: Tensor | None, q: Tensor, softmax: Tensor | None
) -> Tensor | None:
    """sum_i weight_i H(q_i, softmax(l_i)); fills slope with its derivative times `scale`, and softmax, if given."""
    return _run("cross_entropy", [logits, q, weight, slope, softmax], scale)


def to_prior(
    scale: Any, slope: Tensor, logits: Tensor, weight: Tensor, prior: tuple[Tensor, Tensor], rule: tuple[Tensor, ...]
) -> Tensor | None:
    """sum_i weight_i sum_k lambda |x| + rho x^2 / 2 with x = l - shares * scale; adds `scale` times its derivative.

    prior: shares [n k *space] and their scale [n 1 *space]
    rule: lambda and rho [? 2k 1 ...]; where they differ by region also what is added to them inside, and 1 inside, 0
        elsewhere [n 1 *space]
    """
    tables = [table.expand(len(logits), -1, *logits.shape[2:]) for table in rule]
    return _run("to_prior", [logits, slope, weight, *prior, *tables, *[None] * (3 - len(rule))], scale)


def margin(scale: Any, slope: Tensor, logits: Tensor, weight: Tensor, rule: tuple[float, bool, bool]) -> Tensor | None:
    """sum_i weight_i sum_k P(max_j l_j - l_k - m); adds `scale` times its derivative to slope.

    rule: m; whether P(z) is z^2 instead of z; whether z below 0 count, too
    """
    return _run("margin", [logits, slope, weight], scale, *rule)


def bin_sums(s: Tensor, y: Tensor, voters: Tensor | None, number: int, scale: float) -> Tensor | None:
    """The sums over voters of s - y and of 1 [2 n k bins], in bins floor(scale s)."""
    return _kernels().bin_sums(s, y, voters, number, scale) if applies([s, y, voters]) else None


def softmax_slope(
    s: Tensor, y: Tensor, weight: Tensor | None, voters: Tensor | None, parts: Sequence[SlopeOfPart]
) -> bool:
    """Turns s into s_k (g_k - sum_j s_j g_j + w) - w y_k, where g is the sum of the parts; voters: who counts there."""
    linear = steps = None
    rule = (1.0, 0.0)
    assert len({type(part) for part in parts}) == len(parts)
    for part in parts:
        if isinstance(part, Linear):
            linear = _expanded(torch.cat(part, 1), s)
        else:
            steps, rule = _expanded(part.steps.flatten(1), s), (part.scale, part.steps.shape[2])
    return _run("softmax_slope", [s, y, weight, voters, linear, steps], *rule) is not None


def applies(tensors: Sequence[Tensor | None]) -> bool:
    """Whether compiled loops read these tensors [n ? *space], the first of which are the logits."""
    first = tensors[0]
    large = first is not None and first.numel() >= LARGE and first[0, 0].is_contiguous()
    return large and all(map(_readable, tensors)) and _kernels() is not None


def is_constant(tensor: Tensor) -> bool:
    """Whether each image and class has one number, expanded along the space."""
    return all(size == 1 or step == 0 for size, step in zip(tensor.shape[2:], tensor.stride()[2:], strict=True))


def _expanded(table: Tensor, like: Tensor) -> Tensor:
    """Numbers of images [n c] as float32 [n c *space]."""
    return table.float().contiguous().view(*table.shape, *[1] * (like.ndim - 2)).expand(-1, -1, *like.shape[2:])


def _run(name: str, tensors: Sequence[Tensor | None], *rule: Any) -> Tensor | None:
    return _kernels().run(name, tensors, list(map(float, rule))) if applies(tensors) else None


def _readable(tensor: Tensor | None) -> bool:
    """On the CPU, float32, or uint8 that is not expanded, whose space is in one piece."""
    if tensor is None:
        return True
    plain = type(tensor) is Tensor and tensor.device.type == "cpu" and not tensor.is_neg()
    if not plain or tensor.dtype not in (torch.float32, torch.uint8):
        return False
    return tensor[0, 0].is_contiguous() or (tensor.dtype == torch.float32 and is_constant(tensor))


@cache
def _kernels() -> Any:
    """The compiled loops; None without numba, or without an OpenMP of torch's."""
    try:
        from calibseg.losses.maths.numba import kernels
    except ImportError:
        return None
    return kernels
