r"""Part of the Brier score that no predictor can change: the variance of the labels.

$$ \sum_k \mathrm{acc}_k (1 - \mathrm{acc}_k) $$

How the parts of the score add up stands in `brier`.

Paper: Murphy, 1973.

>>> import numpy as np
>>> from calibseg.metrics.statistics.binning import calibration_statistics
>>> p = np.array([[0.9, 0.9, 0.6], [0.1, 0.1, 0.4]], np.float32)           # three voxels, all predicted class 0
>>> curves = calibration_statistics(p, np.array([0, 1, 0]), kind="probabilities").on("all")
>>> round(BrierUncertainty().value(curves)[None], 6)                                  # 2 * 2/3 * 1/3
0.444444
"""

from calibseg.metrics import BrierMetric
from calibseg.metrics.statistics.curve import Curve


class BrierUncertainty(BrierMetric):
    """The variance of the labels."""

    acronym = "Brier uncertainty"
    higher_is_better = False

    def formula(self, curve: Curve, squares: float) -> float:
        return curve.base_rate * (1 - curve.base_rate)
