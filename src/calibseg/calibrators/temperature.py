r"""One temperature for all scores.

$$ p = \mathrm{softmax}(l / T), \qquad T = \arg\min_T \sum_i \mathrm{NLL}_i(T), \quad \log T \in [-4, 4] $$

Labels stay as they are. With sigmoid scores every channel has a temperature of its own.

Paper: Guo et al., On calibration of modern neural networks, ICML 2017, section 4.2.
Differs: the NLL is convex in 1 / T, so a few steps like Newton's find T to 1e-8 or so, each in one streamed pass over
    the voxels (solver newton); log T is bounded, because on voxels without an error the NLL falls for ever as T goes
    to 0. The segmentation papers' code runs Adam with a learning rate of 1e-4 from T = 1 over batches of 16 slices,
    100 epochs at most: T moves by at most 1e-4 in a step and hardly leaves 1 on a small set. That is solver released,
    here with the batches of each case in order. Log-softmax scores are scaled in place of logits, which is the same.

>>> import numpy as np
>>> l = np.array([[0.0] * 4, [2.0] * 4]).reshape(2, 1, 4)                   # says 88 % four times, is right thrice
>>> calibrator = Temperature().fit(l, np.array([[1, 1, 1, 0]]), kind="logits")
>>> round(calibrator.temperature[0], 6), round(float(2 / np.log(3)), 6)           # so that it says 75 %
(1.820478, 1.820478)
>>> calibrator.transform(l)[:, 0, 0].round(4).tolist()
[0.25, 0.75]
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Literal, Self

import numpy as np
from torch import Tensor, nn

from calibseg.calibrators import Calibrator, VoxelStream
from calibseg.calibrators.fitted import module
from calibseg.calibrators.solvers.log_scores import LogScores, probability, softmax
from calibseg.calibrators.solvers.released_adam import released_temperatures
from calibseg.calibrators.solvers.temperatures import fit_temperatures, sigmoid_parts, softmax_part
from calibseg.core.labels import along_classes
from calibseg.core.options import one_of
from calibseg.core.types import Activation, Array


class Temperature(Calibrator):
    """Temperature scaling.

    solver: newton finds the minimum; released is the papers' code, Adam from T = 1.
    """

    keeps_argmax = True
    contract_options = ({"solver": "released"},)
    activations = ("softmax", "sigmoid")

    def __init__(self, solver: Literal["newton", "released"] = "newton", **common: Any):
        super().__init__(**common)
        self.solver = one_of("solver", solver, ("newton", "released"))
        self.temperature: tuple[float, ...] = (1.0,)  # one, or with sigmoid one per channel

    def _fit(self, stream: VoxelStream) -> None:
        stream.normalised = False
        sigmoid = stream.activation == "sigmoid"
        groups = stream.classes if sigmoid else 1
        fit = fit_temperatures if self.solver == "newton" else released_temperatures
        fitted = fit(stream, groups, sigmoid_parts if sigmoid else lambda chunk: [softmax_part(chunk)])
        self.temperature = tuple(float(value) for value in fitted.temperature)
        self.facts = {
            "nll_before": _one(fitted.before, sigmoid),
            "nll_after": _one(fitted.after, sigmoid),
            "passes": fitted.passes,
            "fallbacks": fitted.remarks(lambda channel: f"channel {channel}: " if sigmoid else ""),
        }

    def case_context(self, scores: LogScores, image: Any, spacing_mm: Any, slice_axis: int) -> int:
        """How many voxels a slice has: the released solver's batches are made of slices."""
        return int(np.prod(scores.shape[1:])) // max(1, scores.shape[1 + slice_axis])

    def apply(self, scores: Array, case_context: Any, where: slice | Array) -> Array:
        scores /= np.array(self.temperature, scores.dtype)[:, None]
        return softmax(scores) if self.activation == "softmax" else probability(scores, "sigmoid")

    def _module(self, spacing_mm: Any) -> nn.Module:
        return module.Formula(partial(_scaled, self.activation), temperature=np.array(self.temperature, np.float32))

    def state(self) -> tuple[dict[str, Any], dict[str, Array]]:
        return {"temperature": _one(self.temperature, self.activation == "sigmoid"), **self.facts}, {}

    def load_state(self, facts: Mapping[str, Any], arrays: Mapping[str, Array]) -> Self:
        self.facts = dict(facts)
        self.temperature = tuple(float(value) for value in np.atleast_1d(self.facts.pop("temperature")))
        return self


def _scaled(activation: Activation, scores: Tensor, image: Tensor | None, temperature: Tensor) -> Tensor:
    return module.probability(scores / along_classes(temperature, scores.ndim), activation)


def _one(values: Sequence[float] | Array, sigmoid: bool) -> Any:
    return [float(value) for value in values] if sigmoid else float(values[0])
