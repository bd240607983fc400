r"""Margin-based label smoothing: leave logit distances alone until they exceed a margin.

$$ L = \mathrm{CE} + \frac{\lambda}{N K} \sum_{i,k} \max(0, \max_j l_{i,j} - l_{i,k} - m) $$

Paper: Liu et al., CVPR 2022; Murugesan et al., Medical Image Analysis 2023, section 4.3, Eq. 7.
Differs: the paper prints a sum over classes; the authors' code and this one average, so lambda_paper = weight / K.
Their quadratic variant squares before the hinge and so punishes distances below the margin too: that is
penalty="l2_released"; penalty="l2" squares the hinge. Where several logits share the maximum, the gradient goes to
all of them in equal parts.

>>> import torch
>>> logits = torch.tensor([[[[12.0]], [[0.0]]]])           # one pixel, two classes, distance 12
>>> loss = MbLS(margin=10.0, weight=0.1)
>>> round(loss.terms(logits, torch.tensor([[[0]]]))["margin"].item(), 4)      # 0.1 * (12 - 10) / 2
0.1
"""

from typing import Any, Literal

import torch
from torch import Tensor

from calibseg.core.labels import Target
from calibseg.core.options import at_least, one_of
from calibseg.losses import Loss, Terms
from calibseg.losses.maths import numba
from calibseg.losses.maths.cross_entropy import with_penalty
from calibseg.losses.maths.fused_sums import Scale


class MbLS(Loss):
    """Margin-based label smoothing.

    margin: >= 0, the logit distance m that is free; the papers try 3, 5, 8, 10.
    weight: >= 0, lambda.
    penalty: "l1", "l2" (squared hinge) or "l2_released" (equality to the margin, as the authors' code has it).
    """

    acronym = "MbLS"
    colour = "#009e73"
    marker = ">"
    contract_options = (
        {"margin": 2.0},
        {"margin": 1.5, "weight": 0.4, "penalty": "l2"},
        {"margin": 2.0, "weight": 0.4, "penalty": "l2_released"},
        {"margin": 0.0},
    )

    def __init__(
        self,
        margin: float = 10.0,
        weight: float = 0.1,
        penalty: Literal["l1", "l2", "l2_released"] = "l1",
        **common: Any,
    ):
        super().__init__(**common)
        self.margin = at_least("margin", margin, 0)
        self.weight = at_least("weight", weight, 0)
        self.penalty = one_of("penalty", penalty, ("l1", "l2", "l2_released"))

    def objective(self, logits: Tensor, target: Target) -> Terms:
        tensors = (*self.weight_and_shares(logits, target), target.voxel_weight(logits.dtype))
        ce, margin = with_penalty(self._value, self._fused, logits, *tensors, compiled=True)
        return {"ce": ce, "margin": margin}

    def _value(self, logits: Tensor, each: Tensor) -> Tensor:
        beyond = logits.amax(1, keepdim=True) - logits - self.margin
        if self.penalty != "l2_released":
            beyond = torch.relu(beyond)
        penalty = beyond if self.penalty == "l1" else beyond.square()
        return (penalty * each).sum() * self._factor(logits)

    def _fused(self, scale: Scale, slope: Tensor, logits: Tensor, s: None, each: Tensor) -> Tensor:
        """Each l_k moves its own distance down, and the maximum moves all K distances up."""
        rule = self.margin, self.penalty != "l1", self.penalty == "l2_released"
        factor = self._factor(logits)
        total = numba.margin(scale * factor, slope, logits, each, rule)
        if total is not None:
            return total.mul_(factor)
        distance = logits.amax(1, keepdim=True) - logits
        beyond = distance - self.margin
        if self.penalty != "l2_released":
            beyond.clamp_(min=0)
        penalty = (beyond if self.penalty == "l1" else beyond.square()).sum(1, keepdim=True)
        pull = beyond.sign_() if self.penalty == "l1" else beyond.mul_(2)
        below_top = distance.sign_()
        at_top = logits.shape[1] - below_top.sum(1, keepdim=True)
        weights = each * (scale * factor)
        share = pull.sum(1, keepdim=True).div_(at_top).mul_(weights)
        slope.addcmul_(pull, weights, value=-1).add_(share).addcmul_(below_top, share, value=-1)
        return penalty.mul_(each).sum().mul_(factor)

    def _factor(self, logits: Tensor) -> float:
        return self.weight / logits.shape[1]
