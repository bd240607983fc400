"""Metrics: one file each. A metric turns statistics that were computed once per case into numbers.

The statistics are additive, so the same metric serves one case, a pooled set of cases, a worker's share or a DDP rank.
A metric's file holds its facts and its formula. Which statistics the formula is applied to, and what counts as all
classes together, is the same for a whole group of metrics and stands in their base:

    CurveMetric      a formula of one reliability curve (ECE, MCE, ...)
    ClassMetric      a mean over the classes (CECE, TCECE)
    BrierMetric      a part of the Brier score
    OverlapMetric    a formula of the voxels that truth and prediction have in common (DSC, IoU, ...)
    SurfaceMetric    a formula of the distances between two surfaces (HD95, NSD, ...)
    MassMetric       a formula of how much probability there is, and where (soft Dice confidence, soft volume, ...)
    VoteMetric       a formula of how many raters call a voxel so, and of its probability (consensus DSC, ...)

`rater_overlap` and `rater_calibration` are the overlap and the curves of each of several raters, `members` the overlaps
of an ensemble's members, `depth` the confidence by distance to a predicted boundary.
"""

from math import nan
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

import numpy as np

from calibseg.core.options import one_of
from calibseg.core.registry import lazy
from calibseg.metrics.statistics.curve import Curve, mean_of_defined
from calibseg.metrics.statistics.label_maps import Empty, check_empty, score_when_absent

if TYPE_CHECKING:  # a list of metrics need not wait for scipy
    from calibseg.metrics._members import *
    from calibseg.metrics.statistics.calibration import ReliabilityCurves
    from calibseg.metrics.statistics.overlap import Overlap, OverlapStatistics
    from calibseg.metrics.statistics.surfaces import SurfacePair, SurfaceStatistics
    from calibseg.metrics.statistics.votes import Votes, VoteStatistics
else:
    __getattr__, __dir__ = lazy(__name__)

# class id or region name -> value; None: all classes together. NaN: undefined, and counted as such
Values = dict[int | str | None, float]


class Metric:
    """One number per class from statistics computed once per case.

    acronym: how tables and figures write it
    needs: the statistics that `value` takes
    headline: its place among the metrics that a report shows first, and the voxel rule it is shown on ("" without)
    by_distance: whether it is also computed in each band of distance to the true surface, where a score has them
    contract_options: sets of options that the contract tests compare with plain loops
    """

    acronym: ClassVar[str]
    needs: ClassVar[
        Literal[
            "calibration", "equal_mass", "overlap", "surface", "mass", "depth",
            "rater_calibration", "rater_overlap", "votes", "members",
        ]
    ]  # fmt: skip
    higher_is_better: ClassVar[bool]
    unit: ClassVar[str] = ""
    headline: ClassVar[tuple[int, str] | None] = None
    by_distance: ClassVar[bool] = False
    contract_options: ClassVar[tuple[dict[str, Any], ...]] = ({},)

    def value(self, statistics: Any) -> Values:
        """The metric per class, and under None for all classes together where that has a meaning."""
        raise TypeError(f"{type(self).__name__} does not say how to compute its value")


class CurveMetric(Metric):
    """A formula of the top-label curve.

    None: the predicted class of all voxels that are not ignored; k: of those predicted k. With sigmoid, k: channel k's
    own curve, and None their mean.
    """

    needs = "calibration"

    def formula(self, curve: Curve) -> float:
        """The metric of one curve that is not empty."""
        raise TypeError(f"{type(self).__name__} does not say its formula")

    def value(self, statistics: "ReliabilityCurves") -> Values:
        curves = statistics.confidence_curves()
        values: Values = {k: float(self.formula(curve)) if curve.count.any() else nan for k, curve in curves.items()}
        values.setdefault(None, mean_of_defined(values.values()))
        return values


class ClassMetric(Metric):
    """A mean over classes of each one's own error.

    classes: `all`, or `released`: those from 0 to the highest label that occurs, as the papers' code has it
    """

    needs = "calibration"
    contract_options = ({}, {"classes": "released"})

    def __init__(self, classes: Literal["all", "released"] = "all") -> None:
        self.classes = one_of("classes", classes, ("all", "released"))


