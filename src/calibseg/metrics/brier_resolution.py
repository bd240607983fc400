r"""Sharpness part of the Brier score: how far the bins' accuracies lie from the base rate.

$$ \sum_k \sum_b \frac{n_{kb}}{n} (\mathrm{acc}_{kb} - \mathrm{acc}_k)^2 $$

How the parts of the score add up stands in `brier`.

Paper: Murphy, 1973.

>>> import numpy as np
>>> from calibseg.metrics.statistics.binning import calibration_statistics
>>> p = np.array([[0.9, 0.9, 0.6], [0.1, 0.1, 0.4]], np.float32)           # three voxels, all predicted class 0
>>> curves = calibration_statistics(p, np.array([0, 1, 0]), kind="probabilities").on("all")
>>> round(BrierResolution().value(curves)[None], 6)                        # 2 * (2/3 (1/2 - 2/3)^2 + 1/3 (1 - 2/3)^2)
0.111111
"""

from calibseg.metrics import BrierMetric
from calibseg.metrics.statistics.curve import Curve


class BrierResolution(BrierMetric):
    """The variance of the bins' accuracies."""

    acronym = "Brier resolution"
    higher_is_better = True

    def formula(self, curve: Curve, squares: float) -> float:
        bins = curve.filled
        return (bins.shares * (bins.accuracy - curve.base_rate) ** 2).sum()
