r"""Neighbour-aware calibration: pull the logits towards the class proportions around each voxel.

$$ L = \mathrm{CE} + \frac{\lambda}{N K} \sum_{i,k} | \tau_{i,k} - l_{i,k} | $$

Paper: Murugesan et al., MICCAI 2023 (Trust your neighbours), Eq. 7.
Differs: the paper prints a sum over classes; the authors' code, MONAI and this one average, so lambda_paper = weight
/ K. Borders: the authors zero-pad the labels (border="background"), MONAI zero-pads the one-hot labels so that tau
sums to less than 1 at the border; here the edge is repeated. The penalty's minimum is at l = tau, so its confidence
ceiling is e / (e + K - 1) with prior_scale = 1 (0.475 for K = 4); cross-entropy pulls above it. prior_scale is ours.

>>> import torch
>>> logits = torch.tensor([[[[3.0]], [[0.0]]]])            # one pixel: tau = (1, 0)
>>> round(NACL(weight=0.1).terms(logits, torch.tensor([[[0]]]))["penalty"].item(), 4)      # 0.1 * (|1 - 3| + 0) / 2
0.1
"""

from typing import Any, Literal

import torch
from torch import Tensor

from calibseg.core.labels import Target, along_classes
from calibseg.core.options import at_least, one_of
from calibseg.core.registry import build
from calibseg.losses import Loss, Terms
from calibseg.losses.maths import numba
from calibseg.losses.maths.cross_entropy import with_penalty
from calibseg.losses.maths.fused_sums import Scale
from calibseg.losses.maths.neighbourhood import Border, KernelSize
from calibseg.losses.priors import Prior


class NACL(Loss):
    """Neighbour-aware calibration loss.

    weight: >= 0, lambda.
    prior: any name in priors/: "mean", "gaussian", "plain_gaussian", "max", "min", "median", "mode".
    kernel_size: odd, an int or one per spatial axis such as (1, 3, 3).
    penalty: "l1" or "l2".
    space: compare tau with "logits" or with "softmax" probabilities.
    prior_scale: > 0, the target is prior_scale * tau.
    border: who votes outside the image: "replicate" or "background" (the authors' zero padding).
    """

    acronym = "NACL"
    colour = "#0072b2"
    marker = "s"
    contract_options = (
        {},
        {"penalty": "l2", "border": "background", "prior_scale": 2.0},
        {"space": "softmax", "weight": 0.4, "prior": "gaussian"},
        {"space": "softmax", "penalty": "l2", "prior": "plain_gaussian"},
        {"prior": "median", "kernel_size": 1},
    )

    def __init__(
        self,
        weight: float = 0.1,
        prior: str = "mean",
        kernel_size: KernelSize = 3,
        penalty: Literal["l1", "l2"] = "l1",
        space: Literal["logits", "softmax"] = "logits",
        prior_scale: float = 1.0,
        border: Border = "replicate",
        **common: Any,
    ):
        super().__init__(**common)
        self.weight = at_least("weight", weight, 0)
        self.penalty = one_of("penalty", penalty, ("l1", "l2"))
        self.space = one_of("space", space, ("logits", "softmax"))
        self.prior_scale = at_least("prior_scale", prior_scale, 0, above=True)
        border = one_of("border", border, ("replicate", "background"))
        self.prior: Prior = build("priors", prior, {"kernel_size": kernel_size, "border": border})

    def objective(self, logits: Tensor, target: Target) -> Terms:
        tau = self.prior.tau(target, logits.dtype)
        constants = (target.voxel_weight(logits.dtype), tau.shares, tau.scale * self.prior_scale)
        tensors = (*self.weight_and_shares(logits, target), *constants)
        softmax = self.space == "softmax"
        ce, penalty = with_penalty(self._value, self._fused, logits, *tensors, softmax=softmax, compiled=not softmax)
        return {"ce": ce, "penalty": penalty}

    def _value(self, logits: Tensor, each: Tensor, shares: Tensor, of_shares: Tensor) -> Tensor:
        compared = logits if self.space == "logits" else torch.softmax(logits, 1)
        h = compared - shares.to(logits.dtype) * of_shares
        penalty = h.abs() if self.penalty == "l1" else h.square()
        return (penalty * each).sum() * self._factor(logits)

    def _fused(self, scale: Scale, slope: Tensor, logits: Tensor, s: Tensor | None, *constants: Tensor) -> Tensor:
        each, shares, of_shares = constants
        if s is None:
            lam_and_rho = torch.tensor([1.0, 0.0] if self.penalty == "l1" else [0.0, 2.0], dtype=logits.dtype)
            rule = along_classes(lam_and_rho.repeat_interleave(logits.shape[1]), logits.ndim)
            factor = self._factor(logits)
            total = numba.to_prior(scale * factor, slope, logits, each, (shares, of_shares), (rule,))
            if total is not None:
                return total.mul_(factor)
        h = shares.to(logits.dtype, copy=True)
        torch.addcmul(logits if s is None else s, h, of_shares, value=-1, out=h)
        penalty = (h.abs() if self.penalty == "l1" else h.square()).sum(1, keepdim=True)
        pull = h.sign_() if self.penalty == "l1" else h.mul_(2)
        if s is not None:
            pull.sub_((pull * s).sum(1, keepdim=True)).mul_(s)  # through the softmax
        slope.addcmul_(pull, each * (scale * self._factor(logits)))
        return penalty.mul_(each).sum().mul_(self._factor(logits))

    def _factor(self, logits: Tensor) -> float:
        return self.weight / logits.shape[1]
