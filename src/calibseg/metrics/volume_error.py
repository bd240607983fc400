r"""Relative volume error: how much too large or too small the predicted object is.

$$ E = (|P| - |T|) / |T| $$

By default its size |E| is reported, where 0 is best; `sign="signed"` keeps the sign, so that a mean over cases shows a
bias (positive: too large), but then neither higher nor lower is better. An object that the truth does not have leaves
nothing to divide by: undefined under every policy. A missed object has error 1.

>>> import numpy as np
>>> from calibseg.metrics.statistics.overlap import OverlapStatistics
>>> truth, predicted = np.array([[[0, 1, 1, 1, 1]]]), np.array([[[1, 1, 1, 0, 0]]])
>>> statistics = OverlapStatistics.of(truth, predicted, num_classes=2)
>>> VolumeError().value(statistics), VolumeError(sign="signed").value(statistics)
({1: 0.25}, {1: -0.25})
"""

from math import nan
from typing import Literal

from calibseg.core.options import one_of
from calibseg.metrics import OverlapMetric
from calibseg.metrics.statistics.overlap import Overlap


class VolumeError(OverlapMetric):
    """Relative volume error per class and region.

    sign: "absolute" or "signed"
    """

    acronym = "volume error"
    higher_is_better = False
    contract_options = ({}, {"sign": "signed"})

    def __init__(self, sign: Literal["absolute", "signed"] = "absolute") -> None:
        self.sign = one_of("sign", sign, ("absolute", "signed"))

    def formula(self, overlap: Overlap) -> float:
        error = (overlap.predicted - overlap.true) / overlap.true if overlap.true else nan
        return abs(error) if self.sign == "absolute" else error
