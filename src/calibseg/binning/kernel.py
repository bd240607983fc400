r"""The numba route (extra `fast`): one fused pass, a thread per share of the spans, each with its own int64 tables.

It computes exactly what `spans` and `torch_route` say, block by block in the processor's first cache (see
`block_kernel`). Most blocks of a volume are sure background: where all voxels of a block put a class into one place of
the table, vector instructions sum them and the table is touched once. On demand the same pass fills the fine histogram
of equal-mass bins (see `fine_kernel`). The kernel is compiled at its first call and kept on disk; it holds no lock, so
plain threads run it.
"""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
from numba import njit

from calibseg.binning.block_kernel import (
    BLOCK,
    FINE,
    MAGIC,
    MAGIC_BITS,
    NOT_FINE,
    bin_of,
    first_wrong,
    given,
    logarithm,
    predict,
    ranges,
    softmax,
    uniform,
)
from calibseg.binning.fine_kernel import FineShare, FineTables, fill
from calibseg.binning.probabilities import KINDS, LARGEST_NLL, TOLERANCE
from calibseg.binning.spans import Spans, Step
from calibseg.curves import Bins
from calibseg.types import Array

FIXED, FIXED_NLL, LONG = 2.0**32, 2.0**40, 64.0
PACKED_BITS = 48  # 2^15 sums of at most 2^32 below, 2^15 counts above
PACKED_ONE, ROOM = 1 << PACKED_BITS, 1 << 15
STEP = 1 << 17
SPANS_PER_TABLE = 1 << 9  # 2^26 voxels, long before 2^31 would fill an int64


def numba_sums(
    spans: Spans, bins: Bins, threads: int, fine_threshold: float | None = None
) -> tuple[list[dict[str, Array]], FineTables | None]:
    """Flat int64 tables, some sets that add up; and on demand the fine histogram."""
    steps = spans.steps(STEP)
    threads = max(1, min(threads, len(steps)))
    shares = []
    for i in range(threads):
        mine = steps[i::threads]
        shares += [mine[a : a + SPANS_PER_TABLE] for a in range(0, len(mine), SPANS_PER_TABLE)]
    fine = None if fine_threshold is None else FineTables.of(spans, bins, fine_threshold)
    if threads == 1:
        found = [_tables(spans, bins, share, fine) for share in shares]
    else:
        with ThreadPoolExecutor(threads) as pool:
            found = list(pool.map(lambda share: _tables(spans, bins, share, fine), shares))
    if fine is not None and fine.bins is not None:
        by_bin = dict(zip(("count", "confidence", "hits"), fine.sums[0], strict=True))
        found.append({name: np.zeros_like(table) for name, table in found[0].items()} | by_bin)
    return found, fine


