r"""The numba route (extra `fast`): one fused pass, a thread per share of the spans, each with its own int64 tables.

It computes exactly what `spans` and `binning_torch` say, block by block in the processor's first cache. Softmax needs
an exponential per score: exp(x) = 2^n exp(r) with n = round(x / ln 2) and the Taylor series of exp(r) to r^13, whose
error of 2e-16 is far below the float32 that the probability is rounded to; written as loops over a block it runs in
vector registers. Adding 1.5 2^52 to a float64 rounds it to an integer, halves to even, and leaves it in the low bits.
The kernel is compiled at its first call and kept on disk; it holds no lock, so plain threads run it.
"""

from concurrent.futures import ThreadPoolExecutor
from math import factorial

import numpy as np
from numba import njit

from calibseg.curves import Bins
from calibseg.spans import KINDS, LARGEST_NLL, TOLERANCE, Spans, Step
from calibseg.types import Array

BLOCK = 256
LOG2E, LN2 = 1.4426950408889634, 0.6931471805599453
LN2_HIGH, LN2_LOW = 6.93147180369123816490e-01, 1.90821492927058770002e-10
MAGIC = 1.5 * 2.0**52
MAGIC_BITS = int(np.float64(MAGIC).view(np.int64))
ROOT_HALF_BITS = int(np.sqrt(np.float64(0.5)).view(np.int64))
FIXED, FIXED_NLL, LONG = 2.0**32, 2.0**40, 64.0
FINE, NOT_FINE = 0, 1
C13, C12, C11, C10, C9, C8, C7, C6, C5, C4, C3, C2 = (1.0 / factorial(n) for n in range(13, 1, -1))
D19, D17, D15, D13, D11, D9, D7, D5, D3 = (2.0 / n for n in range(19, 1, -2))
PACKED_BITS = 48  # 2^15 sums of at most 2^32 below, 2^15 counts above
PACKED_ONE, ROOM = 1 << PACKED_BITS, 1 << 15
SPANS_PER_TABLE = 1 << 10  # 2^26 voxels, long before 2^31 would fill an int64


def numba_sums(spans: Spans, bins: Bins, threads: int) -> list[dict[str, Array]]:
    """Flat int64 tables, one set per share of the spans."""
    steps = spans.steps(1 << 16)
    threads = max(1, min(threads, len(steps)))
    shares = []
    for i in range(threads):
        mine = steps[i::threads]
        shares += [mine[a : a + SPANS_PER_TABLE] for a in range(0, len(mine), SPANS_PER_TABLE)]
    if threads == 1:
        return [_tables(spans, bins, share) for share in shares]
    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(lambda share: _tables(spans, bins, share), shares))


def _tables(spans: Spans, bins: Bins, steps: list[Step]) -> dict[str, Array]:
    """The tables after some steps. Their last cell takes the ignored voxels and is thrown away."""
    k, kind = spans.classes, KINDS.index(spans.kind)
    edges = np.concatenate([[-1.0], bins.edges[1:-1], [np.inf, np.inf]]).astype(np.float32)
    rules = (kind, spans.ignore_label is not None, spans.ignore_label or 0, bins.number, bins.scale or 0.0, spans.least)
    cells = 4 * spans.bands.number
    table = np.zeros((2, (cells + 1) * 4 * k * bins.cells), np.int64)  # count and confidence [cell hit m k b]
    packed = np.zeros((2, table.shape[1]), np.int64)
    short = np.zeros(((cells + 1) * k, 4), np.int64)  # squares, whole and fraction of nll, impossible
    p, work, index = np.empty((k, BLOCK), np.float32), np.empty((k + 4, BLOCK)), np.empty((k + 3, BLOCK), np.int32)
    no_zones = np.zeros(0, np.uint8)
    for step in steps:
        scores, start, stride = spans.numbers(step)
        labels = np.ascontiguousarray(spans.labels(step), np.int32)
        zone = no_zones if spans.distance_mm is None else spans.zones(step).astype(np.uint8)
        code, i = _count(
            scores, start, stride, labels, zone, rules, edges, np.float32(bins.threshold),
            table, packed, short.reshape(-1), p, work, work.view(np.int64), index,
        )  # fmt: skip
        if code != FINE:
            if not 0 <= labels[i] < k:
                spans.refuse_label(int(labels[i]), step, i)
            spans.refuse_scores([scores[start + i + c * stride] for c in range(k)], spans.where(step, i))
    (count, confidence), short = table.reshape(2, cells + 1, 2, -1)[:, :-1], short[:-k]
    return {
        "count": count.sum(1).reshape(-1),
        "confidence": confidence.sum(1).reshape(-1),
        "hits": count[:, 1].reshape(-1) << 32,
        "squares": short[:, 0],
        "nll": short[:, 1:3].T,
        "impossible": short[:, 3],
    }


