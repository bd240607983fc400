r"""Class-wise expected calibration error: every class's probability against how often that class is right.

$$ \mathrm{CECE} = \frac{1}{K} \sum_k \sum_b \frac{n_{kb}}{n} \, | \mathrm{conf}_{kb} - \mathrm{acc}_{kb} | $$

Bin b of class k holds the voxels whose $p_k$ lies in it, whatever their label; acc is the share of them labelled k.
Only on `predicted` and `all` does a perfect predictor score 0. On `truth` class 0 never occurs, so it adds the mean
background probability on foreground.

Paper: Kull et al., NeurIPS 2019; Murugesan et al., Medical Image Analysis 2023.
Differs: the papers print a sum over classes and their code takes a mean over classes 0 to the highest label of the
volume (`classes="released"`); here it is the mean over all K classes. MONAI leaves classes out by `include_background`.

>>> import numpy as np
>>> from calibseg.metrics.statistics.binning import calibration_statistics
>>> p = np.array([[0.9, 0.9, 0.6], [0.1, 0.1, 0.4]], np.float32)           # three voxels, all predicted class 0
>>> curves = calibration_statistics(p, np.array([0, 1, 0]), kind="probabilities").on("all")
>>> round(CECE().value(curves)[None], 6)                                   # both classes' curves are 0.4 off
0.4
"""

from calibseg.metrics import ClassMetric, Values
from calibseg.metrics.statistics.calibration import ReliabilityCurves
from calibseg.metrics.statistics.curve import mean_of_defined


class CECE(ClassMetric):
    """Per class its own error; None: their mean."""

    acronym = "CECE"
    higher_is_better = False

    def value(self, statistics: ReliabilityCurves) -> Values:
        errors = [float(abs(curve.weighted_gaps).sum()) for curve in statistics.class_curves()]
        last = statistics.highest_label if self.classes == "released" else statistics.classes - 1
        return {**dict(enumerate(errors)), None: mean_of_defined(errors[: last + 1])}
