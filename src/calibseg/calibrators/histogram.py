r"""Each class's probability replaced by how often the class was right in its bin.

$$ q_k = \frac{\sum_{i \in B(s_k)} y_{ik} + \bar s_B}{|B(s_k)| + 1}, \qquad p_k = \frac{q_k}{\sum_j q_j} $$

Class by class, one against the rest, then made to sum to 1. Voxels of one bin become equal, so labels may move, and a
voxel that is surely no organ gets the frequency of all in the lowest bin: the ECE falls, the NLL may rise. `isotonic`
has no such steps.

Paper: Zadrozny and Elkan, Obtaining calibrated probability estimates, ICML 2001; class by class as in Guo et al., ICML
    2017, section 4.2.
Differs: one further voxel, right as often as the bin's own mean probability says, keeps q between 0 and 1 where the bin
    has no error: a 0 at the truth would cost infinitely much. A bin without voxels leaves the probability as it is. A
    class that never occurs in the labels keeps the identity. Both are said in `fallbacks`. With sigmoid every channel
    stands for itself, and nothing is made to sum to 1.

>>> import numpy as np
>>> l = np.log(np.array([[0.1] * 4, [0.9] * 4])).reshape(2, 1, 4)           # says 90 %, is right thrice
>>> calibrator = Histogram().fit(l, np.array([[1, 1, 1, 0]]), kind="logits")
>>> [round(float(p), 4) for p in calibrator.transform(l)[:, 0, 0]]                        # (3 + 0.9) / (4 + 1)
[0.22, 0.78]
"""

from typing import Any

import numpy as np

from calibseg.calibrators import VoxelStream
from calibseg.calibrators._curve import CurveCalibrator
from calibseg.calibrators.solvers.reliability import reliability
from calibseg.core.options import whole_number
from calibseg.core.types import BadInput


class Histogram(CurveCalibrator):
    """Histogram binning, class by class.

    bins: 1 to 1000000, of equal width.
    """

    keeps_argmax = False
    contract_options = ({"bins": 4},)
    activations = ("softmax", "sigmoid")
    scale = "p"

    def __init__(self, bins: int = 15, **common: Any):
        super().__init__(**common)
        self.bins = whole_number("bins", bins, 1)
        if self.bins > 1_000_000:
            raise BadInput(f"bins must be at most 1000000, not {bins}")

    def _fit(self, stream: VoxelStream) -> None:
        counts = reliability(stream, self.bins, self.scale)
        absent, empty = counts.absent(), counts.number == 0
        notes = [
            f"class {k}: {number} of {self.bins} bins are empty and keep the identity"
            for k, number in enumerate(empty.sum(1))
            if number and k not in absent
        ]
        self.set_curves((counts.hits + np.nan_to_num(counts.mean)) / (counts.number + 1), empty, absent, notes)
