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

from calibseg.metrics import SurfaceMetric
from calibseg.metrics.statistics.surfaces import SurfacePair


class HD(SurfaceMetric):
    """Hausdorff distance per class and region."""

    acronym = "HD"
    higher_is_better = False
    unit = "mm"  # or voxels, where the statistics say so
    released = (0.0, 0.0)

    def formula(self, pair: SurfacePair) -> float:
        return max(pair.to_truth.max(), pair.to_predicted.max())