@njit(nogil=True, cache=True, error_model="numpy")
def _count(scores, start, stride, labels, zone, rules, edges, threshold, table, packed, short, p, work, bits, index):
    """Add len(labels) voxels of scores [k * stride], from `start` on, to the tables."""
    kind, ignores, ignore_label, number, scale, least = rules
    classes = p.shape[0]
    dump = len(short) // (4 * classes) - 1
    total, norm, truth, spare = work[classes], work[classes + 1], work[classes + 2], work[classes + 3]
    top, cell, label = index[classes], index[classes + 1], index[classes + 2]
    for first in range(0, len(labels), BLOCK):
        m = min(BLOCK, len(labels) - first)
        for j in range(m):
            label[j] = labels[first + j]
        if kind == 2:
            _given(scores, start + first, stride, m, p, work, total)
        else:
            _softmax(scores, start + first, stride, m, p, work, bits, total, norm)
        wrong = _first_wrong(label[:m], total, kind == 2, classes, ignores, ignore_label)
        if wrong >= 0:
            return NOT_FINE, first + wrong
        _predict(p, m, top)
        for j in range(m):
            cell[j] = 2 * (label[j] > 0) + (top[j] > 0)
        if len(zone):
            for j in range(m):
                cell[j] += 4 * zone[first + j]
        if ignores:
            for j in range(m):
                if label[j] == ignore_label:
                    cell[j], label[j] = dump, 0
                    for k in range(classes):
                        p[k, j] = work[k, j] = 0.0
        one_cell = _uniform(cell, m)
        _bins(p, m, scale, number, edges, threshold, index)
        _scatter(p, m, work, spare, bits[classes + 3], one_cell, index, packed, short)
        if first % ROOM == ROOM - BLOCK:
            _unpack(packed, table)
        _true_score(scores, start + first, stride, m, classes, label, truth)
        if kind == 2:
            zeros = 0
            for j in range(m):
                zeros += truth[j] <= 0
            if zeros:
                for j in range(m):
                    short[4 * (cell[j] * classes + label[j]) + 3] += truth[j] <= 0
            for j in range(m):
                truth[j] = min(max(truth[j], least), 1.0)
            _log(truth, bits[classes + 2], m, spare, bits[classes + 3])
            for j in range(m):
                truth[j] = -truth[j]
        else:
            _log(total, bits[classes], m, spare, bits[classes + 3])
            for j in range(m):
                norm[j] += total[j]
                truth[j] = norm[j] - truth[j]
        if kind == 1:
            for j in range(m):
                if abs(np.exp(norm[j]) - 1.0) > TOLERANCE and cell[j] != dump:
                    return NOT_FINE, first + j
        _surprise(m, truth, bits[classes + 2], one_cell and _uniform(label, m), classes, cell, label, short)
    _unpack(packed, table)
    for row in range(0, len(short), 4):  # 2^17 surprises below LONG fit into an int64
        short[row + 1] += short[row + 2] >> 40
        short[row + 2] &= (1 << 40) - 1
    return FINE, 0


