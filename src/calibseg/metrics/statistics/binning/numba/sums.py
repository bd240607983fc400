r"""What one block of voxels adds to the tables of the numba route: a class at a time, and -log p of the truth.

Sums of integers are taken in float64 where they stay below 2^53, which vector instructions add fastest: they are exact
in any order. Where all voxels of a block put a class into one place of the table, the table is touched once.
"""

import numpy as np

from calibseg.metrics.statistics.binning.numba.maths import ROUNDING, ROUNDING_BITS, add_bins, bin_of, compiled

FIXED, FIXED_NLL = 2.0**32, 2.0**40  # a block's surprises, none above 17, sum to less than 2^53 in units of 2^-40
PACKED_BITS = 48  # 2^15 sums of at most 2^32 below, 2^15 counts above
PACKED_ONE = 1 << PACKED_BITS
UNPACK_EVERY = 1 << 15  # voxels


@compiled()
def add_class(values, k, m, known, one_cell, one_label, room, rules, table, packed, short):
    """Add the `values` [k m] of class k, whose float32 numbers are in the room, and their squares.

    known: whether all voxels agree on being of this class, being predicted as it, and on their cell.
    """
    classes, stored = len(room.p), rules.number + 1
    top, cell, label, place = room.top, room.cell, room.label, room.place
    low, high = room.low[k], room.high[k]
    if known and (low <= rules.threshold) == (high <= rules.threshold):
        b = bin_of(low, rules)
        if b == bin_of(high, rules):
            state = 4 * cell[0] + (2 if label[0] == k else 0) + (1 if top[0] == k else 0)
            b += (state * classes + k) * stored - (1 if low <= rules.threshold else 0)
            total, squares = _sums(values[k], m, 1.0 if label[0] == k else 0.0)
            table[0, b] += m
            table[1, b] += total
            short[4 * (cell[0] * classes + k)] += squares
            return
    own, step, start = np.int32(k), np.int32(classes * stored), np.int32(k * stored)
    for j in range(m):
        state = np.int32(4 * cell[j] + (2 if label[j] == own else 0) + (1 if top[j] == own else 0))
        place[j] = np.int32(state * step + start)
    add_bins(room.p[k], m, rules, place)
    _scatter(values[k], m, room.work[classes + 3], room.bits[classes + 3], place, packed)
    add_squares(values, k, m, one_cell, one_label, room, short)


@compiled()
def _scatter(p, m, fixed, fixed_bits, at, packed):
    """Counts and sums of p.

    A count and a sum are added at once, as one integer, to one of two tables in turn: adding twice in a row to the same
    place has to wait for the memory.
    """
    one = PACKED_ONE - ROUNDING_BITS
    even, odd = packed[0], packed[1]
    for j in range(m):
        fixed[j] = p[j] * FIXED + ROUNDING
    for j in range(0, m - 1, 2):
        even[np.uint64(at[j])] += fixed_bits[j] + one
        odd[np.uint64(at[j + 1])] += fixed_bits[j + 1] + one
    if m % 2:
        even[np.uint64(at[m - 1])] += fixed_bits[m - 1] + one


@compiled(fastmath={"reassoc", "nsz"})  # sums of integers, in any order
def _sums(p, m, y):
    """The sums of round(p 2^32) and of round((p - y)^2 2^32), halves to even."""
    total, squares = 0.0, 0.0
    for j in range(m):
        total += np.rint(p[j] * FIXED)
        gap = p[j] - y
        squares += np.rint(gap * gap * FIXED)
    return np.int64(total), np.int64(squares)


@compiled(fastmath={"reassoc", "nsz"})
def add_squares(values, k, m, one_cell, one_label, room, short):
    """Add the sums of (p - y)^2 of class k."""
    p, cell, label, classes = values[k], room.cell, room.label, len(room.p)
    own, dump, fixed = np.int32(k), len(short) // (4 * classes) - 1, room.work[classes + 3]
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


@compiled()
def unpack(packed, table):
    """Move counts and sums from where they were added as one integer to where they have room."""
    for half in range(2):
        for i in range(packed.shape[1]):
            both = packed[half, i]
            if both:
                table[0, i] += both >> PACKED_BITS
                table[1, i] += both & (PACKED_ONE - 1)
                packed[half, i] = 0


@compiled()
def carry(short):
    """Whole nats out of the fractions: UNPACK_EVERY surprises, none above 17, fit into an int64 many times."""
    for row in range(0, len(short), 4):
        short[row + 1] += short[row + 2] >> 40
        short[row + 2] &= (1 << 40) - 1


@compiled()
def true_score(scores, start, stride, m, classes, label, truth):
    """The score of each voxel's own label."""
    for k in range(classes):
        row, own = scores[start + k * stride : start + k * stride + m], np.int32(k)
        for j in range(m):
            truth[j] = np.float64(row[j]) if label[j] == own else truth[j]


@compiled()
def add_clipped(values, m, sign, limit, classes, cell, label, short):
    """Count the voxels whose value, times the sign, lies above the limit."""
    number = 0
    for j in range(m):
        number += sign * values[j] > limit
    if number:
        for j in range(m):
            short[4 * (cell[j] * classes + label[j]) + 3] += sign * values[j] > limit


@compiled()
def add_surprise(m, one_row, room, short):
    """Add -log p of the true class."""
    cell, label, classes = room.cell, room.label, len(room.p)
    nll, nll_bits = room.work[classes + 2], room.bits[classes + 2]
    if one_row:
        short[4 * (cell[0] * classes + label[0]) + 2] += _total(nll, m, FIXED_NLL)
        return
    for j in range(m):
        nll[j] = nll[j] * FIXED_NLL + ROUNDING
    for j in range(m):
        short[np.uint64(4 * (cell[j] * classes + label[j]) + 2)] += nll_bits[j] - ROUNDING_BITS


@compiled(fastmath={"reassoc", "nsz"})
def _total(values, m, scale):
    """The sum of round(v scale), halves to even."""
    total = 0.0
    for j in range(m):
        total += np.rint(values[j] * scale)
    return np.int64(total)
