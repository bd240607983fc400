"""The one reader of a case's target: how it is stored, what its numbers mean, which voxels count.

A target is one of: integer labels [*space]; several raters' integer labels [r *space] (the target is then the share of
the raters who did not ignore the voxel); soft labels [k *space] of floats, which sum to 1. With sigmoid, [k *space] of
any type holds each channel's own label (of a single channel [*space] will do). Voxels that hold the ignore label, or
whose soft labels are all 0 (softmax only), are ignored.

`TargetReader` reads chunk by chunk and checks values: for the statistics, the calibrators, and `labels.Target.check`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from calibseg.core.tensors import as_tensor, equals, is_float, is_integer, is_one_hot, shown
from calibseg.core.types import TOLERANCE, Activation, BadInput

TargetKind = Literal["labels", "raters", "soft"]


@dataclass(frozen=True)
class TargetReader:
    """How the target of one case [*space] is stored, and what its numbers mean.

    name: what messages begin with, such as "case 'a': ".
    """

    kind: TargetKind
    classes: int
    activation: Activation = "softmax"
    ignore_label: int | None = None
    name: str = ""

    @classmethod
    def of(
        cls, target: Any, scores: tuple[int, ...], activation: Activation, ignore_label: int | None, name: str = ""
    ) -> "TargetReader":
        """Tell what a target is by its shape and type, given the shape [k *space] of the scores."""
        (classes, *space), shape = scores, tuple(int(n) for n in target.shape)
        floating, sigmoid = is_float(target), activation == "sigmoid"
        if not floating and not is_integer(target):
            raise BadInput(f"{name}the target holds {target.dtype}; expected integer labels, or soft labels of floats")
        per_class = shape == scores or (sigmoid and classes == 1 and shape == tuple(space))
        if per_class and (floating or sigmoid):
            return cls("soft", classes, activation, ignore_label, name)
        if shape in (tuple(space), (1, *space)) and not floating and not sigmoid:
            return cls("labels", classes, activation, ignore_label, name)
        if shape[1:] == tuple(space) and not floating and not sigmoid:
            if shape == scores and is_one_hot(target):
                raise BadInput(
                    f"{name}the target {shape} of {target.dtype} is one-hot, where integers are raters' labels; give "
                    "its argmax over the classes, or floats"
                )
            return cls("raters", classes, activation, ignore_label, name)
        choices = "integer labels [*space] or [raters *space], or soft labels [k *space] of floats"
        raise BadInput(
            f"{name}the target has the shape {shape} of {target.dtype} and the scores cover {tuple(space)} with "
            f"{classes} {'channels' if sigmoid else 'classes'}; expected "
            + (f"each channel's own labels {scores}" if sigmoid else choices)
        )

    @property
    def may_ignore(self) -> bool:
        """Whether a voxel can be ignored at all: told without reading any."""
        return self.ignore_label is not None or (self.kind == "soft" and self.activation == "softmax")

    def read(self, values: Tensor, where: Callable[[int], str]) -> tuple[Tensor, Tensor | None]:
        """Labels [n] or soft labels [k n] of a chunk ([n], [r n] or [k n]), and which voxels count (None: all).

        where: the voxel at a place of the chunk, in words, for a message.
        """
        values = as_tensor(values)
        if self.kind == "soft":
            return self._soft(values, where)
        if self.kind == "labels":
            low, high = (int(value) for value in values.aminmax()) if values.numel() else (0, 0)
            inside = low >= 0 and high < self.classes
            if inside and (self.ignore_label is None or not low <= self.ignore_label <= high):
                return values.long(), None  # the usual case costs one look
        ignored = equals(values, self.ignore_label)
        outside = ~ignored & ((values < 0) | (values >= self.classes))
        if outside.any():
            raters, wrong = values.reshape(-1, values.shape[-1]), outside.reshape(-1, outside.shape[-1])
            i = int(wrong.any(0).long().argmax())
            raise self.wrong_label(int(raters[:, i][wrong[:, i]][0]), where(i))
        if self.kind == "raters":
            shares = torch.zeros(self.classes, values.shape[1], dtype=torch.float64, device=values.device)
            votes = (~ignored).double()
            shares.scatter_add_(0, values.long().masked_fill(ignored, 0), votes)
            number = votes.sum(0)
            return shares / number.clamp_min(1), number > 0
        return values.long(), ~ignored

    def _soft(self, values: Tensor, where: Callable[[int], str]) -> tuple[Tensor, Tensor]:
        values = values.reshape(self.classes, -1)
        ignored = equals(values, None if values.is_floating_point() else self.ignore_label).any(0)
        y = values.double()
        bad = ~ignored & ~((y >= 0) & (y <= 1)).all(0)
        if self.activation == "softmax":
            total = y.sum(0)
            ignored |= total == 0
            bad |= ~ignored & ~((total - 1).abs() <= TOLERANCE)
        if bad.any():
            i = int(bad.long().argmax())
            together = self.activation == "softmax" and bool(((y[:, i] >= 0) & (y[:, i] <= 1)).all())
            raise BadInput(
                f"{self.name}soft labels are {shown(y[:, i])} at {where(i)}; expected shares of 1"
                + (
                    ", or all 0 to ignore the voxel; of channels that may hold together say activation='sigmoid'"
                    * together
                )
            )
        return y, ~ignored

    def wrong_label(self, label: int, at: str) -> BadInput:
        """What is to be raised where a label is no class."""
        return BadInput(
            f"{self.name}the label {label} at {at} is none of the {self.classes} classes "
            f"0 to {self.classes - 1}; the ignore label is {self.ignore_label}"
        )
