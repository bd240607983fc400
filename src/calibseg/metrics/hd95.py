r"""95th percentile of the surface distances: a Hausdorff distance that forgives the worst 5 %.

$$ pooled: Q_{95}(d(P, T) \cup d(T, P)) \qquad max\_directed: \max(Q_{95}(d(P, T)), Q_{95}(d(T, P))) $$

`pooled` takes one percentile of both directions' distances together: MedPy, and so the papers. `max_directed` takes one
per direction and then the larger: MONAI and surface-distance. They differ by more than 10 % on ordinary cases.

Absent rows: undefined under "nan"; the image diagonal where only one of the two has the object under "worst"; 0, the
best value, under "released", as in the papers' evaluator, where a missed organ has DSC 0 and HD95 0.

>>> import numpy as np
>>> from calibseg.metrics.statistics.surfaces import SurfaceStatistics
>>> truth, predicted = np.zeros((1, 3, 9), int), np.zeros((1, 3, 9), int)
>>> truth[0, 1, 1], predicted[0, 1, 2:6] = 1, 1          # distances 1, 2, 3, 4 to the truth and 1 back
>>> statistics = SurfaceStatistics.of(truth, predicted, num_classes=2)
>>> HD95().value(statistics)                              # of 1, 1, 2, 3, 4: place 3.8 of 0..4
{1: 3.8}
>>> round(HD95(definition="max_directed").value(statistics)[1], 9)          # of 1, 2, 3, 4: place 2.85 of 0..3
3.85
"""

from typing import Literal

from calibseg.core.types import BadInput
from calibseg.metrics import SurfaceMetric
from calibseg.metrics.statistics.label_maps import Empty
from calibseg.metrics.statistics.surfaces import SurfacePair


class HD95(SurfaceMetric):
    """95th percentile Hausdorff distance per class and region.

    definition: "pooled" (MedPy, the papers) or "max_directed" (MONAI)
    """

    acronym = "HD95"
    higher_is_better = False
    unit = "mm"  # or voxels, where the statistics say so
    headline = (5, "")
    released = (0.0, 0.0)
    contract_options = (*SurfaceMetric.contract_options, {"definition": "max_directed"})

    def __init__(self, definition: Literal["pooled", "max_directed"] = "pooled", empty: Empty = "nan") -> None:
        super().__init__(empty)
        if definition not in ("pooled", "max_directed"):
            raise BadInput(f"no HD95 definition named {definition!r}. Known: pooled, max_directed")
        self.definition = definition

    def formula(self, pair: SurfacePair) -> float:
        if self.definition == "pooled":
            return (pair.to_truth + pair.to_predicted).quantile(0.95)
        return max(pair.to_truth.quantile(0.95), pair.to_predicted.quantile(0.95))
