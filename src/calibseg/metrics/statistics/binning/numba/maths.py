r"""Loops over a block of voxels that numba turns into vector instructions: softmax, logarithm, argmax, checks.

Softmax needs an exponential per score: exp(x) = 2^n exp(r) with n = round(x / ln 2) and the Taylor series of exp(r) to
r^13, whose error of 2e-16 is far below the float32 that decides a bin. Adding 1.5 2^52 to a float64 rounds it to an
integer, halves to even, and leaves that integer in its low bits, where shifts can reach it. `bits` arrays are int64
views of the float64 arrays they are named after.
"""

from functools import partial
from math import factorial
from pathlib import Path
from typing import NamedTuple, Self

import numpy as np
from numba import njit

from calibseg.core.numba_cache import keeps_code
from calibseg.core.types import TOLERANCE, Array
from calibseg.metrics.statistics.binning.chunk import BLOCK
from calibseg.metrics.statistics.calibration import Bins

LOG2E = 1.4426950408889634
LN2_HIGH, LN2_LOW = 6.93147180369123816490e-01, 1.90821492927058770002e-10
ROUNDING = 1.5 * 2.0**52  # added to a float64, it rounds it to an integer
ROUNDING_BITS = int(np.float64(ROUNDING).view(np.int64))
ONE_BITS = int(np.float32(1).view(np.int32))
ROOT_HALF_BITS = int(np.sqrt(np.float64(0.5)).view(np.int64))
C13, C12, C11, C10, C9, C8, C7, C6, C5, C4, C3, C2 = (1.0 / factorial(n) for n in range(13, 1, -1))
# Nothing allocates in these functions, so arrays in named tuples need not be counted by reference: a fifth of the time.
SOURCES = [*Path(__file__).parent.glob("*.py")]
KEPT = keeps_code(lambda: None, SOURCES)
compiled = partial(njit, nogil=True, cache=KEPT, error_model="numpy", _nrt=False)  # pyright: ignore[reportCallIssue]
D19, D17, D15, D13, D11, D9, D7, D5, D3 = (2.0 / n for n in range(19, 1, -2))


class Rules(NamedTuple):
    """What scores and labels mean, and where bins end."""

    kind: int  # place in KINDS; 2: probabilities
    ignores: bool
    ignore_label: int
    scale: float  # of `bin_of`; 0: there is none
    number: int  # of bins
    edges: Array
    threshold: np.float32

    @classmethod
    def of(cls, kind: int, ignore_label: int | None, bins: Bins) -> Self:
        edges = np.concatenate([[-1.0], bins.edges[1:-1], [np.inf, np.inf]]).astype(np.float32)
        ignored = ignore_label is not None, ignore_label or 0
        return cls(kind, *ignored, bins.scale or 0.0, bins.number, edges, np.float32(bins.threshold))


class Room(NamedTuple):
    """Arrays for the numbers of one block, taken once for each thread; `bits` are the same memory as integers."""

    p: Array  # [k BLOCK] float32
    p_bits: Array
    work: Array  # [k + 4, BLOCK] float64: probabilities; sums of scores, largest scores, and two for this and that
    bits: Array
    near: Array  # [BLOCK] float32
    near_bits: Array
    small: Array
    small_bits: Array
    low: Array  # [k] float32: the least and the largest p of each class
    high: Array
    top: Array  # [BLOCK] int32, as are all that follow: the predicted class
    cell: Array
    label: Array
    place: Array
    value: Array

    @classmethod
    def of(cls, classes: int) -> Self:
        p, work, near, small = np.empty((classes, BLOCK), np.float32), np.empty((classes + 4, BLOCK)), *_singles(BLOCK)
        views = p, p.view(np.int32), work, work.view(np.int64), near, near.view(np.int32), small, small.view(np.int32)
        return cls(*views, *_singles(classes), *np.empty((5, BLOCK), np.int32))


