"""Which of the two routes reads a volume, and what its first pass leaves behind.

The numba route is faster, but its first call on a computer compiles for about 20 s (later ones read what was compiled
from disk). So `auto` takes it for large volumes only; small ones, a validation batch or a hippocampus, never wait. The
choice depends on the volume's size alone, never on what was called before, so the same volume gives the same bits every
time.
"""

import importlib.util
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from calibseg.core.types import Array, BadInput
from calibseg.metrics.statistics.binning.reader import VoxelReader

Route = Literal["auto", "torch", "numba"]
LARGE = 1 << 24  # scores (voxels x classes) from which on `auto` takes numba: 64 slices of 256 x 256 with four classes


@dataclass(frozen=True)
class FirstPass:
    """What one pass over a volume found."""

    route: Literal["torch", "numba"]
    tables: list[dict[str, Array]]  # flat int64 tables of the calibration statistics; they add up
    histogram: Array | None = None  # of equal-mass bins, in words [5, (t p m k g)], on demand
    bucket_range: Any = None  # which buckets of the histogram occur where, for the second pass


def numba_is_here() -> bool:
    """Whether the extra `fast` brought numba."""
    return importlib.util.find_spec("numba") is not None


def takes_numba(reader: VoxelReader, route: Route) -> bool:
    """Whether to take the numba route; refused where it is demanded and does not apply."""
    if route == "numba" and not reader.hard:
        raise BadInput("the numba route takes integer labels, softmax and arrays on the CPU: use route='torch'")
    if route == "numba" and not numba_is_here():
        raise BadInput("the numba route needs numba, which the extra `fast` brings: use route='torch'")
    return route == "numba" or (
        route == "auto" and reader.hard and int(np.prod(reader.shape)) >= LARGE and numba_is_here()
    )
