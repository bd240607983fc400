r"""Relative error of the expected volume: how much too large or too small the probabilities are in sum.

$$ E = \Big( \sum_i p_i - |T| \Big) / |T| $$

By default |E|; `sign="signed"` keeps the sign. For any bins over all voxels the sum of p is off by at most the number
of voxels times the class's binned calibration error, $|\sum p - |T|| \le n \cdot \mathrm{ECE}_k$: a calibrated
network's expected volume has no bias over the cases that it is calibrated on. Undefined without true voxels.

Paper: Popordanoska et al., UNSURE 2021 (volume bias and calibration error).

>>> import numpy as np
>>> from calibseg.metrics.statistics.binning import calibration_statistics
>>> p = np.array([0.25, 0.75, 0.5], np.float32)
>>> curves = calibration_statistics(np.stack([1 - p, p]), np.array([0, 1, 1]), kind="probabilities").on("all")
>>> SoftVolumeError(sign="signed").value(curves)[1]                        # (1.5 - 2) / 2
-0.25
"""

from math import nan
from typing import Literal

from calibseg.core.options import one_of
from calibseg.metrics import Mass, MassMetric


class SoftVolumeError(MassMetric):
    """Relative error of the sum of probabilities per class.

    sign: "absolute" or "signed"
    """

    acronym = "soft volume error"
    higher_is_better = False
    contract_options = ({}, {"sign": "signed"})

    def __init__(self, sign: Literal["absolute", "signed"] = "absolute") -> None:
        self.sign = one_of("sign", sign, ("absolute", "signed"))

    def formula(self, mass: Mass) -> float:
        error = (mass.everywhere - mass.true) / mass.true if mass.true else nan
        return abs(error) if self.sign == "absolute" else error
