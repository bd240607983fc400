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

from calibseg.metrics import Metric, Values
from calibseg.metrics._gaps import of_confidence, shares
from calibseg.metrics.statistics.calibration import ReliabilityCurves


class Overconfidence(Metric):
    """None: all voxels that count; k: those predicted k. With sigmoid, k: channel k, and None their mean."""

    acronym = "overconfidence"
    needs = "calibration"
    higher_is_better = False

    def value(self, statistics: ReliabilityCurves) -> Values:
        return of_confidence(statistics, _of)


def _of(curve) -> float:
    gap, _ = shares(curve)
    return float(gap.clip(min=0).sum())
