r"""Exact calibration statistics of a volume in one streaming pass, whatever its size.

    statistics = calibration_statistics(scores, labels, kind="logits")       # scores [k z y x], labels [z y x]
    ECE().value(statistics.on("predicted"))

`scores` is anything with a shape, a dtype and slices (array, tensor, memory map); it is read a span of voxels at a time
and never copied whole. What its numbers are is stated by the caller and never guessed from their values: `kind` is
"logits", "log_probabilities" or "probabilities", `activation` "softmax" (classes exclude each other) or "sigmoid" (each
channel is its own yes-or-no question, with its own foreground).

`target` is one of: labels [z y x] of integers; several raters' labels [r z y x] of integers (the target is then the
share of raters); soft labels [k z y x] of floats. With sigmoid, [k z y x] of any type holds each channel's own label.
The accuracy of a bin is the mean label in it; a voxel's true class is the argmax (ties: smallest id). A voxel labelled
`ignore_label`, or whose soft labels are all 0, counts for nobody.

Two routes give bitwise equal counts and sums for the same probabilities, but for the last bits of the NLL: `torch`
(everywhere, any device) and `numba` (extra `fast`; integer labels on the CPU), see `torch_route` for what is computed.
A stored probability of exactly 0 where the truth lies is an underflow: for the NLL it is read as the smallest positive
number of its type, and counted in `impossible`.

>>> import numpy as np
>>> p = np.array([[0.8, 0.3], [0.2, 0.7]], np.float32)                     # two classes, two voxels
>>> top = calibration_statistics(p, np.array([0, 0]), kind="probabilities").on("all")
>>> [(row["low"], row["count"], row["accuracy"]) for row in top.rows() if row["class"] is None and row["count"]]
[(0.6666666666666666, 1, 0.0), (0.7333333333333333, 1, 1.0)]
"""

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch

from calibseg.core.types import Activation, Array
from calibseg.metrics.statistics.binning.equal_mass import (
    EqualMassStatistics,
    exact_by_numba,
    exact_by_torch,
    refuse_too_many,
)
from calibseg.metrics.statistics.binning.probabilities import Kind
from calibseg.metrics.statistics.binning.reader import Route, VoxelReader, numba_is_here, takes_numba
from calibseg.metrics.statistics.binning.torch_pass import torch_sums
from calibseg.metrics.statistics.calibration import (
    FRACTION_BITS,
    HONEST,
    VOXELS,
    Bands,
    Bins,
    CalibrationStatistics,
    ReliabilityCurves,
    Voxels,
)

__all__ = [
    "HONEST",
    "VOXELS",
    "Bands",
    "Bins",
    "CalibrationStatistics",
    "ReliabilityCurves",
    "Voxels",
    "all_statistics",
    "calibration_statistics",
    "numba_is_here",
]


def calibration_statistics(
    scores: Any,
    target: Any,
    *,
    kind: Kind,
    activation: Activation = "softmax",
    bins: Bins | None = None,
    ignore_label: int | None = None,
    distance_mm: Array | None = None,
    bands: Bands | None = None,
    route: Route = "auto",
    threads: int | None = None,
) -> CalibrationStatistics:
    """One pass over scores [k *space]: additive statistics for every voxel rule at once (see `curves`).

    distance_mm: signed distance [*space] to the true surface, with `bands`, for `boundary` and the distance curve.
    route: `auto` takes numba where it is installed and can do it.
    threads: of the numba route, as many as torch uses, unless stated; the torch route uses those of torch.
    """
    bins, bands = bins or Bins(), bands or Bands()
    reader = VoxelReader(scores, target, kind, activation, ignore_label, distance_mm, bands)
    threads = threads or torch.get_num_threads()
    if takes_numba(reader, route):
        from calibseg.metrics.statistics.binning.numba.one_pass import numba_sums

        return _total(reader, bins, numba_sums(reader, bins, threads)[0])
    return _total(reader, bins, (part.sums for part in torch_sums(reader, bins)))


def all_statistics(
    scores: Any,
    target: Any,
    *,
    kind: Kind,
    activation: Activation = "softmax",
    bins: Bins | None = None,
    ignore_label: int | None = None,
    distance_mm: Array | None = None,
    bands: Bands | None = None,
    route: Route = "auto",
    threads: int | None = None,
) -> tuple[CalibrationStatistics, EqualMassStatistics]:
    """What `calibration_statistics` and `equal_mass_statistics` give, faster than one after the other.

    The equal-mass bins are as many as `bins` says, with its threshold. The pass over the volume that takes the
    calibration statistics also fills the fine histogram, and a second pass looks only where a cut may lie.
    """
    bins, bands = bins or Bins(), bands or Bands()
    reader = VoxelReader(scores, target, kind, activation, ignore_label, distance_mm, bands)
    threads = threads or torch.get_num_threads()
    empty = EqualMassStatistics(reader.classes, bins.number, bins.threshold, activation)
    refuse_too_many(reader)
    if takes_numba(reader, route):
        from calibseg.metrics.statistics.binning.numba.one_pass import numba_sums

        parts, fine = numba_sums(reader, bins, threads, bins.threshold)
        return _total(reader, bins, parts), exact_by_numba(reader, empty, fine, threads)
    found = torch_sums(reader, bins, bins.threshold)
    return _total(reader, bins, (part.sums for part in found)), exact_by_torch(reader, empty, found, threads)


def _total(reader: VoxelReader, bins: Bins, parts: Iterable[dict[str, Array]]) -> CalibrationStatistics:
    empty = CalibrationStatistics(reader.classes, bins, reader.activation, reader.bands)
    total = empty
    for sums in parts:
        total += empty.with_sums(_in_words(empty, sums))
    return total


def _in_words(empty: CalibrationStatistics, sums: dict[str, Array]) -> dict[str, Array]:
    """Flat tables in the shapes of the statistics, with a whole part of 0 where a sum has none yet."""
    words = {}
    for name, shape in empty.shapes.items():
        table = sums[name]
        if name in FRACTION_BITS and table.size * 2 == np.prod(shape):
            table = np.stack([np.zeros_like(table), table])
        words[name] = table.reshape(shape)
    return words