class BrierMetric(Metric):
    """A part of the Brier score.

    k: class k's own; None: the sum of the classes (softmax) or the mean of the channels (sigmoid).
    """

    needs = "calibration"

    def formula(self, curve: Curve, squares: float) -> float:
        """The part of one class, from its curve, which is not empty, and its sum of squares."""
        raise TypeError(f"{type(self).__name__} does not say its formula")

    def value(self, statistics: "ReliabilityCurves") -> Values:
        curves = zip(statistics.class_curves(), statistics.squares, strict=True)
        every = [float(self.formula(curve, square)) if curve.count.any() else nan for curve, square in curves]
        total = mean_of_defined(every) if statistics.activation == "sigmoid" else float(np.sum(every))
        return {**dict(enumerate(every)), None: total}


class OverlapMetric(Metric):
    """A formula of the voxels in the truth, in the prediction and in both, per class and region."""

    needs = "overlap"

    def formula(self, overlap: "Overlap") -> float:
        """The metric of one class or region."""
        raise TypeError(f"{type(self).__name__} does not say its formula")

    def value(self, statistics: "OverlapStatistics") -> Values:
        return {row: self.formula(overlap) for row, overlap in statistics.rows.items()}


class SurfaceMetric(Metric):
    """A formula of the distances between the true and the predicted surface, per class and region.

    empty: "nan", "worst" or "released": what a row scores that the truth or the prediction does not have
    """

    needs = "surface"
    contract_options = ({}, {"empty": "worst"}, {"empty": "released"})
    released: ClassVar[tuple[float, float]] = (nan, nan)  # of the papers' evaluator: truth absent, only prediction is

    def __init__(self, empty: Empty = "nan") -> None:
        self.empty: Empty = check_empty(empty)

    def formula(self, pair: "SurfacePair") -> float:
        """The metric of one class or region that has both surfaces."""
        raise TypeError(f"{type(self).__name__} does not say its formula")

    def worst(self, statistics: "SurfaceStatistics") -> float:
        """The score of a missed or invented object under the policy "worst"."""
        return statistics.diagonal

    def value(self, statistics: "SurfaceStatistics") -> Values:
        worst = self.worst(statistics)
        values: Values = {}
        for row, pair in statistics.rows.items():
            absent = pair.truth_absent, pair.predicted_absent
            values[row] = (
                score_when_absent(self.empty, *absent, worst, self.released) if any(absent) else self.formula(pair)
            )
        return values


class Mass(NamedTuple):
    """Of one class over all voxels that are not ignored: sums of p, of p where it is predicted, and counts."""

    everywhere: float
    inside: float
    predicted: int
    true: float


class MassMetric(Metric):
    """A formula of a class's probability over all voxels; every voxel rule would choose some by what is to be judged.

    k: each class but background, with sigmoid each channel; None: the mean of those that are defined.
    """

    needs = "mass"

    def formula(self, mass: Mass) -> float:
        """The metric of one class; NaN where it is undefined."""
        raise TypeError(f"{type(self).__name__} does not say its formula")

    def value(self, statistics: "ReliabilityCurves") -> Values:
        sums = (statistics.confidence, statistics.top_confidence, statistics.top_count, statistics.hits)
        rows = zip(*(part.sum(1).tolist() for part in sums), strict=True)
        background = 0 if statistics.activation == "sigmoid" else 1
        values: Values = {k: self.formula(Mass(*row)) for k, row in enumerate(rows) if k >= background}
        return {**values, None: mean_of_defined(list(values.values()))}


class VoteMetric(Metric):
    """A formula of how many raters call a voxel so and of its probability, per class and region of one case."""

    needs = "votes"

    def formula(self, votes: "Votes", voxel_ml: float) -> float:
        """The metric of one class or region; NaN where it is undefined."""
        raise TypeError(f"{type(self).__name__} does not say its formula")

    def value(self, statistics: "VoteStatistics") -> Values:
        return {row: self.formula(votes, statistics.voxel_mm3 / 1000) for row, votes in statistics.rows.items()}
