r"""Dice similarity coefficient: the common voxels against the mean size of the two objects.

$$ DSC = 2 |T \cap P| / (|T| + |P|) $$

A missed or an invented object scores 0. Where both are absent it is undefined, and the policy "worst" leaves it so.
Under "released" an object that the truth does not have scores 1 whatever was predicted, as in the papers' evaluator.

>>> import numpy as np
>>> from calibseg.metrics.statistics.overlap import OverlapStatistics
>>> truth, predicted = np.array([[[0, 1, 1, 1]]]), np.array([[[1, 1, 0, 0]]])
>>> DSC().value(OverlapStatistics.of(truth, predicted, num_classes=2))          # 2 * 1 / (3 + 2)
{1: 0.4}
"""

from math import nan

from calibseg.metrics import Metric, Values
from calibseg.metrics.statistics.label_maps import Empty, check_empty, score_when_absent
from calibseg.metrics.statistics.overlap import Overlap, OverlapStatistics


class DSC(Metric):
    """Dice similarity coefficient per class and region.

    empty: "nan", "worst" or "released": what an absent row scores; only "released" gives 1 where the truth has none
    """

    acronym = "DSC"
    needs = "overlap"
    higher_is_better = True
    headline = (4, "")

    def __init__(self, empty: Empty = "nan") -> None:
        self.empty: Empty = check_empty(empty)

    def value(self, statistics: OverlapStatistics) -> Values:
        return {row: self._dice(overlap) for row, overlap in statistics.rows.items()}

    def _dice(self, overlap: Overlap) -> float:
        true, predicted, common = overlap
        if true == 0 and (predicted == 0 or self.empty == "released"):
            return score_when_absent(
                self.empty, truth_absent=True, predicted_absent=predicted == 0, worst=nan, released=(1.0, 0.0)
            )
        return 2 * common / (true + predicted)
