r"""Calibration part of the Brier score: squared gap between confidence and accuracy, weighted by bins.

$$ \sum_k \sum_b \frac{n_{kb}}{n} (\mathrm{conf}_{kb} - \mathrm{acc}_{kb})^2 $$

Brier = reliability - resolution + uncertainty + within, with the last the part that bins do not resolve.

Paper: Murphy, 1973.

>>> import numpy as np
>>> from calibseg.metrics.statistics.binning import calibration_statistics
>>> p = np.array([[0.9, 0.9, 0.6], [0.1, 0.1, 0.4]], np.float32)           # three voxels, all predicted class 0
>>> curves = calibration_statistics(p, np.array([0, 1, 0]), kind="probabilities").on("all")
>>> round(BrierReliability().value(curves)[None], 6)                                  # 2 * 0.4^2
0.32
"""

from calibseg.metrics import BrierMetric
from calibseg.metrics.statistics.curve import Curve


class BrierReliability(BrierMetric):
    """The squared gaps."""

    acronym = "Brier reliability"
    higher_is_better = False

    def formula(self, curve: Curve, squares: float) -> float:
        bins = curve.filled
        return (bins.shares * (bins.mean_confidence - bins.accuracy) ** 2).sum()
