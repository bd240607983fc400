r"""The loss that nnU-Net minimises, with one of ours in the place of its cross-entropy at full resolution.

$$ L = w_0 (L_{\mathrm{ours}} + \mathrm{Dice})(l_0, y_0) + \sum_{d > 0} w_d (\mathrm{CE} + \mathrm{Dice})(l_d, y_d) $$

The weights w, the Dice term (batch_dice, with or without background) and what is done at lower resolutions are
nnU-Net's own: a window of three voxels means other millimetres there. Without deep supervision only the first bracket
is left. With regions CE is binary and ours is its sigmoid form.
"""

from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from calibseg.core.types import BadInput
from calibseg.losses import Loss


class Objective(nn.Module):
    """nnU-Net's loss with ours in it; in evaluation mode ours looks at the batches too.

    own: nnU-Net's loss, inside its deep supervision where there is any
    loss: ours
    ignore_label: of nnU-Net; with regions the last channel of a target says where it is
    """

    def __init__(self, own: Any, loss: Loss, ignore_label: int | None, regions: bool, dice_weight: float = 1.0):
        super().__init__()
        self.weights: tuple[float, ...] = tuple(map(float, getattr(own, "weight_factors", ())))
        self.own = own.loss if self.weights else own
        if not hasattr(self.own, "dc") or not hasattr(self.own, "weight_dice"):
            raise BadInput(
                f"the trainer's own loss is {type(self.own).__name__}, which is not cross-entropy and Dice:"
                " derive from a trainer that has nnU-Net's usual loss"
            )
        self.own.weight_dice = dice_weight
        self.loss = loss
        self.ignore_label, self.regions = ignore_label, regions
        self._terms: dict[str, Tensor] = {}
        self._batches = 0

    def forward(self, output: Any, target: Any) -> Tensor:
        """Of logits [b k *space] and a target, or of lists of them, the full resolution first."""
        if not isinstance(output, list | tuple):
            return self._full(output, target)
        total = self.weights[0] * self._full(output[0], target[0])
        for weight, logits, labels in zip(self.weights[1:], output[1:], target[1:], strict=True):
            if weight:
                total = total + weight * self.own(logits, labels)
        return total

    def _full(self, logits: Tensor, target: Tensor) -> Tensor:
        labels, mask = self._labels(target)
        valid = None if mask is None else mask[:, 0]
        kind = logits.device.type
        with torch.autocast(kind, enabled=False) if torch.is_autocast_enabled(kind) else nullcontext():
            exact = logits.float()
            terms = self.loss.terms(exact, labels, valid=valid)
            if not self.training:
                self.loss.observe(exact.detach(), labels, valid)
        self._count(terms)
        total = torch.stack(list(terms.values())).sum()
        if self.regions and mask is not None:
            total = total * logits.shape[1]  # nnU-Net's masked binary cross-entropy is a sum over regions, no mean
        if self.own.weight_dice:
            total = total + self.own.weight_dice * self.own.dc(logits, labels, loss_mask=mask)
        return total

    def _labels(self, target: Tensor) -> tuple[Tensor, Tensor | None]:
        """Labels [b 1 *space], or regions [b r *space], and [b 1 *space] where they count if some do not."""
        if self.ignore_label is None:
            return target, None
        if self.regions:
            return target[:, :-1], ~target[:, -1:].bool()
        mask = target != self.ignore_label
        return torch.where(mask, target, 0), mask

    def _count(self, terms: dict[str, Tensor]) -> None:
        if self.training:
            self._batches += 1
            for name, term in terms.items():
                self._terms[name] = self._terms.get(name, 0) + term.detach()

    def end_epoch(self) -> dict[str, float]:
        """What our loss learnt from validation, and the mean of its terms over this process's training batches."""
        log = {f"train_{name}": float(total) / self._batches for name, total in self._terms.items()}
        self._terms, self._batches = {}, 0
        return log | self.loss.end_epoch()


def make_loss(key: str, options: dict[str, Any], heads: int, regions: bool) -> Loss:
    """Our loss for a network with so many heads; nnU-Net adds its own Dice term."""
    from calibseg.core.registry import build

    activation = "sigmoid" if regions else "softmax"
    loss: Loss = build("losses", key, {**options, "dice_weight": 0.0, "activation": activation})
    return loss.setup(heads)
