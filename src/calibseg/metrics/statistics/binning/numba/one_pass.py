r"""The numba route (extra `fast`): one fused pass, a thread per share of the chunks, each with its own int64 tables.

It computes exactly what `reader` and `torch_pass` say, block by block (the folder's docstring tells how); on demand it
fills the fine histogram of equal-mass bins. It is compiled at its first call and kept on disk; it holds no lock, so
plain threads run it.
"""

from concurrent.futures import ThreadPoolExecutor

import numpy as np

from calibseg.core.scores import KINDS, ChunkRange
from calibseg.core.types import LEAST_PROBABILITY, TOLERANCE, Array
from calibseg.metrics.statistics.binning.numba.histogram import FineShare, FineTables, fill
from calibseg.metrics.statistics.binning.numba.maths import (
    BLOCK,
    Room,
    Rules,
    compiled,
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
    UNPACK_EVERY,
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
    k = reader.classes
    rules = Rules.of(KINDS.index(reader.kind), reader.targets.ignore_label, bins)
    cells = 4 * reader.bands.number
    table = np.zeros((2, (cells + 1) * 4 * k * bins.stored), np.int64)  # count and confidence [cell hit m k b]
    packed = np.zeros((2, table.shape[1]), np.int64)
    short = np.zeros(((cells + 1) * k, 4), np.int64)  # squares, whole and fraction of nll, clipped
    room, own, no_zones = Room.of(k), FineShare(fine), np.zeros(0, np.uint8)
    for at in chunks:
        scores, start, stride = reader.numbers(at)
        labels = _int32_labels(reader, at)
        zone = no_zones if reader.distance_mm is None else reader.zones(at).astype(np.uint8)
        for offset in range(0, len(labels), CHUNK):  # a slice of an array that is not contiguous may be longer
            part = slice(offset, offset + CHUNK)
            number = len(labels[part])
            chunk = scores, start + offset, stride, labels[part], zone[part]
            tables = table, packed, short.reshape(-1)
            wrong = _count(chunk, rules, tables, room, own.arrays, own.new_range(at, offset, number))
            if wrong >= 0:
                i = offset + wrong
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


@compiled()
def _count(chunk, rules, tables, room, fine, reach):
    """Add a chunk (scores [k * stride] from `start` on, labels, zones) to the tables: the first wrong voxel, or -1.

    fine: rules, packed sums and those below the threshold of a histogram; reach: where blocks note what is in them.
    """
    (scores, start, stride, labels, zone), (table, packed, short), (reached, cells) = chunk, tables, reach
    classes, filled, together = len(room.p), len(fine[1]) > 0, fine[0][3]
    dump, single = len(short) // (4 * classes) - 1, rules.kind == 2 and scores.itemsize == 4
    top, cell, label = room.top, room.cell, room.label
    for first in range(0, len(labels), BLOCK):
        m = min(BLOCK, len(labels) - first)
        for j in range(m):
            label[j] = labels[first + j]
        one_top, sure, wrong = _read(scores, start + first, stride, m, single, room, rules)
        if wrong >= 0:
            return first + wrong
        for j in range(m):
            cell[j] = 2 * (label[j] > 0) + (top[j] > 0)
        if len(zone):
            for j in range(m):
                cell[j] += 4 * zone[first + j]
        if rules.ignores:
            ignored = 0
            for j in range(m):
                ignored += label[j] == rules.ignore_label
            if ignored:
                _ignore(m, rules.ignore_label, dump, room)
                ranges(room, m)
        one_cell, one_label = uniform(cell, m), uniform(label, m)
        for k in range(classes):
            predicted = one_top == k or (one_top < 0 and not room.high[k] < sure)
            quiet = room.high[k] <= rules.threshold and not predicted
            known = one_cell and (one_top >= 0 or not predicted) and (one_label or not _occurs(label, m, k))
            if filled and not quiet:
                fill(k, m, predicted, known, room, rules, fine, reached[first // BLOCK])
            if together and not quiet:
                add_squares(room.p, k, m, one_cell, one_label, room, short)
            elif single:
                add_class(room.p, k, m, known, one_cell, one_label, room, rules, table, packed, short)
            else:
                add_class(room.work, k, m, known, one_cell, one_label, room, rules, table, packed, short)
        if filled:
            for j in range(1 if one_cell else m):
                cells[first // BLOCK] |= np.uint8(1 << (cell[j] & 3))
        if first % UNPACK_EVERY == UNPACK_EVERY - BLOCK:
            unpack(packed, table)
            carry(short)
        wrong = _surprise(scores, start + first, stride, m, one_label, room, rules, short)
        if wrong >= 0:
            return first + wrong
        add_surprise(m, one_cell and one_label, room, short)
    unpack(packed, table)
    carry(short)
    return -1


@compiled(inline="always")
def _read(scores, start, stride, m, single, room, rules):
    """Read and predict a block: the class predicted everywhere or -1, its least p, the first wrong voxel or -1."""
    p, work, classes = room.p, room.work, len(room.p)
    if single:
        given_single(scores, start, stride, m, p, room.near)
    elif rules.kind == 2:
        given(scores, start, stride, m, p, work, work[classes])
    else:
        softmax(scores, start, stride, m, p, work, room.bits)
    one_top, sure, inside = ranges(room, m)
    if single and not inside:
        given(scores, start, stride, m, p, work, work[classes])
        one_top, sure, _ = ranges(room, m)
    if single and inside:
        wrong = first_wrong(room.label[:m], room.near, True, classes, rules)
    else:
        wrong = first_wrong(room.label[:m], work[classes], rules.kind == 2, classes, rules)
    if one_top >= 0:
        room.top[:m] = one_top
    else:
        predict(p, 0, m, room.top, room.small)
    return one_top, sure, wrong


@compiled(inline="always")
def _surprise(scores, start, stride, m, one_label, room, rules, short):
    """-log p of the labels into row k + 2 of the work; the first voxel whose log-probabilities are wrong, or -1."""
    work, bits, cell, label, classes = room.work, room.bits, room.cell, room.label, len(room.p)
    total, norm, truth, spare = work[classes], work[classes + 1], work[classes + 2], work[classes + 3]
    if one_label:
        row = scores[start + label[0] * stride : start + label[0] * stride + m]
        for j in range(m):
            truth[j] = np.float64(row[j])
    else:
        true_score(scores, start, stride, m, classes, label, truth)
    if rules.kind == 2:
        add_clipped(truth, m, -1.0, -LEAST_PROBABILITY, classes, cell, label, short)
        for j in range(m):
            truth[j] = min(max(truth[j], LEAST_PROBABILITY), 1.0)
        near_one = one_label and room.low[label[0]] >= np.float32(0.75)
        logarithm(truth, bits[classes + 2], m, spare, bits[classes + 3], near_one, -1.0)
        return -1
    logarithm(total, bits[classes], m, spare, bits[classes + 3], False, 1.0)
    for j in range(m):
        norm[j] += total[j]
        truth[j] = norm[j] - truth[j]
    add_clipped(truth, m, 1.0, LARGEST_NLL, classes, cell, label, short)
    for j in range(m):
        truth[j] = min(truth[j], LARGEST_NLL)
    if rules.kind == 1:
        dump = len(short) // (4 * classes) - 1
        for j in range(m):
            if abs(np.exp(norm[j]) - 1.0) > TOLERANCE and cell[j] != dump:
                return j
    return -1


@compiled()
def _ignore(m, ignore_label, dump, room):
    """Send ignored voxels to the cell that is thrown away, as probabilities of 0 for the class 0."""
    for j in range(m):
        if room.label[j] == ignore_label:
            room.top[j], room.cell[j], room.label[j] = -1, dump, 0
            for k in range(len(room.p)):
                room.p[k, j] = room.work[k, j] = 0.0


@compiled()
def _occurs(label, m, k):
    own, number = np.int32(k), np.int32(0)  # of one width, or the processor compares half as many at a time
    for j in range(m):
        number = np.int32(number + (label[j] == own))
    return number > 0
