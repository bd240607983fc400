"""The numba route of the two passes over a case that equal-mass bins need; see `equal_mass` for what they are for."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
from numba import njit

from calibseg.block_kernel import BLOCK, FINE, NOT_FINE, first_wrong, given, predict, softmax
from calibseg.fine_histogram import HALF, LAST, bucket_number, first_bits
from calibseg.spans import KINDS, TOLERANCE, Spans, Step
from calibseg.types import Array

STEP = 1 << 16


def histogram_sums(spans: Spans, threshold: float, threads: int) -> Array:
    """count, confidence in units of 2^-32 and hits [3, (t p m k g)] of every pair above the threshold."""
    size = 8 * spans.classes * bucket_number(threshold)

    def share(steps: list[Step]) -> Array:
        table = np.zeros((3, size), np.int64)
        nothing = np.zeros(0, np.int64)
        no_rows = np.zeros((spans.classes + 1, 0), bool)
        for step in steps:
            _run(spans, step, threshold, table, no_rows, nothing, nothing)
        return table

    return np.sum(_in_threads(share, spans, threads), axis=0)


def keys_of(spans: Spans, threshold: float, wanted: Array, threads: int) -> dict[tuple[int, int], list[Array]]:
    """(row, cell) -> keys of the voxels in the buckets [row g] that are wanted."""

    def share(steps: list[Step]) -> list[tuple[Array, Array]]:
        found = []
        for step in steps:
            room = len(spans.labels(step)) * (spans.classes + 1)
            places, keys = np.empty(room, np.int64), np.empty(room, np.int64)
            n = _run(spans, step, threshold, np.zeros((3, 0), np.int64), wanted, places, keys)
            found.append((places[:n].copy(), keys[:n].copy()))
        return found

    groups: dict[tuple[int, int], list[Array]] = {}
    for places, keys in (pair for part in _in_threads(share, spans, threads) for pair in part):
        for place in np.flatnonzero(np.bincount(places)).tolist():
            groups.setdefault(divmod(place, 4), []).append(keys[places == place])
    return groups


def _in_threads(share, spans: Spans, threads: int) -> list:
    steps = spans.steps(STEP)
    threads = max(1, min(threads, len(steps)))
    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(share, [steps[i::threads] for i in range(threads)]))


def _run(spans: Spans, step: Step, threshold: float, table: Array, wanted: Array, places: Array, keys: Array) -> int:
    scores, start, stride = spans.numbers(step)
    labels = np.ascontiguousarray(spans.labels(step), np.int32)
    rules = (KINDS.index(spans.kind), spans.ignore_label is not None, spans.ignore_label or 0, first_bits(threshold))
    code, n = _pass(
        scores, start, stride, labels, rules, np.float32(threshold), spans.classes, table, wanted, places, keys
    )
    if code != FINE:
        if not 0 <= labels[n] < spans.classes:
            spans.refuse_label(int(labels[n]), step, n)
        spans.refuse_scores([scores[start + n + k * stride] for k in range(spans.classes)], spans.where(step, n))
    return n


@njit(nogil=True, cache=True, error_model="numpy")
def _pass(scores, start, stride, labels, rules, threshold, classes, table, wanted, places, keys):
    """Fill the table where it has room; collect the keys of wanted pairs otherwise."""
    kind, ignores, ignore_label, low = rules
    p, work = np.empty((classes, BLOCK), np.float32), np.empty((classes + 4, BLOCK))
    bits, top = work.view(np.int64), np.empty(BLOCK, np.int32)
    near = np.empty((classes, BLOCK), np.float32)
    near_bits, p_bits = near.view(np.int32), p.view(np.int32)
    filling = table.shape[1] > 0
    size = table.shape[1] // (8 * classes)
    found = 0
    for first in range(0, len(labels), BLOCK):
        m = min(BLOCK, len(labels) - first)
        label = labels[first : first + m]
        if kind == 2:
            given(scores, start + first, stride, m, p, work, work[classes])
        else:
            softmax(scores, start + first, stride, m, p, work, bits, work[classes], work[classes + 1])
        wrong = first_wrong(label, work[classes], kind == 2, classes, ignores, ignore_label)
        if wrong >= 0:
            return NOT_FINE, first + wrong
        if kind == 1:
            for j in range(m):
                off = abs(np.exp(work[classes + 1, j]) * work[classes, j] - 1.0)
                if off > TOLERANCE and not (ignores and label[j] == ignore_label):
                    return NOT_FINE, first + j
        predict(p, m, top)
        for k in range(classes):
            for j in range(m):
                near[k, j] = p[k, j] if p[k, j] < np.float32(0.5) else np.float32(1) - p[k, j]
        for j in range(m):
            if ignores and label[j] == ignore_label:
                continue
            cell = 2 * (label[j] > 0) + (top[j] > 0)
            for k in range(classes):
                value = p[k, j]
                if not value > threshold and k != top[j]:
                    continue
                place = near_bits[k, j] >> 16
                if not value > threshold:
                    place = 0
                elif value >= np.float32(0.5):
                    place = 2 * HALF - low + 1 - max(place, LAST)
                else:
                    place = place - low + 1
                if filling:
                    at = np.uint64(((cell * 2 + (k == top[j])) * classes + k) * size + place)
                    table[0, at] += 1
                    table[1, at] += np.int64(np.rint(np.float64(value) * 2.0**32))
                    table[2, at] += k == label[j]
                else:
                    key = (np.int64(p_bits[k, j]) << 33) | (np.int64(k == label[j]) << 32)
                    if place > 0 and wanted[k, place]:
                        places[found], keys[found] = 4 * k + cell, key
                        found += 1
                    if k == top[j] and wanted[classes, place]:
                        places[found], keys[found] = 4 * classes + cell, key
                        found += 1
    return FINE, found
