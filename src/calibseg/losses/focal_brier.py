r"""Focal calibration loss: focal loss plus the Brier score.

$$ L = \mathrm{FL}_\gamma + \frac{\lambda}{N K} \sum_{i,k} (s_{i,k} - y_{i,k})^2 $$

Focal loss alone is not proper: its minimum is not at the true probability. The Brier score is, and draws towards it.

Paper: Liang et al., arXiv 2410.18321 (FCL), for classification.
Differs: averaged over classes, as a released segmentation version has it; a paper's lambda for the sum is weight / K.

>>> import torch
>>> terms = FocalBrier(weight=0.1).terms(torch.zeros(1, 2, 1, 1), torch.tensor([[[0]]]))
>>> round(terms["brier"].item(), 4)      # 0.1 * (0.25 + 0.25) / 2
0.025
"""

from typing import Any

import torch
from torch import Tensor

from calibseg.core.labels import Target
from calibseg.core.options import at_least
from calibseg.losses import Terms
from calibseg.losses.focal import Focal
from calibseg.losses.maths.fused_sums import Scale, voxel_sums


class FocalBrier(Focal):
    """Focal loss with the Brier score.

    gamma: >= 0, how fast the focal loss's attention falls with confidence.
    weight: >= 0, lambda, of the Brier score.
    """

    acronym = "FCL"
    colour = "#aa4499"
    marker = "<"
    contract_options = ({}, {"gamma": 1.0, "weight": 0.7}, {"gamma": 0.0})

    def __init__(self, gamma: float = 3.0, weight: float = 0.1, **common: Any):
        super().__init__(gamma, **common)
        self.weight = at_least("weight", weight, 0)

    def objective(self, logits: Tensor, target: Target) -> Terms:
        each = target.voxel_weight(logits.dtype)
        if target.soft is not None:
            return super().objective(logits, target) | {
                "brier": self._brier(logits, target.soft.to(logits.dtype), each)
            }
        weight, q = self.weight_and_shares(logits, target)
        focal, brier = voxel_sums(2, self._values, self._both, logits, weight, q, each, target.one_hot)
        return {"focal": focal, "brier": brier}

    def _brier(self, logits: Tensor, y: Tensor, each: Tensor) -> Tensor:
        error = torch.softmax(logits, 1) - y
        return self.weight * (error.square().mean(1, keepdim=True) * each).sum()

    def _values(self, logits: Tensor, *constants: Tensor) -> tuple[Tensor, Tensor]:
        weight, q, each, y = constants
        return *self._value(logits, weight, q), self._brier(logits, y.to(logits.dtype), each)

    def _both(self, scales: list[Scale], slope: Tensor, logits: Tensor, *constants: Tensor) -> tuple[Tensor, Tensor]:
        """With e = s - y: dB/dl_k = 2 s_k (e_k - sum_j s_j e_j)."""
        weight, q, each, y = constants
        s = torch.empty_like(logits)
        (focal,) = self._fused(scales[:1], slope, logits, weight, q, softmax=s)
        factor = self.weight / logits.shape[1]
        error = s - y
        brier = error.square().sum(1, keepdim=True).mul_(each).sum().mul_(factor)
        error.sub_((error * s).sum(1, keepdim=True)).mul_(s)
        slope.addcmul_(error, each * (scales[1] * (2 * factor)))
        return focal, brier
