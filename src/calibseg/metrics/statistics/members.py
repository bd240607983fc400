r"""How much the members of an ensemble agree with each other and with the raters: overlaps of all pairs of label maps.

For every class and region, the voxels that each map has, and that each two have in common: [maps, maps], members
first, then raters. From it follow Dice and IoU of any two of them.

>>> maps = [np.array([[[1, 1, 0, 0]]]), np.array([[[1, 0, 0, 0]]])]
>>> MemberStatistics.of(maps, [], 2).common[1].tolist()
[[2, 1], [1, 1]]
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from calibseg.core.types import Array
from calibseg.metrics.statistics.label_maps import Regions, Row, rows


@dataclass(frozen=True)
class MemberStatistics:
    """Voxels that each two label maps of one case have in common, members first, then raters."""

    common: dict[Row, Array]  # int64 [maps, maps]; the diagonal holds their own sizes
    members: int

    @classmethod
    def of(
        cls,
        members: Sequence[Array],
        raters: Sequence[Array],
        num_classes: int,
        regions: Regions | None = None,
        ignored: Array | None = None,
    ) -> "MemberStatistics":
        """From label maps [*space]; ignored: voxels that are left out."""
        maps = [*members, *raters]
        keep = ~ignored if ignored is not None and ignored.any() else slice(None)
        flat = [np.asarray(one)[keep].ravel() for one in maps]
        common = {}
        for row, ids in rows(num_classes, regions).items():
            inside = np.stack([np.isin(one, ids) for one in flat]).astype(np.float32)
            common[row] = _products(inside)
        return cls(common, len(members))

    def distances(self, row: Row) -> Array:
        """1 - IoU of each two maps [maps, maps]; NaN where neither has the row."""
        own = np.diag(self.common[row])
        union = own[:, None] + own[None] - self.common[row]
        with np.errstate(invalid="ignore"):
            return np.where(union > 0, 1 - self.common[row] / union, np.nan)


def _products(inside: Array) -> Array:
    """inside @ inside.T of zeros and ones, exact: chunks whose sums float32 can hold."""
    total = np.zeros((len(inside), len(inside)), np.int64)
    for start in range(0, inside.shape[1], 1 << 22):
        part = inside[:, start : start + (1 << 22)]
        total += np.rint(part @ part.T).astype(np.int64)
    return total
