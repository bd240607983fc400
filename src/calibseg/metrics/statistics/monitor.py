r"""Calibration in your own training or validation loop, with the interface that torchmetrics made familiar.

    monitor = CalibrationMonitor(num_classes=4, metrics=("ece", "brier", "nll"))
    for image, target in loader:
        monitor.update(network(image), target)         # logits [n k *space], target [n *space]
    print(monitor.compute())                           # {"predicted/ece": 0.021, ..., "all/nll": 0.08}
    monitor.reset()

Batches are tensors on any device (MONAI's MetaTensor too) or numpy arrays; values are plain floats.
What it keeps are exact integers, so it does not matter how voxels are cut into batches or over ranks: `compute` adds
the ranks up when torch.distributed runs, and every rank gets the same, exact answer. (torchmetrics' own calibration
error keeps every confidence in a list, and adds bins in float32.)

>>> import torch
>>> monitor = CalibrationMonitor(num_classes=2, metrics=("brier",), voxels=("all",))
>>> monitor.update(torch.zeros(1, 2, 3), torch.tensor([[0, 1, 1]]))        # p = 1/2 everywhere
>>> monitor.compute()
{'all/brier': 0.5}
"""

from collections.abc import Sequence
from numbers import Integral
from typing import Any, Self, get_args

import numpy as np
import torch
from torch import Tensor

from calibseg.core.arrays import to_numpy
from calibseg.core.distributed import is_distributed, reduce_sum
from calibseg.core.options import one_of
from calibseg.core.registry import build
from calibseg.core.score_kind import NO_LOGITS
from calibseg.core.scores import batch_voxel_name
from calibseg.core.tensors import as_tensor, described_container, is_float
from calibseg.core.types import TOLERANCE, Activation, Array, BadInput, ScoreKind
from calibseg.metrics import Metric, Values
from calibseg.metrics.statistics.binning import Bins, CalibrationStatistics, VoxelRule, calibration_statistics


