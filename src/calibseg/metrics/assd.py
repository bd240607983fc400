r"""Average symmetric surface distance: the mean over the voxels of both surfaces.

$$ ASSD = (\sum_{p \in P} d(p, T) + \sum_{t \in T} d(t, P)) / (|P| + |T|) $$

As in MedPy 0.5 and MONAI. The mean of the two directed averages is another measure (MASD).
Absent rows: undefined under "nan"; the image diagonal where only one of the two has the object under "worst". The
papers' evaluator never computed it: undefined under "released".

>>> import numpy as np
>>> from calibseg.metrics.statistics.surfaces import SurfaceStatistics
>>> truth, predicted = np.zeros((1, 3, 9), int), np.zeros((1, 3, 9), int)
>>> truth[0, 1, 1], predicted[0, 1, 2:6] = 1, 1          # distances 1, 2, 3, 4 to the truth and 1 back
>>> statistics = SurfaceStatistics.of(truth, predicted, num_classes=2)
>>> ASSD().value(statistics)                              # (1 + 2 + 3 + 4 + 1) / 5
{1: 2.2}
"""

from calibseg.metrics import SurfaceMetric
from calibseg.metrics.statistics.surfaces import SurfacePair


class ASSD(SurfaceMetric):
    """Average symmetric surface distance per class and region."""

    acronym = "ASSD"
    higher_is_better = False
    unit = "mm"  # or voxels, where the statistics say so

    def formula(self, pair: SurfacePair) -> float:
        return (pair.to_truth + pair.to_predicted).mean()
