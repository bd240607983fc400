r"""What the compiled loops of the losses are made of: a job, and steps that work on one block of voxels.

An exponential of d <= 0: exp(d) = 2^n exp(r) with n = round(d / ln 2), and the Taylor series of exp(r) to r^7, whose
error of 5e-9 is below float32's rounding. Adding 1.5 2^23 to a float32 rounds it to an integer and leaves that integer
in its low bits. log z = n ln 2 + 2 atanh((f - 1) / (f + 1)) with z = 2^n f and f near 1.

A `job` is int64 numbers: HEAD of them about the batch, then FIELDS about each tensor, [n c *space] each.
"""

import math
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
import torch
from numba import njit, types
from numba.np.numpy_support import carray
from torch import Tensor

from calibseg.core.numba_cache import keeps_code
from calibseg.core.types import Array
from calibseg.losses.maths.numba import is_constant
from calibseg.losses.maths.numba.threads import at_address, thread, threads

BLOCK = 256
HEAD, FIELDS, MOST = 8, 5, 8  # of a job; at most so many tensors
NUMBERS = 4  # of a rule, at most
ROWS = 6  # of a thread's room, besides two for each class

F = np.float32
ZERO, ONE, TWO, HALF = F(0), F(1), F(2), F(0.5)
LOWEST = F(-87)  # exp of what lies below is 0 beside the 1 of the largest logit
LOG2E, LN2, LN2_HIGH, LN2_LOW = F(1.4426950408889634), F(0.6931471805599453), F(0.693359375), F(-2.12194440e-4)
ROUNDING = F(1.5 * 2**23)
ROOT_HALF_BITS = int(np.sqrt(F(0.5)).view(np.int32))
C7, C6, C5, C4, C3, C2 = (F(1.0 / math.factorial(n)) for n in range(7, 1, -1))
D9, D7, D5, D3 = (F(2.0 / n) for n in range(9, 1, -2))
KEPT = keeps_code(lambda: None, Path(__file__).parent.glob("*.py"))
compiled = partial(njit, nogil=True, cache=KEPT, error_model="numpy")


