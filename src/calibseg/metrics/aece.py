r"""Adaptive expected calibration error: ECE of the predicted class in bins that hold equally many voxels.

$$ \mathrm{AECE} = \sum_b \frac{n_b}{n} \, | \mathrm{conf}_b - \mathrm{acc}_b |, \qquad n_b \approx n / B $$

Cut j lies after the first floor(j n / B) voxels in the order of confidence; voxels of equal confidence share their hits
evenly where a cut parts them. Exact for one case; pooled over cases from a fine histogram, see `error_bound`.
Only on `predicted` and `all` does a perfect predictor tend to 0.

Paper: Nixon et al., CVPR workshops 2019 (adaptive binning); Nguyen and O'Connor, 2015.
Differs: CRaC's evaluator interpolates edges on the sorted confidences and its open lower edge drops the voxels equal to
the minimum; here every voxel is in a bin. With sigmoid, each channel's own curve over all p.

>>> import numpy as np
>>> from calibseg.metrics.statistics.binning.equal_mass import equal_mass_statistics
>>> p = np.array([[0.6, 0.7, 0.8, 0.9], [0.4, 0.3, 0.2, 0.1]], np.float32)
>>> curves = equal_mass_statistics(p, np.array([0, 1, 0, 0]), kind="probabilities", bins=2).on("all")
>>> round(AECE().value(curves)[None], 6)                                   # |0.65 - 1/2| / 2 + |0.85 - 1| / 2
0.15
"""

from calibseg.metrics import Metric, Values
from calibseg.metrics._gaps import mean, shares
from calibseg.metrics.statistics.binning.equal_mass.histogram import EqualMassCurves


class AECE(Metric):
    """None: the predicted class of all voxels that count. With sigmoid, k: channel k, and None their mean."""

    acronym = "AECE"
    needs = "equal_mass"
    higher_is_better = False

    def value(self, statistics: EqualMassCurves) -> Values:
        errors = [_error(statistics, row) for row in range(statistics.classes, len(statistics.count))]
        if statistics.activation == "softmax":
            return {None: errors[0]}
        return {**dict(enumerate(errors)), None: mean(errors)}

    def error_bound(self, statistics: EqualMassCurves) -> float:
        """How far the value for None can be from the exact one; 0 for a single case."""
        return mean(statistics.bound[statistics.classes :].tolist())


def _error(statistics: EqualMassCurves, row: int) -> float:
    return float(abs(shares((statistics.count[row], statistics.confidence[row], statistics.hits[row]))[0]).sum())
