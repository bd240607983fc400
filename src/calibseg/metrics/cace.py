r"""Class-wise average calibration error: the mean gap of the bins that are not empty, of every class's own probability.

$$ \mathrm{CACE}_k = \frac{1}{|\{b: n_{kb} > 0\}|} \sum_{b: n_{kb} > 0} | \mathrm{conf}_{kb} - \mathrm{acc}_{kb} | $$

Bin b of class k holds the voxels whose $p_k$ lies in it, whatever their label; acc is the share of them labelled k. A
bin weighs the same whatever it holds: on all voxels CACE may be 50 times CECE, so never set the two side by side.

Paper: Barfoot et al., MICCAI 2024 (mL1-ACE), who print the mean over foreground classes, all voxels, 20 bins
(`classes="foreground"`, `score --voxels all --bins 20`).
Differs: MONAI's CalibrationErrorMetric with the reduction "average" is the same per class, in float32.

>>> import numpy as np
>>> from calibseg.metrics.statistics.binning import calibration_statistics
>>> p = np.array([[0.9, 0.9, 0.6], [0.1, 0.1, 0.4]], np.float32)           # three voxels
>>> curves = calibration_statistics(p, np.array([0, 1, 0]), kind="probabilities").on("all")
>>> round(CACE().value(curves)[None], 6)                                   # the bins of each class are 0.4 and 0.4 off
0.4
"""

from math import nan
from typing import Literal

from calibseg.core.options import one_of
from calibseg.metrics import Metric, Values
from calibseg.metrics.statistics.calibration import ReliabilityCurves
from calibseg.metrics.statistics.curve import mean_of_defined


class CACE(Metric):
    """Per class its own error; None: their mean.

    classes: `all`, or `foreground`: without class 0 (with sigmoid every channel is foreground)
    """

    acronym = "CACE"
    needs = "calibration"
    higher_is_better = False
    contract_options = ({}, {"classes": "foreground"})

    def __init__(self, classes: Literal["all", "foreground"] = "all") -> None:
        self.classes = one_of("classes", classes, ("all", "foreground"))

    def value(self, statistics: ReliabilityCurves) -> Values:
        curves = statistics.class_curves()
        errors = [float(abs(curve.filled.gaps).mean()) if curve.count.any() else nan for curve in curves]
        first = int(self.classes == "foreground" and statistics.activation == "softmax")
        return {**dict(enumerate(errors)), None: mean_of_defined(errors[first:])}
