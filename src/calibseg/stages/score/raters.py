"""What several raters say of one case, each for himself and together, and what an ensemble's members say."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy import ndarray as Array

from calibseg.core.types import IGNORED, BadInput, Prediction
from calibseg.metrics import Metric
from calibseg.metrics.statistics.binning import CalibrationStatistics, calibration_statistics
from calibseg.metrics.statistics.label_maps import rows
from calibseg.metrics.statistics.overlap import OverlapStatistics
from calibseg.metrics.statistics.votes import Structures, VoteStatistics
from calibseg.stages.score.channels import Channels, channel_targets, label_maps
from calibseg.stages.score.options import ScoringOptions

NEEDS = {"rater_calibration", "rater_overlap", "votes"}


@dataclass(frozen=True)
class RaterStatistics:
    """Of one case: calibration and overlap against each rater, and the raters' votes. Empty: no metric needs it."""

    calibration: tuple[CalibrationStatistics, ...] = ()
    overlap: tuple[tuple[OverlapStatistics, ...], ...] = ()  # of each rater, of each sigmoid channel
    votes: VoteStatistics | None = None

    @classmethod
    def of(
        cls,
        prediction: Prediction,
        raters: Array,
        channels: Channels,
        regions: Mapping[str, tuple[int, ...]],
        needs: set[str],
        given: Mapping[str, Any],
    ) -> "RaterStatistics":
        """raters: label maps [r z y x]; given: the options of `calibration_statistics`."""
        sigmoid, ignore_label = channels.activation == "sigmoid", given["ignore_label"]
        targets: list[Array] = [channel_targets(one, channels, ignore_label) if sigmoid else one for one in raters]
        calibration, overlap, votes = [], [], None
        for target in targets:
            if "rater_calibration" in needs:
                calibration.append(calibration_statistics(prediction.scores, target, **given))
            if "rater_overlap" in needs:
                maps = label_maps(prediction, target, regions, ignore_label)
                overlap.append(tuple(OverlapStatistics.of(*one, ignore_label) for one in maps))
        if "votes" in needs:
            number = prediction.scores.shape[0]
            structures: Structures = (
                {k: ((k,), members) for k, members in enumerate(channels.members)}
                if sigmoid
                else {row: (ids, ids) for row, ids in rows(number, regions).items()}
            )
            options = {name: given[name] for name in ("kind", "activation", "voxel")}
            votes = VoteStatistics.of(
                prediction.scores, raters, structures, ignore_label=ignore_label, spacing_mm=prediction.spacing_mm,
                **options,
            )  # fmt: skip
        return cls(tuple(calibration), tuple(overlap), votes)

    def sources(
        self, metric: Metric, channels: Channels, scoring: ScoringOptions
    ) -> Iterator[tuple[str, int | None, Any]]:
        """What a metric is computed from, of all raters and then of each, with what stands in the column `voxels`."""
        if metric.needs == "votes" and self.votes is not None:
            yield "", None, self.votes
        elif metric.needs == "rater_overlap":
            apart = channels.activation == "sigmoid"
            for number, shapes in enumerate(zip(*self.overlap, strict=True)):
                yield from ((name, number if apart else None, some) for name, some in _each(shapes))
        elif metric.needs == "rater_calibration" and self.calibration:
            for rule in scoring.voxels:
                if rule != "boundary":
                    curves = [one.on(rule) for one in self.calibration]
                    yield from ((f"{rule} {name}".strip(), None, some) for name, some in _each(curves))


def _each(of_raters: Sequence[Any]) -> Iterator[tuple[str, Sequence[Any]]]:
    yield "", of_raters
    yield from ((f"rater {number}", [one]) for number, one in enumerate(of_raters, start=1))


def rater_shares(raters: Array, channels: Channels, ignore_label: int | None) -> Array:
    """[k z y x] float32: for each sigmoid channel, the share of the raters [r z y x] who call a voxel so."""
    targets = [channel_targets(one, channels, ignore_label) for one in raters]
    if any((target == IGNORED).any() for target in targets):
        raise BadInput("several raters' labels of sigmoid channels cannot have ignored voxels")
    return np.stack(targets).mean(0, dtype=np.float32)
