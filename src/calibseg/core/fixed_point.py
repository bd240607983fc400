"""Sums that do not depend on the order: fixed-point int64, so that batches and ranks merge exactly.

A value v is stored as round(v * 2^32) in an int64. One voxel in [0, 1] takes at most 2^32, so 2^31 voxels fit; the
rounding error of a mean is at most 2^-33. For values that may be large, `split_sum` keeps the integer part apart.

>>> import torch
>>> fixed_sum(torch.tensor([0.5, 0.25, 0.125])).item() / SCALE
0.875
"""

import torch
from torch import Tensor

SCALE = 2.0**32


def fixed_sum(values: Tensor, dim: int | tuple[int, ...] | None = None) -> Tensor:
    """Exact sum of values in [-1, 1] as an int64 in units of 2^-32."""
    fixed = (values.double() * SCALE).round().long()
    return fixed.sum() if dim is None else fixed.sum(dim)


def split_sum(values: Tensor, dim: int | tuple[int, ...]) -> Tensor:
    """Exact sum of values below 2^31 in size: int64 [2, ...], whole parts and then fractions in units of 2^-32."""
    values = values.double()
    integer = values.floor()
    return torch.stack([integer.long().sum(dim), fixed_sum(values - integer, dim)])


def joined(parts: Tensor) -> Tensor:
    """The float64 value of a `split_sum`."""
    return parts[0].double() + parts[1].double() / SCALE
