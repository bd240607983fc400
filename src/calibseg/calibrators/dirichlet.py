r"""A full linear map of the log-probabilities, its off-diagonal part and its offsets kept small (ODIR).

$$ p = \mathrm{softmax}(W \log s + v), \qquad \min_{W, v} \; \overline{\mathrm{NLL}}
   + \frac{\lambda}{K (K - 1)} \sum_{j \ne k} W_{jk}^2 + \frac{\mu}{K} \sum_k v_k^2 $$

Labels may move. K (K + 1) numbers are learnt: what one class's probability says about another's.

Paper: Kull et al., Beyond temperature scaling: Dirichlet calibration, NeurIPS 2019, section 4.1.
Differs: lambda and mu are stated (`off_diagonal`, `offset`), where the paper searches them by cross-validation. Fitted
    by Newton on the exact gradient and curvature (convex); a pass takes K^2 (K + 1)^2 products per voxel, so that
    beyond some 16 classes `sample` is worth stating. `shrinkage` voxels draw W to the identity and v to 0, so that
    classes without an error stay finite. A class that never occurs in the labels keeps its row and column of the
    identity, which is said in `fallbacks`. Probabilities given in place of logits are floored at 2^-24.

>>> import numpy as np
>>> l = np.zeros((2, 1, 1000))                                              # says a half, class 1 is 3 in 4
>>> labels = (np.arange(1000) % 4 > 0).astype(int)[None]
>>> Dirichlet(off_diagonal=0.0, offset=0.0).fit(l, labels, kind="logits").transform(l)[:, 0, 0].round(3).tolist()
[0.25, 0.75]
"""

from collections.abc import Mapping
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor, nn

from calibseg.calibrators import Calibrator, VoxelStream
from calibseg.calibrators.fitted.module import Formula
from calibseg.calibrators.solvers.log_scores import softmax
from calibseg.calibrators.solvers.logistic import fit_linear, linear
from calibseg.core.options import at_least
from calibseg.core.types import Array


class Dirichlet(Calibrator):
    """Dirichlet calibration with off-diagonal and intercept regularisation.

    off_diagonal: >= 0, lambda of the equation.
    offset: >= 0, mu of the equation.
    shrinkage: > 0, how many voxels draw everything to the identity.
    """

    keeps_argmax = False
    contract_options = ({"off_diagonal": 0.1, "offset": 0.02, "shrinkage": 10.0},)

    def __init__(self, off_diagonal: float = 1e-3, offset: float = 1e-3, shrinkage: float = 1.0, **common: Any):
        super().__init__(**common)
        self.off_diagonal = float(at_least("off_diagonal", off_diagonal, 0))
        self.offset = float(at_least("offset", offset, 0))
        self.shrinkage = float(at_least("shrinkage", shrinkage, 0, above=True))
        self.matrix, self.bias = np.zeros((0, 0)), np.zeros(0)

    def _fit(self, stream: VoxelStream) -> None:
        k = stream.classes
        free = np.ones((k, k + 1), bool)
        per_voxel = np.full((k, k + 1), 2 * self.off_diagonal / (k * (k - 1)))
        per_voxel[np.diag_indices(k)] = 0
        per_voxel[:, k] = 2 * self.offset / k
        fit = fit_linear(stream, free, np.full(free.shape, self.shrinkage), per_voxel)
        self.matrix, self.bias = np.ascontiguousarray(fit.matrix), np.ascontiguousarray(fit.bias)
        self.facts = fit.record()

    def apply(self, scores: Array, case_context: Any, where: slice | Array) -> Array:
        return softmax(linear(scores, self.matrix, self.bias))

    def _module(self, spacing_mm: Any) -> nn.Module:
        return Formula(_mapped, matrix=self.matrix.astype(np.float32), bias=self.bias.astype(np.float32))

    def state(self) -> tuple[dict[str, Any], dict[str, Array]]:
        return dict(self.facts), {"matrix": self.matrix, "offset": self.bias}

    def load_state(self, facts: Mapping[str, Any], arrays: Mapping[str, Array]) -> Self:
        self.facts = dict(facts)
        self.matrix, self.bias = np.array(arrays["matrix"], np.float64), np.array(arrays["offset"], np.float64)
        return self


def _mapped(scores: Tensor, image: Tensor | None, matrix: Tensor, bias: Tensor) -> Tensor:
    return torch.softmax(torch.nn.functional.linear(scores.movedim(1, -1), matrix, bias), -1).movedim(-1, 1)
