r"""Soft Dice confidence: the Dice that a prediction expects of itself.

$$ \mathrm{SDC} = \frac{2 \sum_{i \in M} p_i}{\sum_i p_i + |M|} $$

M are the voxels predicted as the class. Without labels, so a case can be judged before anybody has looked at it; it is
worth what the calibration of p is worth. Where voxels were independent it would lie within narrow bounds of the
expected Dice. A class that is not predicted anywhere scores 0 as long as any probability of it is left (it may have
been missed), and is undefined without.

Paper: Borges, Pacheco and Silva, Machine Learning 2026, arXiv 2402.10665 (one binary mask).
Differs: several classes, each with its own p and M; where both sums are 0 the released code says 0.

>>> import numpy as np
>>> from calibseg.metrics.statistics.binning import calibration_statistics
>>> p = np.array([0.25, 0.75, 1.0], np.float32)
>>> curves = calibration_statistics(np.stack([1 - p, p]), np.array([0, 1, 1]), kind="probabilities").on("all")
>>> SoftDiceConfidence().value(curves)[1]                                  # 2 * 1.75 / (2 + 2)
0.875
"""

from math import nan

from calibseg.metrics import Mass, MassMetric


class SoftDiceConfidence(MassMetric):
    """Soft Dice confidence per class; a confidence, whose use failure detection measures."""

    acronym = "soft Dice confidence"
    higher_is_better = True

    def formula(self, mass: Mass) -> float:
        whole = mass.everywhere + mass.predicted
        return 2 * mass.inside / whole if whole else nan
