"""One case measured once: the statistics of its prediction, and every metric's values from them.

Calibration and overlap statistics add up over cases, so the same `values` serves one case and all of them pooled.
Equal-mass bins are exact for one case and within a stated bound when pooled; the distances between surfaces, and what
raters and the members of an ensemble say, belong to one case and have no pooled value.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import isnan
from typing import Any, NamedTuple

import numpy as np
from numpy import ndarray as Array

from calibseg.core.score_kind import check_probabilities
from calibseg.core.types import IGNORED, BadInput, Prediction, VoxelRule
from calibseg.io.class_names import ClassNames
from calibseg.io.label_fingerprint import label_fingerprint
from calibseg.io.predictions import PredictionFiles
from calibseg.metrics import Metric
from calibseg.metrics.statistics.binning import Bins, CalibrationStatistics, all_statistics, calibration_statistics
from calibseg.metrics.statistics.binning.equal_mass import EqualMassStatistics
from calibseg.metrics.statistics.binning.equal_mass.histogram import RULES as EQUAL_MASS_VOXELS
from calibseg.metrics.statistics.depth import DepthStatistics
from calibseg.metrics.statistics.distance_bands import distance_bands, signed_distance_mm
from calibseg.metrics.statistics.members import MemberStatistics
from calibseg.metrics.statistics.overlap import OverlapStatistics
from calibseg.metrics.statistics.surfaces import SurfaceStatistics
from calibseg.stages.score.channels import (
    Channels,
    agreed,
    channel_targets,
    check_labels,
    label_map,
    label_maps,
    name_channels,
)
from calibseg.stages.score.chosen_metrics import metrics
from calibseg.stages.score.options import ScoringOptions
from calibseg.stages.score.raters import NEEDS, RaterStatistics, rater_shares

ALL = "all"  # analysis.columns.ALL, which workers would wait for pandas to import


class Value(NamedTuple):
    """One row of the score table, without saying whose."""

    name: str  # of the class or region
    voxels: str
    metric: str
    value: float
    unit: str
    higher_is_better: bool


@dataclass(frozen=True)
class OfCase:
    """What was counted in one case and does not add up. None: no metric needs it, or there is no such thing."""

    surface: tuple[SurfaceStatistics, ...] = ()
    depth: DepthStatistics | None = None
    raters: RaterStatistics | None = None
    members: MemberStatistics | None = None


@dataclass(frozen=True)
class Statistics:
    """What was counted in one case, or in several. Sigmoid channels are judged apart, so each has its own shapes."""

    calibration: CalibrationStatistics
    overlap: tuple[OverlapStatistics, ...]
    equal_mass: EqualMassStatistics | None = None  # None: no metric needs it
    of_case: OfCase = OfCase()

    def __add__(self, other: "Statistics") -> "Statistics":
        overlap = tuple(ours + theirs for ours, theirs in zip(self.overlap, other.overlap, strict=True))
        equal_mass = None
        if self.equal_mass is not None and other.equal_mass is not None:
            equal_mass = self.equal_mass + other.equal_mass
        return Statistics(self.calibration + other.calibration, overlap, equal_mass)


@dataclass(frozen=True)
class CaseMeasurement:
    """A case's values, and the statistics that can be pooled with other cases'."""

    channels: Channels
    values: list[Value]
    statistics: Statistics
    labels: str = ""  # fingerprint of the label map it was measured against


@dataclass(frozen=True)
class Besides:
    """What else is known of a case.

    zones: the distance to the true surface and its bands, for the voxel rule `boundary`
    raters: their label maps [r z y x]; None: there is one
    members: label maps [z y x] of the members of an ensemble
    """

    zones: Mapping[str, Any] = field(default_factory=dict)
    raters: Array | None = None
    members: Sequence[Array] = ()


NOTHING = Besides()


def measure(
    pair: PredictionFiles, class_names: ClassNames, scoring: ScoringOptions, threads: int = 1
) -> CaseMeasurement:
    """Open a case, take its statistics in one pass each and compute every metric. What is wrong names the file."""
    prediction = pair.open()
    labels = prediction.labels
    assert labels is not None
    channels = name_channels(pair, prediction.scores.shape[0], class_names)
    check_labels(pair, prediction, channels, class_names)
    raters = labels if labels.ndim == 4 else None
    zones: dict[str, Any] = {}
    if "boundary" in scoring.voxels:
        truth = agreed(labels, class_names.ignore_label)
        distance = signed_distance_mm(truth, prediction.spacing_mm, class_names.ignore_label)
        zones = {"distance_mm": distance, "bands": distance_bands(scoring.boundary_mm)}
    try:
        if pair.activation == "softmax":
            target, ignore = labels, class_names.ignore_label
        else:
            ignore = IGNORED
            by_channel = channel_targets if raters is None else rater_shares
            target = by_channel(labels, channels, class_names.ignore_label)
        measured = measure_target(
            prediction, target, channels, scoring, ignore_label=ignore, regions=class_names.regions,
            besides=Besides(zones, raters, _members(pair, prediction, class_names.ignore_label)), threads=threads,
        )  # fmt: skip
        return replace(measured, labels=label_fingerprint(labels))
    except BadInput as error:
        raise BadInput(f"{pair.files[0]}: {error}") from error


def _members(pair: PredictionFiles, whole: Prediction, ignore_label: int | None) -> list[Array]:
    """The label maps of an ensemble's members, which lie where the prediction lies."""
    if pair.members and pair.activation == "sigmoid":
        raise BadInput("the members of an ensemble are compared as label maps, which sigmoid channels do not make")
    maps, ignored = [], _ignored_by_any(whole.labels, ignore_label)
    for member in pair.members:
        scores, name = member.open().scores, f"its member {member.files[0]}"
        if scores.shape != whole.scores.shape:
            raise BadInput(f"{name} has the shape {scores.shape}, not {whole.scores.shape}")
        for z, plane in enumerate(np.asarray(scores[:, z : z + 1]) for z in range(scores.shape[1])):
            if not (np.isfinite(plane[:, 0]).all(0) | ignored[z]).all():
                raise BadInput(f"{name} holds scores that are NaN or infinite")
            if member.kind == "probabilities":
                check_probabilities(plane, member.activation, name)
        maps.append(label_map(scores))
    return maps


