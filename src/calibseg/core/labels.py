"""What a batch of voxels is labelled with: integer labels or soft labels, and which voxels count.

Integer labels have shape [n *space]; a voxel equal to `ignore_index` counts for nobody. Soft labels have shape
[n k *space] and sum to 1; a voxel whose k values are all 0 counts for nobody.

>>> import torch
>>> target = Target.read(torch.tensor([[2, -100]]), num_classes=3, ignore_index=-100)
>>> target.labels.tolist(), target.valid.tolist()
([[2, 0]], [[True, False]])
>>> target.one_hot[0, 2].tolist()
[1, 0]
"""

import torch
from torch import Tensor

from calibseg.core.types import BadInput


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
    def read(target: Tensor, num_classes: int, ignore_index: int) -> "Target":
        """Tell integer from soft labels by dtype. On the CPU, where it stalls nothing, see whether any is ignored."""
        if target.is_floating_point():
            soft = target.detach()
            return Target(soft.amax(1) > 0, num_classes, soft=soft)
        if target.device.type == "cpu" and target.numel() and not torch.compiler.is_compiling():
            low, high = target.aminmax()
            if not int(low) <= ignore_index <= int(high):
                return Target(torch.ones((), dtype=torch.bool).expand(target.shape), num_classes, hard=target)
        return Target(target != ignore_index, num_classes, hard=target)

    @property
    def all_valid(self) -> bool:
        """Whether it is known that every voxel counts."""
        return not any(self.valid.stride())

    @property
    def labels(self) -> Tensor:
        """int64 labels [n *space], 0 where ignored; of a soft label the likeliest class, ties to the smallest id."""
        if self._labels is None:
            hard = self._likeliest() if self.hard is None else self.hard
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

    def _likeliest(self) -> Tensor:
        assert self.soft is not None
        ids = along_classes(torch.arange(self.num_classes, device=self.soft.device), self.soft.ndim)
        at_top = self.soft == self.soft.amax(1, keepdim=True)
        return torch.where(at_top, ids, self.num_classes).amin(1)


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
