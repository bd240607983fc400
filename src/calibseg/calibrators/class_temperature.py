r"""One temperature for each predicted class.

$$ p = \mathrm{softmax}(l / T_c), \qquad c = \arg\max_k l_k $$

All scores of a voxel are divided by the temperature of the class that they predict, so that labels stay as they are.
Networks are often surer of the background than they may be, and less sure of a small organ than they could be, or the
other way round; one temperature for both is a compromise.

Paper: Frenkel and Goldberger, Network calibration by class-based temperature scaling, EUSIPCO 2021, which lets the
    predicted class choose the temperature.
Differs: the paper searches temperatures on a grid by ECE; here each minimises the NLL, by Newton, all in the same
    passes over the voxels. Temperatures are drawn to the common one by `shrinkage` voxels: a class that is never
    wrong on few voxels would otherwise run away, and a class that is never predicted has the common temperature. On the
    voxels it was fitted on the NLL is at most that of the one common temperature. Works on log-softmax scores.

>>> import numpy as np
>>> l = np.array([[2.0] * 4 + [0.0] * 4, [0.0] * 4 + [2.0] * 4]).reshape(2, 1, 8)
>>> labels = np.array([[0, 0, 0, 1, 1, 1, 0, 1]])                                # either class is right 3 times of 4
>>> [round(value, 4) for value in ClassTemperature().fit(l, labels, kind="logits").temperatures]      # both 2 / log 3
[1.8205, 1.8205]
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from calibseg.calibrators import Calibrator, VoxelStream
from calibseg.calibrators.fitted.module import Formula, predicted
from calibseg.calibrators.solvers.log_scores import softmax
from calibseg.calibrators.solvers.temperatures import fit_temperatures, softmax_part
from calibseg.core.labels import likeliest_class
from calibseg.core.options import at_least
from calibseg.core.types import Array


class ClassTemperature(Calibrator):
    """Temperature scaling by predicted class.

    shrinkage: >= 0, how many voxels draw each class to the common temperature.
    """

    keeps_argmax = True
    learnt = ("temperatures",)
    contract_options = ({"shrinkage": 0.0}, {"shrinkage": 1e4})

    def __init__(self, shrinkage: float = 100.0, **common: Any):
        super().__init__(**common)
        self.shrinkage = float(at_least("shrinkage", shrinkage, 0))
        self.temperatures: list[float] = []  # by predicted class

    def _fit(self, stream: VoxelStream) -> None:
        stream.normalised = False
        fit = fit_temperatures(
            stream, stream.classes, lambda chunk: [softmax_part(chunk, likeliest_class(chunk.scores))], self.shrinkage
        )
        self.temperatures = [float(value) for value in fit.temperature]
        self.facts = {"voxels_per_class": [round(number) for number in fit.number]}
        self.facts |= fit.record(lambda k: f"class {k}", empty="is never predicted")

    def apply(self, scores: Array, case_context: Any, where: slice | Array) -> Array:
        scores /= np.array(self.temperatures, scores.dtype)[likeliest_class(scores)]
        return softmax(scores)

    def _module(self, spacing_mm: Any) -> nn.Module:
        return Formula(_scaled, temperatures=np.array(self.temperatures, np.float32))


def _scaled(scores: Tensor, image: Tensor | None, temperatures: Tensor) -> Tensor:
    return torch.softmax(scores / temperatures[predicted(scores)].unsqueeze(1), 1)
