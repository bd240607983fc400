r"""Two loops over voxels that numba turns into vector instructions (extra `fast`): what `_temperatures` says, faster.

Blocks of voxels stay in the processor's first cache. exp(x) = 2^n exp(r) with n = round(x / ln 2) and the Taylor series
of exp(r) to r^13, whose error is 2e-16; adding 1.5 2^52 to a float64 rounds it to an integer and leaves that integer in
its low bits. One logarithm serves many voxels: log S_1 + log S_2 + ... is the logarithm of the product, which is taken
before it could overflow. Sums run side by side in float64, one for each place in a block.
"""

from math import factorial

import numpy as np
from numba import njit
from numpy import ndarray as Array

BLOCK = 256
LOG2E = 1.4426950408889634
LN2_HIGH, LN2_LOW = 6.93147180369123816490e-01, 1.90821492927058770002e-10
MAGIC = 1.5 * 2.0**52
C13, C12, C11, C10, C9, C8, C7, C6, C5, C4, C3, C2 = (1.0 / factorial(n) for n in range(13, 1, -1))
LARGE = 2.0**500  # of a product of sums S; the next factor is at most the number of classes


def sums(d: Array, b: float) -> tuple[float, float, float]:
    """Sums of log S, m and Var over voxels [k-1 n] at b."""
    work = np.empty((6, BLOCK))
    return _sums(d, b, work, work.view(np.int64))


@njit(nogil=True, cache=True, error_model="numpy", fastmath={"contract"})
def _sums(d, b, work, bits):
    e, powers, total, mean, square, inverse = work[0], work[1], work[2], work[3], work[4], work[5]
    product, means, variances = np.ones(BLOCK), np.zeros(BLOCK), np.zeros(BLOCK)
    value = 0.0
    for first in range(0, d.shape[1], BLOCK):
        m = min(BLOCK, d.shape[1] - first)
        for j in range(m):
            total[j], mean[j], square[j] = 1.0, 0.0, 0.0
        for k in range(d.shape[0]):
            row = d[k, first : first + m]
            for j in range(m):
                x = np.float64(row[j]) * b
                x = -700.0 if x < -700.0 else x
                t = x * LOG2E + MAGIC
                n = t - MAGIC
                r = (x - n * LN2_HIGH) - n * LN2_LOW
                s = ((((C13 * r + C12) * r + C11) * r + C10) * r + C9) * r + C8
                s = ((((s * r + C7) * r + C6) * r + C5) * r + C4) * r + C3
                e[j] = ((s * r + C2) * r + 1.0) * r + 1.0
                powers[j] = t
            for j in range(m):
                bits[0, j] += bits[1, j] << 52  # e times 2^n
            for j in range(m):
                x = np.float64(row[j])
                total[j] += e[j]
                mean[j] += e[j] * x
                square[j] += e[j] * x * x
        largest = 0.0
        for j in range(m):
            inverse[j] = 1.0 / total[j]
        for j in range(m):
            average = mean[j] * inverse[j]
            means[j] += average
            variances[j] += square[j] * inverse[j] - average * average
        for j in range(m):
            product[j] *= total[j]
        for j in range(m):
            largest = max(largest, product[j])
        if largest > LARGE:
            for j in range(BLOCK):
                value += np.log(product[j])
                product[j] = 1.0
    for j in range(BLOCK):
        value += np.log(product[j])
    return value, means.sum(), variances.sum()


def relative(scores: Array, labels: Array) -> tuple[Array, Array, Array]:
    """Scores [k n] and labels [n] -> d [k-1 n] without the largest's 0, d of the label, the likeliest class."""
    k, n = scores.shape
    d, a = np.empty((k - 1, n), scores.dtype), np.empty(n, scores.dtype)
    top = np.empty(n, np.uint8 if k <= 256 else np.int32)
    _relative(scores, labels, d, a, top, np.empty(BLOCK, scores.dtype))
    return d, a, top


@njit(nogil=True, cache=True, error_model="numpy")
def _relative(scores, labels, d, a, top, best):
    for first in range(0, scores.shape[1], BLOCK):
        m = min(BLOCK, scores.shape[1] - first)
        mine, lead = top[first : first + m], scores[0, first : first + m]
        for j in range(m):
            best[j] = lead[j]
            mine[j] = 0
        for k in range(1, scores.shape[0]):
            row = scores[k, first : first + m]
            for j in range(m):
                mine[j] = k if row[j] > best[j] else mine[j]
                best[j] = row[j] if row[j] > best[j] else best[j]
        for k in range(1, scores.shape[0]):
            row, out = scores[k, first : first + m], d[k - 1, first : first + m]
            for j in range(m):
                out[j] = (lead[j] if mine[j] == k else row[j]) - best[j]  # class 0 takes the largest's place
        for j in range(m):
            a[first + j] = scores[labels[first + j], first + j] - best[j]