def _tables(spans: Spans, bins: Bins, steps: list[Step], fine: FineTables | None) -> dict[str, Array]:
    """The tables after some steps. Their last cell takes the ignored voxels and is thrown away."""
    k, kind = spans.classes, KINDS.index(spans.kind)
    edges = np.concatenate([[-1.0], bins.edges[1:-1], [np.inf, np.inf]]).astype(np.float32)
    rules = (kind, spans.ignore_label is not None, spans.ignore_label or 0, bins.number, bins.scale or 0.0, spans.least)
    cells = 4 * spans.bands.number
    table = np.zeros((2, (cells + 1) * 4 * k * bins.cells), np.int64)  # count and confidence [cell hit m k b]
    packed = np.zeros((2, table.shape[1]), np.int64)
    short = np.zeros(((cells + 1) * k, 4), np.int64)  # squares, whole and fraction of nll, impossible
    p, work, index = np.empty((k, BLOCK), np.float32), np.empty((k + 4, BLOCK)), np.empty((k + 3, BLOCK), np.int32)
    own, no_zones = FineShare(fine), np.zeros(0, np.uint8)
    for step in steps:
        scores, start, stride = spans.numbers(step)
        labels = np.ascontiguousarray(spans.labels(step), np.int32)
        zone = no_zones if spans.distance_mm is None else spans.zones(step).astype(np.uint8)
        for offset in range(0, len(labels), STEP):  # a slice of an array that is not contiguous may be longer
            part = slice(offset, offset + STEP)
            number = len(labels[part])
            code, i = _count(
                scores, start + offset, stride, labels[part], zone[part], rules, edges, np.float32(bins.threshold),
                table, packed, short.reshape(-1), p, p.view(np.int32), work, work.view(np.int64), index,
                *own.arrays, *own.new_reach(step, offset, number),
            )  # fmt: skip
            if code != FINE:
                i += offset
                if not 0 <= labels[i] < k:
                    spans.refuse_label(int(labels[i]), step, i)
                spans.refuse_scores([scores[start + i + c * stride] for c in range(k)], spans.where(step, i))
            own.added(number)
    own.finish()
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
def _count(
    scores, start, stride, labels, zone, rules, edges, threshold, table, packed, short, p, p_bits, work, bits, index,
    fine_rules, fine_packed, below, near, near_bits, small, small_bits, reach, cells,
):  # fmt: skip
    """Add len(labels) voxels of scores [k * stride], from `start` on, to the tables."""
    kind, ignores, ignore_label, number, scale, least = rules
    classes = p.shape[0]
    dump = len(short) // (4 * classes) - 1
    total, norm, truth, spare = work[classes], work[classes + 1], work[classes + 2], work[classes + 3]
    top, cell, label = index[classes], index[classes + 1], index[classes + 2]
    together = fine_rules[3]
    low, high = np.empty(classes, np.float32), np.empty(classes, np.float32)
    for first in range(0, len(labels), BLOCK):
        m = min(BLOCK, len(labels) - first)
        for j in range(m):
            label[j] = labels[first + j]
        if kind == 2:
            given(scores, start + first, stride, m, p, work, total)
        else:
            softmax(scores, start + first, stride, m, p, work, bits, total, norm)
        wrong = first_wrong(label[:m], total, kind == 2, classes, ignores, ignore_label)
        if wrong >= 0:
            return NOT_FINE, first + wrong
        one_top, sure = ranges(p_bits, m, low, high)
        if one_top >= 0:
            top[:m] = one_top
        else:
            predict(p, m, top)
        for j in range(m):
            cell[j] = 2 * (label[j] > 0) + (top[j] > 0)
        if len(zone):
            for j in range(m):
                cell[j] += 4 * zone[first + j]
        if ignores:
            ignored = 0
            for j in range(m):
                ignored += label[j] == ignore_label
            if ignored:
                _ignore(p, m, work, ignore_label, dump, top, cell, label)
                ranges(p_bits, m, low, high)
        one_cell, one_label = uniform(cell, m), uniform(label, m)
        for k in range(classes):
            predicted = one_top == k or (one_top < 0 and not high[k] < sure)
            quiet = high[k] <= threshold and not predicted
            known = one_cell and (one_top >= 0 or not predicted) and (one_label or not _occurs(label, m, k))
            if len(fine_packed) and not quiet:
                fill(
                    p[k], k, m, low[k], high[k], predicted, known, index, (scale, number, edges), fine_rules,
                    fine_packed, below, near, near_bits, small, small_bits, index[0], index[1], reach[first // BLOCK],
                )  # fmt: skip
            if together and not quiet:
                _squares(work[k], k, m, one_cell, one_label, cell, label, classes, dump, spare, short)
                continue
            place = -1
            if known:
                place = bin_of(low[k], scale, number, edges)
                if place != bin_of(high[k], scale, number, edges) or (low[k] <= threshold) != (high[k] <= threshold):
                    place = -1
            if place >= 0:
                state = 4 * cell[0] + (2 if label[0] == k else 0) + (1 if top[0] == k else 0)
                place += (state * classes + k) * (number + 1) - (1 if low[k] <= threshold else 0)
                sum_p, squares = _sums(work[k], m, 1.0 if label[0] == k else 0.0)
                table[0, place] += m
                table[1, place] += sum_p
                short[4 * (cell[0] * classes + k)] += squares
            else:
                _bins(p[k], k, m, scale, number, edges, threshold, index)
                _scatter(work[k], m, spare, bits[classes + 3], index[k], packed)
                _squares(work[k], k, m, one_cell, one_label, cell, label, classes, dump, spare, short)
        if len(fine_packed):
            for j in range(1 if one_cell else m):
                cells[first // BLOCK] |= np.uint8(1 << (cell[j] & 3))
        if first % ROOM == ROOM - BLOCK:
            _unpack(packed, table)
            _carry(short)
        if one_label:
            row = scores[start + first + label[0] * stride : start + first + label[0] * stride + m]
            for j in range(m):
                truth[j] = np.float64(row[j])
        else:
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
            logarithm(truth, bits[classes + 2], m, spare, bits[classes + 3])
            for j in range(m):
                truth[j] = -truth[j]
        else:
            logarithm(total, bits[classes], m, spare, bits[classes + 3])
            for j in range(m):
                norm[j] += total[j]
                truth[j] = norm[j] - truth[j]
        if kind == 1:
            for j in range(m):
                if abs(np.exp(norm[j]) - 1.0) > TOLERANCE and cell[j] != dump:
                    return NOT_FINE, first + j
        _surprise(m, truth, bits[classes + 2], one_cell and one_label, classes, cell, label, short)
    _unpack(packed, table)
    _carry(short)
    return FINE, 0


@njit(nogil=True, cache=True, error_model="numpy")
def _ignore(p, m, work, ignore_label, dump, top, cell, label):
    """Send ignored voxels to the cell that is thrown away, as probabilities of 0 for the class 0."""
    for j in range(m):
        if label[j] == ignore_label:
            top[j], cell[j], label[j] = -1, dump, 0
            for k in range(p.shape[0]):
                p[k, j] = work[k, j] = 0.0


@njit(nogil=True, cache=True, error_model="numpy")
def _occurs(label, m, k):
    own, found = np.int32(k), np.int32(0)  # of one width, or the processor compares half as many at a time
    for j in range(m):
        found = np.int32(found + (label[j] == own))
    return found > 0


@njit(nogil=True, cache=True, error_model="numpy")
def _carry(short):
    """Whole nats out of the fractions: 2^17 surprises below LONG fit into an int64."""
    for row in range(0, len(short), 4):
        short[row + 1] += short[row + 2] >> 40
        short[row + 2] &= (1 << 40) - 1


@njit(nogil=True, cache=True, error_model="numpy")
def _true_score(scores, start, stride, m, classes, label, truth):
    """The score of each voxel's own label."""
    for k in range(classes):
        row, own = scores[start + k * stride : start + k * stride + m], np.int32(k)
        for j in range(m):
            truth[j] = np.float64(row[j]) if label[j] == own else truth[j]


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
def _bins(p, k, m, scale, number, edges, threshold, index):
    """The place in the flat table of the voxels' probabilities p of class k, into index[k]."""
    classes, cells, at = len(index) - 3, number + 1, index[k]
    top, cell, label = index[classes], index[classes + 1], index[classes + 2]
    own = np.int32(k)
    for j in range(m):
        at[j] = bin_of(p[j], scale, number, edges)
    for j in range(m):
        state = np.int32(4 * cell[j] + (2 if label[j] == own else 0) + (1 if top[j] == own else 0))
        at[j] += (state * classes + k) * cells - (1 if p[j] <= threshold else 0)


@njit(nogil=True, cache=True, error_model="numpy")
def _scatter(p, m, fixed, fixed_bits, at, packed):
    """Counts and sums of p.

    A count and a sum are added at once, as one integer, to one of two tables in turn: adding twice in a row to the same
    place has to wait for the memory.
    """
    one = PACKED_ONE - MAGIC_BITS
    even, odd = packed[0], packed[1]
    for j in range(m):
        fixed[j] = p[j] * FIXED + MAGIC
    for j in range(0, m - 1, 2):
        even[np.uint64(at[j])] += fixed_bits[j] + one
        odd[np.uint64(at[j + 1])] += fixed_bits[j + 1] + one
    if m % 2:
        even[np.uint64(at[m - 1])] += fixed_bits[m - 1] + one


@njit(nogil=True, cache=True, error_model="numpy", fastmath={"reassoc", "nsz"})  # sums of integers, in any order
def _sums(p, m, y):
    """The sums of round(p 2^32) and of round((p - y)^2 2^32), halves to even."""
    total, squares = 0.0, 0.0
    for j in range(m):
        total += np.rint(p[j] * FIXED)
        gap = p[j] - y
        squares += np.rint(gap * gap * FIXED)
    return np.int64(total), np.int64(squares)


@njit(nogil=True, cache=True, error_model="numpy", fastmath={"reassoc", "nsz"})
def _squares(p, k, m, one_cell, one_label, cell, label, classes, dump, fixed, short):
    """Add the sums of (p - y)^2 of class k."""
    own = np.int32(k)
    if one_cell:
        total = 0.0
        if one_label:
            y = 1.0 if label[0] == own else 0.0
            for j in range(m):
                gap = p[j] - y
                total += np.rint(gap * gap * FIXED)
        else:
            for j in range(m):
                gap = p[j] - (1.0 if label[j] == own else 0.0)
                total += np.rint(gap * gap * FIXED)
        short[4 * (cell[0] * classes + k)] += np.int64(total)
        return
    for j in range(m):
        gap = p[j] - (1.0 if label[j] == own else 0.0)
        fixed[j] = np.rint(gap * gap * FIXED)
    if dump <= 4:
        for c in range(dump):
            inside, total = np.int32(c), 0.0
            for j in range(m):
                total += fixed[j] if cell[j] == inside else 0.0
            short[4 * (c * classes + k)] += np.int64(total)
    else:
        for j in range(m):
            short[np.uint64(4 * (cell[j] * classes + k))] += np.int64(fixed[j])


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