def _ignored_by_any(labels: Any, ignore_label: int | None) -> Array:
    """Which voxels [z y x] are ignored; of several raters, by one at least."""
    space = labels.shape[-3:]
    return np.zeros(space, bool) if ignore_label is None else (labels == ignore_label).reshape(-1, *space).any(0)


def measure_target(
    prediction: Prediction,
    target: Array,
    channels: Channels,
    scoring: ScoringOptions,
    *,
    ignore_label: int | None,
    regions: Mapping[str, tuple[int, ...]],
    besides: Besides = NOTHING,
    threads: int = 1,
) -> CaseMeasurement:
    """Every metric of a prediction in memory against its target.

    target: labels [z y x] or of raters [r z y x]; of sigmoid channels [k z y x], whether each is right there
    """
    needs = {metric.needs for metric in metrics(scoring).values()}
    plain: dict[str, Any] = {
        "kind": prediction.kind, "activation": prediction.activation, "ignore_label": ignore_label,
        "bins": Bins(scoring.bins), "threads": threads, "voxel": prediction.voxel_name,
    }  # fmt: skip
    given = plain | dict(besides.zones)
    if "equal_mass" in needs:
        calibration, equal_mass = all_statistics(prediction.scores, target, **given)
    else:
        calibration, equal_mass = calibration_statistics(prediction.scores, target, **given), None
    overlap, surface = [], []
    space = {"spacing_mm": prediction.spacing_mm, "units": scoring.units, "workers": threads}
    for truth, predicted, number, named in label_maps(prediction, target, regions, ignore_label):
        overlap.append(OverlapStatistics.of(truth, predicted, number, named, ignore_label))
        if "surface" in needs:
            surface.append(SurfaceStatistics.of(truth, predicted, number, named, ignore_index=ignore_label, **space))
    raters, members, depth = None, None, None
    if besides.raters is not None and needs & NEEDS:
        raters = RaterStatistics.of(prediction, besides.raters, channels, regions, needs, plain)
    if besides.members and "members" in needs:
        theirs = [] if besides.raters is None else list(besides.raters)
        ignored = _ignored_by_any(target, ignore_label)
        members = MemberStatistics.of(besides.members, theirs, prediction.scores.shape[0], regions, ignored)
    if "depth" in needs:
        options = {name: plain[name] for name in ("kind", "activation", "ignore_label")}
        depth = DepthStatistics.of(prediction.scores, target, **options)
    of_case = OfCase(tuple(surface), depth, raters, members)
    statistics = Statistics(calibration, tuple(overlap), equal_mass, of_case)
    return CaseMeasurement(channels, list(values(statistics, channels, scoring)), statistics)


