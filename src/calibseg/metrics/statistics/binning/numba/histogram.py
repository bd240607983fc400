r"""The numba route's fine histogram, filled by the one pass over a volume (`one_pass`), a block and class at a time.

A bucket is named by the high bits of p or 1 - p (see `equal_mass`), so inside one the 16 low bits grow evenly with p:
their sum and the count give the sum of p exactly. Where p is below 2^-9, round(p 2^32) drops bits, so there it is
summed itself. Sum and count are added as one integer, so a pair costs one addition.

Where the histogram is `together` with the calibration bins, a place is named by bucket + bin (see `bin_index`) and
holds the pairs up to the threshold too, so that the bins follow from it and a pair is added once instead of twice.
"""

from threading import Lock
from typing import Self

import numpy as np

from calibseg.core.scores import ChunkRange
from calibseg.core.types import Array
from calibseg.metrics.statistics.binning.bin_index import bin_and_bucket
from calibseg.metrics.statistics.binning.equal_mass.histogram import HALF, LAST, bucket_number, first_bits, high_bits
from calibseg.metrics.statistics.binning.numba.maths import BLOCK, add_bins, bin_of, compiled
from calibseg.metrics.statistics.binning.reader import VoxelReader
from calibseg.metrics.statistics.calibration import Bins

SUM_BITS = 41  # sums: in a step 2^17 numbers up to 2^23, until there is room again 2^22 below 2^16; counts above
ONE = 1 << SUM_BITS
MOVE_EVERY = 1 << 21  # voxels, to make room; a step more does no harm
EXACT = np.float32(2.0**-9)  # from here on p 2^32 is an integer
EXACT_BITS = int(EXACT.view(np.int32)) >> 16
ROUNDING_32 = np.float32(2.0**23)  # added to p 2^32 it leaves round(p 2^32) in the low bits
ROUNDING_32_BITS = int(ROUNDING_32.view(np.int32))
CELLS = 5  # those of `calibration`, and one for ignored voxels
ODD = np.arange(BLOCK, dtype=np.int32) & 1

# chunk and offset in it -> first bucket of each block's p_k and the end of them [block k 2]; which cells occur [block]
BucketRange = dict[tuple[ChunkRange, int], tuple[Array, Array]]


class FineTables:
    """The histogram of all threads: counts, and sums of what `fill` adds [2, (cell hit m k place)].

    Places: two for p up to the threshold, for every other voxel; 1 + bucket (+ bin); two for p = 1, likewise: adding
    twice in a row to the same place has to wait for the memory.
    """

    def __init__(self, classes: int, threshold: float, bins: Bins | None) -> None:
        self.classes, self.threshold, self.bins = classes, threshold, bins
        self.width = bucket_number(threshold) + 2 + (0 if bins is None else bins.number)
        low = first_bits(threshold)
        self.rules = np.float32(threshold), low, self.width, bins is not None
        self.inexact = min(max(EXACT_BITS - low, 0) + 8, self.width)  # places up to here may hold sums up to 2^23
        self.table = np.zeros((2, CELLS * 4 * classes, self.width), np.int64)
        self.below = np.zeros((2, CELLS * 4 * classes), np.int64)  # of predicted classes, see `fill`
        self.lock = Lock()
        self.bucket_range: BucketRange = {}

    @classmethod
    def of(cls, reader: VoxelReader, bins: Bins, threshold: float) -> Self:
        """Together with the bins where those sum the same numbers, and need no zones."""
        together = threshold == bins.threshold and np.float32(threshold) < EXACT
        together = together and reader.rounds_nothing and reader.distance_mm is None
        return cls(reader.classes, threshold, bins if together else None)

    def sums(self) -> tuple[Array, Array]:
        """count, confidence and hits in units of 2^-32, by bin [3 cell m k b]; by bucket [5 cell m k g] in words.

        Buckets are without pairs below the threshold, unless they are predicted.
        """
        if self.rules[0] >= EXACT:  # what was added up to the threshold is no sum of p
            self.table[:, :, :2] = 0
            self.table[:, :, 0] = self.below
        bins, buckets = bin_and_bucket(self.bins, self.threshold)
        place = (np.arange(self.width) - 1).clip(0, len(bins) - 1)
        g = buckets[place]
        bits, upper = (values[g] for values in high_bits(self.threshold))
        exact = upper | ((g > 0) & (bits >= EXACT_BITS))
        first = (bits.astype(np.int32) << 16).view(np.float32) * np.float64(2.0**32)
        first[~exact | (upper & (bits == LAST))] = 0  # p itself is summed; 1 - p = 0
        shift = np.where(exact, (bits >> 7) - 127 - 23 + 32, 0)  # a low bit is 2^shift of 2^-32
        by_bin = np.zeros((3, 4, 2, self.classes, int(bins[-1]) + 1), np.int64)
        by_bucket = np.zeros((5, 4, 2, self.classes, int(buckets[-1]) + 1), np.int64)
        _sums(self.table, first.astype(np.int64), shift, upper, bins[place], g, by_bin, by_bucket)
        return by_bin, by_bucket


