r"""Average surface distance, one way: from the predicted surface to the true one, as in the MbLS paper.

$$ ASD = mean_{p \in P} d(p, T) $$

What the prediction leaves out does not count: a single voxel on the true surface scores 0. Use ASSD to compare methods.

Paper: Murugesan et al., Medical Image Analysis 2023 (MedPy's asd(prediction, truth), in voxels).
Absent rows: undefined under "nan"; the image diagonal where only one of the two has the object under "worst"; under
"released", as in the authors' evaluator, 1 where the truth has no such object and 0 where the prediction misses it.

>>> import numpy as np
>>> from calibseg.metrics.statistics.surfaces import SurfaceStatistics
>>> truth, predicted = np.zeros((1, 3, 9), int), np.zeros((1, 3, 9), int)
>>> truth[0, 1, 1], predicted[0, 1, 2:6] = 1, 1          # distances 1, 2, 3, 4 to the truth and 1 back
>>> statistics = SurfaceStatistics.of(truth, predicted, num_classes=2)
>>> ASD().value(statistics)                               # (1 + 2 + 3 + 4) / 4
{1: 2.5}
"""

from calibseg.metrics import SurfaceMetric
from calibseg.metrics.statistics.surfaces import SurfacePair


class ASD(SurfaceMetric):
    """Average distance of the predicted surface to the true one, per class and region."""

    acronym = "ASD"
    higher_is_better = False
    unit = "mm"  # or voxels, where the statistics say so
    released = (1.0, 0.0)

    def formula(self, pair: SurfacePair) -> float:
        return pair.to_truth.mean()
