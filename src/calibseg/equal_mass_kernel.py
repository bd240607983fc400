"""The numba route of the second pass that equal-mass bins need: the voxels in the buckets that a cut parts."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
from numba import njit

from calibseg.block_kernel import BLOCK, given, predict, ranges, softmax
from calibseg.fine_histogram import first_bits
from calibseg.fine_kernel import buckets
from calibseg.spans import KINDS, Spans, Step
from calibseg.types import Array

Dull = dict[tuple[Step, int], Array]


def keys_of(
    spans: Spans, threshold: float, wanted: Array, dull: Dull, threads: int
) -> dict[tuple[int, int], list[Array]]:
    """(row, cell) -> keys of the voxels in the buckets [row g] that are wanted. The first pass checked the numbers.

    dull: from the first pass, the blocks that hold nothing of interest.
    """
    k = spans.classes
    rules = (KINDS.index(spans.kind), spans.ignore_label is not None, spans.ignore_label or 0)
    buckets_from = (np.float32(threshold), first_bits(threshold))
    want = (wanted[:k] + 2 * wanted[k]).astype(np.uint8)

    def share(pieces: list[tuple[Step, int]]) -> list[tuple[Array, Array]]:
        found = []
        for step, offset in pieces:
            blocks = dull[step, offset]
            if blocks.all():
                continue
            scores, start, stride = spans.numbers(step)
            labels = np.ascontiguousarray(spans.labels(step)[offset : offset + len(blocks) * BLOCK], np.int32)
            room = len(labels) * (k + 1)
            places, keys = np.empty(room, np.int32), np.empty(room, np.int64)
            n = _collect(scores, start + offset, stride, labels, rules, buckets_from, want, blocks, places, keys)
            found.append((places[:n].copy(), keys[:n].copy()))
        return found

    pieces = list(dull)
    threads = max(1, min(threads, len(pieces)))
    with ThreadPoolExecutor(threads) as pool:
        parts = list(pool.map(share, [pieces[i::threads] for i in range(threads)]))
    groups: dict[tuple[int, int], list[Array]] = {}
    for places, keys in (pair for part in parts for pair in part):
        for place in np.flatnonzero(np.bincount(places)).tolist():
            groups.setdefault(divmod(place, 4), []).append(keys[places == place])
    return groups


@njit(nogil=True, cache=True, error_model="numpy")
def _collect(scores, start, stride, labels, rules, buckets_from, want, dull, places, keys):
    """Write the keys of wanted pairs, and the row and cell that each belongs to; return their number."""
    kind, ignores, ignore_label = rules
    threshold, lowest = buckets_from
    classes = len(want)
    p, work = np.empty((classes, BLOCK), np.float32), np.empty((classes + 4, BLOCK))
    bits, p_bits, top = work.view(np.int64), p.view(np.int32), np.empty(BLOCK, np.int32)
    near, place = np.empty(BLOCK, np.float32), np.empty(BLOCK, np.int32)
    near_bits = near.view(np.int32)
    low, high = np.empty(classes, np.float32), np.empty(classes, np.float32)
    found = 0
    for first in range(0, len(labels), BLOCK):
        if dull[first // BLOCK]:
            continue
        m = min(BLOCK, len(labels) - first)
        label = labels[first : first + m]
        if kind == 2:
            given(scores, start + first, stride, m, p, work, work[classes])
        else:
            softmax(scores, start + first, stride, m, p, work, bits, work[classes], work[classes + 1])
        one_top, sure = ranges(p_bits, m, low, high)
        if one_top >= 0:
            top[:m] = one_top
        else:
            predict(p, m, top)
        for k in range(classes):
            predicted = one_top == k or (one_top < 0 and not high[k] < sure)
            if high[k] <= threshold and not predicted:
                continue
            buckets(p[k], m, threshold, lowest, near, near_bits, place)
            for j in range(m):
                wanted = want[k, np.uint64(place[j])]
                if wanted == 0 or (ignores and label[j] == ignore_label):
                    continue
                cell = 2 * (label[j] > 0) + (top[j] > 0)
                key = (np.int64(p_bits[k, j]) << 33) | (np.int64(label[j] == k) << 32)
                if wanted & 1 and place[j] > 0:
                    places[found], keys[found] = 4 * k + cell, key
                    found += 1
                if wanted & 2 and top[j] == k:
                    places[found], keys[found] = 4 * classes + cell, key
                    found += 1
    return found
