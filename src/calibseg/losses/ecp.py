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

from calibseg.cross_entropy import nll
from calibseg.losses import Loss, Terms, at_least
from calibseg.streaming import Scale, voxel_sums
from calibseg.target import Target


class ECP(Loss):
    """Explicit confidence penalty.

    weight: >= 0, lambda; the papers try 0.1, 0.2, 0.3.
    """

    def __init__(self, weight: float = 0.1, **common: Any):
        super().__init__(**common)
        self.weight = at_least("weight", weight, 0)

    def objective(self, logits: Tensor, target: Target) -> Terms:
        weight, q = self.weight_and_shares(logits, target)
        penalty_weight = target.voxel_weight(logits.dtype, self.weight / target.num_classes)
        ce, entropy = voxel_sums(2, _value, _fused, logits, weight, q, penalty_weight)
        return {"ce": ce, "entropy": entropy}


def _value(logits: Tensor, weight: Tensor, q: Tensor, penalty_weight: Tensor) -> tuple[Tensor, Tensor]:
    log_s = torch.log_softmax(logits, 1)
    return nll(logits, weight, q), (log_s.exp() * log_s * penalty_weight).sum()


def _fused(
    scales: list[Scale], logits: Tensor, weight: Tensor, q: Tensor, penalty_weight: Tensor
) -> tuple[tuple[Tensor, Tensor], Tensor]:
    """d(-H)/dl_k = s_k (log s_k + H), added to the cross-entropy's s_k sum q - q_k."""
    log_s = logits - logits.amax(1, keepdim=True)
    s = log_s.exp()
    z = s.sum(1, keepdim=True)
    s.div_(z)
    log_s.sub_(z.log_())
    shares = q.to(logits.dtype)
    ce = (log_s * shares).sum(1, keepdim=True).mul_(weight).sum().neg()
    minus_h = (s * log_s).sum(1, keepdim=True)
    slope = log_s.sub_(minus_h).mul_(penalty_weight * scales[1])
    slope.add_(weight * scales[0] * (shares.sum(1, keepdim=True) if q.is_floating_point() else 1)).mul_(s)
    return (ce, minus_h.mul_(penalty_weight).sum()), slope.addcmul_(shares, weight * scales[0], value=-1)
