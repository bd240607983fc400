r"""Large batches on the CPU in loops that numba compiles (extra `fast`). Entry points: `cross_entropy`, `to_prior`, `margin`.

**What is computed** is what the torch lines next to each call compute, to float32's rounding: the value of a sum over
voxels, and its derivative. Where an entry point returns None it has done nothing, and the caller goes on in torch:
without numba, on a device, in float64, for a chunk of fewer than `LARGE` logits, or where torch does not run its own
loops with OpenMP.

**Why.** A loss in torch takes ten to twenty passes over a chunk, each of which reads and writes memory and calls all
threads together. Here 256 voxels at a time are read into the processor's first cache (`kernels`, whose `Room` holds them),
everything is done there, and the derivative is written: one pass.

**Threads** are torch's own (`threads`): its OpenMP threads wait for the next loop by spinning, and would take the
processor from any others. Each block's sum has its own place, so that no bit depends on the number of threads.

**Small work never waits for compilation**, two seconds for each kernel at its first call on a computer. The choice
depends on the shape of a chunk alone, so that a resumed run has the same bits.

Loops are written so that LLVM vectorises them: bits of floats are reached through views of the same memory, and
branches are taken per block. A file's cache does not notice an edit in a file that it imports: remove `__pycache__`.
"""

import math
from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor

LARGE = 1 << 17  # logits of a chunk from which on compiled loops are taken
Numbers = Sequence[float]


def cross_entropy(
    scale: Any, slope: Tensor | None, logits: Tensor, weight: Tensor | None, q: Tensor, softmax: Tensor | None
) -> Tensor | None:
    """sum_i weight_i H(q_i, softmax(l_i)); fills slope with its derivative times `scale`, and softmax, if given."""
    return _run("cross_entropy", logits, [logits, q, weight, slope, softmax], scale)


def to_prior(
    scale: Any, slope: Tensor, logits: Tensor, weight: Tensor, prior: tuple[Tensor, Tensor], rule: tuple[Tensor, ...]
) -> Tensor | None:
    r"""sum_i weight_i sum_k lambda |x| + rho x^2 / 2 of x = l - shares * scale; adds its derivative times `scale` to slope.

    prior: shares and scale; rule: lambda and rho [? 2k 1 ...], and where they differ by region, what is added to them
    inside, and a mask [n 1 *space] of 1 inside and 0 elsewhere.
    """
    return _run("to_prior", logits, [logits, slope, weight, *prior, *rule, *[None] * (3 - len(rule))], scale)


def margin(scale: Any, slope: Tensor, logits: Tensor, weight: Tensor, rule: tuple[float, bool, bool]) -> Tensor | None:
    """sum_i weight_i sum_k p(max_j l_j - l_k - m); adds its derivative times `scale` to slope.

    rule: m; whether p is the square of what is beyond m; whether what is below m counts, too.
    """
    return _run("margin", logits, [logits, slope, weight], scale, rule)


def _run(name: str, logits: Tensor, tensors: Sequence[Tensor | None], scale: Any, rule: Numbers = ()) -> Tensor | None:
    if logits.numel() < LARGE or logits.device.type != "cpu" or not all(map(_readable, tensors)):
        return None
    kernels = _kernels()
    return None if kernels is None else kernels.run(name, logits, tensors, [float(scale), *map(float, rule)])


def _readable(tensor: Tensor | None) -> bool:
    """float32 or uint8 [n c *space] whose space is one piece, or a single number, of every n and c."""
    if tensor is None:
        return True
    if type(tensor) is not Tensor or tensor.dtype not in (torch.float32, torch.uint8):
        return False
    return tensor[0, 0].is_contiguous() or (is_constant(tensor) and tensor.dtype == torch.float32)


def is_constant(tensor: Tensor) -> bool:
    """Whether each n and c has one number, expanded along the space."""
    return all(size == 1 or step == 0 for size, step in zip(tensor.shape[2:], tensor.stride()[2:], strict=True))


@cache
def _kernels() -> Any:
    """The compiled loops; None where numba, or an OpenMP that torch runs on, is missing."""
    try:
        from calibseg.losses.maths.numba import kernels
    except ImportError:
        return None
    return kernels
