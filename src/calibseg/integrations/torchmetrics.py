r"""Calibration error as a torchmetrics metric, exact on whole volumes, over any batches and over any ranks.

    from calibseg.integrations.torchmetrics import CalibrationError

    ece = CalibrationError(num_classes=4, kind="logits")       # then as any metric: self.log, MetricCollection, plot
    ece.update(network(image), target)                         # preds [n k ...], target [n ...] of integers

It is named and called as torchmetrics' own `MulticlassCalibrationError`, and equal to it on small inputs (but for
probabilities on the edge of a bin: a bin is (lo, hi] here and [lo, hi) there). Differs: the states are exact int64 sums
of a fixed size, where theirs are lists of every confidence that are added up in float32: of an error of 1 % in a bin of
a million voxels half is lost; and `kind` says what the predictions are, where theirs takes logits that happen to lie in
[0, 1] for probabilities.

>>> import torch
>>> ece = CalibrationError(num_classes=2)
>>> ece.update(torch.tensor([[0.9, 0.1], [0.9, 0.1], [0.6, 0.4]]), torch.tensor([0, 1, 0]))
>>> ece.compute()                                              # (2 |0.9 - 1/2| + 1 |0.6 - 1|) / 3
tensor(0.4000)
"""

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from calibseg.core.options import one_of
from calibseg.core.types import Activation, ScoreKind, VoxelRule
from calibseg.integrations.hosts import missing
from calibseg.metrics import ECE, MCE, CurveMetric
from calibseg.metrics.statistics.curve import Curve
from calibseg.metrics.statistics.monitor import CalibrationMonitor

try:
    from torchmetrics import Metric
except (ImportError, RuntimeError) as error:
    raise missing("torchmetrics", error) from error


class RootMeanSquare(CurveMetric):
    """The root of the share-weighted mean of the squared gaps: torchmetrics' norm l2."""

    def formula(self, curve: Curve) -> float:
        filled = curve.filled
        return float(np.sqrt((filled.shares * filled.gaps**2).sum()))


NORMS: dict[str, type[CurveMetric]] = {"l1": ECE, "l2": RootMeanSquare, "max": MCE}


class CalibrationError(Metric):
    """Calibration error of the predicted class (sigmoid: the mean over channels), pooled over everything seen.

    num_classes: channels of the predictions
    n_bins: equal-width bins of confidence
    norm: l1 (ECE), l2 (root mean square) or max (MCE)
    ignore_index: voxels with this label are ignored
    voxels: which voxels count: all, predicted, truth or union
    kind: what the predictions are: probabilities, logits or log_probabilities
    activation: softmax (classes exclude each other) or sigmoid (each channel is its own yes-or-no question)
    """

    is_differentiable = False
    higher_is_better = False
    full_state_update = False  # forward() counts a batch once
    plot_lower_bound = 0.0
    plot_upper_bound = 1.0

    def __init__(
        self,
        num_classes: int,
        n_bins: int = 15,
        norm: Literal["l1", "l2", "max"] = "l1",
        ignore_index: int | None = None,
        voxels: VoxelRule = "all",
        kind: ScoreKind = "probabilities",
        activation: Activation = "softmax",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.norm: str = one_of("norm", norm, tuple(NORMS))
        self.voxels: VoxelRule = voxels
        self.monitor = CalibrationMonitor(
            num_classes, ("ece",), (voxels,), kind=kind, activation=activation, bins=n_bins, ignore_label=ignore_index
        )
        for name, sums in self.monitor.statistics.sums.items():
            self.add_state(name, torch.from_numpy(np.zeros_like(sums)), dist_reduce_fx="sum")
        # A MetricCollection updates only one of the metrics whose states were equal after the first batch; those that
        # read scores or labels by other rules may be equal by chance, and this keeps them apart.
        rules = torch.tensor(list(f"{kind} {activation} {ignore_index}".encode()))
        self.add_state("rules", rules, dist_reduce_fx="max")

    def update(self, preds: Tensor, target: Tensor) -> None:
        """Add a batch: preds [n k ...], target [n ...] of integers or [n k ...] of soft labels."""
        if isinstance(preds, Tensor) and preds.ndim == 2:  # no space: each is an image of one voxel
            preds, target = preds.unsqueeze(-1), target.unsqueeze(-1)
        self.monitor.reset()
        self.monitor.update(preds, target)
        for name, sums in self.monitor.statistics.sums.items():
            setattr(self, name, getattr(self, name) + torch.from_numpy(sums).to(self.device))

    def compute(self) -> Tensor:
        """The error of everything seen; NaN where no voxel counts."""
        empty = self.monitor.statistics
        sums = {name: getattr(self, name).cpu().numpy() for name in empty.shapes}
        value = NORMS[self.norm]().value(empty.with_sums(sums).on(self.voxels))[None]
        return torch.tensor(value, dtype=torch.float32, device=self.device)

    def set_dtype(self, dst_type: str | torch.dtype) -> "CalibrationError":
        """Itself: the states are whole numbers in any precision, and are exact because they stay so."""
        return self

    def plot(self, val: Tensor | Sequence[Tensor] | None = None, ax: Any = None) -> Any:
        """One value or several on axes, as every metric of torchmetrics draws itself; (figure, axes)."""
        return self._plot(val, ax)
