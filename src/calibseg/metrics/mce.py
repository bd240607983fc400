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

from calibseg.metrics import CurveMetric
from calibseg.metrics.statistics.curve import Curve


class MCE(CurveMetric):
    """The largest of the gaps."""

    acronym = "MCE"
    higher_is_better = False

    def formula(self, curve: Curve) -> float:
        return abs(curve.filled.gaps).max()
