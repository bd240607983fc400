r"""Focal loss: attend less to the voxels that are already right.

$$ L = -\frac{1}{N} \sum_i (1 - s_{i,y_i})^\gamma \log s_{i,y_i} $$

Paper: Lin et al., ICCV 2017; as a calibration loss Mukhoti et al., NeurIPS 2020; MbLS (MedIA 2023) Eq. 5, which also
bounds it: $L \ge \mathrm{CE} - \gamma H(s)$.
Differs: no class balancing factor alpha (class_weight does that). With soft labels q each class enters with its own
$q_k (1 - s_k)^\gamma$. 1 - s is computed from the other classes' probabilities, so it keeps its digits near s = 1.

>>> import torch
>>> round(Focal(gamma=2.0)(torch.zeros(1, 2, 1, 1), torch.tensor([[[0]]])).item(), 4)      # (1 - 1/2)^2 * log 2
0.1733
"""

from typing import Any

import torch
from torch import Tensor

from calibseg.core.labels import Target
from calibseg.core.options import at_least
from calibseg.losses import Loss, Terms
from calibseg.losses.maths.fused_sums import Scale, scaled, voxel_sums


class Focal(Loss):
    """Focal loss.

    gamma: >= 0, how fast attention falls with confidence; 0 is cross-entropy; the papers try 1, 2, 3.
    """

    acronym = "FL"
    colour = "#cc79a7"
    marker = "^"
    contract_options = ({}, {"gamma": 0.0}, {"gamma": 0.5}, {"gamma": 1.0})

    def __init__(self, gamma: float = 3.0, **common: Any):
        super().__init__(**common)
        self.gamma = at_least("gamma", gamma, 0)

    def objective(self, logits: Tensor, target: Target) -> Terms:
        weight, q = self.weight_and_shares(logits, target)
        if target.soft is not None:
            return {"focal": (self._focal(torch.log_softmax(logits, 1)) * q * weight).sum()}
        (focal,) = voxel_sums(1, self._value, self._fused, logits, weight, q)
        return {"focal": focal}

    def _focal(self, log_s: Tensor) -> Tensor:
        r = (-torch.expm1(log_s)).clamp(min=torch.finfo(log_s.dtype).tiny)  # at 0 the slope of r^gamma is infinite
        return -torch.pow(r, self.gamma) * log_s

    def _value(self, logits: Tensor, weight: Tensor, q: Tensor) -> tuple[Tensor]:
        of_label = (torch.log_softmax(logits, 1) * q).sum(1, keepdim=True)
        return ((self._focal(of_label) * weight).sum(),)

    def _fused(
        self,
        scales: list[Scale],
        slope: Tensor,
        logits: Tensor,
        weight: Tensor,
        q: Tensor,
        softmax: Tensor | None = None,
    ) -> tuple[Tensor]:
        """With r = 1 - s_y: dL/dl_k = (s_k - y_k) (r^gamma - gamma r^(gamma-1) s_y log s_y)."""
        d = torch.sub(logits, logits.amax(1, keepdim=True), out=slope)
        shares = q.to(logits.dtype)
        log_s = (d * shares).sum(1, keepdim=True)
        s = d.exp_()
        z = s.sum(1, keepdim=True)
        log_s.sub_(z.log()).clamp_(max=0)
        r = torch.expm1(log_s).neg_()
        factor = torch.pow(r, self.gamma)
        focal = (factor * log_s).mul_(weight).sum().neg()
        if self.gamma:
            # log s_y vanishes as fast as r at s_y = 1, so that gamma in (0, 1) is safe once r is kept above 0
            r.clamp_(min=torch.finfo(s.dtype).tiny).pow_(self.gamma - 1).mul_(log_s.exp()).mul_(log_s)
            factor.sub_(r, alpha=self.gamma)
        s.div_(z)
        if softmax is not None:
            softmax.copy_(s)
        s.sub_(shares).mul_(factor.mul_(scaled(weight, scales[0])))
        return (focal,)
