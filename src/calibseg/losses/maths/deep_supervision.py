r"""Deep supervision: a loss at every resolution that a network answers in.

$$ L = \sum_l w_l \, \mathrm{loss}(\text{head}_l, \text{labels at the size of head}_l) $$

Heads are a list, full resolution first, or stacked [n heads k *space] as MONAI's DynUNet gives them in training; one
tensor [n k *space], as in evaluation, is the loss itself. Labels are those of the nearest voxel, of two equally near
ones the later. Weights are MONAI's,
which do not sum to 1: "exp" 1, 1/2, 1/4, 1/8, then 1/16; "two" 1, then 1/2; "same" 1.
Differs: from MONAI's DeepSupervisionLoss, in which our losses work too, integer labels and lists of targets are taken,
what a loss learns on validation is learnt at full resolution, and a step counts once, however many heads there are;
torch's nearest-exact, which it uses, takes the earlier of two equally near voxels where float32 rounds so (26 to 11).

>>> import torch
>>> from calibseg.losses import CE
>>> heads = [torch.zeros(1, 2, 8, 8), torch.zeros(1, 2, 4, 4)]
>>> round(DeepSupervision(CE())(heads, torch.ones(1, 8, 8, dtype=torch.int64)).item(), 4)      # 1.5 log 2
1.0397
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from calibseg.core.options import one_of
from calibseg.core.types import BadInput

NAMED = ("exp", "two", "same")


class DeepSupervision(nn.Module):
    """A loss at several resolutions.

    loss: any loss of the package.
    weights: "exp", "two" or "same" as in MONAI, or one weight per head.
    lower: the loss of all heads but the first; None: the same one.
    """

    def __init__(self, loss: Any, weights: str | Sequence[float] = "exp", lower: Any = None):
        super().__init__()
        for given in (loss, *([] if lower is None else [lower])):
            if not hasattr(given, "terms"):
                raise BadInput(f"deep supervision takes a loss of calibseg, such as CE(), not {given!r}")
        self.loss, self.lower = loss, lower
        self.weights = one_of("weights", weights, NAMED) if isinstance(weights, str) else _numbers(weights)
        self.views: int = loss.views

    def forward(self, logits: Any, target: Any, image: Tensor | None = None, valid: Tensor | None = None) -> Tensor:
        """The objective, a scalar."""
        return torch.stack(list(self.terms(logits, target, image, valid).values())).sum()

    def terms(
        self, logits: Any, target: Any, image: Tensor | None = None, valid: Tensor | None = None
    ) -> dict[str, Tensor]:
        """The objective in named parts: each the weighted sum of those of the heads."""
        heads, targets = self._levels(logits, target)
        total: dict[str, Tensor] = {}
        for level, (weight, head, labels) in enumerate(zip(self._weights(len(heads)), heads, targets, strict=True)):
            space = head.shape[2:]
            seen = None if valid is None else _nearest(valid, space)
            loss, training = (self.lower or self.loss) if level else self.loss, self.loss.training
            self.loss.train(training and level == 0)  # a step is counted once
            try:
                terms = loss.terms(head, _nearest(labels, space), image, valid=seen)
            finally:
                self.loss.train(training)
            for name, term in terms.items():
                total[name] = total[name] + weight * term if name in total else weight * term
        return total

    def setup(self, num_classes: int) -> "DeepSupervision":
        for loss in {self.loss, self.lower} - {None}:
            loss.setup(num_classes)
        return self

    def check(self, logits: Any, target: Any, valid: Tensor | None = None) -> None:
        """Check the values of the first head and its target."""
        self.loss.check(*self._first(logits, target), valid)

    def observe(self, logits: Any, target: Any, valid: Tensor | None = None) -> None:
        """Look at the first head of a validation batch."""
        self.loss.observe(*self._first(logits, target), valid)

    def end_epoch(self) -> dict[str, float]:
        return self.loss.end_epoch()

    def _first(self, logits: Any, target: Any) -> tuple[Tensor, Tensor]:
        heads, targets = self._levels(logits, target)
        return heads[0], targets[0]

    def _levels(self, logits: Any, target: Any) -> tuple[list[Tensor], list[Tensor]]:
        """Every head, and its target, at any size."""
        labels = target[0] if isinstance(target, list | tuple) and len(target) else target
        if isinstance(logits, list | tuple):
            heads = [*logits]
        elif isinstance(logits, Tensor) and isinstance(labels, Tensor) and self._stacked(logits, labels):
            heads = [*logits.unbind(1)]
        else:
            heads = [logits]
        targets = [*target] if isinstance(target, list | tuple) else [target] * len(heads)
        if not heads or len(targets) != len(heads):
            raise BadInput(f"{len(heads)} heads and {len(targets)} targets: give one target, or one for each head")
        for name, parts in (("head", heads), ("target", targets)):
            if wrong := [part for part in parts if not isinstance(part, Tensor)]:
                raise BadInput(f"every {name} must be a tensor, not {type(wrong[0]).__name__}")
        axes = heads[0].ndim - 2
        sizes, of_targets = ([tuple(part.shape[-axes:]) for part in parts] for parts in (heads, targets))
        for level, (size, of_target) in enumerate(zip(sizes, of_targets, strict=True)):
            if any(here > first for here, first in zip(size, sizes[0], strict=False)):
                raise BadInput(
                    f"head {level} of size {size} is larger than head 0 of {sizes[0]}: full resolution first"
                )
            if of_target not in (size, of_targets[0]):
                raise BadInput(f"target {level} has the size {of_target}, not {size} as its head, nor that of target 0")
        return heads, targets

    def _stacked(self, logits: Tensor, target: Tensor) -> bool:
        """Whether logits are [n heads k *space], by the target's axes: [n *space], or [n ? *space] of floats, ..."""
        more = logits.ndim - target.ndim
        if target.is_floating_point() or self.loss.activation == "sigmoid":
            return more == 1
        return more == 2 or (more == 1 and target.shape[1] == 1 and logits.shape[2:] != target.shape[1:])

    def _weights(self, heads: int) -> list[float]:
        if not isinstance(self.weights, str):
            if len(self.weights) != heads:
                raise BadInput(f"{len(self.weights)} weights for {heads} heads")
            return self.weights
        lower = {"same": 1.0, "two": 0.5}
        return [1.0] + [lower.get(self.weights, max(0.5**level, 0.0625)) for level in range(1, heads)]


def _numbers(weights: Any) -> list[float]:
    try:
        numbers = [float(weight) for weight in weights]
    except (TypeError, ValueError):
        numbers = []
    if not numbers or not all(0 <= number < math.inf for number in numbers):
        names = ", ".join(map(repr, NAMED))
        raise BadInput(f"weights must be {names} or a number of 0 or more for each head, not {weights!r}")
    return numbers


def _nearest(values: Tensor, space: Sequence[int]) -> Tensor:
    """Values [n *space] or [n ? *space] at another size: those of the voxel nearest to each new voxel's centre."""
    first = values.ndim - len(space)
    for axis, size in enumerate(space, start=first):
        if values.shape[axis] != size:
            at = (torch.arange(size, device=values.device, dtype=torch.float64) + 0.5) * values.shape[axis] / size
            values = values.index_select(axis, at.long())
    return values
