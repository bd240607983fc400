r"""The numba route (extra `fast`): one fused pass, a thread per share of the chunks, each with its own int64 tables.

It computes exactly what `reader` and `torch_pass` say, block by block (the folder's docstring tells how); on demand it
fills the fine histogram of equal-mass bins. It is compiled at its first call and kept on disk; it holds no lock, so
plain threads run it.
"""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
from numba import njit

from calibseg.core.scores import KINDS, ChunkRange
from calibseg.core.types import LEAST_PROBABILITY, TOLERANCE, Array
from calibseg.metrics.statistics.binning.numba.histogram import FineShare, FineTables, fill
from calibseg.metrics.statistics.binning.numba.maths import (
    BAD,
    BLOCK,
    GOOD,
    first_wrong,
    given,
    given_single,
    logarithm,
    predict,
    ranges,
    softmax,
    uniform,
)
from calibseg.metrics.statistics.binning.numba.sums import (
    ROOM,
    add_class,
    add_clipped,
    add_squares,
    add_surprise,
    carry,
    true_score,
    unpack,
)
from calibseg.metrics.statistics.binning.probabilities import LARGEST_NLL
from calibseg.metrics.statistics.binning.reader import VoxelReader
from calibseg.metrics.statistics.binning.route import FirstPass
from calibseg.metrics.statistics.calibration import Bins

CHUNK = 1 << 17
VOXELS_PER_TABLE = 1 << 26  # long before 2^31 would fill an int64


