r"""Continuous ranked probability score: how far a forecast distribution lies from what was observed, in its unit.

$$ \mathrm{CRPS}(F, y) = \int (F(x) - 1[x \ge y])^2 dx = E|X - y| - \tfrac{1}{2} E|X - X'| $$

In closed form for a sample, and for a Gaussian with $z = (y - \mu) / \sigma$:
$\sigma (z (2 \Phi(z) - 1) + 2 \varphi(z) - 1 / \sqrt{\pi})$. A forecast that is sure costs its distance |y - x|.

Paper: Gneiting and Raftery, JASA 2007, Eq. 21; Gaussian: Gneiting et al., 2005.

>>> sample_crps([95.0, 100.0, 111.0], 130.0)                      # mean |x - y| 28, half the mean distance 32 / 9
24.444444444444443
>>> round(gaussian_crps(0.0, 1.0, 0.0), 6), gaussian_crps(3.0, 0.0, 5.0)
(0.233695, 2.0)
"""

from collections.abc import Sequence
from math import erf, exp, pi, sqrt

import numpy as np


def sample_crps(sample: Sequence[float], observed: float) -> float:
    """Of a forecast that is a sample, each value equally likely."""
    x = np.sort(np.asarray(sample, float))
    ranks = 2 * np.arange(1, len(x) + 1) - len(x) - 1
    return float(np.abs(x - observed).mean() - (ranks @ x) / len(x) ** 2)


def gaussian_crps(mean: float, sd: float, observed: float) -> float:
    """Of a Gaussian forecast; without spread, the distance."""
    if sd == 0:
        return abs(observed - mean)
    z = (observed - mean) / sd
    return sd * (z * erf(z / sqrt(2)) + 2 * exp(-z * z / 2) / sqrt(2 * pi) - 1 / sqrt(pi))
