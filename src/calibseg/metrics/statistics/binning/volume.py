"""The two calls: calibration statistics of a volume, alone or with exact equal-mass bins."""

from typing import Any, TypedDict, Unpack

import numpy as np
import torch

from calibseg.core.types import Activation, Array, ScoreKind, VoxelName
from calibseg.metrics.statistics.binning.equal_mass import EqualMassStatistics, exact_bins
from calibseg.metrics.statistics.binning.reader import VoxelReader
from calibseg.metrics.statistics.binning.route import FirstPass, Route, takes_numba
from calibseg.metrics.statistics.calibration import FRACTION_BITS, Bands, Bins, CalibrationStatistics


class Options(TypedDict, total=False):
    """What both calls take beside scores, target and kind."""

    activation: Activation  # unless stated: softmax
    bins: Bins | None  # with the threshold; equal-mass bins are as many
    ignore_label: int | None
    distance_mm: Array | None  # signed, to the true surface [*space], for `bands`
    bands: Bands | None  # zones for the voxel rule `boundary` and the curve over the distance
    route: Route  # "auto" takes numba for large volumes where it is installed and can do it
    threads: int | None  # of the numba route, as many as torch uses unless stated
    voxel: VoxelName | None  # how a message calls a voxel


def calibration_statistics(
    scores: Any, target: Any, *, kind: ScoreKind, **options: Unpack[Options]
) -> CalibrationStatistics:
    """One pass over scores [k *space]: additive statistics for every voxel rule at once (see `calibration`)."""
    reader, bins, route, threads = _opened(scores, target, kind, options)
    return _total(reader, bins, _first_pass(reader, bins, route, threads, None))


def all_statistics(
    scores: Any, target: Any, *, kind: ScoreKind, **options: Unpack[Options]
) -> tuple[CalibrationStatistics, EqualMassStatistics]:
    """What `calibration_statistics` gives, and the exact equal-mass bins of the volume.

    The pass over the volume that takes the calibration statistics also fills the fine histogram of equal-mass bins, and
    a second pass looks only where a cut may lie.
    """
    reader, bins, route, threads = _opened(scores, target, kind, options)
    empty = EqualMassStatistics(reader.classes, bins.number, bins.threshold, reader.activation)
    first = _first_pass(reader, bins, route, threads, bins.threshold)
    return _total(reader, bins, first), exact_bins(reader, empty, first, threads)


def _opened(scores: Any, target: Any, kind: ScoreKind, options: Options) -> tuple[VoxelReader, Bins, Route, int]:
    unknown = set(options) - set(Options.__annotations__)
    if unknown:
        raise TypeError(f"statistics take no option {unknown.pop()!r}. Known: {', '.join(Options.__annotations__)}")
    activation = options.get("activation", "softmax")
    others = (options.get(name) for name in ("ignore_label", "distance_mm", "bands", "voxel"))
    reader = VoxelReader(scores, target, kind, activation, *others)
    threads = options.get("threads") or torch.get_num_threads()
    return reader, options.get("bins") or Bins(), options.get("route", "auto"), threads


def _first_pass(reader: VoxelReader, bins: Bins, route: Route, threads: int, fine: float | None) -> FirstPass:
    """fine: the threshold of the fine histogram; None: without one."""
    if takes_numba(reader, route):
        from calibseg.metrics.statistics.binning.numba import numba_pass

        return numba_pass(reader, bins, threads, fine)
    from calibseg.metrics.statistics.binning.torch_pass import torch_pass

    return torch_pass(reader, bins, fine)


def _total(reader: VoxelReader, bins: Bins, first: FirstPass) -> CalibrationStatistics:
    empty = CalibrationStatistics(reader.classes, bins, reader.activation, reader.bands)
    total = empty
    for tables in first.tables:
        total += empty.with_sums(_in_words(empty, tables))
    return total


def _in_words(empty: CalibrationStatistics, tables: dict[str, Array]) -> dict[str, Array]:
    """Flat tables in the shapes of the statistics, with a whole part of 0 where a sum has none yet."""
    words = {}
    for name, shape in empty.shapes.items():
        table = tables[name]
        if name in FRACTION_BITS and table.size * 2 == np.prod(shape):
            table = np.stack([np.zeros_like(table), table])
        words[name] = table.reshape(shape)
    return words