@njit(nogil=True, cache=True, error_model="numpy")
def _first_wrong(label, total, given, classes, ignores, ignore_label):
    """The first voxel that counts and has an impossible label or impossible scores; -1 where there is none."""
    low, high = (1.0 - TOLERANCE, 1.0 + TOLERANCE) if given else (0.0, np.inf)
    wrong = 0
    for j in range(len(label)):
        wrong += not ((total[j] >= low) & (total[j] <= high) & (label[j] >= 0) & (label[j] < classes))
    if wrong:
        for j in range(len(label)):
            good = low <= total[j] <= high and 0 <= label[j] < classes
            if not good and not (ignores and label[j] == ignore_label):
                return j
    return -1


@njit(nogil=True, cache=True, error_model="numpy")
def _uniform(values, m):
    different = 0
    for j in range(m):
        different += values[j] != values[0]
    return different == 0


@njit(nogil=True, cache=True, error_model="numpy")
def _true_score(scores, start, stride, m, classes, label, truth):
    """The score of each voxel's own label."""
    for k in range(classes):
        row = scores[start + k * stride : start + k * stride + m]
        for j in range(m):
            truth[j] = np.float64(row[j]) if label[j] == k else truth[j]


@njit(nogil=True, cache=True, error_model="numpy")
def _surprise(m, nll, nll_bits, one_row, classes, cell, label, short):
    """Add -log p of the true class."""
    largest = 0.0
    for j in range(m):
        largest = nll[j] if nll[j] > largest else largest
    if largest >= LONG:
        for j in range(m):
            if nll[j] >= LONG:
                row = 4 * (cell[j] * classes + label[j])
                short[row + 3] += nll[j] == np.inf
                nll[j] = min(nll[j], LARGEST_NLL)
                short[row + 1] += np.int64(nll[j])
                nll[j] -= np.floor(nll[j])
    for j in range(m):
        nll[j] = nll[j] * FIXED_NLL + MAGIC
    if one_row:
        total = 0
        for j in range(m):
            total += nll_bits[j] - MAGIC_BITS
        short[4 * (cell[0] * classes + label[0]) + 2] += total
    else:
        for j in range(m):
            short[np.uint64(4 * (cell[j] * classes + label[j]) + 2)] += nll_bits[j] - MAGIC_BITS


@njit(nogil=True, cache=True, error_model="numpy")
def _given(scores, start, stride, m, p, work, total):
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


@njit(nogil=True, cache=True, error_model="numpy", fastmath={"contract"})
def _softmax(scores, start, stride, m, p, work, bits, total, largest):
    """float64 and float32 probabilities; the largest score and the sum of exp(score - largest)."""
    powers, power_bits = work[p.shape[0] + 2], bits[p.shape[0] + 2]
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
        e, e_bits = work[k], bits[k]
        for j in range(m):
            x = np.float64(row[j]) - largest[j]
            x = -700.0 if x < -700.0 else x  # exp of either is 0 as a float32; NaN stays
            t = x * LOG2E + MAGIC
            n = t - MAGIC
            r = (x - n * LN2_HIGH) - n * LN2_LOW
            s = ((((C13 * r + C12) * r + C11) * r + C10) * r + C9) * r + C8
            s = ((((s * r + C7) * r + C6) * r + C5) * r + C4) * r + C3
            e[j] = ((s * r + C2) * r + 1.0) * r + 1.0
            powers[j] = t
        for j in range(m):
            e_bits[j] += power_bits[j] << 52  # times 2^n
        for j in range(m):
            total[j] += e[j]
    for j in range(m):
        powers[j] = 1.0 / total[j]
    for k in range(p.shape[0]):
        e, row32 = work[k], p[k]
        for j in range(m):
            e[j] *= powers[j]
            row32[j] = np.float32(e[j])