class CalibrationMonitor:
    """Any calibration metrics of everything seen since `reset`, pooled. Its state adds up exactly in any order.

    num_classes: channels of the scores
    metrics: one key or several of calibration metrics, see `calibseg list metrics`
    voxels: the voxel rules to compute them under: truth, predicted, union or all
    kind: what the scores are: logits, log_probabilities or probabilities
    activation: softmax (classes exclude each other) or sigmoid (each channel is its own yes-or-no question)
    bins: equal-width bins of confidence
    ignore_label: voxels with this label are ignored
    process_group: the ranks that `compute` adds up; default: all
    """

    def __init__(
        self,
        num_classes: int,
        metrics: str | Sequence[str] = ("ece", "cece", "brier", "nll"),
        voxels: VoxelRule | Sequence[VoxelRule] = ("predicted", "all"),
        *,
        kind: ScoreKind = "logits",
        activation: Activation = "softmax",
        bins: int = 15,
        ignore_label: int | None = None,
        process_group: Any = None,
    ) -> None:
        least = 2 if one_of("activation", activation, get_args(Activation)) == "softmax" else 1
        if not isinstance(num_classes, Integral) or num_classes < least:
            raise BadInput(f"num_classes must be an integer of {least} or more with {activation}, not {num_classes!r}")
        if ignore_label is not None and not isinstance(ignore_label, Integral):
            raise BadInput(f"ignore_label must be an integer or None, not {ignore_label!r}")
        if not metrics or not voxels:
            raise BadInput("a monitor of no metric, or on no voxel rule, would say nothing: name one or more")
        names = (metrics,) if isinstance(metrics, str) else metrics
        self.metrics: dict[str, Metric] = {name: build("metrics", name) for name in names}
        for name, metric in self.metrics.items():
            if metric.needs != "calibration":
                raise BadInput(f"a monitor takes metrics of calibration bins; {name!r} needs {metric.needs} statistics")
        self.voxels = (voxels,) if isinstance(voxels, str) else tuple(voxels)
        self.kind: ScoreKind = one_of("kind", kind, get_args(ScoreKind))
        self.ignore_label, self.process_group = ignore_label, process_group
        self._empty = CalibrationStatistics(num_classes, Bins(bins), activation)
        for rule in self.voxels:
            self._empty.on(rule)  # an unknown rule is refused now, not after an epoch
        self.statistics = self._empty

    def reset(self) -> None:
        """Forget everything."""
        self.statistics = self._empty

    @torch.no_grad()
    def update(self, scores: Tensor | Array, target: Tensor | Array, *, raters: bool = False) -> None:
        """Add a batch: scores [n k *space], target [n *space] of labels, or [n k *space] of soft labels (floats).

        raters: integers [n r *space] are the labels of r raters; unless it is said, they might be one-hot
        """
        scores, target = _plain("scores", scores), _plain("target", target)
        if scores.ndim < 3 or scores.shape[:1] != target.shape[:1] or scores.shape[1] != self._empty.classes:
            raise BadInput(
                f"scores {tuple(scores.shape)} and target {tuple(target.shape)} are no batch of "
                f"{self._empty.classes} classes; expected [n k *space] and [n *space] or [n k *space]"
            )
        if self.kind == "logits" and self._empty.activation == "softmax" and _are_probabilities(scores):
            raise BadInput(f"the scores {NO_LOGITS}")
        several = target.ndim == scores.ndim
        known = raters or is_float(target) or self._empty.activation == "sigmoid"
        if several and not known and target.shape[1] > 1:
            raise BadInput(
                f"the target {tuple(target.shape)} of {target.dtype} may be one-hot, or the labels of "
                f"{target.shape[1]} raters: give target.argmax(1), or say update(scores, target, raters=True)"
            )
        self.statistics += calibration_statistics(
            scores.movedim(1, 0),
            (target.movedim(1, 0) if several else target).to(scores.device),
            kind=self.kind,
            activation=self._empty.activation,
            bins=self._empty.bins,
            ignore_label=self.ignore_label,
            voxel=batch_voxel_name,
        )

    def merge_state(self, others: Sequence[Self]) -> Self:
        """Add what other monitors have seen."""
        for other in others:
            self.statistics += other.statistics
        return self

    def synced(self) -> CalibrationStatistics:
        """The statistics of all ranks together: a sum of int64, so exact and equal on every rank."""
        if not is_distributed():
            return self.statistics
        sums = self.statistics.sums
        flat = torch.from_numpy(np.concatenate([array.reshape(-1) for array in sums.values()]))
        reduce_sum(flat, group=self.process_group)
        pieces = np.split(flat.numpy(), np.cumsum([array.size for array in sums.values()])[:-1])
        together = {name: piece.reshape(sums[name].shape) for name, piece in zip(sums, pieces, strict=True)}
        return self.statistics.with_sums(together)

    def compute(self) -> dict[str, float]:
        """Every metric under every voxel rule, all classes together: {"predicted/ece": ...}."""
        return {f"{rule}/{name}": values[None] for (rule, name), values in self.per_class().items()}

    def per_class(self) -> dict[tuple[VoxelRule, str], Values]:
        """The same with a value per class as well."""
        statistics = self.synced()
        curves = {rule: statistics.on(rule) for rule in self.voxels}
        return {
            (rule, name): metric.value(curves[rule]) for rule in self.voxels for name, metric in self.metrics.items()
        }

    def state_dict(self) -> dict[str, Array]:
        """What it has seen, as plain arrays."""
        return self.statistics.to_arrays()

    def load_state_dict(self, state: dict[str, Array]) -> None:
        """Go on from a `state_dict`; rules that differ are refused."""
        self.statistics = self._empty + CalibrationStatistics.from_arrays(state)


def _plain(name: str, batch: Tensor | Array) -> Tensor:
    """An array as a tensor of the same memory; a tensor without its gradient and what a subclass attaches to it."""
    if not hasattr(batch, "shape"):
        raise BadInput(f"{name} must be one tensor or array, not {described_container(batch)}")
    tensor = batch if isinstance(batch, Tensor) else as_tensor(np.ascontiguousarray(to_numpy(batch)))
    return tensor.detach().as_subclass(Tensor)


def _are_probabilities(scores: Tensor) -> bool:
    """Whether every voxel of [n k *space] holds numbers in [0, 1] that sum to 1. Logits say no at their first plane.

    NaN proves nothing, as in `score_kind`.
    """
    for part in (scores[:, :, :1], scores):
        if bool(((part < 0) | (part > 1)).any() or ((part.sum(1) - 1).abs() > TOLERANCE).any()):
            return False
    return not bool(scores.sum(1).isnan().all())
