r"""Two loops over voxels that numba turns into vector instructions (extra `fast`): what `temperatures` says, faster.

Blocks of voxels stay in the processor's first cache (see `metrics/statistics/binning/numba`). One logarithm serves many
voxels: log S_1 + log S_2 + ... is the logarithm of the product, which is taken before it could overflow: S is at most
the number of classes. Sums run side by side in float64, one for each place in a block.
"""

from pathlib import Path

import numpy as np
from numba import njit
from numpy import ndarray as Array

from calibseg.core.numba_cache import keeps_code
from calibseg.metrics.statistics.binning.numba.maths import BLOCK, SOURCES, exponential, predict

KEPT = keeps_code(lambda: None, [Path(__file__), *SOURCES])
LARGE = 1000.0  # log2 of a product of sums S, at most


def sums(d: Array, b: float) -> tuple[float, float, float, float]:
    """Sums of log S and of the mean, variance and third moment of d over voxels [k-1 n] at b."""
    work = np.empty((6, BLOCK))
    return _sums(d, b, work, work.view(np.int64), max(1, int(LARGE / np.log2(len(d) + 1))))


@njit(nogil=True, cache=KEPT, error_model="numpy", fastmath={"contract"})
def _sums(d, b, work, bits, factors):
    e, powers, total, mean, square, cube = work[0], work[1], work[2], work[3], work[4], work[5]
    product, means, variances, thirds = np.ones(BLOCK), np.zeros(BLOCK), np.zeros(BLOCK), np.zeros(BLOCK)
    value, taken = 0.0, 0
    for first in range(0, d.shape[1], BLOCK):
        m = min(BLOCK, d.shape[1] - first)
        for j in range(m):
            total[j], mean[j], square[j], cube[j] = 1.0, 0.0, 0.0, 0.0
        for k in range(d.shape[0]):
            row = d[k, first : first + m]
            for j in range(m):
                e[j] = np.float64(row[j]) * b
            exponential(e, bits[0], m, powers, bits[1])
            for j in range(m):
                x = np.float64(row[j])
                first_power = e[j] * x
                second_power = first_power * x
                total[j] += e[j]
                mean[j] += first_power
                square[j] += second_power
                cube[j] += second_power * x
        for j in range(m):
            inverse = 1.0 / total[j]
            average = mean[j] * inverse
            variance = square[j] * inverse - average * average
            means[j] += average
            variances[j] += variance
            thirds[j] += cube[j] * inverse - average * (3.0 * variance + average * average)
            product[j] *= total[j]
        taken += 1
        if taken == factors:
            taken = 0
            for j in range(BLOCK):
                value += np.log(product[j])
                product[j] = 1.0
    for j in range(BLOCK):
        value += np.log(product[j])
    return value, means.sum(), variances.sum(), thirds.sum()


def relative(scores: Array, labels: Array) -> tuple[Array, Array]:
    """Scores [k n] and labels [n] -> d [k-1 n] without the largest's 0, d of the label."""
    k, n = scores.shape
    d, a = np.empty((k - 1, n), scores.dtype), np.empty(n, scores.dtype)
    _relative(scores, labels, d, a, np.empty(BLOCK, scores.dtype), np.empty((2, BLOCK), np.int32))
    return d, a


@njit(nogil=True, cache=KEPT, error_model="numpy")
def _relative(scores, labels, d, a, best, classes):
    """Classes are int32 within a block: as wide as a float32, so that one instruction compares or moves eight."""
    top, truth = classes[0], classes[1]
    for first in range(0, scores.shape[1], BLOCK):
        m = min(BLOCK, scores.shape[1] - first)
        lead, own = scores[0, first : first + m], a[first : first + m]
        predict(scores, first, m, top, best)
        for j in range(m):
            truth[j] = labels[first + j]
            own[j] = lead[j] - best[j]
        for k in range(1, scores.shape[0]):
            row, out = scores[k, first : first + m], d[k - 1, first : first + m]
            for j in range(m):
                away = row[j] - best[j]
                out[j] = lead[j] - best[j] if top[j] == k else away  # class 0 takes the largest's place
                own[j] = away if truth[j] == k else own[j]
