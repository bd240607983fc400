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

from calibseg.metrics import Metric, Values
from calibseg.metrics._gaps import of_confidence, shares
from calibseg.metrics.statistics.calibration import ReliabilityCurves


class SignedGap(Metric):
    """None: all voxels that count; k: those predicted k. With sigmoid, k: channel k, and None their mean."""

    acronym = "signed gap"
    needs = "calibration"
    higher_is_better = False  # nor is lower, see above

    def value(self, statistics: ReliabilityCurves) -> Values:
        return of_confidence(statistics, _of)


def _of(curve) -> float:
    gap, _ = shares(curve)
    return float(gap.sum())
