"""What the voxels of a batch are labelled with, as the losses see it; and the one argmax.

`Target` is what a loss makes of a batch: `Target.of` checks types and shapes, `Target.check` has the `TargetReader`
(target_reader.py) check the values. `likeliest` is the argmax.

>>> import torch
>>> target = Target.read(torch.tensor([[2, -100]]), num_classes=3, ignore_index=-100)
>>> target.labels.tolist(), target.valid.tolist()
([[2, 0]], [[True, False]])
>>> target.one_hot[0, 2].tolist()
[1, 0]
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from calibseg.core.scores import batch_voxel_name
from calibseg.core.target_reader import TargetReader
from calibseg.core.tensors import as_tensor, described, described_container, equals, is_float, is_integer
from calibseg.core.types import Activation, Array, BadInput


class Target:
    """Labels of a batch in one shape, whatever the caller gave. Build it with `Target.of` or `Target.read`.

    With sigmoid, each channel of each image is an image of two classes: [n r *space] becomes [n*r *space].
    What is derived is kept by hand, because torch.compile does not follow functools.cached_property on Python 3.11.
    """

    def __init__(
        self,
        valid: Tensor,
        num_classes: int,
        hard: Tensor | None = None,
        soft: Tensor | None = None,
        channels: int | None = None,
    ):
        self.valid = valid  # bool [n *space]; of one number, expanded, where it is known that every voxel counts
        self.num_classes = num_classes
        self.hard = hard  # integer [n *space], anything where ignored
        self.soft = soft  # floating [n k *space], 0 where ignored
        self.channels = channels  # of sigmoid
        self._labels: Tensor | None = None
        self._one_hot: Tensor | None = None
        self._weight: Tensor | None = None

    @staticmethod
    def of(
        target: Any,
        logits: Any,
        ignore_index: int,
        views: int = 1,
        activation: Activation = "softmax",
        valid: Tensor | None = None,
    ) -> "Target":
        """The target of logits [views * n, k, *space]. Wrong type, rank, dtype, device or shape: BadInput.

        valid: bool [n *space] or [n 1 *space], the voxels that count; None: all that hold no ignore_index.
        """
        for name, value in (("logits", logits), ("target", target)):
            if not isinstance(value, Tensor):
                raise BadInput(f"{name} must be one tensor, not {described_container(value)}")
        sigmoid = activation == "sigmoid"
        if logits.ndim < 3 or not is_float(logits) or logits.shape[1] < (1 if sigmoid else 2) or len(logits) % views:
            raise BadInput(
                f"logits must be floating {'' if views == 1 else f'{views} views of '}[n k *space] with at least "
                + ("1 channel" if sigmoid else "2 classes")
                + f", not {described(logits)}"
                + ("" if sigmoid else "; give a binary problem two channels, or say activation='sigmoid'")
            )
        soft = [logits.shape[0] // views, *logits.shape[1:]]
        labels = [soft[0], *soft[2:]]
        if not sigmoid:
            target = _without_channel(target, soft)
        expected = soft if sigmoid or target.is_floating_point() else labels
        valid_dtype = is_float(target) or (is_integer(target) and (sigmoid or target.dtype != torch.bool))
        if not valid_dtype or list(target.shape) != expected:
            choices = (
                f"each channel's own labels {soft}" if sigmoid else f"integer labels {labels} or soft labels {soft}"
            )
            raise BadInput(
                f"target must be {choices} for logits {list(logits.shape)}"
                f"{'' if views == 1 else f' of {views} views'}, not {described(target)}"
            )
        if valid is not None:
            valid = valid.squeeze(1) if valid.ndim == len(soft) and valid.shape[1] == 1 else valid
            if valid.dtype != torch.bool or list(valid.shape) != labels:
                raise BadInput(f"valid must be bool {labels}, the voxels that count, not {described(valid)}")
            valid = valid.contiguous()  # expanded ones of ours say that all voxels count
        for name, value in (("target", target), ("valid", valid)):
            if value is not None and value.device != logits.device:
                raise BadInput(f"logits are on {logits.device} and {name} is on {value.device}: move one of them")
        read = Target.of_channels if sigmoid else Target.read
        return read(target, logits.shape[1], ignore_index, valid)

    @staticmethod
    def read(target: Tensor, num_classes: int, ignore_index: int, valid: Tensor | None = None) -> "Target":
        """Tell integer from soft labels by dtype.

        On the CPU, where it stalls nothing, the smallest and largest label are looked at: is any voxel ignored?
        """
        target = _masked(target, valid)
        if target.is_floating_point():
            return Target(target.amax(1) > 0, num_classes, soft=target)
        limits = _range(target)
        if limits is None or limits[0] <= ignore_index <= limits[1]:
            read = Target(_both(~equals(target, ignore_index), valid), num_classes, hard=target)
            limits = limits and _range(read.labels)  # without the ignored ones, between which wrong ones may hide
        else:
            read = Target(_everywhere(target) if valid is None else valid, num_classes, hard=target)
        if limits is not None and (limits[0] < 0 or limits[1] >= num_classes):
            read.check(ignore_index)
        return read

    @staticmethod
    def of_channels(target: Tensor, channels: int, ignore_index: int, valid: Tensor | None = None) -> "Target":
        """Each channel [n r *space] as an image of the two classes 0 and 1; ignored in one, a voxel is in all."""
        target = _masked(target.view(torch.uint8) if target.dtype == torch.bool else target, valid)
        limits = _range(target)
        if limits is None or limits[0] <= ignore_index <= limits[1]:
            valid = _both(~equals(target, ignore_index).any(1), valid)
            target = _masked(target, valid)
            limits = limits and _range(target)
        inside = target.flatten(0, 1)
        counted = _everywhere(inside) if valid is None else valid.repeat_interleave(channels, 0)
        if target.is_floating_point():
            soft = torch.stack([1 - inside, inside], 1)
            read = Target(
                counted, 2, soft=soft if valid is None else soft.mul_(counted.unsqueeze(1)), channels=channels
            )
        else:
            read = Target(counted, 2, hard=inside, channels=channels)
        if limits is not None and not (limits[0] >= 0 and limits[1] <= 1):
            read.check(ignore_index)
        return read

    def check(self, ignore_index: int) -> None:
        """Refuse labels that are no class, and soft labels that are not shares of 1. Slow: call it rarely."""
        if self.channels is not None:
            ones = self.labels if self.soft is None else self.soft[:, 1]
            values = ones.unflatten(0, (-1, self.channels)).movedim(1, 0).flatten(1)
            reader = TargetReader("soft", self.channels, "sigmoid", ignore_label=None)
        elif self.soft is not None:
            values = self.soft.movedim(1, 0).flatten(1)
            reader = TargetReader("soft", self.num_classes, ignore_label=ignore_index)
        else:
            values = self.labels.flatten()
            reader = TargetReader("labels", self.num_classes, ignore_label=ignore_index)
        shape = (len(self.valid) // (self.channels or 1), *self.valid.shape[1:])
        reader.read(values, lambda i: batch_voxel_name(tuple(int(at) for at in np.unravel_index(i, shape))))

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


def _without_channel(target: Tensor, soft: list[int]) -> Tensor:
    """Labels [n 1 *space], of whole floats too, as integers [n *space]; one-hot integers [n k *space] as floats."""
    if list(target.shape) == soft and is_integer(target):
        return target.float()
    if target.ndim != len(soft) or target.shape[1] != 1:
        return target
    labels = target.squeeze(1)
    if not is_float(labels):
        return labels
    integers = labels.long()
    can_check = not torch.compiler.is_compiling() and labels.device.type != "meta"
    if can_check and not torch.equal(integers.to(labels.dtype), labels):
        wrong = labels[integers.to(labels.dtype) != labels][0].item()
        raise BadInput(f"labels of floats {list(target.shape)} must be whole numbers, not {wrong:.6g}")
    return integers


def _range(target: Tensor) -> tuple[float, float] | None:
    """The smallest and largest label; None where looking would stall a device, or there are none."""
    if target.device.type != "cpu" or not target.numel() or torch.compiler.is_compiling():
        return None
    low, high = target.aminmax()
    return low.item(), high.item()


def _masked(target: Tensor, valid: Tensor | None) -> Tensor:
    """The target [n *space] or [n k *space], 0 where `valid` [n *space] is not."""
    plain = as_tensor(target)
    if valid is None:
        return plain
    return plain.masked_fill(~(valid if plain.ndim == valid.ndim else valid.unsqueeze(1)), 0)


def _both(first: Tensor, second: Tensor | None) -> Tensor:
    return first if second is None else first & second


def _everywhere(target: Tensor) -> Tensor:
    """bool of one number, expanded: every voxel counts."""
    return torch.ones((), dtype=torch.bool, device=target.device).expand(target.shape)


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
