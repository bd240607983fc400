r"""Soft Dice loss on softmax probabilities, per image and class; alone, or together with cross-entropy.

$$ 1 - \frac{2\,TP + \epsilon}{2\,TP + 2\alpha\,FP + 2\beta\,FN + \epsilon}, \qquad
   FP = \sum_i ((1 - y_i) s_i)^\gamma, \quad FN = \sum_i (y_i (1 - s_i))^\gamma, \quad TP = \sum_i s_i y_i $$

with epsilon = 1e-5, averaged over images and classes. A class absent from an image therefore costs nearly 1 for any
mass put on it. alpha = beta = 1/2 and gamma = 1 is soft Dice, with the denominator sum s + sum y; the value agrees with
MONAI's DiceLoss(softmax=True, to_onehot_y=True). alpha and beta make it Tversky's index, both 1 Jaccard's; gamma = 2 is
DSC++. kind="l1" is the Dice semimetric: TP = sum min(s, y), FP = sum max(s - y, 0)^gamma, FN = sum max(y - s, 0)^gamma,
the same for hard labels; for soft ones it is 0 where s = y, where soft Dice is not.

Papers: Yeung et al., Journal of Digital Imaging 2023 (DSC++); Wang et al., MICCAI 2023 (semimetric) and NeurIPS 2023
(Jaccard); Salehi et al., MLMI 2017 (Tversky).
Differs: ignored voxels leave all sums. The authors of DSC++ take epsilon = 1e-7. Those of the semimetric sum over the
batch and average over the classes that are in it; here, as with soft Dice, over each image and all classes.

Where the sums are linear in s their gradient needs nothing but y.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from calibseg.core.labels import Target
from calibseg.losses.maths.numba import Linear
from calibseg.losses.maths.softmax_sums import Part, softmax_sums

EPSILON = 1e-5


@dataclass(frozen=True)
class Overlap:
    """What is compared: the options of the Dice term, see above."""

    include_background: bool = True
    kind: Literal["soft", "l1"] = "soft"
    gamma: float = 1.0
    alpha: float = 0.5
    beta: float = 0.5

    def sums(self, target: Target) -> Part:
        """TP, TP + FP and TP + FN [3 n k]."""
        linear = self.gamma == 1 and (self.kind == "soft" or target.soft is None)
        return LinearSums() if linear else PowerSums(self.kind, self.gamma)

    def mean_loss(self, sums: Tensor) -> Tensor:
        """From the sums [3 n k], a scalar."""
        common, predicted, true = sums
        if self.alpha == self.beta == 0.5:
            whole = predicted + true
        else:
            whole = 2 * (common + self.alpha * (predicted - common) + self.beta * (true - common))
        loss = 1 - (2 * common + EPSILON) / (whole + EPSILON)
        return (loss if self.include_background else loss[:, 1:]).mean()


def soft_dice_loss(logits: Tensor, target: Target, overlap: Overlap) -> Tensor:
    """Mean Dice loss of logits [n k *space], a scalar."""
    return overlap.mean_loss(softmax_sums(logits, target, [overlap.sums(target)])[1])


@dataclass(frozen=True)
class _OverlapSums(ABC):
    def start(self, logits: Tensor) -> Tensor:
        return logits.new_zeros((3, *logits.shape[:2]))

    def add(self, sums: Tensor, at: tuple[slice, ...], s: Tensor, y: Tensor, voters: Tensor | None) -> None:
        sums[:, at[0]] += self.plain(s, y, voters)

    def simple_slope(self, grad: Tensor) -> Linear | None:
        return None

    @abstractmethod
    def plain(self, s: Tensor, y: Tensor, voters: Tensor | None) -> Tensor:
        """The three sums [3 n k] of a chunk: probabilities s, labels y, and who counts."""


class LinearSums(_OverlapSums):
    """sum s y, sum s and sum y."""

    def plain(self, s: Tensor, y: Tensor, voters: Tensor | None) -> Tensor:
        space = tuple(range(2, s.ndim))
        return torch.stack([part.sum(space) for part in (s * y, s if voters is None else s * voters, y)])

    def slope(
        self, g: Tensor | None, grad: Tensor, at: tuple[slice, ...], s: Tensor, y: Tensor, voters: Tensor | None
    ) -> Tensor:
        a, b = (_along(part[at[0]], s) for part in self.simple_slope(grad))
        g = y * a if g is None else g.addcmul_(y, a)
        return g.add_(b) if voters is None else g.addcmul_(voters.to(g.dtype), b)

    def simple_slope(self, grad: Tensor) -> Linear:
        return Linear(grad[0], grad[1])


@dataclass(frozen=True)
class PowerSums(_OverlapSums):
    """TP, TP + FP and TP + FN with errors to the power gamma."""

    kind: Literal["soft", "l1"]
    gamma: float

    def plain(self, s: Tensor, y: Tensor, voters: Tensor | None) -> Tensor:
        s = s if voters is None else s * voters
        if self.kind == "soft":
            common, false, missed = s * y, s * (1 - y).clamp(min=0), y * (1 - s)
        else:
            common, false, missed = torch.minimum(s, y), torch.relu(s - y), torch.relu(y - s)
        space = tuple(range(2, s.ndim))
        tp, fp, fn = (part.sum(space) for part in (common, false.pow(self.gamma), missed.pow(self.gamma)))
        return torch.stack([tp, tp + fp, tp + fn])

    def slope(
        self, g: Tensor | None, grad: Tensor, at: tuple[slice, ...], s: Tensor, y: Tensor, voters: Tensor | None
    ) -> Tensor:
        """(a + b + c) dTP + b gamma FP^(gamma - 1) dFP + c gamma FN^(gamma - 1) dFN, of each voxel."""
        _, b, c = _along(grad[:, at[0]], s)
        both = _along(grad[:, at[0]].sum(0, keepdim=True), s)[0]
        if self.kind == "soft":  # TP = s y, FP = s (1 - y), FN = y (1 - s)
            d_common, d_false, d_missed = y, (1 - y).clamp_(min=0), -y
            false, missed = s * d_false, torch.addcmul(y, s, y, value=-1)
        else:  # TP = min(s, y), FP = relu(s - y), FN = relu(y - s)
            false, missed = s - y, y - s
            d_false, d_missed = (false > 0).to(s.dtype), -(missed > 0).to(s.dtype)
            d_common = (1 - d_false - d_missed) / 2  # half where s = y
            false, missed = false.clamp_(min=0), missed.clamp_(min=0)
        own = (d_common * both).addcmul_(false.pow_(self.gamma - 1).mul_(d_false), b * self.gamma)
        own.addcmul_(missed.pow_(self.gamma - 1).mul_(d_missed), c * self.gamma)
        own = own if voters is None else own.mul_(voters)
        return own if g is None else g.add_(own)


def _along(grad: Tensor, s: Tensor) -> Tensor:
    return grad.view(*grad.shape, *[1] * (s.ndim - 2))