def values(statistics: Statistics, channels: Channels, scoring: ScoringOptions) -> Iterator[Value]:
    """Every metric that these statistics can give, per class and region, and per voxel rule for calibration metrics."""
    for key, metric in metrics(scoring).items():
        unit = scoring.units if metric.unit == "mm" else metric.unit
        for voxels, channel, source in _sources(metric, statistics, channels, scoring):
            for row, value in metric.value(source).items():
                name = channels.names[channel] if channel is not None else _name(row, channels)
                yield Value(name, voxels, key, float(value), unit, metric.higher_is_better)


def refuse_without_rows(scoring: ScoringOptions, measured: Collection[CaseMeasurement]) -> None:
    """Refuse a metric that was asked for by name and that no case can have."""
    scored = {row.metric for one in measured for row in one.values}
    for key in scoring.metrics:
        if measured and key not in scored:
            needs = metrics(scoring)[key].needs
            if needs in ("equal_mass", "rater_calibration") and scoring.voxels == ("boundary",):
                raise BadInput(f"the metric {key} is not computed on boundary: name another voxel rule, like predicted")
            several = "labels of several raters"
            what = f"members of an ensemble (energy_distance: and {several})" if needs == "members" else several
            raise BadInput(
                f"the metric {key} needs {what}, which no case has (`calibseg score --help` says how to give them)"
            )


def _sources(
    metric: Metric, statistics: Statistics, channels: Channels, scoring: ScoringOptions
) -> Iterator[tuple[str, int | None, Any]]:
    """What a metric is computed from, with the voxel rule, and with the sigmoid channel where it is one channel's."""
    of_case = statistics.of_case
    if metric.needs == "calibration":
        yield from ((voxels, None, statistics.calibration.on(voxels)) for voxels in scoring.voxels)
        if metric.by_distance and "boundary" in scoring.voxels:
            for (low, high), curves in statistics.calibration.by_distance():
                yield f"{low:g} to {high:g} {statistics.calibration.bands.unit}", None, curves
    elif metric.needs == "mass":
        yield "", None, statistics.calibration.on("all")
    elif metric.needs == "equal_mass":
        known: list[VoxelRule] = [voxels for voxels in scoring.voxels if voxels in EQUAL_MASS_VOXELS]
        if statistics.equal_mass is not None:
            yield from ((voxels, None, statistics.equal_mass.on(voxels)) for voxels in known)
    elif metric.needs in NEEDS:
        if of_case.raters is not None:
            yield from of_case.raters.sources(metric, channels, scoring)
    elif metric.needs in ("depth", "members"):
        own = of_case.depth if metric.needs == "depth" else of_case.members
        if own is not None:
            yield "", None, own
    else:
        shapes = statistics.overlap if metric.needs == "overlap" else of_case.surface
        apart = channels.activation == "sigmoid"
        yield from (("", channel if apart else None, shape) for channel, shape in enumerate(shapes))


def pooling_error(statistics: Statistics, scoring: ScoringOptions) -> dict[str, float | None]:
    """How far the pooled value of each equal-mass metric can be from the exact one; None where it is undefined."""
    errors = {}
    for key, metric in metrics(scoring).items():
        bound = getattr(metric, "error_bound", None)
        if metric.needs == "equal_mass" and bound is not None:
            for voxels, _, source in _sources(metric, statistics, Channels((), ()), scoring):
                error = float(bound(source))
                errors[f"{key}@{voxels}"] = None if isnan(error) else error
    return errors


def _name(row: int | str | None, channels: Channels) -> str:
    return ALL if row is None else channels.names[row] if isinstance(row, int) else row