def _singles(size: int) -> tuple[Array, Array]:
    return np.empty(size, np.float32), np.empty(size, np.float32)


@compiled()
def first_wrong(label, total, given, classes, rules):
    """The first voxel that counts and has an impossible label or impossible scores; -1 where there is none."""
    low, high = (1.0 - TOLERANCE, 1.0 + TOLERANCE) if given else (0.0, np.inf)
    wrong, least, most = 0, label[0], label[0]
    for j in range(len(label)):
        wrong += not ((total[j] >= low) & (total[j] <= high))
    for j in range(len(label)):
        least, most = min(least, label[j]), max(most, label[j])
    if wrong or least < 0 or most >= classes:
        for j in range(len(label)):
            good = low <= total[j] <= high and 0 <= label[j] < classes
            if not good and not (rules.ignores and label[j] == rules.ignore_label):
                return j
    return -1


@compiled()
def uniform(values, m):
    """Whether the first m values are equal."""
    different = np.int32(0)
    for j in range(m):
        different = np.int32(different + (values[j] != values[0]))
    return different == 0


@compiled()
def ranges(room, m):
    """The least and largest float32 p of each class; the class predicted everywhere or -1; the largest of the least;
    and whether all lie from 0 to 1.

    As integers, non-negative floats are ordered alike, and integers the processor compares eight at a time. A class
    whose largest p lies below another's least is predicted nowhere.
    """
    inside, low, high, spare, spare_bits = True, room.low, room.high, room.small, room.small_bits
    for k in range(len(low)):
        row = room.p_bits[k]
        least, most = row[0], row[0]
        for j in range(1, m):
            least, most = min(least, row[j]), max(most, row[j])
        inside &= least >= 0 and most <= ONE_BITS
        spare_bits[0], spare_bits[1] = least, most
        low[k], high[k] = spare[0], spare[1]
    best = 0
    for k in range(1, len(low)):
        best = k if low[k] > low[best] else best
    sure = low[best]
    for k in range(len(low)):
        if k != best and not high[k] < sure:
            return -1, sure, inside
    return best, sure, inside


@compiled()
def given_single(scores, start, stride, m, p, total):
    """Stored float32 probabilities as they are, and their sum."""
    for j in range(m):
        total[j] = np.float32(0)
    for k in range(p.shape[0]):
        row, own = scores[start + k * stride : start + k * stride + m], p[k]
        for j in range(m):
            total[j] += np.float32(row[j])
            own[j] = np.float32(row[j])


@compiled()
def given(scores, start, stride, m, p, work, total):
    """Stored probabilities as float64 and float32, and their sum: NaN where one lies outside 0 to 1."""
    for j in range(m):
        total[j] = 0.0
    for k in range(p.shape[0]):
        row = scores[start + k * stride : start + k * stride + m]
        for j in range(m):
            value = np.float64(row[j])
            total[j] += np.nan if value < -TOLERANCE or value > 1.0 + TOLERANCE else value
            value = min(max(value, 0.0), 1.0)
            work[k, j] = value
            p[k, j] = np.float32(value)


@compiled(fastmath={"contract"})
def exponential(x, x_bits, m, powers, power_bits):
    """x <= 0 becomes exp(x), in two loops, because shifts reach a float's bits only through memory."""
    for j in range(m):
        y = -700.0 if x[j] < -700.0 else x[j]  # exp of either is 0 as a float32; NaN stays
        t = y * LOG2E + ROUNDING
        n = t - ROUNDING
        r = (y - n * LN2_HIGH) - n * LN2_LOW
        s = ((((C13 * r + C12) * r + C11) * r + C10) * r + C9) * r + C8
        s = ((((s * r + C7) * r + C6) * r + C5) * r + C4) * r + C3
        x[j] = ((s * r + C2) * r + 1.0) * r + 1.0
        powers[j] = t
    for j in range(m):
        x_bits[j] += power_bits[j] << 52  # times 2^n


