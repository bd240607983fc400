r"""Mean confidence: the mean probability of a class over the voxels predicted as it.

$$ \frac{1}{|M|} \sum_{i \in M} p_i $$

The foreground mean of the largest probability, class by class: the plainest confidence of a case without labels, and a
baseline of failure detection. Undefined where the class is not predicted.

Paper: Zenk et al., Medical Image Analysis 101, 2025, arXiv 2406.03323 (mean of the maximum softmax, aggregated).
Differs: over each predicted class; the whole-image mean is dominated by background, and is the top-label confidence
that `ece@all` sums.

>>> import numpy as np
>>> from calibseg.metrics.statistics.binning import calibration_statistics
>>> p = np.array([0.25, 0.75, 1.0], np.float32)
>>> curves = calibration_statistics(np.stack([1 - p, p]), np.array([0, 1, 1]), kind="probabilities").on("all")
>>> MeanConfidence().value(curves)[1]
0.875
"""

from math import nan

from calibseg.metrics import Mass, MassMetric


class MeanConfidence(MassMetric):
    """Mean probability where a class is predicted."""

    acronym = "mean confidence"
    higher_is_better = True

    def formula(self, mass: Mass) -> float:
        return mass.inside / mass.predicted if mass.predicted else nan
