r"""The part of ECE from bins that hold more than they claim.

$$ \sum_b \frac{n_b}{n} \max(0, \mathrm{acc}_b - \mathrm{conf}_b) $$

ECE = overconfidence + underconfidence.

>>> import numpy as np
>>> from calibseg.metrics.statistics.binning import calibration_statistics
>>> p = np.array([[0.9, 0.9, 0.6], [0.1, 0.1, 0.4]], np.float32)           # three voxels, all predicted class 0
>>> curves = calibration_statistics(p, np.array([0, 1, 0]), kind="probabilities").on("all")
>>> round(Underconfidence().value(curves)[None], 6)                        # 1 (1 - 0.6) / 3
0.133333
"""

from calibseg.metrics import CurveMetric
from calibseg.metrics.statistics.curve import Curve


class Underconfidence(CurveMetric):
    """The share-weighted mean of the gaps below 0, as positive numbers."""

    acronym = "underconfidence"
    higher_is_better = False

    def formula(self, curve: Curve) -> float:
        return (-curve.weighted_gaps).clip(min=0).sum()
