r"""Each class's probability through the rising curve that fits its frequency best.

$$ q_k = f_k(s_k), \qquad f_k = \arg\min_{f \text{ rising}} \sum_i (f(s_{ik}) - y_{ik})^2, \qquad
   p_k = \frac{q_k}{\sum_j q_j} $$

Class by class, one against the rest, then made to sum to 1. The curve has flat pieces, so labels may move.

Paper: Zadrozny and Elkan, Transforming classifier scores into accurate multiclass probability estimates, KDD 2002.
Differs: the curve is fitted to 4096 bins, even in the logit (1/128 wide), so that one pass and little memory serve any
    number of voxels; within a bin the fit cannot tell voxels apart. One further voxel that is right in the lowest bin
    and one that is wrong in the highest keep f between 0 and 1: a 0 at the truth would cost infinitely much. Between
    bins that have voxels the curve is straight in the logit. A class that never occurs in the labels keeps the
    identity, which is said in `fallbacks`. With sigmoid every channel stands for itself, and nothing is made to sum
    to 1.

>>> import numpy as np
>>> s = np.repeat([0.6, 0.7, 0.8], 100)                                    # right 80, 60 and 90 times of 100
>>> right = np.concatenate([np.arange(100) < n for n in (80, 60, 90)]).astype(int)
>>> l = np.log(np.stack([1 - s, s])).reshape(2, 1, 300)
>>> calibrator = Isotonic().fit(l, right[None], kind="logits")
>>> [round(float(p), 2) for p in calibrator.transform(l)[1, 0, ::100]]                     # 80 + 60 of 200 must be one
[0.7, 0.7, 0.89]
"""

from collections.abc import Mapping
from typing import Any, Self

import numpy as np
from scipy.optimize import isotonic_regression
from torch import nn

from calibseg.calibrators import Calibrator, VoxelStream
from calibseg.calibrators.solvers.reliability import ClassCurves, Reliability, reliability
from calibseg.core.types import Array

BINS = 4096


class Isotonic(Calibrator):
    """Isotonic regression, class by class."""

    keeps_argmax = False
    activations = ("softmax", "sigmoid")

    def __init__(self, **common: Any):
        super().__init__(**common)
        self.curves = ClassCurves("logit")

    def _fit(self, stream: VoxelStream) -> None:
        found = reliability(stream, BINS, self.curves.scale)
        table = np.stack([_rising(found, k) for k in range(len(found.number))])
        self.curves.set(table, np.zeros(table.shape, bool), found.absent())

    def apply(self, scores: Array, case_context: Any, where: slice | Array) -> Array:
        return self.curves.apply(scores, self.activation)

    def _module(self, spacing_mm: Any) -> nn.Module:
        return self.curves.module(self.activation)

    def state(self) -> tuple[dict[str, Any], dict[str, Array]]:
        return self.curves.state()

    def load_state(self, facts: Mapping[str, Any], arrays: Mapping[str, Array]) -> Self:
        self.curves.load_state(facts, arrays)
        return self


def _rising(found: Reliability, k: int) -> Array:
    """f_k at every bin."""
    filled = np.flatnonzero(found.number[k])
    count, hits = found.number[k, filled], found.hits[k, filled]
    count[0] += 1  # the further voxel that is right, and then the one that is wrong
    hits[0] += 1
    count[-1] += 1
    values = isotonic_regression(hits / count, weights=count).x
    return np.interp(np.arange(BINS), filled, values)
