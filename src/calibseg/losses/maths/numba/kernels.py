r"""The compiled loops of the losses, block by block (the folder's docstring tells how).

An exponential of d <= 0: exp(d) = 2^n exp(r) with n = round(d / ln 2), and the Taylor series of exp(r) to r^7, whose
error of 5e-9 is below float32's rounding. Adding 1.5 2^23 to a float32 rounds it to an integer and leaves that integer
in its low bits. log z = n ln 2 + 2 atanh((f - 1) / (f + 1)) with z = 2^n f and f near 1.

A `job` is int64 numbers: HEAD of them about the batch, then FIELDS about each tensor, [n c *space] each.
"""

import math
from collections.abc import Sequence
from functools import partial

import numpy as np
import torch
from numba import cfunc, njit, types
from numba.np.numpy_support import carray
from torch import Tensor

from calibseg.losses.maths.numba import is_constant
from calibseg.losses.maths.numba.threads import at_address, run_on_all, thread, threads

BLOCK = 256
LANES, UNIT = 4, 1 << 14  # of the tables of bins: one for every UNIT voxels, in so many lanes
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
compiled = partial(njit, nogil=True, cache=True, error_model="numpy")
kernel = partial(cfunc, types.void(types.CPointer(types.int64)), cache=True, error_model="numpy", fastmath={"contract"})


