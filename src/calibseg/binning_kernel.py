r"""The numba route (extra `fast`): one fused pass, a thread per share of the spans, each with its own int64 tables.

It computes exactly what `spans` and `binning_torch` say, block by block in the processor's first cache. Softmax needs
an exponential per score: exp(x) = 2^n exp(r) with n = round(x / ln 2) and the Taylor series of exp(r) to r^13, whose
error of 2e-16 is far below the float32 that the probability is rounded to; written as loops over a block it runs in
vector registers. Adding 1.5 2^52 to a float64 rounds it to an integer, halves to even, and leaves it in the low bits.
The kernel is compiled at its first call and kept on disk; it holds no lock, so plain threads run it.
"""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
from numba import njit

from calibseg.curves import Bins
from calibseg.spans import KINDS, LARGEST_NLL, TOLERANCE, Spans
from calibseg.types import Array

BLOCK = 256
LOG2E = 1.4426950408889634
LN2_HIGH = 6.93147180369123816490e-01
LN2_LOW = 1.90821492927058770002e-10
MAGIC = 1.5 * 2.0**52
MAGIC_BITS = int(np.float64(MAGIC).view(np.int64))
FIXED, FIXED_NLL, MASK_NLL = 2.0**32, 2.0**40, (1 << 40) - 1
FINE, NOT_FINITE, BAD_SUM, BAD_RANGE, BAD_LABEL = range(5)
TAYLOR = tuple(1.0 / float(np.prod(np.arange(1, n + 1, dtype=np.float64))) for n in range(13, 1, -1))
C13, C12, C11, C10, C9, C8, C7, C6, C5, C4, C3, C2 = TAYLOR
SPANS_PER_TABLE = 1 << 10  # 2^26 voxels, long before 2^31 would fill an int64


def numba_sums(spans: Spans, bins: Bins, threads: int) -> list[dict[str, Array]]:
    """Flat int64 tables, one set per share of the spans."""
    steps = spans.steps
    threads = max(1, min(threads, len(steps)))
    shares = []
    for i in range(threads):
        mine = steps[i::threads]
        shares += [mine[a : a + SPANS_PER_TABLE] for a in range(0, len(mine), SPANS_PER_TABLE)]
    if threads == 1:
        return [_tables(spans, bins, share) for share in shares]
    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(lambda share: _tables(spans, bins, share), shares))


def _tables(spans: Spans, bins: Bins, steps: list[tuple[int, int]]) -> dict[str, Array]:
    """The tables after some steps."""
    edges = np.concatenate([[-1.0], bins.edges[1:-1], [np.inf, np.inf]]).astype(np.float32)
    k, kind, ignores = spans.classes, KINDS.index(spans.kind), spans.ignore_label is not None
    table = np.zeros((spans.bands.number * 8 * k * bins.cells, 4), np.int64)  # count, confidence, hits; a spare
    short = np.zeros((spans.bands.number * 4 * k, 4), np.int64)  # squares, whole and fraction of nll, impossible
    p, work = np.empty((k, BLOCK), np.float32), np.empty((4, k, BLOCK))
    scale = bins.scale or 0.0
    no_zones = np.zeros(0, np.uint8)
    for step in steps:
        scores, start, stride = spans.numbers(step)
        labels = np.ascontiguousarray(spans.labels(step), np.int32)
        zone = no_zones if spans.distance_mm is None else spans.zones(step).astype(np.uint8)
        code, i = _count(
            scores, start, stride, labels, zone, kind, ignores, spans.ignore_label or 0, edges, bins.number,
            scale, np.float32(bins.threshold), spans.least, table, short, p, work, work.view(np.int64),
        )  # fmt: skip
        if code == BAD_LABEL:
            spans.refuse_label(int(labels[i]), step, i)
        if code != FINE:
            values = [float(scores[start + i + c * stride]) for c in range(k)]
            spans.refuse_scores(values, spans.where(step, i))
    return {
        "count": table[:, 0],
        "confidence": table[:, 1],
        "hits": table[:, 2] << 32,
        "squares": short[:, 0],
        "nll": short[:, 1:3].T,
        "impossible": short[:, 3],
    }


