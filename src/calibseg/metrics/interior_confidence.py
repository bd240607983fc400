r"""Interior confidence: the mean probability of a predicted class away from its boundary.

$$ \frac{1}{|M^-|} \sum_{i \in M^-} p_i, \qquad M^- = \{ i \in M : \mathrm{depth}(i) > b \} $$

The depth is the number of steps over voxel faces to the nearest voxel predicted as another class. A boundary is always
unsure, and the larger an organ the less of it is boundary: without a band of b voxels a confidence says more about
failure than about size. Where nothing is left the whole of M counts; undefined where the class is not predicted.
`all`: every voxel that is not near a boundary, background too; with band=0 the mean of the largest probability.
It needs no labels; voxels that they ignore count for nobody and are no boundary, like what lies outside the image.

Paper: Zenk et al., Medical Image Analysis 101, 2025 (arXiv 2406.03323): foreground and non-boundary mean, 4 voxels.
Differs: class by class.

>>> import numpy as np
>>> from calibseg.metrics.statistics.depth import DepthStatistics
>>> p = np.array([0.1, 0.6, 0.9, 0.9], np.float32).reshape(1, 1, 1, 4)
>>> depth = DepthStatistics.of(np.concatenate([1 - p, p]), kind="probabilities")
>>> {k: round(value, 3) for k, value in InteriorConfidence(band=1).value(depth).items()}       # two voxels, each 0.9
{1: 0.9, None: 0.9}
"""

from math import nan

from calibseg.core.options import whole_number
from calibseg.core.types import BadInput
from calibseg.metrics import Metric, Values
from calibseg.metrics.statistics.curve import mean_of_defined
from calibseg.metrics.statistics.depth import DEEPEST, DepthStatistics


class InteriorConfidence(Metric):
    """Mean probability inside what is predicted, without a band at boundaries.

    band: 0 to 8, its width in voxels
    """

    acronym = "interior confidence"
    needs = "depth"
    higher_is_better = True
    contract_options = ({}, {"band": 0}, {"band": 1})

    def __init__(self, band: int = 4) -> None:
        self.band = whole_number("band", band, 0)
        if band > DEEPEST:
            raise BadInput(f"band must be at most {DEEPEST} voxels, not {band}")

    def value(self, statistics: DepthStatistics) -> Values:
        counts, sums = statistics.counts, statistics.sums
        sigmoid = statistics.activation == "sigmoid"
        rows = range(0 if sigmoid else 1, len(counts))
        values: Values = {k: self._mean(counts[k], sums[k]) for k in rows}
        together = mean_of_defined(list(values.values())) if sigmoid else self._mean(counts.sum(0), sums.sum(0))
        return {**values, None: together}

    def _mean(self, counts, sums) -> float:
        if not counts.sum():
            return nan
        inside = slice(self.band + 1, None) if counts[self.band + 1 :].any() else slice(None)
        return float(sums[inside].sum() / counts[inside].sum())
