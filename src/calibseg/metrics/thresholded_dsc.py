r"""Thresholded DSC: probabilities and the raters' mean, cut at the same levels, compared as masks.

$$ \frac{1}{|L|} \sum_{t \in L} \mathrm{DSC}\Big( \{p > t\}, \{\tfrac{v}{R} > t\} \Big) $$

v of R raters call a voxel so; v > t R is decided in whole numbers, so that 4 of 5 raters are not more than 0.8 whatever
a mean of floats says. It rewards probabilities that are the share of raters. A level at which both masks are
empty is left out of the mean.

Paper: QUBIQ challenge (levels 0.1, 0.2 to 0.9); CURVAS-PDACVI 2025: levels 0.1, 0.24, 0.38, 0.52, 0.66, 0.8, where both
empty counts as 1: empty="released".
Differs: a level is a whole number of thousandths.

>>> import numpy as np
>>> from calibseg.metrics.statistics.votes import VoteStatistics
>>> p = np.array([0.9, 0.6, 0.2], np.float32).reshape(1, 1, 1, 3)
>>> raters = np.array([[1, 1, 0], [1, 0, 0]]).reshape(2, 1, 1, 3)
>>> votes = VoteStatistics.of(np.concatenate([1 - p, p]), raters, {1: ((1,), (1,))}, kind="probabilities")
>>> round(ThresholdedDSC(levels=(0.4, 0.5)).value(votes)[1], 6)                  # 1, then {2} of 2 against {1} of 1
0.833333
"""

from math import nan

from calibseg.core.types import BadInput
from calibseg.metrics import VoteMetric
from calibseg.metrics.statistics.curve import mean_of_defined
from calibseg.metrics.statistics.label_maps import Empty, check_empty
from calibseg.metrics.statistics.votes import LEVELS, Votes, thousandths


class ThresholdedDSC(VoteMetric):
    """Mean DSC over levels of probability and of raters, per class and region.

    levels: between 0 and 1, whole thousandths
    empty: "nan", "worst" or "released": what a level scores at which both masks are empty; only "released" gives 1
    """

    acronym = "thresholded DSC"
    higher_is_better = True
    both_empty = 1.0
    contract_options = ({}, {"levels": (0.1, 0.24, 0.38, 0.52, 0.66, 0.8), "empty": "released"}, {"levels": (0.5,)})

    def __init__(
        self,
        levels: tuple[float, ...] = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9),
        empty: Empty = "nan",
    ) -> None:
        if not levels:
            raise BadInput("levels is empty: name at least one between 0 and 1")
        self.levels = tuple(levels)
        for level in self.levels:
            thousandths(level)
        self.empty: Empty = check_empty(empty)

    def formula(self, votes: Votes, voxel_ml: float) -> float:
        return mean_of_defined([self._at(votes, level) for level in self.levels])

    def _at(self, votes: Votes, level: float) -> float:
        more = thousandths(level) * votes.raters // LEVELS.number + 1  # the fewest votes that are more than the level
        above = votes.above(level)
        common, predicted, true = int(above[more:].sum()), int(above.sum()), int(votes.voxels[more:].sum())
        if not predicted + true:
            return 1.0 if self.empty == "released" else nan
        return 2 * common / (predicted + true)
