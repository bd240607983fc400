r"""Maximum calibration error: the worst bin of the predicted class.

$$ \mathrm{MCE} = \max_{b: n_b > 0} | \mathrm{conf}_b - \mathrm{acc}_b | $$

A bin with a single voxel counts as much as one with a million, so this number is noisy by design.
Only on `predicted` and `all` does a perfect predictor tend to 0.

Paper: Guo et al., ICML 2017.

>>> import numpy as np
>>> from calibseg.metrics.statistics.binning import calibration_statistics
>>> p = np.array([[0.9, 0.9, 0.6], [0.1, 0.1, 0.4]], np.float32)           # three voxels, all predicted class 0
>>> curves = calibration_statistics(p, np.array([0, 1, 0]), kind="probabilities").on("all")
>>> round(MCE().value(curves)[None], 6)                                    # both bins are 0.4 off
0.4
"""

from calibseg.metrics import Metric, Values
from calibseg.metrics._gaps import gaps, of_confidence
from calibseg.metrics.statistics.calibration import ReliabilityCurves


class MCE(Metric):
    """None: all voxels that count; k: those predicted k. With sigmoid, k: channel k, and None their mean."""

    acronym = "MCE"
    needs = "calibration"
    higher_is_better = False

    def value(self, statistics: ReliabilityCurves) -> Values:
        return of_confidence(statistics, _of)


def _of(curve) -> float:
    gap = gaps(curve)
    return float(abs(gap).max()) if len(gap) else float("nan")
