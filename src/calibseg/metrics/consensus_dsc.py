r"""Consensus DSC: the Dice similarity coefficient where all raters agree about a class.

$$ \frac{2 |A \cap P|}{|A| + |P \cap (A \cup N)|} $$

A are the voxels that all raters call the class, N those that none of them does; where they disagree about it, a
prediction is neither right nor wrong and is left out. Undefined where A and the prediction in A and N are empty.

Paper: CURVAS challenge 2024.
Differs: where A is empty the challenge has no value; here a prediction in N scores 0.

>>> import numpy as np
>>> from calibseg.metrics.statistics.votes import Votes
>>> ConsensusDSC().formula(Votes(np.array([[5], [3], [4]]), np.zeros(3), np.array([1, 3, 3]), np.array([7, 4])), 1.0)
0.75
"""

from math import nan

from calibseg.metrics import VoteMetric
from calibseg.metrics.statistics.votes import Votes


class ConsensusDSC(VoteMetric):
    """DSC on the voxels about which raters agree, per class and region."""

    acronym = "consensus DSC"
    higher_is_better = True
    both_empty = 1.0

    def formula(self, votes: Votes, voxel_ml: float) -> float:
        common, false = int(votes.predicted[-1]), int(votes.predicted[0])
        both = int(votes.voxels[-1]) + common + false
        return 2 * common / both if both else nan
