"""What histogram binning and isotonic regression share: a curve for each class, as a table of probabilities in bins."""

from collections.abc import Iterable
from functools import partial
from typing import Any, ClassVar

import numpy as np
import torch
from numpy import ndarray as Array
from torch import Tensor, nn

from calibseg.calibrators import Calibrator
from calibseg.calibrators.fitted.module import Formula
from calibseg.calibrators.solvers.log_scores import probability
from calibseg.calibrators.solvers.reliability import REACH, Scale, bin_of
from calibseg.core.labels import along_classes
from calibseg.core.types import Activation


class CurveCalibrator(Calibrator):
    """For every class a probability in each bin, or the identity."""

    learnt = ("table", "keep")
    scale: ClassVar[Scale]

    def __init__(self, **common: Any) -> None:
        super().__init__(**common)
        self.table, self.keep = np.zeros((0, 0)), np.zeros((0, 0), np.uint8)

    def set_curves(self, table: Array, keep: Array, absent: list[int], more: Iterable[str] = ()) -> None:
        """keep: bins in which the probability stays as it is; absent: classes that keep the identity everywhere."""
        self.table, self.keep = table, keep.astype(np.uint8)
        self.keep[absent] = 1
        notes = [f"class {k} never occurs in the labels: it keeps the identity" for k in absent]
        self.facts = {"fallbacks": [*notes, *more]}

    def parameters(self) -> int:
        return int((self.keep == 0).sum())

    def apply(self, scores: Array, case_context: Any, where: slice | Array) -> Array:
        """Each class's probability by its table, or itself where `keep` says so; softmax sums to 1 again."""
        p = np.empty_like(scores)
        for k, z in enumerate(scores):
            place = bin_of(z, self.table.shape[1], self.scale, self.activation)
            p[k] = self.table[k][place]
            if self.keep[k].any():
                own = self.keep[k][place] > 0
                p[k][own] = probability(z[own], self.activation)
        if self.activation == "softmax":
            p /= p.sum(0)
        return p

    def _module(self, spacing_mm: Any) -> nn.Module:
        numbers = {"table": self.table.astype(np.float32), "keep": self.keep > 0}
        return Formula(partial(_looked_up, self.scale, self.activation), **numbers)


def _looked_up(
    scale: Scale, activation: Activation, scores: Tensor, image: Tensor | None, table: Tensor, keep: Tensor
) -> Tensor:
    """`CurveCalibrator.apply` for a module. (ONNX has no expm1: 1 - exp is exact enough in float64.)"""
    classes, bins = table.shape
    p = torch.exp(scores) if activation == "softmax" else torch.sigmoid(scores)
    if scale == "p":
        place = p * bins
    else:
        z = scores.double()
        z = z - torch.log(1 - torch.exp(z)) if activation == "softmax" else z
        place = (z.clamp(-REACH, REACH) + REACH) * (bins / (2 * REACH))
    first = along_classes(torch.arange(classes, device=scores.device) * bins, scores.ndim)
    index = place.long().clamp(0, bins - 1) + first
    calibrated = torch.where(keep.flatten()[index], p, table.flatten()[index])
    return calibrated / calibrated.sum(1, keepdim=True) if activation == "softmax" else calibrated
