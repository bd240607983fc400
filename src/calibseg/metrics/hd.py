r"""Hausdorff distance: the largest distance from one surface to the other.

$$ HD = \max(\max_{p \in P} d(p, T), \max_{t \in T} d(t, P)) $$

Absent rows: undefined under "nan"; the image diagonal where only one of the two has the object under "worst"; 0, the
best value, under "released", as in the papers' evaluator.

>>> import numpy as np
>>> from calibseg.metrics.statistics.surfaces import SurfaceStatistics
>>> truth, predicted = np.zeros((1, 3, 9), int), np.zeros((1, 3, 9), int)
>>> truth[0, 1, 1], predicted[0, 1, 2:6] = 1, 1          # distances 1, 2, 3, 4 to the truth and 1 back
>>> statistics = SurfaceStatistics.of(truth, predicted, num_classes=2)
>>> HD().value(statistics)
{1: 4.0}
"""

from calibseg.metrics import Metric, Values
from calibseg.metrics.statistics.label_maps import Empty, check_empty
from calibseg.metrics.statistics.surfaces import SurfacePair, SurfaceStatistics


class HD(Metric):
    """Hausdorff distance per class and region.

    empty: "nan", "worst" or "released": what a row scores that the truth or the prediction does not have
    """

    acronym = "HD"
    needs = "surface"
    higher_is_better = False
    unit = "mm"  # or voxels, where the statistics say so

    def __init__(self, empty: Empty = "nan") -> None:
        self.empty: Empty = check_empty(empty)

    def value(self, statistics: SurfaceStatistics) -> Values:
        return statistics.score(_hd, self.empty, worst=statistics.diagonal, released=(0.0, 0.0))


def _hd(pair: SurfacePair) -> float:
    return max(pair.to_truth.max(), pair.to_predicted.max())
