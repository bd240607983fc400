r"""Consensus confidence: how sure a prediction is where all raters agree about a class.

$$ \frac{1}{2} \Big( \frac{1}{|A|} \sum_{i \in A} p_i + 1 - \frac{1}{|N|} \sum_{i \in N} p_i \Big) $$

A are the voxels that all raters call the class, N those that none of them does. 1 where a prediction is sure and right
wherever raters leave no doubt. Undefined where A or N is empty.

Paper: CURVAS challenge 2024 ("confidence").

>>> import numpy as np
>>> from calibseg.metrics.statistics.votes import Votes
>>> votes = Votes(np.array([[5], [3], [4]]), np.array([1.0, 2.0, 3.0]), np.zeros(3, int), np.array([7, 4]))
>>> ConsensusConfidence().formula(votes, 1.0)                                        # (3 / 4 + 1 - 1 / 5) / 2
0.775
"""

from math import nan

from calibseg.metrics import VoteMetric
from calibseg.metrics.statistics.votes import Votes


class ConsensusConfidence(VoteMetric):
    """Mean probability of what all raters say, per class and region."""

    acronym = "consensus confidence"
    higher_is_better = True

    def formula(self, votes: Votes, voxel_ml: float) -> float:
        if not votes.voxels[0] or not votes.voxels[-1]:
            return nan
        inside, outside = votes.mass[-1] / votes.voxels[-1], votes.mass[0] / votes.voxels[0]
        return float(inside + 1 - outside) / 2