def run(name: str, tensors: Sequence[Tensor | None], rule: Sequence[float]) -> Tensor:
    """The kernel `name` on all threads: the sum of what its blocks come to, float64. The first tensor has k classes."""
    assert tensors[0] is not None
    images, _, *space = tensors[0].shape
    sums = torch.zeros(images * -(-math.prod(space) // BLOCK), dtype=torch.float64)
    _call(name, tensors, rule, sums, BLOCK)
    return sums.sum()


def bin_sums(s: Tensor, y: Tensor, voters: Tensor | None, number: int, scale: float) -> Tensor:
    """The sums of s - y and of voters [2 n k bins] by bin floor(scale s), float64."""
    images, classes, *space = s.shape
    tables = torch.zeros(images, -(-math.prod(space) // UNIT), classes, LANES, 2, number, dtype=torch.float64)
    _call("bins", [s, y, voters], [scale, number], tables, UNIT)
    return tables.sum((1, 3)).movedim(2, 0)


def _call(name: str, tensors: Sequence[Tensor | None], rule: Sequence[float], sums: Tensor, unit: int) -> None:
    """A thread works on `unit` voxels of an image at a time, and adds to their own place in sums."""
    assert tensors[0] is not None
    images, classes, *space = tensors[0].shape
    voxels = math.prod(space)
    room = torch.empty(torch.get_num_threads(), ROWS + 2 * classes, BLOCK)
    numbers = torch.tensor([*rule, *[0.0] * (NUMBERS - len(rule))], dtype=torch.float32)
    units = images * -(-voxels // unit)
    job = [images, classes, voxels, units, sums.data_ptr(), room.data_ptr(), numbers.data_ptr(), unit]
    for tensor in [*tensors, *[None] * (MOST - len(tensors))]:
        job += [0] * FIELDS if tensor is None else _described(tensor)
    run_on_all(KERNELS[name].address, np.array(job))


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


@compiled(types.float32[::1](types.int64[::1], *[types.int64] * 5))
def row(job, tensor, image, k, v, m):
    """m float32 numbers of a tensor [n c *space] from voxel v on, as they lie in memory."""
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
        y = LOWEST if d[j] < LOWEST else d[j]  # NaN stays
        t = y * LOG2E + ROUNDING
        n = t - ROUNDING
        r = (y - n * LN2_HIGH) - n * LN2_LOW
        s = ((((C7 * r + C6) * r + C5) * r + C4) * r + C3) * r + C2
        d[j] = (s * r + ONE) * r + ONE
        power[j] = t
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


@kernel()
def cross_entropy(pointer):
    """Tensors: logits, shares q, weight, slope, softmax; the number: scale of the slope."""
    job, sums, rule, room, bits = opened(pointer)
    largest, z, of_label, mass, weight, power = room[0], room[1], room[2], room[3], room[4], room[5]
    classes, filled, wanted, scale = job[1], job[HEAD + 3 * FIELDS] != 0, job[HEAD + 4 * FIELDS] != 0, rule[0]
    for block in range(*mine(job)):
        image, v, m = where(job, block)
        load(job, 2, image, 0, v, m, weight)
        largest_of(job, image, v, m, largest)
        for j in range(m):
            z[j], of_label[j], mass[j] = ZERO, ZERO, ZERO
        for k in range(classes):
            logits, q, e = row(job, 0, image, k, v, m), room[ROWS + 2 * k], room[ROWS + 1 + 2 * k]
            load(job, 1, image, k, v, m, q)
            for j in range(m):
                e[j] = logits[j] - largest[j]
            for j in range(m):
                of_label[j] += e[j] * q[j]
            for j in range(m):
                mass[j] += q[j]
            exponential(e, bits[ROWS + 1 + 2 * k], m, power, bits[5])
            for j in range(m):
                z[j] += e[j]
        for j in range(m):
            largest[j] = ONE / z[j]
        for k in range(classes):
            q, e = room[ROWS + 2 * k], room[ROWS + 1 + 2 * k]
            if wanted:
                softmax = row(job, 4, image, k, v, m)
                for j in range(m):
                    softmax[j] = e[j] * largest[j]
            if filled:
                slope = row(job, 3, image, k, v, m)
                for j in range(m):
                    slope[j] = (e[j] * largest[j] * mass[j] - q[j]) * (weight[j] * scale)
        logarithm(z, bits[1], m, power)
        for j in range(m):
            of_label[j] = (z[j] * mass[j] - of_label[j]) * weight[j]
        sums[block] = total(of_label, m)


@kernel()
def to_prior(pointer):
    """Tensors: logits, slope, weight, shares, scale of shares, lambda and rho, what is added to them inside, inside."""
    job, sums, rule, room, _ = opened(pointer)
    weight, of_shares, inside, shares, penalty = room[0], room[1], room[2], room[3], room[4]
    classes, by_region, scale = job[1], job[HEAD + 6 * FIELDS] != 0, rule[0]
    for block in range(*mine(job)):
        image, v, m = where(job, block)
        load(job, 2, image, 0, v, m, weight)
        load(job, 4, image, 0, v, m, of_shares)
        load(job, 7, image, 0, v, m, inside)
        penalty[:m] = ZERO
        for k in range(classes):
            logits, slope = row(job, 0, image, k, v, m), row(job, 1, image, k, v, m)
            load(job, 3, image, k, v, m, shares)
            lam0, rho0 = row(job, 5, image, k, 0, 1)[0], row(job, 5, image, k + classes, 0, 1)[0]
            lam1, rho1 = ZERO, ZERO
            if by_region:
                lam1, rho1 = row(job, 6, image, k, 0, 1)[0], row(job, 6, image, k + classes, 0, 1)[0]
            for j in range(m):
                x = logits[j] - shares[j] * of_shares[j]
                lam = lam0 + inside[j] * lam1
                start = lam if x > ZERO else -lam if x < ZERO else ZERO * x
                pull = (rho0 + inside[j] * rho1) * x + start
                penalty[j] += x * (start + pull)
                slope[j] += pull * (weight[j] * scale)
        for j in range(m):
            penalty[j] *= HALF * weight[j]
        sums[block] = total(penalty, m)


@kernel()
def margin(pointer):
    """Tensors: logits, slope, weight; numbers: scale of the slope, margin, whether squares, whether below it, too."""
    job, sums, rule, room, _ = opened(pointer)
    weight, largest, penalty, share, tops = room[0], room[1], room[2], room[3], room[4]
    scale, least, squares, floor = rule[0], rule[1], rule[2] != ZERO, F(-np.inf) if rule[3] != ZERO else ZERO
    for block in range(*mine(job)):
        image, v, m = where(job, block)
        load(job, 2, image, 0, v, m, weight)
        largest_of(job, image, v, m, largest)
        for j in range(m):
            penalty[j], share[j], tops[j] = ZERO, ZERO, ZERO
        for k in range(job[1]):
            logits, pull = row(job, 0, image, k, v, m), room[ROWS + k]
            if squares:
                for j in range(m):
                    beyond = largest[j] - logits[j] - least
                    beyond = floor if beyond < floor else beyond
                    penalty[j] += beyond * beyond
                    pull[j] = TWO * beyond
            else:
                for j in range(m):
                    beyond = largest[j] - logits[j] - least
                    beyond = floor if beyond < floor else beyond
                    penalty[j] += beyond
                    pull[j] = ONE if beyond > ZERO else beyond
            for j in range(m):
                share[j] += pull[j]
                tops[j] += ONE if logits[j] == largest[j] else ZERO
        for j in range(m):
            share[j] /= tops[j]
        for k in range(job[1]):
            logits, slope, pull = row(job, 0, image, k, v, m), row(job, 1, image, k, v, m), room[ROWS + k]
            for j in range(m):
                to_top = share[j] if logits[j] == largest[j] else ZERO
                slope[j] += (to_top - pull[j]) * (weight[j] * scale)
        for j in range(m):
            penalty[j] *= weight[j]
        sums[block] = total(penalty, m)


@kernel()
def bins(pointer):
    """Tensors: softmax, labels y, voters (none: all); numbers: scale of s, bins. Neighbours go to lanes in turn."""
    job, _, rule, room, bits = opened(pointer)
    y, voters, place, scale, number = room[0], room[1], bits[2], rule[0], int(rule[1])
    size, everybody = 2 * number, job[HEAD + 2 * FIELDS] == 0
    for unit in range(*mine(job)):
        image, start, voxels = where(job, unit)
        for k in range(job[1]):
            at = job[4] + (unit * job[1] + k) * LANES * size * 8
            table = carray(at_address(at), (LANES * size,), np.float64)
            for v in range(start, start + voxels, BLOCK):
                m = min(BLOCK, start + voxels - v)
                s = row(job, 0, image, k, v, m)
                load(job, 1, image, k, v, m, y)
                load(job, 2, image, 0, v, m, voters)
                if everybody:
                    voters[:m] = ONE
                bins_of(s, scale, number, m, place)
                for j in range(m):
                    y[j] = (s[j] - y[j]) * voters[j]
                for j in range(m):
                    cell = place[j] + j % LANES * size
                    table[cell] += y[j]
                    table[cell + number] += voters[j]


@kernel()
def softmax_slope(pointer):
    """Tensors: softmax, labels y, weight, voters (none: everybody), a and b, steps; numbers: scale of s, steps."""
    job, _, rule, room, bits = opened(pointer)
    weight, voters, mean, place, scale, number = room[0], room[1], room[2], bits[3], rule[0], int(rule[1])
    classes, everybody = job[1], job[HEAD + 3 * FIELDS] == 0
    linear, stepped = job[HEAD + 4 * FIELDS] != 0, job[HEAD + 5 * FIELDS] != 0
    for block in range(*mine(job)):
        image, v, m = where(job, block)
        load(job, 2, image, 0, v, m, weight)
        load(job, 3, image, 0, v, m, voters)
        if everybody:
            voters[:m] = ONE
        mean[:m] = ZERO
        for k in range(classes):
            s, y, g = row(job, 0, image, k, v, m), room[ROWS + 2 * k], room[ROWS + 1 + 2 * k]
            load(job, 1, image, k, v, m, y)
            a, b = ZERO, ZERO
            if linear:
                a, b = row(job, 4, image, k, 0, 1)[0], row(job, 4, image, k + classes, 0, 1)[0]
            for j in range(m):
                g[j] = y[j] * a + voters[j] * b
            if stepped:
                steps = row(job, 5, image, k * number, 0, number)
                bins_of(s, scale, number, m, place)
                for j in range(m):
                    g[j] += steps[place[j]] * voters[j]
            for j in range(m):
                mean[j] += s[j] * g[j]
        for j in range(m):
            mean[j] -= weight[j]
        for k in range(classes):
            s, y, g = row(job, 0, image, k, v, m), room[ROWS + 2 * k], room[ROWS + 1 + 2 * k]
            for j in range(m):
                s[j] = s[j] * (g[j] - mean[j]) - y[j] * weight[j]


KERNELS = {"cross_entropy": cross_entropy, "to_prior": to_prior, "margin": margin} | {
    "bins": bins,
    "softmax_slope": softmax_slope,
}
