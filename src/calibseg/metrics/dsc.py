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

from calibseg.metrics import OverlapMetric
from calibseg.metrics.statistics.label_maps import Empty, check_empty
from calibseg.metrics.statistics.overlap import Overlap


class DSC(OverlapMetric):
    """Dice similarity coefficient per class and region.

    empty: "nan", "worst" or "released": what an absent row scores; only "released" gives 1 where the truth has none
    """

    acronym = "DSC"
    higher_is_better = True
    headline = (4, "")
    both_empty = 1.0
    contract_options = ({}, {"empty": "worst"}, {"empty": "released"})

    def __init__(self, empty: Empty = "nan") -> None:
        self.empty: Empty = check_empty(empty)

    def formula(self, overlap: Overlap) -> float:
        if self.empty == "released" and overlap.true == 0:
            return 1.0
        sizes = overlap.true + overlap.predicted
        return 2 * overlap.common / sizes if sizes else nan