def job_of(
    tensors: Sequence[Tensor | None], rule: Sequence[float], sums: Array, unit: int
) -> tuple[Array, tuple[Array, Array]]:
    """The job, and memory that it needs beside the tensors; the first of these is [n k *space].

    A thread works on `unit` voxels of an image at a time, and has a place of its own in `sums` for each.
    """
    assert tensors[0] is not None
    images, classes, *space = tensors[0].shape
    voxels = math.prod(space)
    room = np.empty((torch.get_num_threads(), ROWS + 2 * classes, BLOCK), F)
    numbers = np.array([*rule, *[0.0] * (NUMBERS - len(rule))], F)
    units = images * -(-voxels // unit)
    job = [images, classes, voxels, units, sums.ctypes.data, room.ctypes.data, numbers.ctypes.data, unit]
    for tensor in [*tensors, *[None] * (MOST - len(tensors))]:
        job += [0] * FIELDS if tensor is None else _described(tensor)
    return np.array(job, np.int64), (room, numbers)


def _described(tensor: Tensor) -> list[int]:
    """Address, steps between images, classes and voxels in bytes, and the bytes of a number."""
    size = tensor.element_size()
    return [tensor.data_ptr(), *(step * size for step in tensor.stride()[:2]), 0 if is_constant(tensor) else size, size]


@compiled()
def opened(pointer):
    """The job, the place of its blocks' sums, its rule, and this thread's room [rows BLOCK] with its bits."""
    job = carray(pointer, (HEAD + FIELDS * MOST,))
    sums, rule = carray(at_address(job[4]), (job[3],), np.float64), carray(at_address(job[6]), (NUMBERS,), F)
    rows = ROWS + 2 * job[1]
    start = job[5] + thread() * rows * BLOCK * 4
    room, bits = carray(at_address(start), (rows, BLOCK), F), carray(at_address(start), (rows, BLOCK), np.int32)
    return job, sums, rule, room, bits


@compiled()
def mine(job):
    """First and last unit of this thread."""
    number, i = job[3], np.int64(thread())
    return number * i // threads(), number * (i + 1) // threads()


@compiled()
def where(job, i):
    """Image, first voxel and number of voxels of a unit."""
    each = job[3] // job[0]
    v = i % each * job[7]
    return i // each, v, min(job[7], job[2] - v)


@compiled()
def given(job, tensor):
    """Whether there is such a tensor."""
    return job[HEAD + FIELDS * tensor] != 0


@compiled(types.float32[::1](types.int64[::1], *[types.int64] * 5))
def row(job, tensor, image, k, v, m):
    """m float32 numbers of a tensor [n c *space] from voxel v on, as they lie in memory: not where it is expanded."""
    at = HEAD + FIELDS * tensor
    start = job[at] + image * job[at + 1] + k * job[at + 2] + v * job[at + 3]
    return carray(at_address(start), (m,), F)


@compiled(types.void(types.int64[::1], *[types.int64] * 5, types.float32[::1]))
def load(job, tensor, image, k, v, m, out):
    """The same as a copy: of bytes as float32, of one number for all voxels, of 0 where there is no tensor."""
    at = HEAD + FIELDS * tensor
    start = job[at] + image * job[at + 1] + k * job[at + 2] + v * job[at + 3]
    if job[at] == 0:
        out[:m] = ZERO
    elif job[at + 4] == 1:
        small = carray(at_address(start), (m,), np.uint8)
        for j in range(m):
            out[j] = F(small[j])
    elif job[at + 3] == 0:
        out[:m] = carray(at_address(start), (1,), F)[0]
    else:
        numbers = carray(at_address(start), (m,), F)
        for j in range(m):
            out[j] = numbers[j]


@compiled(fastmath={"contract", "reassoc"})
def total(values, m):
    """Their sum in float64, several additions side by side."""
    result = 0.0
    for j in range(m):
        result += values[j]
    return result


@compiled()
def largest_of(job, image, v, m, largest):
    """The largest logit of each voxel; the first tensor of every job is the logits."""
    load(job, 0, image, 0, v, m, largest)
    for k in range(1, job[1]):
        logits = row(job, 0, image, k, v, m)
        for j in range(m):
            largest[j] = logits[j] if logits[j] > largest[j] else largest[j]


@compiled(fastmath={"contract"})
def exponential(d, d_bits, m, power, power_bits):
    """d <= 0 becomes exp(d), in two loops, because shifts reach a float's bits only through memory."""
    for j in range(m):
        y = LOWEST if d[j] < LOWEST else d[j]
        t = y * LOG2E + ROUNDING
        n = t - ROUNDING
        r = (y - n * LN2_HIGH) - n * LN2_LOW
        s = ((((C7 * r + C6) * r + C5) * r + C4) * r + C3) * r + C2
        d[j] = (s * r + ONE) * r + ONE
        power[j] = ROUNDING if y != y else t  # NaN stays, whatever its low bits
    for j in range(m):
        d_bits[j] += power_bits[j] << 23  # times 2^n


@compiled(fastmath={"contract"})
def logarithm(z, bits, m, power):
    """z >= 1/2 becomes its logarithm."""
    for j in range(m):
        n = (bits[j] - ROOT_HALF_BITS) >> 23
        power[j] = F(n)
        bits[j] -= n << 23
    for j in range(m):
        f = z[j] - ONE
        s = f / (TWO + f)
        q = s * s
        z[j] = power[j] * LN2 + ((s + s) + s * ((((D9 * q + D7) * q + D5) * q + D3) * q))


@compiled()
def bins_of(p, scale, number, m, place):
    """floor(scale p) as int32; 0 for the NaN of a diverged network."""
    for j in range(m):
        place[j] = min(max(np.int32(p[j] * scale), np.int32(0)), np.int32(number - 1))
