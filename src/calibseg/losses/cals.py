r"""Class-adaptive label smoothing: a learnt weight per class on the distance of its logit from the largest.

$$ L = \mathrm{CE} + \frac{1}{N K} \sum_{i,k} P(h_{i,k}, \rho_k, \lambda_k), \qquad
   h_{i,k} = \frac{\max_j l_{i,j} - l_{i,k} - m}{m} $$

P is an augmented-Lagrangian penalty (`maths/penalties.py`); `observe` and `end_epoch` update lambda and rho on
validation data (`maths/multipliers.py`). h is signed: where distances are below the margin multipliers fall again.

Paper: Liu et al., CVPR 2023 (CALS-ALM), with the numbers of the released configuration.
Differs: nothing but the sums, which are exact. The authors' README runs m = 10, their configuration m = 20. They clip
gradients at a norm of 2 in segmentation (`train.clip_norm`).

>>> import torch
>>> loss = CALS(margin=2.0, lambda_init=0.1).setup(2)
>>> terms = loss.terms(torch.tensor([[[[4.0]], [[0.0]]]]), torch.tensor([[[0]]]))   # h = -1 (PHR: -0.005) and 1 (0.6)
>>> round(terms["penalty"].item(), 4)
0.2975
"""

from typing import Any, Literal

import torch
from torch import Tensor

from calibseg.core.labels import Target
from calibseg.core.options import at_least, one_of
from calibseg.core.types import BadInput
from calibseg.losses import Loss, Terms
from calibseg.losses.maths.cross_entropy import with_penalty
from calibseg.losses.maths.fused_sums import Scale
from calibseg.losses.maths.multipliers import Multipliers, Rule, of_classes
from calibseg.losses.maths.penalties import PENALTIES, value_and_slope

LAMBDA_MAX, RHO_MAX = 1e6, 10.0


class CALS(Loss):
    """Class-adaptive label smoothing.

    margin: > 0, the logit distance m that is free.
    penalty: "phr", "p2" or "p3".
    lambda_init: > 0 and at most 1e6, first and smallest lambda.
    rho: > 0 and at most 10, first and smallest rho.
    gamma: >= 1, factor by which rho grows.
    mu: >= 0, rho grows where the mean h is above mu times that of the epoch before.
    rho_every: >= 1, epochs between looks at rho.
    """

    acronym = "CALS"
    colour = "#661100"
    marker = "H"
    contract_options = ({"margin": 2.0}, {"margin": 1.5, "penalty": "p2"}, {"margin": 3.0, "penalty": "p3"})

    def __init__(
        self,
        margin: float = 10.0,
        penalty: Literal["phr", "p2", "p3"] = "phr",
        lambda_init: float = 1e-6,
        rho: float = 1.0,
        gamma: float = 1.2,
        mu: float = 0.9,
        rho_every: int = 10,
        **common: Any,
    ):
        super().__init__(**common)
        self.margin = at_least("margin", margin, 0, above=True)
        self.penalty = one_of("penalty", penalty, tuple(PENALTIES))
        for name, value, most in (("lambda_init", lambda_init, LAMBDA_MAX), ("rho", rho, RHO_MAX)):
            if at_least(name, value, 0, above=True) > most:
                raise BadInput(f"{name} must be at most {most:g}, not {value!r}")
        self._rule = Rule(lambda_init, LAMBDA_MAX, rho, RHO_MAX, gamma, mu, rho_every, average="all")
        self.multipliers: Multipliers | None = None
        self.register_buffer("place", torch.zeros(0), persistent=False)  # knows the device before `setup`

    def setup(self, num_classes: int) -> "CALS":
        device = next(iter(self.buffers())).device
        classes = (num_classes, 2) if self.activation == "sigmoid" else (num_classes,)
        self.multipliers = Multipliers(classes, self._rule, regions=1).to(device)
        super().setup(num_classes)
        return self

    def objective(self, logits: Tensor, target: Target) -> Terms:
        constants = (target.voxel_weight(logits.dtype), *self._rho_and_lambda(logits))
        ce, penalty = with_penalty(
            self._value, self._fused, logits, *self.weight_and_shares(logits, target), *constants
        )
        return {"ce": ce, "penalty": penalty}

    def _value(self, logits: Tensor, each: Tensor, rho: Tensor, lam: Tensor) -> Tensor:
        penalty = PENALTIES[self.penalty][0](self._h(logits), rho, lam)
        return (penalty.mean(1, keepdim=True) * each).sum()

    def _fused(self, scale: Scale, slope: Tensor, logits: Tensor, s: None, *constants: Tensor) -> Tensor:
        """Each l_k moves its own distance down, and the maximum, in equal parts where several share it, all up."""
        each, rho, lam = constants
        distance = logits.amax(1, keepdim=True) - logits
        h = (distance - self.margin).div_(self.margin)
        penalty, pull = value_and_slope(self.penalty, h, rho.clone(), lam.clone())
        value = penalty.sum(1, keepdim=True).mul_(each).sum().div_(logits.shape[1])
        pull.mul_(each * (scale / (self.margin * logits.shape[1])))
        below_top = distance.sign_()
        at_top = logits.shape[1] - below_top.sum(1, keepdim=True)
        share = pull.sum(1, keepdim=True).div_(at_top)
        slope.sub_(pull).add_(share).addcmul_(below_top, share, value=-1)
        return value

    @torch.no_grad()
    def observe(self, logits: Tensor, target: Tensor, valid: Tensor | None = None) -> None:
        """Look at a validation batch: the distances of every class."""
        logits, read = self.read(logits, target, valid)
        h = self._h(logits)
        slope = PENALTIES[self.penalty][1](h, *self._rho_and_lambda(logits))
        self._ready().observe(h, slope, (read.valid.unsqueeze(1),))

    @torch.no_grad()
    def end_epoch(self) -> dict[str, float]:
        """Update lambda, then rho; return both for the log."""
        multipliers = self._ready()
        multipliers.update()
        tables = (("lambda", multipliers.lambdas), ("rho", multipliers.rhos))
        return {f"{name}_{k}": value for name, table in tables for k, value in enumerate(table.flatten().tolist())}

    def _h(self, logits: Tensor) -> Tensor:
        return (logits.amax(1, keepdim=True) - logits - self.margin) / self.margin

    def _rho_and_lambda(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        multipliers = self._ready()
        return of_classes(multipliers.rhos, logits)[0], of_classes(multipliers.lambdas, logits)[0]

    def _ready(self) -> Multipliers:
        if self.multipliers is None:
            raise BadInput("cals has multipliers per class: call loss.setup(num_classes) before using it")
        return self.multipliers
