r"""Explicit confidence penalty: cross-entropy minus the entropy of the prediction.

$$ L = \mathrm{CE} - \frac{\lambda}{N K} \sum_i H(s_i), \qquad H(s) = -\sum_k s_k \log s_k $$

Paper: Pereyra et al., ICLR workshop 2017.
Differs: the paper does not divide by K; the authors' code and this one do, so lambda_paper = weight / K. The code
clamps probabilities to 1e-10, which stops the gradient there; here the entropy comes from log-softmax and needs no
clamp.

>>> import torch
>>> terms = ECP(weight=0.1).terms(torch.zeros(1, 2, 1, 1), torch.tensor([[[0]]]))
>>> round(terms["entropy"].item(), 4)      # -0.1 * log(2) / 2
-0.0347
"""

from typing import Any

import torch
from torch import Tensor

from calibseg.core.labels import Target
from calibseg.core.options import at_least
from calibseg.losses import Loss, Terms
from calibseg.losses.maths.cross_entropy import nll
from calibseg.losses.maths.fused_sums import Scale, scaled, voxel_sums


class ECP(Loss):
    """Explicit confidence penalty.

    weight: >= 0, lambda; the papers try 0.1, 0.2, 0.3.
    """

    acronym = "ECP"
    colour = "#999933"
    marker = "v"
    contract_options = ({}, {"weight": 0.7})

    def __init__(self, weight: float = 0.1, **common: Any):
        super().__init__(**common)
        self.weight = at_least("weight", weight, 0)

    def objective(self, logits: Tensor, target: Target) -> Terms:
        weight, q = self.weight_and_shares(logits, target)
        each = target.voxel_weight(logits.dtype)
        ce, entropy = voxel_sums(2, self._value, self._fused, logits, weight, q, each)
        return {"ce": ce, "entropy": entropy}

    def _value(self, logits: Tensor, weight: Tensor, q: Tensor, each: Tensor) -> tuple[Tensor, Tensor]:
        log_s = torch.log_softmax(logits, 1)
        return nll(logits, weight, q), (log_s.exp() * log_s * each).sum() * self._factor(logits)

    def _fused(
        self, scales: list[Scale], slope: Tensor, logits: Tensor, weight: Tensor, q: Tensor, each: Tensor
    ) -> tuple[Tensor, Tensor]:
        """d(-H)/dl_k = s_k (log s_k + H), added to the cross-entropy's s_k sum q - q_k."""
        log_s = torch.sub(logits, logits.amax(1, keepdim=True), out=slope)
        s = log_s.exp()
        z = s.sum(1, keepdim=True)
        s.div_(z)
        log_s.sub_(z.log_())
        shares = q.to(logits.dtype)
        ce = (log_s * shares).sum(1, keepdim=True).mul_(weight).sum().neg()
        minus_h = (s * log_s).sum(1, keepdim=True)
        weights = scaled(weight, scales[0])
        log_s.sub_(minus_h).mul_(each * (scales[1] * self._factor(logits)))
        log_s.add_(weights * shares.sum(1, keepdim=True) if q.is_floating_point() else weights)
        log_s.mul_(s).addcmul_(shares, weights, value=-1)
        return ce, minus_h.mul_(each).sum().mul_(self._factor(logits))

    def _factor(self, logits: Tensor) -> float:
        return self.weight / logits.shape[1]
