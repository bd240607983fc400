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

import numpy as np
from scipy.optimize import isotonic_regression

from calibseg.calibrators import VoxelStream
from calibseg.calibrators._curve import CurveCalibrator
from calibseg.calibrators.solvers.reliability import Reliability, reliability
from calibseg.core.types import Array

BINS = 4096


class Isotonic(CurveCalibrator):
    """Isotonic regression, class by class."""

    keeps_argmax = False
    activations = ("softmax", "sigmoid")
    scale = "logit"

    def _fit(self, stream: VoxelStream) -> None:
        counts = reliability(stream, BINS, self.scale)
        table = np.stack([_rising(counts, k) for k in range(len(counts.number))])
        self.set_curves(table, np.zeros(table.shape, bool), counts.absent())


def _rising(counts: Reliability, k: int) -> Array:
    """f_k at every bin."""
    filled = np.flatnonzero(counts.number[k])
    count, hits = counts.number[k, filled], counts.hits[k, filled]
    count[0] += 1  # the further voxel that is right, and then the one that is wrong
    hits[0] += 1
    count[-1] += 1
    values = isotonic_regression(hits / count, weights=count).x
    return np.interp(np.arange(BINS), filled, values)
