r"""Normalised surface distance, or surface Dice: the share of both surfaces that lies within a tolerance of the other.

$$ NSD = (\#\{p \in P : d(p, T) \le \tau\} + \#\{t \in T : d(t, P) \le \tau\}) / (|P| + |T|) $$

Differs: DeepMind's surface-distance weighs surface elements between voxel centres by their area; here, as in MONAI
without its subvoxel option, every surface voxel weighs the same. On a sphere moved by 3 voxels, where 2/3 lie within
2 voxels, this says 0.664 and surface-distance 0.820.
Absent rows: undefined under "nan"; 0 where only one of the two has the object under "worst". The papers' evaluator
never computed it: undefined under "released".

>>> import numpy as np
>>> from calibseg.metrics.statistics.surfaces import SurfaceStatistics
>>> truth, predicted = np.zeros((1, 3, 9), int), np.zeros((1, 3, 9), int)
>>> truth[0, 1, 1], predicted[0, 1, 2:6] = 1, 1          # distances 1, 2, 3, 4 to the truth and 1 back
>>> statistics = SurfaceStatistics.of(truth, predicted, num_classes=2)
>>> NSD(tolerance_mm=2.0).value(statistics)               # (2 + 1) / (4 + 1)
{1: 0.6}
"""

from calibseg.core.types import BadInput
from calibseg.metrics import SurfaceMetric
from calibseg.metrics.statistics.label_maps import Empty
from calibseg.metrics.statistics.surfaces import SurfacePair, SurfaceStatistics


class NSD(SurfaceMetric):
    """Surface Dice at a tolerance per class and region.

    tolerance_mm: distance that still counts as agreement; where the statistics are in voxels, it counts voxels
    """

    acronym = "NSD"
    higher_is_better = True
    contract_options = (*SurfaceMetric.contract_options, {"tolerance_mm": 0.0}, {"tolerance_mm": 0.5})

    def __init__(self, tolerance_mm: float = 1.0, empty: Empty = "nan") -> None:
        super().__init__(empty)
        if not tolerance_mm >= 0:
            raise BadInput(f"tolerance_mm is {tolerance_mm}, but a tolerance is 0 or more")
        self.tolerance_mm = tolerance_mm

    def formula(self, pair: SurfacePair) -> float:
        near = pair.to_truth.within(self.tolerance_mm) + pair.to_predicted.within(self.tolerance_mm)
        return near / (pair.to_truth.number + pair.to_predicted.number)

    def worst(self, statistics: SurfaceStatistics) -> float:
        return 0.0
