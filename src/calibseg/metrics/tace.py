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
>>> from calibseg.metrics.statistics.binning import Bins, all_statistics
>>> p = np.array([[0.6, 0.7, 0.8, 0.9], [0.4, 0.3, 0.2, 0.1]], np.float32)
>>> _, equal_mass = all_statistics(p, np.array([0, 1, 0, 0]), kind="probabilities", bins=Bins(2))
>>> curves = equal_mass.on("all")
>>> round(TACE().value(curves)[None], 6)                                   # two classes mirror each other: AECE
0.15
"""

from calibseg.metrics import Metric, Values
from calibseg.metrics.statistics.curve import EqualMassCurves, mean_of_defined


class TACE(Metric):
    """Per class its own error, NaN where it keeps no voxel; None: the mean of those that are defined."""

    acronym = "TACE"
    needs = "equal_mass"
    higher_is_better = False

    def value(self, statistics: EqualMassCurves) -> Values:
        errors = statistics.errors()[: statistics.classes]
        return {**dict(enumerate(errors)), None: mean_of_defined(errors)}

    def error_bound(self, statistics: EqualMassCurves) -> float:
        """How far the value for None can be from the exact one; 0 for a single case."""
        kept = statistics.count[: statistics.classes].sum(1) > 0
        return mean_of_defined(statistics.bound[: statistics.classes][kept].tolist())
