r"""Exact calibration statistics of a volume in one streaming pass, whatever its size.

    statistics = calibration_statistics(scores, labels, kind="logits")       # scores [k z y x], labels [z y x]
    ECE().value(statistics.on("predicted"))

`scores` is anything with a shape, a dtype and slices (array, tensor, memory map), of a stated `kind` and `activation`
(see `core.scores`); it is read a chunk of voxels at a time and never copied whole. `target` is labels, several raters'
labels or soft labels (see `core.labels`). The accuracy of a bin is the mean label in it; a voxel's true class is the
argmax (ties: smallest id).

Two routes give bitwise equal counts and sums for the same probabilities, but for the last bits of the NLL: `torch`
(everywhere, any device) and `numba` (extra `fast`; large volumes with integer labels on the CPU, see `route`). What is
computed stands in `torch_pass`; `numba/` computes the same in compiled loops, and `equal_mass/` takes the second pass
that equal-mass bins need; each of these two folders has one entry point, and a page about itself in its docstring. In
the NLL a probability below 2^-24 counts as 2^-24, and the voxel is counted in `clipped` (see `probabilities`).

>>> import numpy as np
>>> p = np.array([[0.8, 0.3], [0.2, 0.7]], np.float32)                     # two classes, two voxels
>>> top = calibration_statistics(p, np.array([0, 0]), kind="probabilities").on("all")
>>> [(row["low"], row["count"], row["accuracy"]) for row in top.rows() if row["class"] is None and row["count"]]
[(0.6666666666666666, 1, 0.0), (0.7333333333333333, 1, 1.0)]
"""

from calibseg.metrics.statistics.binning.route import numba_is_here
from calibseg.metrics.statistics.binning.volume import all_statistics, calibration_statistics
from calibseg.metrics.statistics.calibration import (
    HONEST,
    VOXELS,
    Bands,
    Bins,
    CalibrationStatistics,
    ReliabilityCurves,
    VoxelRule,
)

__all__ = [
    "HONEST",
    "VOXELS",
    "Bands",
    "Bins",
    "CalibrationStatistics",
    "ReliabilityCurves",
    "VoxelRule",
    "all_statistics",
    "calibration_statistics",
    "numba_is_here",
]
