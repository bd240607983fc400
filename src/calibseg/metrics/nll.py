r"""Negative log-likelihood: the mean surprise at the true labels.

$$ \mathrm{NLL} = -\frac{1}{n} \sum_i \sum_k y_{ik} \log \max(p_{ik}, 2^{-24}) $$

A proper score: on `all` it is least for the true probabilities. On voxels chosen by their label it is not proper.
A probability below 2^-24 where the truth lies counts as 2^-24 (16.6 nats), whatever type it is stored in, logits too;
how many voxels that were is noted as `clipped_voxels` beside the scores.
Class k: the voxels whose truth is k. With sigmoid: channel k's own binary likelihood, and None their mean.

>>> import numpy as np
>>> from calibseg.metrics.statistics.binning import calibration_statistics
>>> p = np.array([[0.5, 0.25], [0.5, 0.75]], np.float32)
>>> curves = calibration_statistics(p, np.array([0, 0]), kind="probabilities").on("all")
>>> round(float(NLL().value(curves)[None] / np.log(2)), 6)                 # (1 + 2) / 2 bits
1.5
"""

from math import nan

from calibseg.metrics import Metric, Values
from calibseg.metrics.statistics.calibration import ReliabilityCurves
from calibseg.metrics.statistics.curve import mean_of_defined


class NLL(Metric):
    """None: all voxels that are not ignored, in nats; k: those whose truth is k."""

    acronym = "NLL"
    needs = "calibration"
    higher_is_better = False
    unit = "nat"
    headline = (2, "all")

    def value(self, statistics: ReliabilityCurves) -> Values:
        sigmoid, number = statistics.activation == "sigmoid", statistics.number
        weights = (statistics.count if sigmoid else statistics.hits).sum(1)
        each = [float(nll / weight) if weight else nan for nll, weight in zip(statistics.nll, weights, strict=True)]
        together = float(statistics.nll.sum() / number) if number else nan
        return {**dict(enumerate(each)), None: mean_of_defined(each) if sigmoid else together}