class FineShare:
    """What one thread has added and not yet moved to the histogram; without a histogram empty."""

    def __init__(self, fine: FineTables | None) -> None:
        self.fine, self.voxels = fine, 0
        shape = (0, 0) if fine is None else fine.table.shape[1:]
        self.packed = np.zeros(shape, np.int64)
        self.below = np.zeros((2, shape[0]), np.int64)
        rules = (np.float32(0), 0, 0, False) if fine is None else fine.rules
        self.arrays = rules, self.packed.reshape(-1), self.below

    def new_range(self, at: ChunkRange, offset: int, voxels: int) -> tuple[Array, Array]:
        """Where the pass over some voxels is to note which buckets and cells occur in each block of it."""
        blocks, classes = (0, 0) if self.fine is None else (-(-voxels // BLOCK), self.fine.classes)
        noted = np.zeros((blocks, classes, 2), np.int16), np.zeros(blocks, np.uint8)
        if self.fine is not None:
            self.fine.bucket_range[at, offset] = noted
        return noted

    def added(self, voxels: int) -> None:
        """Make room in time."""
        self.voxels += voxels
        if self.fine is not None:
            full = self.voxels >= MOVE_EVERY
            self._move(self.fine, self.fine.width if full else self.fine.inexact)
            self.voxels = 0 if full else self.voxels

    def finish(self) -> None:
        """Move everything."""
        if self.fine is not None:
            self._move(self.fine, self.fine.width)

    def _move(self, fine: FineTables, end: int) -> None:
        with fine.lock:
            _unpack(self.packed, fine.table, end)
            fine.below += self.below
        self.below[:] = 0


@compiled()
def _unpack(packed, table, end):
    for row in range(len(packed)):
        for i in range(end):
            both = packed[row, i]
            if both:
                table[0, row, i] += both >> SUM_BITS
                table[1, row, i] += both & (ONE - 1)
                packed[row, i] = 0


@compiled()
def _sums(table, first, shift, upper, bins, buckets, by_bin, by_bucket):
    """Turn what `fill` has added at each place into sums of round(p 2^32), and add those by bin and by bucket."""
    classes = by_bin.shape[3]
    for row in range(16 * classes):
        state, k = divmod(row, classes)
        cell, hit, m = state >> 2, state >> 1 & 1, state & 1
        for i in range(len(first)):
            count = table[0, row, i]
            if not count:
                continue
            inside = table[1, row, i]
            p = count * first[i] + (inside << shift[i] if shift[i] >= 0 else inside >> -shift[i])
            p = (count << 32) - p if upper[i] else p
            b, g = bins[i], buckets[i]
            by_bin[0, cell, m, k, b] += count
            by_bin[1, cell, m, k, b] += p
            by_bin[2, cell, m, k, b] += count * hit << 32
            if g > 0 or m:
                by_bucket[0, cell, m, k, g] += count
                p += by_bucket[2, cell, m, k, g]
                by_bucket[1, cell, m, k, g] += p >> 32
                by_bucket[2, cell, m, k, g] = p & 0xFFFFFFFF
                by_bucket[3, cell, m, k, g] += count * hit


@compiled()
def buckets(p, m, threshold, first, near, near_bits, place):
    """The bucket of each probability, 0 up to the threshold."""
    below, above = np.int32(1 - first), np.int32(2 * HALF - first + 1)  # of one width with what they are added to
    last, shift = np.int32(LAST), np.int32(16)
    for j in range(m):
        near[j] = p[j] if p[j] < np.float32(0.5) else np.float32(1) - p[j]
    for j in range(m):
        bits = near_bits[j] >> shift
        at = np.int32(above - max(bits, last)) if p[j] >= np.float32(0.5) else np.int32(below + bits)
        place[j] = at if p[j] > threshold else np.int32(0)


@compiled()
def _bucket(p, threshold, first, near, near_bits):
    """The bucket of one probability. (`near` is spare room: taking some anew would cost more than all the rest.)"""
    if p <= threshold:
        return 0
    near[0] = p if p < np.float32(0.5) else np.float32(1) - p
    bits = near_bits[0] >> 16
    return 2 * HALF - first + 1 - max(bits, LAST) if p >= np.float32(0.5) else bits - first + 1


@compiled()
def _near_one(p, m, first, room):
    """Places but for the bin, and what is summed, of probabilities from 1/2 on."""
    near, near_bits, place, value = room.near, room.near_bits, room.place, room.value
    above, last, shift = np.int32(2 * HALF - first + 2), np.int32(LAST), np.int32(16)
    for j in range(m):
        near[j] = np.float32(1) - p[j]
    for j in range(m):
        bits = near_bits[j]
        value[j] = bits & np.int32(0xFFFF)
        place[j] = above - max(bits >> shift, last) + (ODD[j] if bits == 0 else np.int32(0))


@compiled()
def _anywhere(p, m, threshold, first, room):
    """The same of any probabilities."""
    near, near_bits, small, small_bits = room.near, room.near_bits, room.small, room.small_bits
    place, value = room.place, room.value
    below, above = np.int32(2 - first), np.int32(2 * HALF - first + 2)
    last, shift, half, one = np.int32(LAST), np.int32(16), np.float32(0.5), np.float32(1)
    for j in range(m):
        near[j] = p[j] if p[j] < half else one - p[j]
        small[j] = p[j] * np.float32(2.0**32) + ROUNDING_32
    for j in range(m):
        bits = near_bits[j]
        value[j] = small_bits[j] - np.int32(ROUNDING_32_BITS) if p[j] < EXACT else bits & np.int32(0xFFFF)
        high = bits >> shift
        at = above - max(high, last) if p[j] >= half else below + high
        at = np.int32(at + (ODD[j] if bits == 0 else np.int32(0)))
        place[j] = at if p[j] > threshold else ODD[j]


@compiled()
def fill(k, m, predicted, known, room, rules, fine, reach):
    """Add a block's pairs of class k, of which one at least is predicted or above the threshold; note the reach."""
    (threshold, first, width, together), packed, below = fine
    classes, row, low, high = len(room.p), room.p[k], room.low[k], room.high[k]
    top, cell, label, place, value = room.top, room.cell, room.label, room.place, room.value
    reach[k, 0] = _bucket(low, threshold, first, room.near, room.near_bits)
    reach[k, 1] = _bucket(high, threshold, first, room.near, room.near_bits) + 1
    if low >= np.float32(0.5) and low > threshold:
        _near_one(row, m, first, room)
    else:
        _anywhere(row, m, threshold, first, room)
    start, inner = np.int32(0), np.int32(7 if together else 3)  # without the zone
    if together:
        least = bin_of(low, rules)
        if low > threshold and least == bin_of(high, rules):
            start = least
        else:
            add_bins(row, m, rules, place)
    if known:
        state = 4 * (cell[0] & inner) + (2 if label[0] == k else 0) + (1 if top[0] == k else 0)
        start += (state * classes + k) * width
        for j in range(m):
            packed[np.uint64(start + place[j])] += ONE + np.int64(value[j])
    else:
        own, step = np.int32(k), np.int32(classes * width)  # numbers of one width, or half as many are compared at once
        start += own * np.int32(width)
        for j in range(m):
            state = np.int32(4 * (cell[j] & inner) + (2 if label[j] == own else 0) + (1 if top[j] == own else 0))
            place[j] += np.int32(start + state * step)
        for j in range(m):
            packed[np.uint64(place[j])] += ONE + np.int64(value[j])
    if predicted and threshold >= EXACT and low <= threshold:  # pairs whose sum of p has no room above
        for j in range(m):
            if top[j] == k and row[j] <= threshold:
                at = (4 * (cell[j] & inner) + (2 if label[j] == k else 0) + 1) * classes + k
                below[0, at] += 1
                below[1, at] += np.int64(np.rint(np.float64(row[j]) * 2.0**32))