@njit(nogil=True, cache=True)
def _count(
    scores, start, stride, labels, zone, kind, ignores, ignore_label, edges, number,
    scale, threshold, least, table, short, p, work, bits,
):  # fmt: skip
    """Add the voxels start to start + len(labels) of scores [k * stride] to the tables."""
    classes, cells = p.shape[0], number + 1
    largest, total = np.empty(BLOCK), np.empty(BLOCK)
    for first in range(0, len(labels), BLOCK):
        m = min(BLOCK, len(labels) - first)
        if kind == 2:
            _given(scores, start + first, stride, m, p, work, total)
        else:
            _softmax(scores, start + first, stride, m, p, work, bits, largest, total)
        _prepare(p, m, scale, number, edges, threshold, work)
        for j in range(m):
            label = labels[first + j]
            if ignores and label == ignore_label:
                continue
            if label < 0 or label >= classes:
                return BAD_LABEL, first + j
            truth = np.float64(scores[start + first + j + label * stride])
            if total[j] != total[j]:
                return NOT_FINITE, first + j
            if kind == 2:
                if abs(total[j] - 1.0) > TOLERANCE:
                    return BAD_SUM, first + j
                nll = -np.log(max(min(truth, 1.0), least))
                impossible = truth <= 0
            else:
                norm = np.log(total[j]) + largest[j]
                if kind == 1 and abs(np.exp(norm) - 1.0) > TOLERANCE:
                    return BAD_SUM, first + j
                nll = norm - truth
                impossible = nll == np.inf
                nll = min(nll, LARGEST_NLL)
            top, best = 0, p[0, j]
            for k in range(1, classes):
                if p[k, j] > best:
                    top, best = k, p[k, j]
            cell = 2 * (label > 0) + (top > 0)
            if len(zone):
                cell += 4 * zone[first + j]
            base = 2 * cell * classes * cells
            for k in range(classes):
                index = base + k * cells + (bits[0, k, j] - MAGIC_BITS)
                if k == top:
                    index += classes * cells
                table[index, 0] += 1
                table[index, 1] += bits[1, k, j] - MAGIC_BITS
                if k == label:
                    table[index, 2] += 1
                    gap = work[3, k, j] - 1.0
                    short[cell * classes + k, 0] += np.int64((gap * gap * FIXED + MAGIC) - MAGIC)
                else:
                    short[cell * classes + k, 0] += bits[2, k, j] - MAGIC_BITS
            whole = np.floor(nll)
            row = cell * classes + label
            short[row, 1] += np.int64(whole)
            short[row, 2] += np.int64(((nll - whole) * FIXED_NLL + MAGIC) - MAGIC)
            short[row, 3] += impossible
    for row in range(len(short)):  # 2^23 fractions would fill an int64
        short[row, 1] += short[row, 2] >> 40
        short[row, 2] &= MASK_NLL
    return FINE, 0


@njit(nogil=True, cache=True)
def _given(scores, start, stride, m, p, work, total):
    """Stored probabilities as float32, and their sum (NaN where one lies outside 0 to 1)."""
    for j in range(m):
        total[j] = 0.0
    for k in range(p.shape[0]):
        for j in range(m):
            value = np.float64(scores[start + k * stride + j])
            total[j] += value
            if value < -TOLERANCE or value > 1.0 + TOLERANCE:
                total[j] = np.nan
            work[3, k, j] = min(max(value, 0.0), 1.0)
            p[k, j] = np.float32(work[3, k, j])


@njit(nogil=True, cache=True)
def _softmax(scores, start, stride, m, p, work, bits, largest, total):
    """float32 probabilities; the largest score and the sum of exp(score - largest), in float64."""
    for j in range(m):
        largest[j] = np.float64(scores[start + j])
        total[j] = 0.0
    for k in range(1, p.shape[0]):
        for j in range(m):
            value = np.float64(scores[start + k * stride + j])
            largest[j] = value if value > largest[j] else largest[j]
    for k in range(p.shape[0]):
        for j in range(m):
            x = np.float64(scores[start + k * stride + j]) - largest[j]
            x = -700.0 if x < -700.0 else x  # exp of either is 0 as a float32; NaN stays
            t = x * LOG2E + MAGIC
            n = t - MAGIC
            r = (x - n * LN2_HIGH) - n * LN2_LOW
            s = ((((C13 * r + C12) * r + C11) * r + C10) * r + C9) * r + C8
            s = ((((s * r + C7) * r + C6) * r + C5) * r + C4) * r + C3
            work[0, k, j] = ((s * r + C2) * r + 1.0) * r + 1.0
            work[1, k, j] = t
        for j in range(m):
            bits[0, k, j] += bits[1, k, j] << 52  # times 2^n
        for j in range(m):
            total[j] += work[0, k, j]
    for k in range(p.shape[0]):
        for j in range(m):
            work[3, k, j] = work[0, k, j] / total[j]
            p[k, j] = np.float32(work[3, k, j])


@njit(nogil=True, cache=True)
def _prepare(p, m, scale, number, edges, threshold, work):
    """Per probability: its stored bin, round(p 2^32) and round(p^2 2^32), each left in the low bits of a float64."""
    for k in range(p.shape[0]):
        for j in range(m):
            exact = work[3, k, j]
            work[1, k, j] = exact * FIXED + MAGIC
            work[2, k, j] = exact * exact * FIXED + MAGIC
        if scale > 0:
            for j in range(m):
                b = min(max(np.ceil(np.float64(p[k, j]) * scale), 1.0), np.float64(number))
                work[0, k, j] = (b - 1.0 if p[k, j] <= threshold else b) + MAGIC
        else:
            for j in range(m):
                if p[k, j] != p[k, j]:
                    continue
                b = int(p[k, j] * np.float32(number))  # off by one at most, next to an edge
                b -= p[k, j] <= edges[b]
                b += p[k, j] > edges[b + 1]
                work[0, k, j] = b + (p[k, j] > threshold) + MAGIC
