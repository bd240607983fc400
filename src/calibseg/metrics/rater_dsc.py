r"""Dice similarity coefficient with each of several raters, and its mean.

$$ \frac{1}{R} \sum_r \frac{2 |T_r \cap P|}{|T_r| + |P|} $$

`rater_dsc` is the mean over the raters, `rater_dsc@rater 1` that with the first of them; `dsc` beside it compares with
the label that most of them gave. A rater who drew nothing counts with 0 where something is predicted, and not at all
where nothing is.

>>> import numpy as np
>>> from calibseg.metrics.statistics.overlap import OverlapStatistics
>>> predicted = np.array([[[1, 1, 0, 0]]])
>>> raters = [OverlapStatistics.of(np.array([[row]]), predicted, 2) for row in ([1, 1, 0, 0], [1, 1, 1, 1])]
>>> RaterDSC().value(raters)                                                          # (1 + 2 / 3) / 2
{1: 0.8333333333333333}
"""

from collections.abc import Sequence

from calibseg.metrics import Metric, Values
from calibseg.metrics.dsc import DSC
from calibseg.metrics.statistics.curve import mean_of_defined
from calibseg.metrics.statistics.overlap import OverlapStatistics


class RaterDSC(Metric):
    """Mean DSC with several raters, per class and region."""

    acronym = "rater DSC"
    needs = "rater_overlap"
    higher_is_better = True
    both_empty = 1.0

    def value(self, statistics: Sequence[OverlapStatistics]) -> Values:
        each = [DSC().value(overlaps) for overlaps in statistics]
        return {row: mean_of_defined(values[row] for values in each) for row in each[0]}
