# Written by scripts/stubs.py (make stubs): do not edit.
from math import nan as nan
from typing import TYPE_CHECKING as TYPE_CHECKING
from typing import Any as Any
from typing import ClassVar as ClassVar
from typing import Literal as Literal
from typing import NamedTuple as NamedTuple

import numpy as np

from calibseg.core.options import one_of as one_of
from calibseg.core.registry import lazy as lazy
from calibseg.metrics.statistics.calibration import ReliabilityCurves as ReliabilityCurves
from calibseg.metrics.statistics.curve import Curve as Curve
from calibseg.metrics.statistics.curve import mean_of_defined as mean_of_defined
from calibseg.metrics.statistics.label_maps import Empty as Empty
from calibseg.metrics.statistics.label_maps import check_empty as check_empty
from calibseg.metrics.statistics.label_maps import score_when_absent as score_when_absent
from calibseg.metrics.statistics.overlap import Overlap as Overlap
from calibseg.metrics.statistics.overlap import OverlapStatistics as OverlapStatistics
from calibseg.metrics.statistics.surfaces import SurfacePair as SurfacePair
from calibseg.metrics.statistics.surfaces import SurfaceStatistics as SurfaceStatistics
from calibseg.metrics.statistics.votes import Votes as Votes
from calibseg.metrics.statistics.votes import VoteStatistics as VoteStatistics

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
            "calibration",
            "equal_mass",
            "overlap",
            "surface",
            "mass",
            "depth",
            "rater_calibration",
            "rater_overlap",
            "votes",
            "members",
        ]
    ]
    higher_is_better: ClassVar[bool]
    unit: ClassVar[str] = ""
    headline: ClassVar[tuple[int, str] | None] = None
    by_distance: ClassVar[bool] = False
    contract_options: ClassVar[tuple[dict[str, Any], ...]] = ({},)

    def value(self, statistics: Any) -> Values:
        """The metric per class, and under None for all classes together where that has a meaning."""

class CurveMetric(Metric):
    """A formula of the top-label curve.

    None: the predicted class of all voxels that are not ignored; k: of those predicted k. With sigmoid, k: channel k's
    own curve, and None their mean.
    """

    needs = "calibration"

    def formula(self, curve: Curve) -> float:
        """The metric of one curve that is not empty."""

    def value(self, statistics: ReliabilityCurves) -> Values: ...

class ClassMetric(Metric):
    """A mean over classes of each one's own error.

    classes: `all`, or `released`: those from 0 to the highest label that occurs, as the papers' code has it
    """

    needs = "calibration"
    contract_options = ({}, {"classes": "released"})
    classes: Literal["all", "released"]

    def __init__(self, classes: Literal["all", "released"] = "all") -> None: ...

class BrierMetric(Metric):
    """A part of the Brier score.

    k: class k's own; None: the sum of the classes (softmax) or the mean of the channels (sigmoid).
    """

    needs = "calibration"

    def formula(self, curve: Curve, squares: float) -> float:
        """The part of one class, from its curve, which is not empty, and its sum of squares."""

    def value(self, statistics: ReliabilityCurves) -> Values: ...

class OverlapMetric(Metric):
    """A formula of the voxels in the truth, in the prediction and in both, per class and region."""

    needs = "overlap"

    def formula(self, overlap: Overlap) -> float:
        """The metric of one class or region."""

    def value(self, statistics: OverlapStatistics) -> Values: ...

class SurfaceMetric(Metric):
    """A formula of the distances between the true and the predicted surface, per class and region.

    empty: "nan", "worst" or "released": what a row scores that the truth or the prediction does not have
    """

    needs = "surface"
    contract_options = ({}, {"empty": "worst"}, {"empty": "released"})
    released: ClassVar[tuple[float, float]] = (nan, nan)
    empty: Empty

    def __init__(self, empty: Empty = "nan") -> None: ...
    def formula(self, pair: SurfacePair) -> float:
        """The metric of one class or region that has both surfaces."""

    def worst(self, statistics: SurfaceStatistics) -> float:
        """The score of a missed or invented object under the policy "worst"."""

    def value(self, statistics: SurfaceStatistics) -> Values: ...

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

    def value(self, statistics: ReliabilityCurves) -> Values: ...

class VoteMetric(Metric):
    """A formula of how many raters call a voxel so and of its probability, per class and region of one case."""

    needs = "votes"

    def formula(self, votes: Votes, voxel_ml: float) -> float:
        """The metric of one class or region; NaN where it is undefined."""

    def value(self, statistics: VoteStatistics) -> Values: ...

from calibseg.metrics.ace import ACE as ACE
from calibseg.metrics.aece import AECE as AECE
from calibseg.metrics.asd import ASD as ASD
from calibseg.metrics.assd import ASSD as ASSD
from calibseg.metrics.brier import Brier as Brier
from calibseg.metrics.brier_reliability import BrierReliability as BrierReliability
from calibseg.metrics.brier_resolution import BrierResolution as BrierResolution
from calibseg.metrics.brier_uncertainty import BrierUncertainty as BrierUncertainty
from calibseg.metrics.cace import CACE as CACE
from calibseg.metrics.cece import CECE as CECE
from calibseg.metrics.consensus_confidence import ConsensusConfidence as ConsensusConfidence
from calibseg.metrics.consensus_dsc import ConsensusDSC as ConsensusDSC
from calibseg.metrics.dsc import DSC as DSC
from calibseg.metrics.ece import ECE as ECE
from calibseg.metrics.energy_distance import EnergyDistance as EnergyDistance
from calibseg.metrics.hd import HD as HD
from calibseg.metrics.hd95 import HD95 as HD95
from calibseg.metrics.interior_confidence import InteriorConfidence as InteriorConfidence
from calibseg.metrics.iou import IoU as IoU
from calibseg.metrics.mce import MCE as MCE
from calibseg.metrics.mean_confidence import MeanConfidence as MeanConfidence
from calibseg.metrics.nll import NLL as NLL
from calibseg.metrics.nsd import NSD as NSD
from calibseg.metrics.overconfidence import Overconfidence as Overconfidence
from calibseg.metrics.pairwise_dsc import PairwiseDSC as PairwiseDSC
from calibseg.metrics.rater_dsc import RaterDSC as RaterDSC
from calibseg.metrics.rater_ece import RaterECE as RaterECE
from calibseg.metrics.signed_gap import SignedGap as SignedGap
from calibseg.metrics.soft_dice_confidence import SoftDiceConfidence as SoftDiceConfidence
from calibseg.metrics.soft_volume_error import SoftVolumeError as SoftVolumeError
from calibseg.metrics.tace import TACE as TACE
from calibseg.metrics.tcece import TCECE as TCECE
from calibseg.metrics.thresholded_dsc import ThresholdedDSC as ThresholdedDSC
from calibseg.metrics.underconfidence import Underconfidence as Underconfidence
from calibseg.metrics.volume_crps import VolumeCRPS as VolumeCRPS
from calibseg.metrics.volume_error import VolumeError as VolumeError
