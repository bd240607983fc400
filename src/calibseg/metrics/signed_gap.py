r"""Mean confidence minus accuracy: above 0 is over-confident, below 0 under-confident.

$$ \mathrm{gap} = \frac{1}{n} \sum_i \Big( \max_k p_{ik} - [\arg\max_k p_{ik} = y_i] \Big) $$

It is overconfidence - underconfidence.

Its size is a lower bound of ECE. The best value is 0 and both signs are errors, so neither lower nor
higher is better and rankings refuse it.

>>> import numpy as np
>>> from calibseg.metrics.statistics.binning import calibration_statistics
>>> p = np.array([[0.9, 0.9, 0.6], [0.1, 0.1, 0.4]], np.float32)           # three voxels, all predicted class 0
>>> curves = calibration_statistics(p, np.array([0, 1, 0]), kind="probabilities").on("all")
>>> round(SignedGap().value(curves)[None], 6)                              # (0.9 + 0.9 + 0.6) / 3 - 2 / 3
0.133333
"""

from calibseg.metrics import CurveMetric
from calibseg.metrics.statistics.curve import Curve


class SignedGap(CurveMetric):
    """The share-weighted mean of the gaps with their signs."""

    acronym = "signed gap"
    higher_is_better = False  # nor is lower, see above

    def formula(self, curve: Curve) -> float:
        return curve.weighted_gaps.sum()
