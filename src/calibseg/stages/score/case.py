"""One case measured once: the statistics of its prediction, and every metric's values from them.

Calibration and overlap statistics add up over cases, so the same `values` serves one case and all of them pooled.
Equal-mass bins are exact for one case and within a stated bound when pooled; the distances between surfaces belong to
one case and have no pooled value.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from math import isnan
from typing import Any, NamedTuple

import numpy as np
from numpy import ndarray as Array

from calibseg.core.labels import likeliest_class
from calibseg.core.types import IGNORED, Activation, BadInput, Prediction, VoxelRule
from calibseg.io.class_names import ClassNames
from calibseg.io.label_fingerprint import label_fingerprint
from calibseg.io.predictions import PredictionFiles
from calibseg.metrics import Metric
from calibseg.metrics.statistics.binning import Bins, CalibrationStatistics, all_statistics, calibration_statistics
from calibseg.metrics.statistics.binning.equal_mass import EqualMassStatistics
from calibseg.metrics.statistics.binning.equal_mass.histogram import RULES as EQUAL_MASS_VOXELS
from calibseg.metrics.statistics.distance_bands import distance_bands, signed_distance_mm
from calibseg.metrics.statistics.label_maps import refuse_unknown_labels
from calibseg.metrics.statistics.overlap import OverlapStatistics
from calibseg.metrics.statistics.surfaces import SurfaceStatistics
from calibseg.stages.score.chosen_metrics import metrics
from calibseg.stages.score.options import ScoringOptions

ALL = "all"  # all classes together, in the column `class`


class Channels(NamedTuple):
    """What each channel of the scores stands for: a name, and the label values that belong to it.

    activation: with sigmoid every channel is judged apart
    """

    names: tuple[str, ...]
    members: tuple[tuple[int, ...], ...]
    activation: Activation = "softmax"


class Value(NamedTuple):
    """One row of the score table, without saying whose."""

    name: str  # of the class or region
    voxels: str
    metric: str
    value: float
    unit: str
    higher_is_better: bool


@dataclass(frozen=True)
class Statistics:
    """What was counted in one case, or in several. Sigmoid channels are judged apart, so each has its own shapes."""

    calibration: CalibrationStatistics
    overlap: tuple[OverlapStatistics, ...]
    equal_mass: EqualMassStatistics | None = None  # None: no metric needs it
    surface: tuple[SurfaceStatistics, ...] = ()  # of one case only

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


def measure(
    pair: PredictionFiles, class_names: ClassNames, scoring: ScoringOptions, threads: int = 1
) -> CaseMeasurement:
    """Open a case, take its statistics in one pass each and compute every metric. What is wrong names the file."""
    prediction = pair.open()
    assert prediction.labels is not None
    channels = name_channels(pair, prediction.scores.shape[0], class_names)
    check_labels(pair, prediction, channels, class_names)
    if pair.activation == "softmax":
        target, ignore = prediction.labels, class_names.ignore_label
    else:
        target, ignore = channel_targets(prediction.labels, channels, class_names.ignore_label), IGNORED
    zones: dict[str, Any] = {}
    if "boundary" in scoring.voxels:
        distance = signed_distance_mm(agreed(prediction.labels), prediction.spacing_mm, class_names.ignore_label)
        zones = {"distance_mm": distance, "bands": distance_bands(scoring.boundary_mm)}
    try:
        measured = measure_target(
            prediction, target, channels, scoring, ignore_label=ignore, regions=class_names.regions, zones=zones,
            threads=threads,
        )  # fmt: skip
        return replace(measured, labels=label_fingerprint(prediction.labels))
    except BadInput as error:
        raise BadInput(f"{pair.files[0]}: {error}") from error


def measure_target(
    prediction: Prediction,
    target: Array,
    channels: Channels,
    scoring: ScoringOptions,
    *,
    ignore_label: int | None,
    regions: Mapping[str, tuple[int, ...]],
    zones: Mapping[str, Any],
    threads: int = 1,
) -> CaseMeasurement:
    """Every metric of a prediction in memory against its target.

    target: labels [z y x] or of raters [r z y x]; of sigmoid channels [k z y x], whether each is right there
    zones: the distance to the true surface and its bands, for the voxel rule `boundary`
    """
    needs = {metric.needs for metric in metrics(scoring).values()}
    given: dict[str, Any] = {
        "kind": prediction.kind, "activation": prediction.activation, "ignore_label": ignore_label, **zones,
        "bins": Bins(scoring.bins), "threads": threads, "voxel": prediction.voxel_name,
    }  # fmt: skip
    if "equal_mass" in needs:
        calibration, equal_mass = all_statistics(prediction.scores, target, **given)
    else:
        calibration, equal_mass = calibration_statistics(prediction.scores, target, **given), None
    overlap, surface = [], []
    space = {"spacing_mm": prediction.spacing_mm, "units": scoring.units, "workers": threads}
    for truth, predicted, number, named in _label_maps(prediction, target, regions):
        overlap.append(OverlapStatistics.of(truth, predicted, number, named, ignore_label))
        if "surface" in needs:
            surface.append(SurfaceStatistics.of(truth, predicted, number, named, ignore_index=ignore_label, **space))
    statistics = Statistics(calibration, tuple(overlap), equal_mass, tuple(surface))
    return CaseMeasurement(channels, list(values(statistics, channels, scoring)), statistics)


def values(statistics: Statistics, channels: Channels, scoring: ScoringOptions) -> Iterator[Value]:
    """Every metric that these statistics can give, per class and region, and per voxel rule for calibration metrics."""
    for key, metric in metrics(scoring).items():
        unit = scoring.units if metric.unit == "mm" else metric.unit
        for voxels, channel, source in _sources(metric, statistics, channels.activation, scoring):
            for row, value in metric.value(source).items():
                name = channels.names[channel] if channel is not None else _name(row, channels)
                yield Value(name, voxels, key, float(value), unit, metric.higher_is_better)


def _sources(
    metric: Metric, statistics: Statistics, activation: Activation, scoring: ScoringOptions
) -> Iterator[tuple[str, int | None, Any]]:
    """What a metric is computed from, with the voxel rule, and with the sigmoid channel where it is one channel's."""
    if metric.needs == "calibration":
        yield from ((voxels, None, statistics.calibration.on(voxels)) for voxels in scoring.voxels)
        if metric.by_distance and "boundary" in scoring.voxels:
            for (low, high), curves in statistics.calibration.by_distance():
                yield f"{low:g} to {high:g} mm", None, curves
    elif metric.needs == "mass":
        yield "", None, statistics.calibration.on("all")
    elif metric.needs == "equal_mass":
        known: list[VoxelRule] = [voxels for voxels in scoring.voxels if voxels in EQUAL_MASS_VOXELS]
        if statistics.equal_mass is not None:
            yield from ((voxels, None, statistics.equal_mass.on(voxels)) for voxels in known)
    else:
        shapes = statistics.overlap if metric.needs == "overlap" else statistics.surface
        apart = activation == "sigmoid"
        yield from (("", channel if apart else None, shape) for channel, shape in enumerate(shapes))