@njit(nogil=True, cache=True, error_model="numpy", fastmath={"contract"})
def _log(x, x_bits, m, exponent, exponent_bits):
    """x becomes its logarithm: 2^n f with f near 1, and log f = 2 atanh((f - 1) / (f + 1)) as a series."""
    for j in range(m):
        tiny = x[j] < 2.0**-1000
        x[j] *= 2.0**100 if tiny else 1.0
        exponent[j] = MAGIC - (1124.0 if tiny else 1024.0)
    for j in range(m):
        n = np.uint64(x_bits[j] - ROOT_HALF_BITS + (1024 << 52)) >> np.uint64(52)
        x_bits[j] -= (np.int64(n) - 1024) << 52
        exponent_bits[j] += np.int64(n)
    for j in range(m):
        f = x[j] - 1.0
        s = f / (2.0 + f)
        q = s * s
        series = (((D19 * q + D17) * q + D15) * q + D13) * q + D11
        series = ((((series * q + D9) * q + D7) * q + D5) * q + D3) * q
        n = exponent[j] - MAGIC
        x[j] = n * LN2_HIGH + (n * LN2_LOW + (2.0 * s + s * series))


@njit(nogil=True, cache=True, error_model="numpy")
def _predict(p, m, top):
    """The class with the largest float32 probability, ties to the smallest id."""
    best = np.empty(BLOCK, np.float32)
    for j in range(m):
        best[j] = p[0, j]
        top[j] = 0
    for k in range(1, p.shape[0]):
        row = p[k]
        for j in range(m):
            top[j] = k if row[j] > best[j] else top[j]
            best[j] = row[j] if row[j] > best[j] else best[j]


@njit(nogil=True, cache=True, error_model="numpy")
def _bins(p, m, scale, number, edges, threshold, index):
    """The place in the flat table of every (class, voxel) pair."""
    classes, cells = p.shape[0], number + 1
    top, cell, label = index[classes], index[classes + 1], index[classes + 2]
    for k in range(classes):
        row, at = p[k], index[k]
        if scale > 0:
            for j in range(m):
                at[j] = np.int32(min(max(np.ceil(np.float64(row[j]) * scale), 1.0), np.float64(number)))
        else:
            for j in range(m):
                b = int(row[j] * np.float32(number))  # off by one at most, next to an edge
                b -= row[j] <= edges[b]
                b += row[j] > edges[b + 1]
                at[j] = b + 1
        for j in range(m):
            state = 4 * cell[j] + (2 if label[j] == k else 0) + (1 if top[j] == k else 0)
            at[j] += (state * classes + k) * cells - (1 if row[j] <= threshold else 0)


@njit(nogil=True, cache=True, error_model="numpy")
def _scatter(p, m, work, fixed, fixed_bits, one_cell, index, packed, short):
    """Counts, sums of p and sums of (p - y)^2.

    A count and a sum are added at once, as one integer, to one of two tables in turn: adding twice in a row to the same
    place has to wait for the memory.
    """
    classes, one = p.shape[0], PACKED_ONE - MAGIC_BITS
    even, odd = packed[0], packed[1]
    cell, label = index[classes + 1], index[classes + 2]
    for k in range(classes):
        value, at = work[k], index[k]
        for j in range(m):
            fixed[j] = value[j] * FIXED + MAGIC
        for j in range(0, m - 1, 2):
            even[np.uint64(at[j])] += fixed_bits[j] + one
            odd[np.uint64(at[j + 1])] += fixed_bits[j + 1] + one
        if m % 2:
            even[np.uint64(at[m - 1])] += fixed_bits[m - 1] + one
        for j in range(m):
            gap = value[j] - (1.0 if label[j] == k else 0.0)
            fixed[j] = gap * gap * FIXED + MAGIC
        if one_cell:
            total = 0
            for j in range(m):
                total += fixed_bits[j] - MAGIC_BITS
            short[4 * (cell[0] * classes + k)] += total
        else:
            for j in range(m):
                short[np.uint64(4 * (cell[j] * classes + k))] += fixed_bits[j] - MAGIC_BITS


@njit(nogil=True, cache=True, error_model="numpy")
def _unpack(packed, table):
    """Move counts and sums from where they were added as one integer to where they have room."""
    for half in range(2):
        for i in range(packed.shape[1]):
            both = packed[half, i]
            if both:
                table[0, i] += both >> PACKED_BITS
                table[1, i] += both & (PACKED_ONE - 1)
                packed[half, i] = 0
