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

from collections.abc import Mapping
from typing import Any, Self

import numpy as np
from torch import nn

from calibseg.calibrators import Calibrator, VoxelStream
from calibseg.calibrators.solvers.reliability import ClassCurves, reliability
from calibseg.core.options import at_least
from calibseg.core.types import Array


class Histogram(Calibrator):
    """Histogram binning, class by class.

    bins: >= 1, of equal width.
    """

    keeps_argmax = False
    activations = ("softmax", "sigmoid")

    def __init__(self, bins: int = 15, **common: Any):
        super().__init__(**common)
        self.bins = int(at_least("bins", bins, 1))
        self.curves = ClassCurves("p")

    def _fit(self, stream: VoxelStream) -> None:
        found = reliability(stream, self.bins, self.curves.scale)
        absent, empty = found.absent(), found.number == 0
        told = [
            f"class {k}: {number} of {self.bins} bins are empty and keep the identity"
            for k, number in enumerate(empty.sum(1))
            if number and k not in absent
        ]
        self.curves.set((found.hits + np.nan_to_num(found.mean)) / (found.number + 1), empty, absent, told)

    def apply(self, scores: Array, case_context: Any, where: slice | Array) -> Array:
        return self.curves.apply(scores, self.activation)

    def _module(self, spacing_mm: Any) -> nn.Module:
        return self.curves.module(self.activation)

    def state(self) -> tuple[dict[str, Any], dict[str, Array]]:
        return self.curves.state()

    def load_state(self, facts: Mapping[str, Any], arrays: Mapping[str, Array]) -> Self:
        self.curves.load_state(facts, arrays)
        return self
