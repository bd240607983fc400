r"""Pairwise DSC: how much the members of an ensemble agree; a confidence of a case that needs no labels.

$$ \frac{2}{M (M - 1)} \sum_{a < b} \frac{2 |S_a \cap S_b|}{|S_a| + |S_b|} $$

Two members that both predict nothing agree: 1. The mean over the classes is over those that some member predicts.

Paper: Zenk et al., Medical Image Analysis 101, 2025 (arXiv 2406.03323), who find it the best of simple confidences.
Differs: in `all` classes that no member predicts are left out; the paper's code counts them as agreement.

>>> import numpy as np
>>> from calibseg.metrics.statistics.members import MemberStatistics
>>> maps = [np.array([[[1, 1, 0, 0]]]), np.array([[[1, 0, 0, 0]]]), np.array([[[1, 1, 0, 0]]])]
>>> round(PairwiseDSC().value(MemberStatistics.of(maps, [], 2))[1], 6)                 # 2 / 3, 1 and 2 / 3
0.777778
"""

from math import nan

import numpy as np

from calibseg.metrics import Metric, Values
from calibseg.metrics.statistics.curve import mean_of_defined
from calibseg.metrics.statistics.members import MemberStatistics


class PairwiseDSC(Metric):
    """Mean DSC of all pairs of an ensemble's members, per class and region; None: the mean of what is predicted."""

    acronym = "pairwise DSC"
    needs = "members"
    higher_is_better = True

    def value(self, statistics: MemberStatistics) -> Values:
        values: Values = {}
        classes = []
        for row, common in statistics.common.items():
            common = common[: statistics.members, : statistics.members]
            a, b = np.triu_indices(len(common), 1)
            own = np.diag(common)
            both = own[a] + own[b]
            dsc = np.where(both > 0, 2 * common[a, b] / np.maximum(both, 1), 1.0)
            values[row] = mean_of_defined(dsc.tolist())
            if isinstance(row, int):
                classes.append(values[row] if own.any() else nan)
        return {**values, None: mean_of_defined(classes)}
