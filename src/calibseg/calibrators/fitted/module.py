"""Fitted calibrators as torch modules: what `Calibrator.as_module` gives, to be put behind a network and exported.

    module = calibrator.as_module()                    # scores [n k *space] -> calibrated probabilities [n k *space]
    module(logits)                                     # LTS with an image: module(logits, image [n c *space])

Space is (y, x) or (z, y, x), and each of the n is a case of its own for those that look at whole cases. A module keeps
to operations that ONNX has, and its numbers are those of `transform` up to rounding. (Histogram and isotonic regression
are steps: where rounding moves a probability over the edge of a bin, it gets the neighbouring step.)
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from calibseg.calibrators.solvers.log_scores import LEAST
from calibseg.core.labels import along_classes
from calibseg.core.types import LEAST_PROBABILITY, Activation, ScoreKind

Function = Callable[..., Tensor]


class Formula(nn.Module):
    """A function of normalised log scores [n k *space], the image and named numbers, which become buffers."""

    def __init__(self, function: Function, **numbers: Any) -> None:
        super().__init__()
        self.function = function
        for name, value in numbers.items():
            self.register_buffer(name, torch.from_numpy(np.array(value)))

    def forward(self, scores: Tensor, image: Tensor | None = None) -> Tensor:
        return self.function(scores, image, **dict(self.named_buffers()))


class CalibratorModule(nn.Module):
    """Scores of a stated kind -> normalised log scores (see `solvers.log_scores`) -> probabilities, float32."""

    def __init__(self, apply: nn.Module, kind: ScoreKind, activation: Activation) -> None:
        super().__init__()
        self.apply_formula, self.kind, self.activation = apply, kind, activation

    def forward(self, scores: Tensor, image: Tensor | None = None) -> Tensor:
        return self.apply_formula(self._normalised(scores.float()), image).float()

    def _normalised(self, scores: Tensor) -> Tensor:
        softmax = self.activation == "softmax"
        if self.kind == "probabilities":
            p = scores.double().clamp(LEAST_PROBABILITY, 1 - LEAST_PROBABILITY)
            scores = scores.clamp(min=LEAST_PROBABILITY).log() if softmax else _logit(p)
        elif self.kind == "log_probabilities":
            scores = (
                scores.clamp(min=LEAST) if softmax else _logit(scores.double().clamp(LEAST, -LEAST_PROBABILITY).exp())
            )
        return torch.log_softmax(scores, 1) if softmax else scores.float()


def _logit(p: Tensor) -> Tensor:
    return p.log() - (1 - p).log()


def probability(scores: Tensor, activation: Activation) -> Tensor:
    """Softmax over classes, or the sigmoid of each channel."""
    return torch.softmax(scores, 1) if activation == "softmax" else torch.sigmoid(scores)


def predicted(scores: Tensor) -> Tensor:
    """The class of the largest score [n *space], ties to the smallest id."""
    classes = scores.shape[1]
    ids = along_classes(torch.arange(classes, device=scores.device), scores.ndim)
    return torch.where(scores == scores.amax(1, keepdim=True), ids, classes).amin(1)


def bordered(x: Tensor, width: int, axes: int) -> Tensor:
    """The last `axes` axes with so many voxels more on each side, mirrored, or repeated where there are too few."""
    for axis in range(axes):
        widths = [0] * (2 * axes)
        widths[2 * axis] = widths[2 * axis + 1] = width
        x = pad(x, widths, mode="reflect" if x.shape[-1 - axis] > width else "replicate")
    return x
