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


class FocalBrier(Focal):
    """Focal loss with the Brier score.

    gamma: >= 0, how fast the focal loss's attention falls with confidence.
    weight: >= 0, lambda, of the Brier score.
    """

    acronym = "FCL"
    colour = "#aa4499"
    marker = "<"
    contract_options = (
        {},
        {"gamma": 1.0, "weight": 0.7},
        {"gamma": 0.0},
    )

    def __init__(self, gamma: float = 3.0, weight: float = 0.1, **common: Any):
        super().__init__(gamma, **common)
        self.weight = at_least("weight", weight, 0)

    def objective(self, logits: Tensor, target: Target) -> Terms:
        y = target.one_hot if target.soft is None else target.soft
        error = (torch.softmax(logits, 1) - y.to(logits.dtype)).square().mean(1, keepdim=True)
        brier = (error * target.voxel_weight(logits.dtype)).sum()
        return super().objective(logits, target) | {"brier": self.weight * brier}
