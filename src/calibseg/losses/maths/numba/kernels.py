"""The compiled loops of the losses; the folder's docstring tells how they are used, `blocks` what they are made of."""

import math
from collections.abc import Sequence
from functools import partial

import numpy as np
import torch
from numba import cfunc, types
from numba.np.numpy_support import carray
from torch import Tensor

from calibseg.core.types import Array
from calibseg.losses.maths.numba.blocks import (
    BLOCK,
    HALF,
    KEPT,
    ONE,
    ROWS,
    TWO,
    ZERO,
    F,
    bins_of,
    exponential,
    given,
    job_of,
    largest_of,
    load,
    logarithm,
    mine,
    opened,
    row,
    total,
    where,
)
from calibseg.losses.maths.numba.threads import at_address, run_on_all

LANES, UNIT = 4, 1 << 14  # of the tables of bins: one for every UNIT voxels, in so many lanes
kernel = partial(cfunc, types.void(types.CPointer(types.int64)), cache=KEPT, error_model="numpy", fastmath={"contract"})


def run(name: str, tensors: Sequence[Tensor | None], rule: Sequence[float]) -> Tensor:
    """The kernel `name` on all threads: the sum of what its blocks come to, float64. The first tensor has k classes."""
    assert tensors[0] is not None
    images, _, *space = tensors[0].shape
    sums = np.zeros(images * -(-math.prod(space) // BLOCK))
    _call(name, tensors, rule, sums, BLOCK)
    return torch.from_numpy(sums.sum(keepdims=True)).squeeze()


def bin_sums(s: Tensor, y: Tensor, voters: Tensor | None, number: int, scale: float) -> Tensor:
    """The sums of s - y and of voters [2 n k bins] by bin floor(scale s), float64."""
    images, classes, *space = s.shape
    tables = np.zeros((images, -(-math.prod(space) // UNIT), classes, LANES, 2, number))
    _call("bins", [s, y, voters], [scale, number], tables, UNIT)
    return torch.from_numpy(tables.sum((1, 3))).movedim(2, 0)


def _call(name: str, tensors: Sequence[Tensor | None], rule: Sequence[float], sums: Array, unit: int) -> None:
    job, _memory = job_of(tensors, rule, sums, unit)
    run_on_all(KERNELS[name].address, job)


@kernel()
def cross_entropy(pointer):
    """Tensors: logits, shares q, weight, slope, softmax; the number: scale of the slope."""
    job, sums, rule, room, bits = opened(pointer)
    largest, z, of_label, mass, weight, power = room[0], room[1], room[2], room[3], room[4], room[5]
    classes, filled, wanted, scale = job[1], given(job, 3), given(job, 4), rule[0]
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
    classes, by_region, scale = job[1], given(job, 6), rule[0]
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
    size, everybody = 2 * number, not given(job, 2)
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
    classes, everybody = job[1], not given(job, 3)
    linear, stepped = given(job, 4), given(job, 5)
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
