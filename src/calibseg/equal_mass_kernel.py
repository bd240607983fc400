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
    """(row, cell) -> keys of the voxels in the buckets [cell row g] that are wanted.

    dull: from the first pass, which also checked the numbers: the blocks that hold nothing of interest.
    """
    k = spans.classes
    rules = (KINDS.index(spans.kind), spans.ignore_label is not None, spans.ignore_label or 0)
    buckets_from = (np.float32(threshold), first_bits(threshold))
    want = np.ascontiguousarray((wanted[:, :k] + 2 * wanted[:, k:]).swapaxes(0, 1), np.uint8).reshape(k, -1)

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
    found = [pair for part in parts for pair in part]
    if not found:
        return {}
    places, keys = (np.concatenate(arrays) for arrays in zip(*found, strict=True))
    ends = np.cumsum(np.bincount(places, minlength=4 * (k + 1)))
    starts = np.concatenate([[0], ends[:-1]])
    _group(places, keys, starts.copy(), grouped := np.empty_like(keys))
    return {divmod(i, 4): [grouped[a:b]] for i, (a, b) in enumerate(zip(starts, ends, strict=True)) if b > a}


@njit(nogil=True, cache=True, error_model="numpy")
def _group(places, keys, next_at, grouped):
    """Put the keys of each place side by side."""
    for i in range(len(keys)):
        grouped[next_at[places[i]]] = keys[i]
        next_at[places[i]] += 1


@njit(nogil=True, cache=True, error_model="numpy")
def _collect(scores, start, stride, labels, rules, buckets_from, want, dull, places, keys):
    """Write the keys of wanted pairs, and the row and cell that each belongs to; return their number."""
    kind, ignores, ignore_label = rules
    threshold, lowest = buckets_from
    classes, size = len(want), want.shape[1] // 4
    p, work = np.empty((classes, BLOCK), np.float32), np.empty((classes + 4, BLOCK))
    bits, p_bits, top = work.view(np.int64), p.view(np.int32), np.empty(BLOCK, np.int32)
    near, place = np.empty(BLOCK, np.float32), np.empty(BLOCK, np.int32)
    near_bits, cell, chosen = near.view(np.int32), np.empty(BLOCK, np.int32), np.empty(BLOCK, np.int32)
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
        for j in range(m):
            cell[j] = 2 * (label[j] > 0) + (top[j] > 0)
        for k in range(classes):
            predicted = one_top == k or (one_top < 0 and not high[k] < sure)
            if high[k] <= threshold and not predicted:
                continue
            buckets(p[k], m, threshold, lowest, near, near_bits, place)
            n = 0
            for j in range(m):  # without a branch, which the processor could not foresee
                wanted = want[k, np.uint64(cell[j] * size + place[j])]
                chosen[n] = j
                n += wanted > 0
            for i in range(n):
                j = chosen[i]
                wanted = want[k, cell[j] * size + place[j]]
                if ignores and label[j] == ignore_label:
                    continue
                key = (np.int64(p_bits[k, j]) << 33) | (np.int64(label[j] == k) << 32)
                if wanted & 1 and place[j] > 0:
                    places[found], keys[found] = 4 * k + cell[j], key
                    found += 1
                if wanted & 2 and top[j] == k:
                    places[found], keys[found] = 4 * classes + cell[j], key
                    found += 1
    return found
