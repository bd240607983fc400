r"""Thresholded adaptive calibration error: class-wise, where p > 1e-3, in bins that hold equally many voxels.

$$ \mathrm{TACE} = \frac{1}{K} \sum_k \sum_b \frac{n_{kb}}{n_k} \, | \mathrm{conf}_{kb} - \mathrm{acc}_{kb} |, \qquad
   n_{kb} \approx n_k / B, \quad n_k = |\{i: p_{ik} > 10^{-3}\}| $$

Exact for one case; pooled over cases from a fine histogram, see `error_bound`.
Only on `predicted` and `all` does a perfect predictor tend to 0.

Paper: Nixon et al., CVPR workshops 2019.
Differs: what the CRaC paper prints as TACE has equal-width bins and is `tcece` here. The SVLS and BWCR code leaves the
background out and divides by the number of bins a second time. A class that no voxel keeps is undefined here and left
out of the mean.

>>> import numpy as np
>>> from calibseg.metrics.statistics.binning.equal_mass import equal_mass_statistics
>>> p = np.array([[0.6, 0.7, 0.8, 0.9], [0.4, 0.3, 0.2, 0.1]], np.float32)
>>> curves = equal_mass_statistics(p, np.array([0, 1, 0, 0]), kind="probabilities", bins=2).on("all")
>>> round(TACE().value(curves)[None], 6)                                   # two classes mirror each other: AECE
0.15
"""

from calibseg.metrics import Metric, Values
from calibseg.metrics._gaps import mean, shares
from calibseg.metrics.statistics.binning.equal_mass.histogram import EqualMassCurves


class TACE(Metric):
    """Per class its own error, NaN where it keeps no voxel; None: the mean of those that are defined."""

    acronym = "TACE"
    needs = "equal_mass"
    higher_is_better = False

    def value(self, statistics: EqualMassCurves) -> Values:
        values: Values = {k: _error(statistics, k) for k in range(statistics.classes)}
        return values | {None: mean(list(values.values()))}

    def error_bound(self, statistics: EqualMassCurves) -> float:
        """How far the value for None can be from the exact one; 0 for a single case."""
        kept = statistics.count[: statistics.classes].sum(1) > 0
        return mean(statistics.bound[: statistics.classes][kept].tolist())


def _error(statistics: EqualMassCurves, k: int) -> float:
    return float(abs(shares((statistics.count[k], statistics.confidence[k], statistics.hits[k]))[0]).sum())
