"""What voxels are labelled with: the one reader of targets, and the one argmax.

A target is one of: integer labels [*space]; several raters' integer labels [r *space] (the target is then the share of
the raters who did not ignore the voxel); soft labels [k *space] of floats, which sum to 1. With sigmoid, [k *space] of
any type holds each channel's own label (of a single channel [*space] will do). Voxels that hold the ignore label, or
whose soft labels are all 0 (softmax only), are ignored.

`TargetReader` reads the target of a case, chunk by chunk, and checks its values: for the statistics and the
calibrators. `Target` is what a loss makes of a batch: `Target.of` checks types and shapes, `Target.check` has a
`TargetReader` check the values. `likeliest` is the argmax.

>>> import torch
>>> target = Target.read(torch.tensor([[2, -100]]), num_classes=3, ignore_index=-100)
>>> target.labels.tolist(), target.valid.tolist()
([[2, 0]], [[True, False]])
>>> target.one_hot[0, 2].tolist()
[1, 0]
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from calibseg.core.tensors import (
    as_tensor,
    described,
    described_container,
    equals,
    is_float,
    is_integer,
    is_one_hot,
    shown,
)
from calibseg.core.types import TOLERANCE, Activation, Array, BadInput

TargetKind = Literal["labels", "raters", "soft"]
_SIGMOID_FORM = (
    "compare the logits torch.stack([torch.zeros_like(l), l], 2).flatten(0, 1) with the labels "
    "target.flatten(0, 1).long(): each channel is then an image of two classes, which is a sigmoid"
)


@dataclass(frozen=True)
class TargetReader:
    """How the target of one case [*space] is stored, and what its numbers mean.

    name: what messages begin with, such as "case 'a': ".
    sigmoid_form: what to do with channels that may hold together.
    """

    kind: TargetKind
    classes: int
    activation: Activation = "softmax"
    ignore_label: int | None = None
    name: str = ""
    sigmoid_form: str = "say activation='sigmoid'"

    @classmethod
    def of(
        cls, target: Any, scores: tuple[int, ...], activation: Activation, ignore_label: int | None, name: str = ""
    ) -> "TargetReader":
        """Tell what a target is by its shape and type, given the shape [k *space] of the scores."""
        (classes, *space), shape = scores, tuple(int(n) for n in target.shape)
        floating, sigmoid = is_float(target), activation == "sigmoid"
        if not floating and not is_integer(target):
            raise BadInput(f"{name}the target holds {target.dtype}; expected integer labels, or soft labels of floats")
        own = shape == scores or (sigmoid and classes == 1 and shape == tuple(space))
        if own and (floating or sigmoid):
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
        known = "integer labels [*space] or [raters *space], or soft labels [k *space] of floats"
        raise BadInput(
            f"{name}the target has the shape {shape} of {target.dtype} and the scores cover {tuple(space)} with "
            f"{classes} {'channels' if sigmoid else 'classes'}; expected "
            + (f"each channel's own labels {scores}" if sigmoid else known)
        )

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
                + (f", or all 0 to ignore the voxel; of channels that may hold together {self.sigmoid_form}" * together)
            )
        return y, ~ignored

    def wrong_label(self, label: int, at: str) -> BadInput:
        """What is to be raised where a label is no class."""
        return BadInput(
            f"{self.name}the label {label} at {at} is none of the {self.classes} classes "
            f"0 to {self.classes - 1}; the ignore label is {self.ignore_label}"
        )


class Target:
    """Labels of a batch in one shape, whatever the caller gave. Build it with `Target.read`.

    What is derived is kept by hand, because torch.compile does not follow functools.cached_property on Python 3.11.
    """

    def __init__(self, valid: Tensor, num_classes: int, hard: Tensor | None = None, soft: Tensor | None = None):
        self.valid = valid  # bool [n *space]; of one number, expanded, where it is known that every voxel counts
        self.num_classes = num_classes
        self.hard = hard  # integer [n *space], anything where ignored
        self.soft = soft  # floating [n k *space], 0 where ignored
        self._labels: Tensor | None = None
        self._one_hot: Tensor | None = None
        self._weight: Tensor | None = None

    @staticmethod
    def of(target: Any, logits: Any, ignore_index: int, views: int = 1) -> "Target":
        """The target of logits [views * n, k, *space]. Wrong type, rank, dtype, device or shape: BadInput."""
        for name, given in (("logits", logits), ("target", target)):
            if not isinstance(given, Tensor):
                raise BadInput(f"{name} must be one tensor, not {described_container(given)}")
        if logits.ndim < 3 or not is_float(logits) or logits.shape[1] < 2 or logits.shape[0] % views:
            raise BadInput(
                f"logits must be floating {'' if views == 1 else f'{views} views of '}[n k *space] with at least 2 "
                f"classes, not {described(logits)}; give a binary problem two channels"
            )
        if not target.is_floating_point() and target.ndim == logits.ndim and target.shape[1] == 1:
            target = target.squeeze(1)
        soft = [logits.shape[0] // views, *logits.shape[1:]]
        labels = [soft[0], *soft[2:]]
        known = is_float(target) or (is_integer(target) and target.dtype != torch.bool)
        if not known or list(target.shape) != (soft if target.is_floating_point() else labels):
            raise BadInput(
                f"target must be integer labels {labels} or soft labels {soft} for logits {list(logits.shape)}"
                f"{'' if views == 1 else f' of {views} views'}, not {described(target)}"
            )
        if target.device != logits.device:
            raise BadInput(f"logits are on {logits.device} and target is on {target.device}: move one of them")
        return Target.read(target, logits.shape[1], ignore_index)

    @staticmethod
    def read(target: Tensor, num_classes: int, ignore_index: int) -> "Target":
        """Tell integer from soft labels by dtype.

        On the CPU, where it stalls nothing, the smallest and largest label are looked at: is any voxel ignored?
        """
        if target.is_floating_point():
            soft = target.detach()
            return Target(soft.amax(1) > 0, num_classes, soft=soft)
        target = as_tensor(target)
        if target.device.type == "cpu" and target.numel() and not torch.compiler.is_compiling():
            low, high = (int(label) for label in target.aminmax())
            if not low <= ignore_index <= high:
                everywhere = torch.ones((), dtype=torch.bool).expand(target.shape)
                read = Target(everywhere, num_classes, hard=target)
                if low < 0 or high >= num_classes:
                    read.check(ignore_index)
                return read
        return Target(~equals(target, ignore_index), num_classes, hard=target)

    def check(self, ignore_index: int) -> None:
        """Refuse labels that are no class, and soft labels that are not shares of 1. Slow: call it rarely."""
        kind, values = ("labels", self.hard) if self.soft is None else ("soft", self.soft.movedim(1, 0).flatten(1))
        assert values is not None
        reader = TargetReader(kind, self.num_classes, ignore_label=ignore_index, sigmoid_form=_SIGMOID_FORM)
        reader.read(
            values.flatten() if kind == "labels" else values,
            lambda i: f"({', '.join(str(int(at)) for at in np.unravel_index(i, self.valid.shape))}) of the batch",
        )

    @property
    def all_valid(self) -> bool:
        """Whether it is known that every voxel counts."""
        return not any(self.valid.stride())

    @property
    def labels(self) -> Tensor:
        """int64 labels [n *space], 0 where ignored; of a soft label the likeliest class, ties to the smallest id."""
        if self._labels is None:
            hard = likeliest(self.soft, 1) if self.soft is not None else self.hard
            assert hard is not None
            self._labels = (hard if self.all_valid else torch.where(self.valid, hard, 0)).long()
        return self._labels

    @property
    def one_hot(self) -> Tensor:
        """uint8 [n k *space]: 1 at the voxel's label, nothing where it is ignored."""
        if self._one_hot is None:
            labels = self.labels if self.hard is None else self.hard
            self._one_hot = one_hot(labels, self.num_classes)
            if not self.all_valid:
                self._one_hot.bitwise_and_(self.valid.unsqueeze(1).view(torch.uint8))
        return self._one_hot

    def as_hard(self) -> "Target":
        """The same voxels with integer labels."""
        return self if self.soft is None else Target(self.valid, self.num_classes, hard=self.labels)

    def voxel_weight(self, dtype: torch.dtype) -> Tensor:
        """[n 1 *space]: 1 / (number of voxels that count) on each of them, 0 elsewhere; all 0 if there are none.

        A single number [1 1 ...] where every voxel counts.
        """
        if self._weight is None or self._weight.dtype != dtype:
            if self.all_valid:
                self._weight = 1 / torch.full([1] * (self.valid.ndim + 1), self.valid.numel(), dtype=dtype)
            else:
                count = torch.count_nonzero(self.valid).clamp(min=1)
                self._weight = self.valid.unsqueeze(1).to(dtype).mul_(1 / count.to(dtype))
        return self._weight


