r"""The numba route's fine histogram, filled by the one pass over a volume (`kernel`), a block at a time.

A bucket is named by the high bits of p or 1 - p (see `fine_histogram`), so inside one the 16 low bits grow evenly with
p: their sum and the count give the sum of p exactly. Both are added as one integer, hits apart from misses, so a pair
costs one addition. Where p is below 2^-9 round(p 2^32) drops bits; such pairs, and those predicted below the threshold,
are rare and added as they are.
"""

import numpy as np
from numba import njit

from calibseg.binning.block_kernel import BLOCK
from calibseg.binning.fine_histogram import HALF, LAST, bucket_number, first_bits
from calibseg.binning.spans import Step
from calibseg.types import Array

COUNT_BITS = 39  # 2^23 sums of low bits below 2^16, and as many counts above
ROOM = 1 << 22  # voxels after which there may be no more room
EXACT = np.float32(2.0**-9)  # from here on p 2^32 is an integer
COUNT_ONE = 1 << COUNT_BITS

# step and offset in it -> first bucket of each block's p_k and the end of them [block k 2]; which cells occur [block]
Reach = dict[tuple[Step, int], tuple[Array, Array]]


class FineTables:
    """One share's histogram: count, confidence in units of 2^-32 and hits [3, (t p m k g)]; without threshold empty."""

    def __init__(self, classes: int, threshold: float | None) -> None:
        self.classes, self.size = classes, 0 if threshold is None else bucket_number(threshold)
        low = 0 if threshold is None else first_bits(threshold)
        self.rules = (np.float32(threshold or 0.0), low, self.size)
        self.table = np.zeros((3, 8 * classes * self.size), np.int64)
        self.packed = np.zeros(2 * 8 * classes * self.size, np.int64)  # [t p m hit k g]
        self.voxels = 0
        self.reach: Reach = {}

    def new_reach(self, step: Step, offset: int, voxels: int) -> tuple[Array, Array]:
        """Where the pass over some voxels is to note which buckets and cells each block of it reaches."""
        blocks = -(-voxels // BLOCK) if self.size else 0
        found = np.zeros((blocks, self.classes, 2), np.int16), np.zeros(blocks, np.uint8)
        if self.size:
            self.reach[step, offset] = found
        return found

    def added(self, voxels: int) -> None:
        """Make room in time."""
        self.voxels += voxels
        if self.voxels >= ROOM:
            self.unpack()

    def unpack(self) -> None:
        """Move what was added as one integer to the table."""
        at = np.flatnonzero(self.packed)
        count, low_bits = self.packed[at] >> COUNT_BITS, self.packed[at] & (COUNT_ONE - 1)
        state, place = np.divmod(at, self.classes * self.size)
        g = place % self.size
        upper = g > HALF - self.rules[1]
        high_bits = np.where(upper, 2 * HALF - self.rules[1] + 1 - g, g + self.rules[1] - 1)
        first = (high_bits.astype(np.int32) << 16).view(np.float32).astype(np.float64)
        first[upper & (high_bits == LAST)] = 0.0  # 1 - p = 0
        first = (first * 2.0**32).astype(np.int64)
        shift = (high_bits >> 7) - 127 - 23 + 32  # a low bit is 2^shift of 2^-32
        inside = np.where(shift >= 0, low_bits << shift.clip(min=0), low_bits >> (-shift).clip(min=0))
        near = count * first + inside
        target = (state >> 1) * self.classes * self.size + place
        confidence = np.where(upper, (count << 32) - near, near)
        for hit in (0, 1):  # among hits, and among misses, no place occurs twice
            own = np.flatnonzero(state & 1 == hit)
            self.table[0, target[own]] += count[own]
            self.table[1, target[own]] += confidence[own]
            self.table[2, target[own]] += count[own] * hit
        self.packed[at] = 0
        self.voxels = 0


@njit(nogil=True, cache=True, error_model="numpy")
def buckets(p, m, threshold, first, near, near_bits, place):
    """The bucket of each probability, 0 up to the threshold; and the bits of p or 1 - p that it is named after."""
    below, above = np.int32(1 - first), np.int32(2 * HALF - first + 1)  # of one width with what they are added to
    last, shift = np.int32(LAST), np.int32(16)
    for j in range(m):
        near[j] = p[j] if p[j] < np.float32(0.5) else np.float32(1) - p[j]
    for j in range(m):
        bits = near_bits[j] >> shift
        at = np.int32(above - max(bits, last)) if p[j] >= np.float32(0.5) else np.int32(below + bits)
        place[j] = at if p[j] > threshold else np.int32(0)


@njit(nogil=True, cache=True, error_model="numpy")
def bucket(p, threshold, first, near, near_bits):
    """The bucket of one probability. (`near` is spare room: taking some anew would cost more than all the rest.)"""
    if p <= threshold:
        return 0
    near[0] = p if p < np.float32(0.5) else np.float32(1) - p
    bits = near_bits[0] >> 16
    return 2 * HALF - first + 1 - max(bits, LAST) if p >= np.float32(0.5) else bits - first + 1


@njit(nogil=True, cache=True, error_model="numpy")
def _add_one_state(p, m, threshold, low, near_bits, place, state, k, rules, table, packed, chosen):
    """Add the pairs above the threshold of voxels that all have the same truth and prediction."""
    size = rules[2]
    classes = len(packed) // (16 * size)
    own = packed[(state * classes + k) * size : (state * classes + k + 1) * size]
    if low > threshold and low >= EXACT:
        for j in range(m):
            own[np.uint64(place[j])] += COUNT_ONE + np.int64(near_bits[j] & 0xFFFF)
        return
    n = 0
    for j in range(m):  # without a branch, which the processor could not foresee
        chosen[n] = j
        n += p[j] > threshold
    start = ((state >> 1) * classes + k) * size
    for i in range(n):
        j = np.uint64(chosen[i])
        if p[j] >= EXACT:
            own[np.uint64(place[j])] += COUNT_ONE + np.int64(near_bits[j] & 0xFFFF)
        else:
            table[0, start + place[j]] += 1
            table[1, start + place[j]] += np.int64(np.rint(np.float64(p[j]) * 2.0**32))
            table[2, start + place[j]] += state & 1


@njit(nogil=True, cache=True, error_model="numpy")
def fill(p, m, low, high, one_top, sure, one_state, index, rules, table, packed, near, near_bits, place, chosen, reach):
    """Add a block's pairs above the threshold, and the predicted ones; note which buckets they reach."""
    threshold, first, size = rules
    classes = len(low)
    top, cell, label = index[classes], index[classes + 1], index[classes + 2]
    for k in range(classes):
        predicted = one_top == k or (one_top < 0 and not high[k] < sure)
        if high[k] <= threshold and not predicted:
            continue
        reach[k, 0] = bucket(low[k], threshold, first, near, near_bits)
        reach[k, 1] = bucket(high[k], threshold, first, near, near_bits) + 1
        row = p[k]
        if one_state and low[k] == np.float32(1):  # far from everything: all in the last bucket
            state = 4 * (cell[0] & 3) + (2 if top[0] == k else 0) + (1 if label[0] == k else 0)
            packed[(state * classes + k + 1) * size - 1] += m * COUNT_ONE
            continue
        buckets(row, m, threshold, first, near, near_bits, place)
        if one_state and (low[k] > threshold or one_top != k):
            state = 4 * (cell[0] & 3) + (2 if top[0] == k else 0) + (1 if label[0] == k else 0)
            _add_one_state(row, m, threshold, low[k], near_bits, place, state, k, rules, table, packed, chosen)
            continue
        own = np.int32(k)  # numbers of one width, or the processor compares half as many at a time
        rare = np.int32(0)
        for j in range(m):
            state = np.int32(4 * (cell[j] & 3) + (2 if top[j] == own else 0) + (1 if label[j] == own else 0))
            place[j] += np.int32((state * classes + k) * size)
        for j in range(m):
            wide = (row[j] > threshold) & (row[j] >= EXACT)
            place[j] = place[j] if wide else np.int32(-1 - place[j])
            rare = np.int32(rare + ((not wide) & ((row[j] > threshold) | (top[j] == own))))
        n = 0
        for j in range(m):  # without a branch, which the processor could not foresee
            chosen[n] = j
            n += place[j] >= 0
        for i in range(n):
            packed[np.uint64(place[chosen[i]])] += COUNT_ONE + np.int64(near_bits[chosen[i]] & 0xFFFF)
        if rare:
            for j in range(m):
                if place[j] < 0 and (row[j] > threshold or top[j] == k):
                    state, at = divmod(-1 - place[j], classes * size)
                    at += (state >> 1) * classes * size
                    table[0, at] += 1
                    table[1, at] += np.int64(np.rint(np.float64(row[j]) * 2.0**32))
                    table[2, at] += state & 1