@compiled(fastmath={"contract"})
def softmax(scores, start, stride, m, p, work, bits):
    """float64 and float32 probabilities; behind them in `work` the sum of exp(score - largest), and the largest."""
    total, largest, powers, power_bits = work[len(p)], work[len(p) + 1], work[len(p) + 2], bits[len(p) + 2]
    row = scores[start : start + m]
    for j in range(m):
        largest[j] = np.float64(row[j])
        total[j] = 0.0
    for k in range(1, p.shape[0]):
        row = scores[start + k * stride : start + k * stride + m]
        for j in range(m):
            value = np.float64(row[j])
            largest[j] = value if value > largest[j] else largest[j]
    for k in range(p.shape[0]):
        row = scores[start + k * stride : start + k * stride + m]
        e = work[k]
        for j in range(m):
            e[j] = np.float64(row[j]) - largest[j]
        exponential(e, bits[k], m, powers, power_bits)
        for j in range(m):
            total[j] += e[j]
    for j in range(m):
        powers[j] = 1.0 / total[j]
    for k in range(p.shape[0]):
        e, row32 = work[k], p[k]
        for j in range(m):
            e[j] *= powers[j]
            row32[j] = np.float32(e[j])


@compiled(fastmath={"contract"})
def logarithm(x, x_bits, m, exponent, exponent_bits, near_one, times):
    """x becomes times log x: 2^n f with f near 1, and log f = 2 atanh((f - 1) / (f + 1)) as a series.

    near_one: all are from 3/4 to 1, so that n is 0.
    """
    if near_one:
        for j in range(m):
            x[j] = times * _log_near_one(x[j] - 1.0)
        return
    for j in range(m):
        exponent[j] = ROUNDING - 1024.0
    for j in range(m):
        n = np.uint64(x_bits[j] - ROOT_HALF_BITS + (1024 << 52)) >> np.uint64(52)
        x_bits[j] -= (np.int64(n) - 1024) << 52
        exponent_bits[j] += np.int64(n)
    for j in range(m):
        n = exponent[j] - ROUNDING
        x[j] = times * (n * LN2_HIGH + (n * LN2_LOW + _log_near_one(x[j] - 1.0)))


@compiled(fastmath={"contract"})
def _log_near_one(f):
    """log(1 + f)."""
    s = f / (2.0 + f)
    q = s * s
    series = (((D19 * q + D17) * q + D15) * q + D13) * q + D11
    series = ((((series * q + D9) * q + D7) * q + D5) * q + D3) * q
    return (s + s) + s * series


@compiled()
def predict(p, start, m, top, best):
    """The class of the largest number in m columns of p [k n], ties to the smallest id; and that number."""
    row = p[0, start : start + m]
    for j in range(m):
        best[j] = row[j]
        top[j] = 0
    for k in range(1, p.shape[0]):
        row = p[k, start : start + m]
        for j in range(m):
            top[j] = k if row[j] > best[j] else top[j]
            best[j] = row[j] if row[j] > best[j] else best[j]


@compiled()
def bin_of(p, rules):
    """The bin of a float32 probability, counted from 1."""
    if rules.scale > 0:
        return np.int32(max(np.ceil(np.float64(p) * rules.scale), 1.0))
    b = int(p * np.float32(rules.number))  # off by one at most, next to an edge
    b -= p <= rules.edges[b]
    b += p > rules.edges[b + 1]
    return np.int32(b + 1)


@compiled()
def add_bins(p, m, rules, place):
    """Add the bin of each probability above the threshold to its place."""
    threshold, scale = rules.threshold, rules.scale
    if scale > 0:  # asked here and not inside, or nothing is done eight at a time
        for j in range(m):
            b = np.int32(np.ceil(np.float64(p[j]) * scale))
            place[j] += b if p[j] > threshold else np.int32(0)
    else:
        for j in range(m):
            place[j] += bin_of(p[j], rules) if p[j] > threshold else np.int32(0)
