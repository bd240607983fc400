"""Validation metrics of an epoch: overlap, likelihood and calibration, the same bits for any batches and ranks.

Everything that is kept is a count or a fixed-point sum, so ranks add up to what one process would have found.

    miou               IoU of the pooled voxels, mean over foreground classes
    dsc, dsc_CLASS     DSC of each case and class, means over the defined ones
    nll                over all voxels
    ece_VOXELS         on label foreground (the papers' rule), on predicted foreground, on all voxels
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from calibseg.core.distributed import reduce_sum
from calibseg.core.types import IGNORE_INDEX
from calibseg.metrics.dsc import DSC
from calibseg.metrics.iou import IoU
from calibseg.metrics.statistics.curve import mean_of_defined
from calibseg.metrics.statistics.monitor import CalibrationMonitor
from calibseg.metrics.statistics.overlap import OverlapStatistics

VOXELS = ("truth", "predicted", "all")


class Validation:
    """Statistics of some cases, of which batches of slices arrive in any order."""

    def __init__(self, case_ids: Sequence[str], classes: Sequence[str]):
        self.number = {id: number for number, id in enumerate(case_ids)}
        self.classes = tuple(classes)
        k = len(self.classes)
        self.counts = torch.zeros(len(self.number) * k * k, dtype=torch.int64)  # case, true class, predicted class
        self.monitor = CalibrationMonitor(k, ("ece", "nll"), VOXELS, ignore_label=IGNORE_INDEX)

    @torch.no_grad()
    def update(self, logits: Tensor, target: Tensor, case_ids: Sequence[str]) -> None:
        """Add slices: logits [n k h w], target [n h w] of labels or [n k h w] of soft labels."""
        self.monitor.update(logits, target)
        k, soft = len(self.classes), target.ndim == logits.ndim
        valid = target.sum(1) > 0 if soft else target != IGNORE_INDEX
        truth = target.argmax(1) if soft else target
        case = torch.tensor([self.number[id] for id in case_ids], device=logits.device)[:, None, None]
        cell = ((case * k + truth) * k + logits.argmax(1))[valid]
        counts = torch.bincount(cell, minlength=len(self.counts))
        self.counts = self.counts.to(counts.device) + counts

    def summary(self) -> dict[str, float]:
        """All ranks together; every rank gets the same."""
        total = self.counts.clone()
        reduce_sum(total)
        k = len(self.classes)
        tables = [OverlapStatistics(table) for table in total.cpu().numpy().reshape(-1, k, k)]
        pooled = OverlapStatistics(np.sum([table.counts for table in tables], 0))
        per_case = [DSC().value(table) for table in tables]
        calibration = self.monitor.compute()
        return {
            "miou": mean_of_defined(IoU().value(pooled).values()),
            "dsc": mean_of_defined(value for values in per_case for value in values.values()),
            **{f"dsc_{name}": mean_of_defined(dsc[k] for dsc in per_case) for k, name in enumerate(self.classes) if k},
            "nll": calibration["all/nll"],
            **{f"ece_{voxels}": calibration[f"{voxels}/ece"] for voxels in VOXELS},
        }


def hardly_learnt(row: Mapping[str, Any]) -> list[str]:
    """A sentence for each class whose DSC, in this row of the log, is below half of the other classes' mean.

    >>> hardly_learnt({"val_dsc": 0.4, "val_dsc_a": 0.7, "val_dsc_b": 0.1})
    ['b is hardly learnt: its validation DSC is 0.100, that of the others 0.700; train longer...']
    """
    prefix, sentences = "val_dsc_", []
    classes = {name.removeprefix(prefix): float(value) for name, value in row.items() if name.startswith(prefix)}
    for name, dsc in classes.items():
        others = mean_of_defined(value for other, value in classes.items() if other != name)
        if dsc < others / 2:
            sentences.append(
                f"{name} is hardly learnt: its validation DSC is {dsc:.3f}, that of the others {others:.3f};"
                " train longer, or with another seed or loss"
            )
    return sentences
