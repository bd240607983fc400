r"""Expected calibration error of the predicted class.

$$ \mathrm{ECE} = \sum_b \frac{n_b}{n} \, | \mathrm{conf}_b - \mathrm{acc}_b | $$

with conf the mean of $\max_k p_k$ in bin b, background included, and acc the share of its voxels whose label is the
argmax.
Only on `predicted` and `all` does a perfect predictor score 0; on `truth` (the papers' rule) it does not.

Paper: Guo et al., ICML 2017; on label foreground as in Murugesan et al., Medical Image Analysis 2023.
Differs: the authors' evaluator rounds each case to 4 decimals; torchmetrics and MONAI add bins in float32, which is
wrong for volumes; both call the share-weighted sum "l1"/"expected" as here.

>>> import numpy as np
>>> from calibseg.metrics.statistics.binning import calibration_statistics
>>> p = np.array([[0.9, 0.9, 0.6], [0.1, 0.1, 0.4]], np.float32)           # three voxels, all predicted class 0
>>> curves = calibration_statistics(p, np.array([0, 1, 0]), kind="probabilities").on("all")
>>> round(ECE().value(curves)[None], 6)                                    # (2 |0.9 - 1/2| + 1 |0.6 - 1|) / 3
0.4
"""

from calibseg.metrics import CurveMetric
from calibseg.metrics.statistics.curve import Curve


class ECE(CurveMetric):
    """The share-weighted mean of the gaps."""

    acronym = "ECE"
    higher_is_better = False
    headline = (1, "predicted")
    by_distance = True

    def formula(self, curve: Curve) -> float:
        return abs(curve.weighted_gaps).sum()
