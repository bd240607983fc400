r"""The thresholds that decisions choose from: fine near 0 and near 1, and exact.

A float32 probability falls into a cell by the leading bits of p below one half, of 1 - p above it (which float32 holds
without rounding): 512 cells for each halving, down to 2^-24 at both ends. So neighbouring thresholds differ by 0.2 % of
p or of 1 - p, and the loss at each of them is that of the voxels themselves: the cell of p is at least j if and only if
p is at least the j-th threshold.

>>> p = np.array([0.0, 0.25, 0.5, 0.9, 1.0], np.float32)
>>> [bool((p >= threshold(j))[i]) for i, j in enumerate(cells(p))]              # each reaches its own threshold
[True, True, True, True, True]
>>> float(threshold(0)), float(threshold(CELLS)) > 1                            # every voxel; none
(0.0, True)
"""

import numpy as np

from calibseg.core.types import Array

_PER_HALVING = 9  # bits: 512 cells
_SHIFT = np.int32(23 - _PER_HALVING)  # of the 23 bits behind a float32's point
_LEAST = (127 - 24) << _PER_HALVING  # the leading bits of 2^-24
_SIDE = 23 << _PER_HALVING  # cells from 2^-24 to one half
CELLS = 2 * _SIDE + 2  # below 2^-24, two sides, and within 2^-24 of 1
NOWHERE = CELLS  # the number of the threshold that no voxel reaches


def cells(p: Array) -> Array:
    """The cell of each float32 probability, int32 from 0 to CELLS - 1."""
    p = np.asarray(p, np.float32)
    low = (p.view(np.int32) >> _SHIFT) - np.int32(_LEAST - 1)
    rest = np.subtract(np.float32(1), p)
    leading = (rest.view(np.int32) + np.int32((1 << int(_SHIFT)) - 1)) >> _SHIFT  # bits of 1 - p, rounded up
    high = np.int32(2 * _SIDE + 1 + _LEAST) - leading
    cell = np.where(p < np.float32(0.5), low, high)
    return np.clip(cell, 0, CELLS - 1, out=cell)


def threshold(cell: int) -> np.float32:
    """The least float32 probability of a cell and all above; of CELLS, one that no probability reaches."""
    if cell <= 0:
        return np.float32(0)
    if cell >= CELLS:
        return np.nextafter(np.float32(1), np.float32(2))
    if cell <= _SIDE:
        return _from_leading_bits(cell - 1 + _LEAST)
    exact = 1 - float(_from_leading_bits(2 * _SIDE + 1 - cell + _LEAST))
    rounded = np.float32(exact)
    return rounded if float(rounded) >= exact else np.nextafter(rounded, np.float32(2))


def _from_leading_bits(bits: int) -> np.float32:
    return np.array([bits << int(_SHIFT)], np.int32).view(np.float32)[0]
