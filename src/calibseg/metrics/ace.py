r"""Average calibration error: the mean gap of the bins that are not empty.

$$ \mathrm{ACE} = \frac{1}{|\{b: n_b > 0\}|} \sum_{b: n_b > 0} | \mathrm{conf}_b - \mathrm{acc}_b | $$

Unlike ECE a rare confidence weighs as much as a common one, so confident background cannot drown the rest.
Not the adaptive calibration error, which some call ACE too: that is `aece`.

Paper: Neumann et al., 2018; MONAI's reduction "average".

>>> import numpy as np
>>> from calibseg.metrics.statistics.binning import calibration_statistics
>>> p = np.array([[0.9, 0.9, 0.6], [0.1, 0.1, 0.4]], np.float32)           # three voxels, all predicted class 0
>>> curves = calibration_statistics(p, np.array([0, 1, 0]), kind="probabilities").on("all")
>>> round(ACE().value(curves)[None], 6)
0.4
"""

from calibseg.metrics import CurveMetric
from calibseg.metrics.statistics.curve import Curve


class ACE(CurveMetric):
    """The mean of the gaps."""

    acronym = "ACE"
    higher_is_better = False

    def formula(self, curve: Curve) -> float:
        return abs(curve.filled.gaps).mean()
