r"""The least point of several convex functions of b = 1 / T at once, from their values and two derivatives.

Where margins are spread evenly around 0, as they are around a segmentation's borders, the slope F' of the NLL goes like
A - C / b^2; for small b it becomes straight. So it is taken to be A - C / (b + c)^2, with A and C from F' and F'', and
with c from the F' of the pass before. (c = 0 is Newton's step in the coordinate T^2, and the first step; c = infinity
would be Newton's step in b.) Where that curve never meets 0 the bound is tried; what leaves the bracket that the signs
of F' have left is replaced by a point halfway to its end in log T. log T stays within [-4, 4]: where F falls for ever,
as it does for voxels without an error, T would run away to 0.
"""

from collections.abc import Callable

import numpy as np
from numpy import ndarray as Array

BOUND = 4.0  # of |log T|
PASSES = 8
CLOSE = 1e-5  # a step in log T so small is the last: it is still taken, and the next would be its square
NEAR = 1e-3  # a step so small is worth taking even where no pass is left to look at what it gave


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
        self.past: dict[int, tuple[float, float]] = {}  # b and F' of the pass before

    def run(self, evaluate: Callable[[Array, Array], Array]) -> int:
        """Take passes until every group is found, eight at most; how many it took."""
        passes = 0
        while passes < PASSES and self.open.any():
            value, slope, curve = evaluate(self.b, self.open)
            ratio = self.b / self.common
            target = value + self.shrinkage * (ratio - 1 - np.log(ratio))
            slope = slope + self.shrinkage * (1 / self.common - 1 / self.b)
            curve = curve + self.shrinkage / self.b**2
            for group in map(int, np.flatnonzero(self.open)):
                if target[group] <= self.least[group]:
                    self.least[group], self.nll[group] = target[group], value[group]
                    self.best[group] = self.b[group]
                self._move(group, float(slope[group]), float(curve[group]))
            passes += 1
        return passes

    def _move(self, group: int, slope: float, curve: float) -> None:
        b = float(self.b[group])
        x = np.log(b)
        if slope > 0:
            self.high[group] = min(self.high[group], x)
        elif slope < 0:
            self.low[group] = max(self.low[group], x)
        low, high = self.low[group], self.high[group]
        if slope == 0 or high - low < CLOSE:
            self.open[group] = False
            return
        further = _newton(b, slope, max(curve, 1e-300), self.past.get(group))
        self.past[group] = b, slope
        aim = np.log(further) if further > 0 else -np.inf
        if aim <= low:
            aim = low if low == -BOUND else (low + x) / 2
        elif aim >= high:
            aim = high if high == BOUND else (high + x) / 2
        if abs(aim - x) < NEAR:
            self.best[group] = np.exp(aim)
        self.open[group] = abs(aim - x) > CLOSE
        self.b[group] = np.exp(aim)

    def bounded(self) -> Array:
        return np.abs(np.log(self.best)) > BOUND - 1e-6


def _newton(b: float, slope: float, curve: float, past: tuple[float, float] | None) -> float:
    """Where A - C / (b + c)^2 is 0; infinity where it is below 0 for all b."""
    u = b  # = b + c
    if past is not None and past[0] != b:
        apart = past[0] - b
        rise = 2 * (past[1] - slope) / curve  # = u - u^3 / (u + apart)^2, which rises with u to 2 apart
        low, high = np.log(max(1e-3 * b, -apart)), np.log(1e6 * b)
        for _ in range(50):
            middle = (low + high) / 2
            u = np.exp(middle)
            low, high = (middle, high) if u - u**3 / (u + apart) ** 2 < rise else (low, middle)
    rest = 1 + 2 * slope / (curve * u)
    return b + u * (rest**-0.5 - 1) if rest > 0.02 else np.inf
