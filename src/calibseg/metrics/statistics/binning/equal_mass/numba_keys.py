"""The numba route of the second pass that equal-mass bins need: the voxels in the buckets that a cut parts.

The first pass noted which buckets every block of voxels reaches, class by class, and in which cells its voxels lie (see
`calibration`); this one opens only blocks that reach a wanted bucket, and there only such classes. Where foreground may
be predicted, the predicted class is looked up for the few voxels that are found.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from numba import njit

from calibseg.core.numba_cache import keeps_code
from calibseg.core.scores import KINDS, ChunkRange
from calibseg.core.types import Array
from calibseg.metrics.statistics.binning.equal_mass.histogram import first_bits
from calibseg.metrics.statistics.binning.numba.histogram import BucketRange, buckets
from calibseg.metrics.statistics.binning.numba.maths import BLOCK, SOURCES, predict, softmax
from calibseg.metrics.statistics.binning.reader import VoxelReader

KEPT = keeps_code(lambda: None, [Path(__file__), *SOURCES])
TOGETHER = 1 << 14  # keys that are handed over together
ONE_CELL = np.array([int(bits).bit_length() - 1 if bits in (1, 2, 4, 8) else -1 for bits in range(16)])


def keys_of(
    reader: VoxelReader,
    threshold: float,
    wanted: Array,
    bucket_range: BucketRange,
    threads: int,
    add: Callable[[Array, Array], None],
) -> None:
    """Hand over places 4 row + cell, and keys, of the voxels in the buckets [cell row g] that are wanted."""
    k = reader.classes
    ignored = reader.targets.ignore_label
    rules = (KINDS.index(reader.kind), ignored is not None, ignored or 0, np.float32(threshold), first_bits(threshold))
    want = np.ascontiguousarray((wanted[:, :k] + 2 * wanted[:, k:]).swapaxes(0, 1), np.uint8)  # [k cell g]
    flags = np.concatenate([want, want.max(1, keepdims=True)], 1).clip(max=1)  # the last: in any cell
    before = np.zeros((k, 4, want.shape[-1] + 1), np.int32)  # how many wanted buckets lie below each
    np.cumsum(want > 0, -1, out=before[..., 1:])
    active = {at: _active(before, *blocks) for at, blocks in bucket_range.items()}
    chunks = [at for at, classes in active.items() if classes.any()]

    def collect(chunks: list[tuple[ChunkRange, int]]) -> None:
        room = (k + 1) * BLOCK * max(len(active[at]) for at in chunks)  # memory is taken where it is written to
        places, keys = np.empty(TOGETHER + room, np.int32), np.empty(TOGETHER + room, np.int64)
        n = 0
        for at, offset in chunks:
            classes = active[at, offset]
            scores, start, stride = reader.numbers(at)
            labels = np.ascontiguousarray(reader.labels(at)[offset : offset + len(classes) * BLOCK], np.int32)
            blocks = classes, bucket_range[at, offset][1]
            n = _collect((scores, start + offset, stride, labels), rules, (want, flags), blocks, places, keys, n)
            if n > TOGETHER:
                add(places[:n], keys[:n])
                n = 0
        add(places[:n], keys[:n])

    threads = min(threads, len(chunks))
    if threads:
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(collect, [chunks[i::threads] for i in range(threads)]))


@njit(nogil=True, cache=KEPT, error_model="numpy")
def _active(before, reach, cells):
    """Which classes of which blocks [block k] reach a bucket that is wanted in one of the block's cells."""
    active = np.zeros(reach.shape[:2], np.bool_)
    for i in range(len(cells)):
        for cell in range(4):
            if cells[i] >> cell & 1:
                for k in range(len(before)):
                    active[i, k] |= before[k, cell, reach[i, k, 1]] > before[k, cell, reach[i, k, 0]]
    return active


@njit(nogil=True, cache=KEPT, error_model="numpy")
def _probability(stored):
    """A stored probability as float32. (The first pass has refused those far outside 0 to 1.)"""
    p = np.float32(stored)
    p = np.float32(0) if p < np.float32(0) else p
    return np.float32(1) if p > np.float32(1) else p


@njit(nogil=True, cache=KEPT, error_model="numpy")
def _collect(chunk, rules, wanted, blocks, places, keys, written):
    """Write the keys of wanted pairs, and the row and cell that each belongs to, after those found; their number."""
    (scores, start, stride, labels), (want, flags), (active, cells) = chunk, wanted, blocks
    kind, ignores, ignore_label, threshold, lowest = rules
    classes = len(want)
    p, work = np.empty((classes, BLOCK), np.float32), np.empty((classes + 4, BLOCK))
    bits, p_bits = work.view(np.int64), p.view(np.int32)
    near, place, chosen = np.empty(BLOCK, np.float32), np.empty(BLOCK, np.int32), np.empty(BLOCK, np.int32)
    near_bits, best, tops = near.view(np.int32), np.empty(BLOCK, np.float32), np.empty(BLOCK, np.int32)
    for first in range(0, len(labels), BLOCK):
        block = first // BLOCK
        m, ready = min(BLOCK, len(labels) - first), False
        one_cell = ONE_CELL[cells[block]]
        one_top = one_cell == 0 or one_cell == 2  # all of class 0
        for k in range(classes):
            if not active[block, k]:
                continue
            if kind != 2 and not ready:
                softmax(scores, start + first, stride, m, p, work, bits)
            elif not ready:  # the other classes too, where they tell which one is predicted
                for c in range(k if one_top else 0, k + 1 if one_top else classes):
                    row, own = scores[start + first + c * stride : start + first + c * stride + m], p[c]
                    for j in range(m):
                        own[j] = _probability(row[j])
            if not ready and not one_top:
                predict(p, 0, m, tops, best)
            ready = kind != 2 or not one_top
            buckets(p[k], m, threshold, lowest, near, near_bits, place)
            flagged, n = flags[k, one_cell], np.uint64(0)
            for j in range(m):  # without a branch, which the processor could not foresee
                chosen[n] = j
                n += np.uint64(flagged[np.uint64(place[j])])
            for i in range(np.int64(n)):
                j = chosen[i]
                label = labels[first + j]
                if ignores and label == ignore_label:
                    continue
                cell, top = one_cell, 0
                if not one_top:
                    top = tops[j]
                    cell = 2 * (label > 0) + (top > 0)
                asked = want[k, cell, place[j]]
                key = (np.int64(p_bits[k, j]) << 33) | (np.int64(label == k) << 32)
                if asked & 1 and place[j] > 0:
                    places[written], keys[written] = 4 * k + cell, key
                    written += 1
                if asked & 2 and top == k:
                    places[written], keys[written] = 4 * classes + cell, key
                    written += 1
    return written
