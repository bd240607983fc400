r"""The part of ECE from bins that claim more than they hold.

$$ \sum_b \frac{n_b}{n} \max(0, \mathrm{conf}_b - \mathrm{acc}_b) $$

ECE = overconfidence + underconfidence.

>>> import numpy as np
>>> from calibseg.metrics.statistics.binning import calibration_statistics
>>> p = np.array([[0.9, 0.9, 0.6], [0.1, 0.1, 0.4]], np.float32)           # three voxels, all predicted class 0
>>> curves = calibration_statistics(p, np.array([0, 1, 0]), kind="probabilities").on("all")
>>> round(Overconfidence().value(curves)[None], 6)                         # 2 (0.9 - 1/2) / 3
0.266667
"""

from calibseg.metrics import CurveMetric
from calibseg.metrics.statistics.curve import Curve


class Overconfidence(CurveMetric):
    """The share-weighted mean of the gaps above 0."""

    acronym = "overconfidence"
    higher_is_better = False

    def formula(self, curve: Curve) -> float:
        return curve.weighted_gaps.clip(min=0).sum()
