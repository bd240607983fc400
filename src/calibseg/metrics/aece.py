r"""Adaptive expected calibration error: ECE of the predicted class in bins that hold equally many voxels.

$$ \mathrm{AECE} = \sum_b \frac{n_b}{n} \, | \mathrm{conf}_b - \mathrm{acc}_b |, \qquad n_b \approx n / B $$

Cut j lies after the first floor(j n / B) voxels in the order of confidence; voxels of equal confidence share their hits
evenly where a cut parts them. Exact for one case; pooled over cases from a fine histogram, see `error_bound`.
Only on `predicted` and `all` does a perfect predictor tend to 0.

Paper: Nixon et al., CVPR workshops 2019 (adaptive binning); Nguyen and O'Connor, 2015.
Differs: CRaC's evaluator interpolates edges on the sorted confidences and its open lower edge drops the voxels equal to
the minimum; here every voxel is in a bin. With sigmoid, each channel's own curve over all p.

>>> import numpy as np
>>> from calibseg.metrics.statistics.binning import Bins, all_statistics
>>> p = np.array([[0.6, 0.7, 0.8, 0.9], [0.4, 0.3, 0.2, 0.1]], np.float32)
>>> _, equal_mass = all_statistics(p, np.array([0, 1, 0, 0]), kind="probabilities", bins=Bins(2))
>>> curves = equal_mass.on("all")
>>> round(AECE().value(curves)[None], 6)                                   # |0.65 - 1/2| / 2 + |0.85 - 1| / 2
0.15
"""

from calibseg.metrics import Metric, Values
from calibseg.metrics.statistics.curve import EqualMassCurves, mean_of_defined


class AECE(Metric):
    """None: the predicted class of all voxels that are not ignored. With sigmoid, k: channel k, and None their mean."""

    acronym = "AECE"
    needs = "equal_mass"
    higher_is_better = False

    def value(self, statistics: EqualMassCurves) -> Values:
        errors = statistics.errors()[statistics.classes :]
        channels = dict(enumerate(errors)) if statistics.activation == "sigmoid" else {}
        return {**channels, None: mean_of_defined(errors)}

    def error_bound(self, statistics: EqualMassCurves) -> float:
        """How far the value for None can be from the exact one; 0 for a single case."""
        return mean_of_defined(statistics.bound[statistics.classes :].tolist())
