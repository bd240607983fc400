"""One reliability curve: the sums of each bin, and the gaps between confidence and accuracy that metrics are made of.

>>> curve = Curve(np.array([2, 0, 1]), np.array([1.8, 0.0, 0.6]), np.array([1.0, 0.0, 1.0]))
>>> curve.weighted_gaps.round(6).tolist(), curve.filled.gaps.round(6).tolist()
([0.266667, 0.0, -0.133333], [0.4, -0.4])
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from calibseg.core.types import Activation, Array


@dataclass(frozen=True)
class Curve:
    """What lies in each bin, [b] each."""

    count: Array
    confidence: Array  # sum of probabilities
    hits: Array  # sum of (soft) labels

    @property
    def filled(self) -> "Curve":
        """The bins that are not empty."""
        some = self.count > 0
        return Curve(self.count[some], self.confidence[some], self.hits[some])

    @property
    def shares(self) -> Array:
        """Each bin's share of the voxels."""
        return self.count / self.count.sum()

    @property
    def mean_confidence(self) -> Array:
        """Of each bin; ask the `filled` curve."""
        return self.confidence / self.count

    @property
    def accuracy(self) -> Array:
        """The mean label of each bin; ask the `filled` curve."""
        return self.hits / self.count

    @property
    def gaps(self) -> Array:
        """Mean confidence minus accuracy of each bin: above 0 is over-confident. Ask the `filled` curve."""
        return (self.confidence - self.hits) / self.count

    @property
    def weighted_gaps(self) -> Array:
        """Each bin's gap times its share of the voxels; NaN where the whole curve is empty."""
        total = self.count.sum()
        return (self.confidence - self.hits) / total if total else np.full(len(self.count), np.nan)

    @property
    def base_rate(self) -> float:
        """The mean label of all voxels."""
        return self.hits.sum() / self.count.sum()


def mean_of_defined(values: Iterable[float]) -> float:
    """The mean of those that are not NaN; NaN where none is."""
    defined = [value for value in values if not np.isnan(value)]
    return float(np.mean(defined)) if defined else float("nan")


@dataclass(frozen=True)
class EqualMassCurves:
    """Equal-mass bins of one choice of voxels. Row k < K: class k where p_k exceeds the threshold.

    Row K (softmax): the predicted class of every voxel. Rows K to 2K - 1 (sigmoid): channel k over every voxel.
    """

    count: Array  # [row b]
    confidence: Array  # [row b]
    hits: Array  # [row b]
    bound: Array  # [row] largest possible error of the sum of |gap| shares; 0: exact
    classes: int
    activation: Activation

    def errors(self) -> list[float]:
        """The share-weighted mean of the gaps of each row; NaN where it is empty."""
        rows = zip(self.count, self.confidence, self.hits, strict=True)
        return [float(abs(Curve(*row).weighted_gaps).sum()) for row in rows]
