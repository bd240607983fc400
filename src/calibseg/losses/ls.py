r"""Label smoothing: take a little from the true class and give it to all classes alike.

$$ L = -\frac{1}{N} \sum_i \sum_k \Big( (1 - a) y_{i,k} + \frac{a}{K} \Big) \log s_{i,k} $$

which is exactly $(1 - a)\,\mathrm{CE} + a\,(\mathrm{KL}(u \| s) + \log K)$ with u the uniform distribution.

Paper: Szegedy et al., CVPR 2016; MbLS (MedIA 2023) Eq. 3 and 4.
Differs: nothing; agrees with torch's label_smoothing, class weights included.

>>> import torch
>>> round(LS(smoothing=0.5)(torch.tensor([[[[2.0]], [[0.0]]]]), torch.tensor([[[0]]])).item(), 4)  # 0.1269 + 0.25 * 2
0.6269
"""

from typing import Any

from torch import Tensor

from calibseg.core.labels import Target
from calibseg.core.types import BadInput
from calibseg.losses import Loss, Terms
from calibseg.losses.maths.cross_entropy import weighted_cross_entropy


class LS(Loss):
    """Label smoothing.

    smoothing: 0 to 1, the share a that is spread over all classes; the papers try 0.1, 0.2, 0.3.
    """

    acronym = "LS"
    colour = "#e69f00"
    marker = "D"
    contract_options = ({}, {"smoothing": 0.0}, {"smoothing": 1.0})

    def __init__(self, smoothing: float = 0.1, **common: Any):
        super().__init__(**common)
        if not 0 <= smoothing <= 1:
            raise BadInput(f"smoothing must be from 0 to 1, not {smoothing!r}")
        self.smoothing = smoothing

    def objective(self, logits: Tensor, target: Target) -> Terms:
        weight, q = self.weight_and_shares(logits, target, self.smoothing)
        return {"ls": weighted_cross_entropy(logits, weight, q)}
