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

from calibseg.metrics import Metric, Values
from calibseg.metrics._brier import brier_values
from calibseg.metrics.statistics.calibration import ReliabilityCurves


class BrierReliability(Metric):
    """Per class its own part; None: all classes together."""

    acronym = "Brier reliability"
    needs = "calibration"
    higher_is_better = False

    def value(self, statistics: ReliabilityCurves) -> Values:
        return brier_values(statistics, "reliability")