def pooling_error(statistics: Statistics, scoring: ScoringOptions) -> dict[str, float | None]:
    """How far the pooled value of each equal-mass metric can be from the exact one; None where it is undefined."""
    errors = {}
    for key, metric in metrics(scoring).items():
        bound = getattr(metric, "error_bound", None)
        if metric.needs == "equal_mass" and bound is not None:
            for voxels, _, source in _sources(metric, statistics, "softmax", scoring):
                error = float(bound(source))
                errors[f"{key}@{voxels}"] = None if isnan(error) else error
    return errors


def name_channels(pair: PredictionFiles, number: int, class_names: ClassNames) -> Channels:
    """What the channels of a file stand for: the classes, or with sigmoid the regions or the foreground classes."""
    classes, regions = class_names.classes, class_names.regions
    every = [(name, (index,)) for index, name in enumerate(classes or plain_names(max(number, 2)))]
    choices = {len(every): every}
    if pair.activation == "sigmoid":
        if regions:
            choices = {len(regions): [(name, tuple(members)) for name, members in regions.items()]}
        elif classes or number == 1:
            choices[len(every) - 1] = every[1:]
        else:
            raise BadInput(
                f"{pair.files[0]} has {number} sigmoid channels: --classes or --regions must say what they stand for"
            )
    if number not in choices:
        known = " or ".join(", ".join(name for name, _ in choice) for choice in choices.values())
        raise BadInput(f"{pair.files[0]} has {number} channels, which cannot be {known}")
    names, members = zip(*choices[number], strict=True)
    return Channels(names, members, pair.activation)


def plain_names(number: int) -> tuple[str, ...]:
    return ("background", *(str(index) for index in range(1, number)))


def _name(row: int | str | None, channels: Channels) -> str:
    return ALL if row is None else channels.names[row] if isinstance(row, int) else row


def check_labels(pair: PredictionFiles, prediction: Prediction, channels: Channels, class_names: ClassNames) -> None:
    """Refuse a label that stands for no class, with its file and place."""
    known = len(class_names.classes) if pair.activation == "sigmoid" else len(channels.names)
    if known:
        assert prediction.labels is not None
        refuse_unknown_labels(pair.label, prediction.labels, known, class_names.ignore_label, prediction.voxel_name)


def channel_targets(labels: Array, channels: Channels, ignore_label: int | None) -> Array:
    """[k z y x] uint8: for each sigmoid channel, whether it is right there."""
    targets = np.stack([np.isin(labels, members) for members in channels.members]).astype(np.uint8)
    if ignore_label is not None:
        targets[:, labels == ignore_label] = IGNORED
    return targets


def _label_maps(
    prediction: Prediction, target: Array, regions: Mapping[str, tuple[int, ...]]
) -> Iterator[tuple[Array, Array, int, Mapping[str, tuple[int, ...]]]]:
    """Truth, prediction, number of classes and regions: once with softmax, once per channel with sigmoid."""
    number = prediction.scores.shape[0]
    if prediction.activation == "softmax":
        yield agreed(target), _argmax(prediction.scores), number, regions
        return
    even = {"logits": 0.0, "log_probabilities": float(np.log(0.5)), "probabilities": 0.5}[prediction.kind]
    for channel in range(number):
        yield target[channel], (np.asarray(prediction.scores[channel]) > even).astype(np.uint8), 2, {}


def agreed(labels: Array) -> Array:
    """The label that most raters [r z y x] gave, ties to the smallest, for what needs one label map [z y x]."""
    if labels.ndim == 3:
        return labels
    best, most = np.zeros_like(labels[0]), np.zeros(labels.shape[1:], np.uint8)
    for label in np.unique(labels):
        votes = (labels == label).sum(0, dtype=np.uint8)
        np.copyto(best, label, where=votes > most)
        np.maximum(most, votes, out=most)
    return best


def _argmax(scores: Any) -> Array:
    """[k z y x] -> the predicted class [z y x], plane by plane; ties take the smallest id."""
    return np.stack([likeliest_class(np.asarray(scores[:, z])) for z in range(scores.shape[1])])
