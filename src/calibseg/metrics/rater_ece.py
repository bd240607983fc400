r"""Expected calibration error against each of several raters, and its mean.

$$ \frac{1}{R} \sum_r \sum_b \frac{n_b}{n} |\mathrm{conf}_b - \mathrm{acc}_{b,r}| $$

`rater_ece@all` is the mean, `rater_ece@all rater 1` that of the first rater; `ece@all` beside it takes the share of the
raters as the truth. The mean over raters is never below it (a mean of absolute values): it counts the disagreement of
raters as a fault of the prediction, and is not 0 for the best one possible.

Paper: CURVAS challenge 2024 (multi-rater ECE: the whole image, `--bins 50`).
Differs: in the voxel rule; the challenge crops to the patient.

>>> import numpy as np
>>> from calibseg.metrics.statistics.binning import calibration_statistics
>>> p = np.array([[0.5], [0.5]], np.float32)                     # one voxel; two raters who disagree about it
>>> raters = [calibration_statistics(p, np.array([k]), kind="probabilities").on("all") for k in (0, 1)]
>>> RaterECE().value(raters)[None]
0.5
"""

from collections.abc import Sequence
from math import nan

from calibseg.metrics import Metric, Values
from calibseg.metrics.ece import ECE
from calibseg.metrics.statistics.calibration import ReliabilityCurves
from calibseg.metrics.statistics.curve import mean_of_defined


class RaterECE(Metric):
    """Mean ECE against several raters; None: of all voxels, k: of those predicted k."""

    acronym = "rater ECE"
    needs = "rater_calibration"
    higher_is_better = False

    def value(self, statistics: Sequence[ReliabilityCurves]) -> Values:
        each = [ECE().value(curves) for curves in statistics]
        return {row: mean_of_defined([values.get(row, nan) for values in each]) for row in each[0]}