def numba_pass(reader: VoxelReader, bins: Bins, threads: int, fine_threshold: float | None = None) -> FirstPass:
    """Tables of all threads; on demand the fine histogram of equal-mass bins."""
    chunks = reader.chunks(CHUNK)
    threads = max(1, min(threads, len(chunks)))
    size = max(1, VOXELS_PER_TABLE // max(map(reader.voxels, chunks), default=1))
    groups = []
    for i in range(threads):
        mine = chunks[i::threads]
        groups += [mine[a : a + size] for a in range(0, max(1, len(mine)), size)]
    fine = None if fine_threshold is None else FineTables.of(reader, bins, fine_threshold)
    if threads == 1:
        tables = [_tables(reader, bins, group, fine) for group in groups]
    else:
        with ThreadPoolExecutor(threads) as pool:
            tables = list(pool.map(lambda group: _tables(reader, bins, group, fine), groups))
    if fine is None:
        return FirstPass("numba", tables)
    by_bin, by_bucket = fine.sums()
    if fine.bins is not None:
        sums = dict(zip(("count", "confidence", "hits"), by_bin, strict=True))
        tables.append({name: np.zeros_like(table) for name, table in tables[0].items()} | sums)
    return FirstPass("numba", tables, by_bucket, fine.bucket_range)


def _tables(reader: VoxelReader, bins: Bins, chunks: list[ChunkRange], fine: FineTables | None) -> dict[str, Array]:
    """The tables after some chunks. Their last cell takes the ignored voxels and is thrown away."""
    k, kind = reader.classes, KINDS.index(reader.kind)
    edges = np.concatenate([[-1.0], bins.edges[1:-1], [np.inf, np.inf]]).astype(np.float32)
    ignored = reader.targets.ignore_label
    rules = kind, ignored is not None, ignored or 0, bins.number, bins.scale or 0.0
    cells = 4 * reader.bands.number
    table = np.zeros((2, (cells + 1) * 4 * k * bins.cells), np.int64)  # count and confidence [cell hit m k b]
    packed = np.zeros((2, table.shape[1]), np.int64)
    short = np.zeros(((cells + 1) * k, 4), np.int64)  # squares, whole and fraction of nll, clipped
    p, work, index = np.empty((k, BLOCK), np.float32), np.empty((k + 4, BLOCK)), tuple(np.empty((5, BLOCK), np.int32))
    own, no_zones = FineShare(fine), np.zeros(0, np.uint8)
    for at in chunks:
        scores, start, stride = reader.numbers(at)
        labels = _int32_labels(reader, at)
        zone = no_zones if reader.distance_mm is None else reader.zones(at).astype(np.uint8)
        for offset in range(0, len(labels), CHUNK):  # a slice of an array that is not contiguous may be longer
            part = slice(offset, offset + CHUNK)
            number = len(labels[part])
            code, i = _count(
                scores, start + offset, stride, labels[part], zone[part], rules, edges, np.float32(bins.threshold),
                table, packed, short.reshape(-1), p, p.view(np.int32), work, work.view(np.int64), index,
                *own.arrays, *own.new_range(at, offset, number),
            )  # fmt: skip
            if code != GOOD:
                i += offset
                if not 0 <= labels[i] < k:
                    raise reader.targets.wrong_label(int(labels[i]), reader.where(at, i))
                raise reader.wrong_scores([scores[start + i + c * stride] for c in range(k)], reader.where(at, i))
            own.added(number)
    own.finish()
    (count, confidence), short = table.reshape(2, cells + 1, 2, -1)[:, :-1], short[:-k]
    return {
        "count": count.sum(1).reshape(-1),
        "confidence": confidence.sum(1).reshape(-1),
        "hits": count[:, 1].reshape(-1) << 32,
        "squares": short[:, 0],
        "nll": short[:, 1:3].T,
        "clipped": short[:, 3],
    }


def _int32_labels(reader: VoxelReader, at: ChunkRange) -> Array:
    """The labels of a chunk; refused where int32 cannot hold them."""
    stored = np.asarray(reader.labels(at))
    labels = np.ascontiguousarray(stored, np.int32)
    if stored.dtype.itemsize >= 4 and stored.dtype != np.int32:
        wrong = np.flatnonzero(labels != stored)
        if len(wrong):
            raise reader.targets.wrong_label(int(stored[wrong[0]]), reader.where(at, int(wrong[0])))
    return labels


@njit(nogil=True, cache=True, error_model="numpy")
def _count(
    scores, start, stride, labels, zone, rules, edges, threshold, table, packed, short, p, p_bits, work, bits, index,
    fine_rules, fine_packed, below, near, near_bits, small, small_bits, reach, cells,
):  # fmt: skip
    """Add len(labels) voxels of scores [k * stride], from `start` on, to the tables.

    near and small are room for a block's numbers, first for sums, ranges and the largest p, then for `fill`.
    """
    kind, ignores, ignore_label, number, scale = rules
    classes = p.shape[0]
    dump = len(short) // (4 * classes) - 1
    total, norm, truth, spare = work[classes], work[classes + 1], work[classes + 2], work[classes + 3]
    total_bits, truth_bits, spare_bits = bits[classes], bits[classes + 2], bits[classes + 3]
    top, cell, label, place, value = index
    bin_rules = (scale, number, edges)
    together, single = fine_rules[3], kind == 2 and scores.itemsize == 4
    low, high = np.empty(classes, np.float32), np.empty(classes, np.float32)
    for first in range(0, len(labels), BLOCK):
        m = min(BLOCK, len(labels) - first)
        for j in range(m):
            label[j] = labels[first + j]
        if single:
            given_single(scores, start + first, stride, m, p, near)
        elif kind == 2:
            given(scores, start + first, stride, m, p, work, total)
        else:
            softmax(scores, start + first, stride, m, p, work, bits, total, norm)
        one_top, sure, inside = ranges(p_bits, m, low, high, small, small_bits)
        if single and not inside:
            given(scores, start + first, stride, m, p, work, total)
            one_top, sure, _ = ranges(p_bits, m, low, high, small, small_bits)
        if single and inside:
            wrong = first_wrong(label[:m], near, True, classes, ignores, ignore_label)
        else:
            wrong = first_wrong(label[:m], total, kind == 2, classes, ignores, ignore_label)
        if wrong >= 0:
            return BAD, first + wrong
        if one_top >= 0:
            top[:m] = one_top
        else:
            predict(p, m, top, small)
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
                ranges(p_bits, m, low, high, small, small_bits)
        one_cell, one_label = uniform(cell, m), uniform(label, m)
        for k in range(classes):
            predicted = one_top == k or (one_top < 0 and not high[k] < sure)
            quiet = high[k] <= threshold and not predicted
            known = one_cell and (one_top >= 0 or not predicted) and (one_label or not _occurs(label, m, k))
            if len(fine_packed) and not quiet:
                fill(
                    p, k, m, low[k], high[k], predicted, known, top, cell, label, bin_rules, fine_rules, fine_packed,
                    below, near, near_bits, small, small_bits, place, value, reach, first // BLOCK,
                )  # fmt: skip
            if together and not quiet:
                add_squares(p, k, m, one_cell, one_label, cell, label, classes, spare, short)
            elif single:
                add_class(
                    p, p, k, m, low[k], high[k], known, one_cell, one_label, top, cell, label, bin_rules, threshold,
                    place, spare, spare_bits, table, packed, short,
                )  # fmt: skip
            else:
                add_class(
                    work, p, k, m, low[k], high[k], known, one_cell, one_label, top, cell, label, bin_rules, threshold,
                    place, spare, spare_bits, table, packed, short,
                )  # fmt: skip
        if len(fine_packed):
            for j in range(1 if one_cell else m):
                cells[first // BLOCK] |= np.uint8(1 << (cell[j] & 3))
        if first % ROOM == ROOM - BLOCK:
            unpack(packed, table)
            carry(short)
        if one_label:
            row = scores[start + first + label[0] * stride : start + first + label[0] * stride + m]
            for j in range(m):
                truth[j] = np.float64(row[j])
        else:
            true_score(scores, start + first, stride, m, classes, label, truth)
        if kind == 2:
            add_clipped(truth, m, -1.0, -LEAST_PROBABILITY, classes, cell, label, short)
            for j in range(m):
                truth[j] = min(max(truth[j], LEAST_PROBABILITY), 1.0)
            near_one = one_label and low[label[0]] >= np.float32(0.75)
            logarithm(truth, truth_bits, m, spare, spare_bits, near_one, -1.0)
        else:
            logarithm(total, total_bits, m, spare, spare_bits, False, 1.0)
            for j in range(m):
                norm[j] += total[j]
                truth[j] = norm[j] - truth[j]
            add_clipped(truth, m, 1.0, LARGEST_NLL, classes, cell, label, short)
            for j in range(m):
                truth[j] = min(truth[j], LARGEST_NLL)
        if kind == 1:
            for j in range(m):
                if abs(np.exp(norm[j]) - 1.0) > TOLERANCE and cell[j] != dump:
                    return BAD, first + j
        add_surprise(m, truth, truth_bits, one_cell and one_label, classes, cell, label, short)
    unpack(packed, table)
    carry(short)
    return GOOD, 0


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
