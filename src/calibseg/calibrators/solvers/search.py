r"""The least point of several convex functions of b = 1 / T at once, from their values and three derivatives.

Where margins are spread evenly around 0, as they are around a segmentation's borders, the slope F' of the NLL goes like
A - C / b^2; for small b it becomes straight. So it is taken to be A - C / (b + c)^2, with A, C and c from F', F'' and
F''': then b + c = -3 F'' / F'''. (c = 0 would be Newton's step in the coordinate T^2, c = infinity his step in b.) What
is left of the distance after a step is about its third power. Where that curve never meets 0 the bound is
tried; what leaves the bracket that the signs of F' have left is replaced by a point halfway to its end in log T. log T
stays within [-4, 4]: where F falls for ever, as it does for voxels without an error, T would run away to 0.
"""

from collections.abc import Callable

import numpy as np
from numpy import ndarray as Array

BOUND = 4.0  # of |log T|
PASSES = 8
CLOSE = 1e-3  # a step in log T so small is the last: it is still taken, and the next would be its third power
NARROW = 1e-5  # a bracket in log T so small is a point


class Search:
    """The search of every group: b, the bracket in log b, the best so far.

    common: the b to start from, to which `shrinkage` voxels draw every group.
    """

    def __init__(self, groups: int, common: float = 1.0, shrinkage: float = 0.0) -> None:
        self.b, self.best = np.full(groups, common), np.full(groups, common)
        self.common, self.shrinkage = common, shrinkage
        self.low, self.high = np.full(groups, -BOUND), np.full(groups, BOUND)
        self.open = np.ones(groups, bool)
        self.least, self.nll = np.full(groups, np.inf), np.full(groups, np.nan)

    def run(self, evaluate: Callable[[Array], Array]) -> int:
        """Take passes until every group has its temperature, eight at most; return how many it took."""
        passes = 0
        while passes < PASSES and self.open.any():
            value, *derivatives = evaluate(self.b)
            ratio = self.b / self.common
            target = value + self.shrinkage * (ratio - 1 - np.log(ratio))
            pulls = (1 / self.common - 1 / self.b, 1 / self.b**2, -2 / self.b**3)
            drawn = [own + self.shrinkage * pull for own, pull in zip(derivatives, pulls, strict=True)]
            for group in map(int, np.flatnonzero(self.open)):
                before = float(self.b[group])
                if target[group] <= self.least[group]:
                    self.least[group], self.nll[group], self.best[group] = target[group], value[group], before
                self._move(group, before, *(float(part[group]) for part in drawn))
                if not self.open[group]:  # the last step is so small that the derivatives say what it gives
                    slope, curve, third = (float(part[group]) for part in derivatives)
                    step = float(self.b[group]) - before
                    self.best[group] = self.b[group]
                    self.nll[group] = value[group] + step * (slope + step * (curve / 2 + step * third / 6))
            passes += 1
        return passes

    def _move(self, group: int, b: float, slope: float, curve: float, third: float) -> None:
        """Narrow the group's bracket and choose its next b, or close its search."""
        x = np.log(b)
        if slope > 0:
            self.high[group] = min(self.high[group], x)
        elif slope < 0:
            self.low[group] = max(self.low[group], x)
        low, high = self.low[group], self.high[group]
        if slope == 0 or high - low < NARROW:
            self.open[group] = False
            return
        further = _next(b, slope, max(curve, 1e-300), third)
        aim = np.log(further) if further > 0 else -np.inf
        if aim <= low:
            aim = low if low == -BOUND else (low + x) / 2
        elif aim >= high:
            aim = high if high == BOUND else (high + x) / 2
        self.open[group] = abs(aim - x) > CLOSE
        self.b[group] = np.exp(aim)


def _next(b: float, slope: float, curve: float, third: float) -> float:
    """Where A - C / (b + c)^2 is 0; infinity where it is below 0 for all b."""
    u = min(-3 * curve / third, 1e6 * b) if third < 0 else 1e6 * b  # = b + c
    rest = 1 + 2 * slope / (curve * u)
    return b + u * (rest**-0.5 - 1) if rest > 0.02 else np.inf
