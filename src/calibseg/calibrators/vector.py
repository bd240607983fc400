r"""A scale and an offset for each class's log-probability.

$$ p = \mathrm{softmax}(w \odot \log s + v), \qquad s = \mathrm{softmax}(l) $$

Labels may move: an offset favours a class everywhere.

Paper: Guo et al., On calibration of modern neural networks, ICML 2017, section 4.2 (vector scaling).
Differs: on log-probabilities, where the paper takes logits: logits are known only up to a number per voxel, and a
    scale per class would depend on it. Fitted by Newton on the exact gradient and curvature (convex). `shrinkage`
    voxels draw w to 1 and v to 0, so that classes without an error stay finite. A class that never occurs in the labels
    keeps w = 1 and v = 0, which is said in `fallbacks`.

>>> import numpy as np
>>> l = np.zeros((2, 1, 1000))                                              # says a half, class 1 is 3 in 4
>>> labels = (np.arange(1000) % 4 > 0).astype(int)[None]
>>> Vector().fit(l, labels, kind="logits").transform(l)[:, 0, 0].round(3).tolist()
[0.25, 0.75]
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from calibseg.calibrators import Calibrator, VoxelStream
from calibseg.calibrators.fitted.module import Formula
from calibseg.calibrators.solvers.log_scores import softmax
from calibseg.calibrators.solvers.logistic import fit_linear
from calibseg.core.labels import along_classes
from calibseg.core.options import at_least
from calibseg.core.types import Array


class Vector(Calibrator):
    """Vector scaling of log-probabilities.

    shrinkage: > 0, how many voxels draw scales to 1 and offsets to 0.
    """

    keeps_argmax = False
    learnt = ("scale", "offset")
    contract_options = ({"shrinkage": 0.1}, {"shrinkage": 100.0})

    def __init__(self, shrinkage: float = 1.0, **common: Any):
        super().__init__(**common)
        self.shrinkage = float(at_least("shrinkage", shrinkage, 0, above=True))
        self.scale: list[float] = []
        self.offset: list[float] = []

    def _fit(self, stream: VoxelStream) -> None:
        k = stream.classes
        free = np.concatenate([np.eye(k, dtype=bool), np.ones((k, 1), bool)], 1)
        fit = fit_linear(stream, free, np.full(free.shape, self.shrinkage), np.zeros(free.shape))
        self.scale, self.offset = fit.matrix.diagonal().tolist(), fit.bias.tolist()
        self.facts = fit.record()

    def apply(self, scores: Array, case_context: Any, where: slice | Array) -> Array:
        scores *= np.array(self.scale, scores.dtype)[:, None]
        scores += np.array(self.offset, scores.dtype)[:, None]
        return softmax(scores)

    def _module(self, spacing_mm: Any) -> nn.Module:
        return Formula(_scaled, scale=np.array(self.scale, np.float32), offset=np.array(self.offset, np.float32))


def _scaled(scores: Tensor, image: Tensor | None, scale: Tensor, offset: Tensor) -> Tensor:
    return torch.softmax(scores * along_classes(scale, scores.ndim) + along_classes(offset, scores.ndim), 1)
