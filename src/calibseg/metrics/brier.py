r"""Brier score: mean squared distance between the probabilities and the truth.

$$ \mathrm{Brier} = \frac{1}{n} \sum_i \sum_k (p_{ik} - y_{ik})^2 = \mathrm{reliability} - \mathrm{resolution} +
   \mathrm{uncertainty} + \mathrm{within} $$

A proper score: on `all` it is least for the true probabilities. On voxels chosen by their label it is not proper.
Class k: its own term of the sum; softmax sums over classes (0 to 2), sigmoid takes their mean.

`within` is what bins do not resolve, and with soft labels the label variance that `uncertainty` counts too much.

Paper: Brier, 1950; decomposition: Murphy, 1973; the part within bins: Stephenson et al., 2008.
Differs: CRaC's evaluator compares with the 3x3 mean of the labels around a voxel instead of its label; give that as
soft labels to get it.

>>> import numpy as np
>>> from calibseg.metrics.statistics.binning import calibration_statistics
>>> p = np.array([[0.5, 0.25], [0.5, 0.75]], np.float32)
>>> curves = calibration_statistics(p, np.array([0, 0]), kind="probabilities").on("all")
>>> Brier().value(curves)[None]                                            # (2 * 0.5^2 + 2 * 0.75^2) / 2
0.8125
"""

from calibseg.metrics import BrierMetric
from calibseg.metrics.statistics.curve import Curve


class Brier(BrierMetric):
    """The whole score."""

    acronym = "Brier"
    higher_is_better = False
    headline = (3, "all")

    def formula(self, curve: Curve, squares: float) -> float:
        return squares / curve.count.sum()
