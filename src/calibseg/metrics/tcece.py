r"""Thresholded class-wise ECE: CECE of the voxels where the class has some probability.

$$ \mathrm{TCECE} = \frac{1}{C} \sum_{k<C} \sum_b \frac{n_{kb}}{n_k} \, | \mathrm{conf}_{kb} - \mathrm{acc}_{kb} | $$

$$ n_{kb}: \text{voxels in bin } b \text{ with } p_k > 10^{-3}, \quad n_k = \sum_b n_{kb} $$

This is what the CRaC code computes, and its paper prints, under the name TACE: equal-width bins, shares of the voxels
kept for that class, mean over classes 0 to the highest label of the volume, a class that keeps no voxel counting 0.
`tace` is the metric of that name with equal-mass bins.

Differs: the mean here is over all classes that keep a voxel, as that of CECE; `classes="released"` is CRaC's.

>>> import numpy as np
>>> from calibseg.metrics.statistics.binning import calibration_statistics
>>> p = np.array([[0.9, 0.9, 0.6], [0.1, 0.1, 0.4]], np.float32)           # three voxels, all predicted class 0
>>> curves = calibration_statistics(p, np.array([0, 1, 0]), kind="probabilities").on("all")
>>> round(TCECE().value(curves)[None], 6)                                  # nothing lies below the threshold
0.4
"""

from math import isnan

from calibseg.metrics import ClassMetric, Values
from calibseg.metrics.statistics.calibration import ReliabilityCurves
from calibseg.metrics.statistics.curve import Curve, mean_of_defined


class TCECE(ClassMetric):
    """Per class its own error, NaN where it keeps no voxel; None: their mean. The threshold is that of the statistics.

    classes: `all` that keep a voxel; or `released`: from 0 to the highest label that occurs, as CRaC's code has it
    """

    acronym = "TCECE"
    higher_is_better = False

    def value(self, statistics: ReliabilityCurves) -> Values:
        errors = [float(abs(Curve(*kept).weighted_gaps).sum()) for kept in zip(*statistics.kept, strict=True)]
        listed = errors
        if self.classes == "released":
            some = statistics.number > 0
            listed = [0.0 if some and isnan(error) else error for error in errors[: statistics.highest_label + 1]]
        return {**dict(enumerate(errors)), None: mean_of_defined(listed)}
