r"""Generalised energy distance: how far the label maps of an ensemble's members are from those of the raters.

$$ D^2 = 2\, \mathbb{E}\, d(S, Y) - \mathbb{E}\, d(S, S') - \mathbb{E}\, d(Y, Y'), \qquad d = 1 - \mathrm{IoU} $$

S are members (or samples), Y raters; means over all ordered pairs, a map with itself too. It is 0 where both
distributions are the same. Two maps without the class have distance 0. `all`: d is first averaged over the classes that
one of the two has. A network with one probability map has no members: samples of its voxels, one by one, are noise and
score badly. It needs an ensemble, or a network that can be sampled.

Paper: Kohl et al., NeurIPS 2018 (Probabilistic U-Net).

>>> import numpy as np
>>> from calibseg.metrics.statistics.members import MemberStatistics
>>> members, raters = ([np.array([[row]]) for row in rows] for rows in (([1,0,0,0], [1,1,0,0]), ([1,1,0,0], [1,1,1,0])))
>>> round(EnergyDistance().value(MemberStatistics.of(members, raters, 2))[1], 5)      # 2 * 0.375 - 0.25 - 0.16667
0.33333
"""

import warnings

import numpy as np

from calibseg.core.types import Array
from calibseg.metrics import Metric, Values
from calibseg.metrics.statistics.members import MemberStatistics


class EnergyDistance(Metric):
    """Squared generalised energy distance of members and raters, per class and region; nothing without raters."""

    acronym = "energy distance"
    needs = "members"
    higher_is_better = False

    def value(self, statistics: MemberStatistics) -> Values:
        every = {row: statistics.distances(row) for row in statistics.common}
        if len(next(iter(every.values()))) == statistics.members:
            return {}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # no class in either of two maps: they agree
            together = np.nanmean(np.stack([d for row, d in every.items() if isinstance(row, int)]), 0)
        return {row: _squared(d, statistics.members) for row, d in (*every.items(), (None, together))}


def _squared(distances: Array, members: int) -> float:
    d = np.nan_to_num(distances)
    return float(2 * d[:members, members:].mean() - d[:members, :members].mean() - d[members:, members:].mean())
