r"""Intersection over union, also called the Jaccard index.

$$ IoU = |T \cap P| / |T \cup P| $$

A missed or an invented object scores 0; where both are absent it is undefined. It orders single cases as DSC does
(IoU = DSC / (2 - DSC)), but means over cases can differ in order.

>>> import numpy as np
>>> from calibseg.metrics.statistics.overlap import OverlapStatistics
>>> truth, predicted = np.array([[[0, 1, 1, 1]]]), np.array([[[1, 1, 0, 0]]])
>>> IoU().value(OverlapStatistics.of(truth, predicted, num_classes=2))          # 1 / 4
{1: 0.25}
"""

from math import nan

from calibseg.metrics import OverlapMetric
from calibseg.metrics.statistics.overlap import Overlap


class IoU(OverlapMetric):
    """Intersection over union per class and region."""

    acronym = "IoU"
    higher_is_better = True
    both_empty = 1.0

    def formula(self, overlap: Overlap) -> float:
        union = overlap.true + overlap.predicted - overlap.common
        return overlap.common / union if union else nan