def likeliest(p: Tensor, dim: int = 0) -> Tensor:
    """The class of the largest probability or soft label, ties to the smallest id; the axis of the classes goes.

    The distance from the largest number is 0 where a class is the likeliest; the bits of any other are at least 1 as an
    integer. (torch.argmax promises nothing about ties, and is a hundred times slower on [k n].)
    """
    classes = p.shape[dim]
    ids = torch.arange(classes, dtype=torch.int32, device=p.device).view(-1, *[1] * (p.ndim - dim - 1))
    behind = (p.amax(dim, keepdim=True) - p).float().view(torch.int32).clamp_max_(1).mul_(classes)
    return behind.add_(ids).amin(dim).long()


def likeliest_class(scores: Array) -> Array:
    """The class of the largest score of any kind [k *space] -> [*space], ties to the smallest id, as a small integer.

    (Faster than argmax along the first axis; numpy compares float16 numbers one by one.)
    """
    scores = scores.astype(np.float32) if scores.dtype == np.float16 else scores
    best, top = scores[0].copy(), np.zeros(scores.shape[1:], np.uint8 if len(scores) <= 256 else np.int32)
    for k in range(1, len(scores)):
        better = scores[k] > best
        top[better] = k
        np.maximum(best, scores[k], out=best)
    return top


def one_hot(labels: Tensor, num_classes: int) -> Tensor:
    """uint8 [n k *space] from integer labels [n *space] in [0, k).

    Written with xor and clamp because comparisons that yield bool are not vectorised on the CPU (eight times slower).
    """
    if num_classes > 256:
        raise BadInput(f"{num_classes} classes: at most 256 are supported")
    ids = torch.arange(num_classes, device=labels.device, dtype=torch.uint8)
    differs = labels.to(torch.uint8).unsqueeze(1) ^ along_classes(ids, labels.ndim + 1)
    return differs.clamp_(max=1).bitwise_xor_(1)


def along_classes(values: Tensor, ndim: int) -> Tensor:
    """A vector over classes [k] as [1 k 1 ...], to be broadcast against logits of `ndim` axes."""
    return values.view(1, -1, *[1] * (ndim - 2))
