r"""Class- and region-adaptive constraints: NACL's constraint with a learnt weight per class and region.

$$ L = \mathrm{CE} + \frac{1}{2 K N} \sum_i \sum_k P(h_{i,k}, \rho_{k,r(i)}, \lambda_{k,r(i)}), \qquad
   h_{i,k} = | c_{r(i)} \tau_{i,k} - l_{i,k} | - \epsilon $$

r(i) is inner where the window around i holds one class and outer elsewhere; P is an augmented-Lagrangian penalty
(PHR, P2 or P3); `observe` and `end_epoch` update lambda and rho on validation data.

Paper: Murugesan et al., MICCAI 2024, Eq. 7 to 10.
Differs: the defaults are the released code's, which made the published numbers; the paper's text is inner_scale=1,
average="region", scale="k". (1) The code takes |.|, the paper prints it signed. With the absolute residual h >= 0, so
lambda can only grow and drives logits to c tau: interior confidence sinks towards e^c / (e^c + K - 1); `end_epoch` logs
it and warns when it falls below the validation accuracy there. residual="signed" asks only l >= tau, which does not
restrain confidence: for the record (rho looks at |c tau - l| even then, Eq. 9). tolerance > 0 (ours) makes h negative
where logits are near enough, so that multipliers can fall again; 1 had a smaller NLL than 0 on hippocampi
(docs/results/hippocampus.md). (2) inner_scale = 5 is absent from the paper. (3) The code's region test works only
through rounding and misses straight edges between classes three ids apart; here a window is outer if its smallest and
largest class differ. (4) The code averages multipliers over all voxels (average="all") and divides the penalty by 2K,
not K (scale).
(5) Ours, schedule="steps": text and code update once an epoch, however few steps that is; with 83 steps an epoch (ACDC
in batches of 16) lambda had grown to 1 before the myocardium was learnt, and it never was. Here an update moves lambda
by the share of `update_steps` that was trained since the last one; from 800 steps an epoch on it is the released rule.
"""

import math
import warnings
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from calibseg.core.distributed import reduce_sum
from calibseg.core.fixed_point import SCALE, fixed_sum
from calibseg.core.labels import Target
from calibseg.core.options import at_least, one_of, whole_number
from calibseg.core.types import BadInput
from calibseg.losses import Loss, Terms
from calibseg.losses.maths import numba
from calibseg.losses.maths.cross_entropy import with_penalty
from calibseg.losses.maths.fused_sums import Scale
from calibseg.losses.maths.multipliers import REGIONS, LostClasses, Multipliers, Rule, of_classes
from calibseg.losses.maths.neighbourhood import Border, KernelSize, check_kernel_size, class_counts, inner_region
from calibseg.losses.maths.penalties import PENALTIES, phr_of_distance, value_and_slope


class CRaC(Loss):
    """Class- and region-adaptive constraints.

    kernel_size: odd, an int or one per spatial axis such as (1, 3, 3).
    penalty: "phr", "p2" or "p3".
    residual: "absolute" (as released) or "signed" (as printed).
    tolerance: >= 0, distance between logit and target that is free.
    inner_scale: > 0, the target inside is inner_scale * tau.
    outer_scale: > 0, the target at boundaries is outer_scale * tau.
    average: multipliers average over "all" voxels or over their "region".
    scale: divide the penalty by "2k" (as released) or "k".
    lambda_init: > 0, first and smallest lambda.
    lambda_max: largest lambda.
    rho: > 0, first and smallest rho.
    rho_max: largest rho.
    gamma: >= 1, factor by which rho grows.
    mu: >= 0, rho grows where the constraint is still above mu times the epoch before.
    rho_every: >= 1, whole updates between looks at rho (schedule "released": epochs).
    schedule: "steps": an epoch of fewer than update_steps moves lambda by its share; "released": every epoch is whole.
    update_steps: >= 1, training steps (calls with gradients, in train mode) of a whole update.
    border: who votes outside the image: "replicate" or "background" (the authors' zero padding).
    """

    acronym = "CRaC"
    colour = "#d55e00"
    marker = "o"
    contract_options = (
        {},
        {"tolerance": 0.8, "scale": "k", "border": "background"},
        {"residual": "signed", "inner_scale": 1.5, "kernel_size": 1},
        {"penalty": "p2", "tolerance": 0.5, "outer_scale": 2.0},
        {"penalty": "p3", "residual": "signed", "tolerance": 0.2},
    )

    def __init__(
        self,
        kernel_size: KernelSize = 3,
        penalty: Literal["phr", "p2", "p3"] = "phr",
        residual: Literal["absolute", "signed"] = "absolute",
        tolerance: float = 0.0,
        inner_scale: float = 5.0,
        outer_scale: float = 1.0,
        average: Literal["all", "region"] = "all",
        scale: Literal["2k", "k"] = "2k",
        lambda_init: float = 1e-6,
        lambda_max: float = 1e6,
        rho: float = 0.1,
        rho_max: float = 10.0,
        gamma: float = 1.2,
        mu: float = 0.9,
        rho_every: int = 10,
        schedule: Literal["steps", "released"] = "steps",
        update_steps: int = 800,
        border: Border = "replicate",
        **common: Any,
    ):
        super().__init__(**common)
        self.kernel_size = check_kernel_size(kernel_size)
        self.penalty = one_of("penalty", penalty, tuple(PENALTIES))
        self.residual = one_of("residual", residual, ("absolute", "signed"))
        self.tolerance = at_least("tolerance", tolerance, 0)
        self.inner_scale = at_least("inner_scale", inner_scale, 0, above=True)
        self.outer_scale = at_least("outer_scale", outer_scale, 0, above=True)
        self.scale = one_of("scale", scale, ("2k", "k"))
        self.border: Border = one_of("border", border, ("replicate", "background"))
        released = one_of("schedule", schedule, ("steps", "released")) == "released"
        steps = 0 if released else whole_number("update_steps", update_steps, 1)  # 0: every update is whole
        self._rule = Rule(lambda_init, lambda_max, rho, rho_max, gamma, mu, rho_every, average, steps)
        self.classes: tuple[int, ...] = ()  # of the multipliers: (k,), or with sigmoid (channels, 2)
        self.multipliers: Multipliers | None = None
        self._warned = False
        self.register_buffer("interior", torch.zeros(3, dtype=torch.int64))  # voxels, confidence, hits inside
        self.interior: Tensor

    @property
    def lambdas(self) -> Tensor:
        """lambda [k, 2]: inner, outer; with sigmoid [channel, 2, 2], outside and inside of every channel."""
        return self._ready().lambdas

    @property
    def rhos(self) -> Tensor:
        """rho, likewise."""
        return self._ready().rhos

    def setup(self, num_classes: int) -> "CRaC":
        self.classes = (num_classes, 2) if self.activation == "sigmoid" else (num_classes,)
        self.multipliers = Multipliers(self.classes, self._rule).to(self.interior.device)
        self.lost = LostClasses(self.classes).to(self.interior.device)
        super().setup(num_classes)
        return self

    def objective(self, logits: Tensor, target: Target) -> Terms:
        if torch.is_grad_enabled() and self.training:
            self._ready().steps += 1
        tensors = (*self.weight_and_shares(logits, target), target.voxel_weight(logits.dtype))
        constants = (*self._constraint(logits, target), *self._tables(logits))
        ce, penalty = with_penalty(self._value, self._fused, logits, *tensors, *constants, compiled=self._of_distance())
        return {"ce": ce, "penalty": penalty}

    @torch.no_grad()
    def observe(self, logits: Tensor, target: Tensor, valid: Tensor | None = None) -> None:
        """Look at a validation batch: constraints per class and region, and how sure the network is inside."""
        multipliers = self._ready()
        logits, read = self.read(logits, target, valid)
        shares, scale, inner = self._constraint(logits, read)
        residual = shares.to(logits.dtype) * scale - logits
        lam, rho = _at(inner, *self._tables(logits))
        inside = inner.bool()
        counted = read.valid.unsqueeze(1)
        slope = PENALTIES[self.penalty][1](self._h(residual), rho, lam)
        distance = residual.abs() - self.tolerance  # what Eq. 9 looks at, of a signed residual too
        multipliers.observe(distance, slope, (inside & counted, ~inside & counted))
        chosen = (inside & counted).squeeze(1)
        self.lost.observe(logits, read)
        confidence = torch.softmax(logits, 1).amax(1)
        hit = logits.gather(1, read.labels.unsqueeze(1)).squeeze(1) == logits.amax(1)
        self.interior += torch.stack([chosen.sum(), fixed_sum(confidence * chosen), (hit & chosen).sum()])

    @torch.no_grad()
    def end_epoch(self) -> dict[str, float]:
        """Update lambda, then rho; return both with the interior confidence and accuracy, for the log."""
        before = self.lambdas.clone()
        self._ready().update()
        names = ["_".join(map(str, place)) for place in np.ndindex(self.classes)]
        for k, dsc in self.lost.end_epoch((self.lambdas > before).any(-1).flatten()).items():
            warnings.warn(
                f"crac: class {names[k]} is being lost: its validation DSC fell to {dsc:.3f} while its multipliers "
                "grew; try a larger update_steps or a smaller rho",
                stacklevel=3,
            )
        reduce_sum(self.interior)
        voxels, confidence, hits = self.interior.tolist()
        self.interior.zero_()
        log = {
            f"{name}_{region}_{k}": value
            for name, table in (("lambda", self.lambdas), ("rho", self.rhos))
            for k, row in zip(names, table.flatten(0, -2).tolist(), strict=True)
            for region, value in zip(REGIONS, row, strict=True)
        }
        confidence, accuracy = (confidence / SCALE / voxels, hits / voxels) if voxels else (math.nan, math.nan)
        log |= {"interior_confidence": confidence, "interior_accuracy": accuracy}
        if confidence < accuracy and not self._warned:
            self._warned = True  # once: the log has the numbers of every epoch
            warnings.warn(
                f"crac: inside organs and background the mean confidence {confidence:.3f} is below the accuracy "
                f"{accuracy:.3f}: the constraint makes the network under-confident; "
                "try a larger inner_scale or a tolerance > 0",
                stacklevel=3,  # the caller of end_epoch, beyond no_grad's wrapper
            )
        return log

    def _constraint(self, logits: Tensor, target: Target) -> tuple[Tensor, Tensor, Tensor]:
        """tau as shares * scale (the region's scale included), and 1.0 inside, 0.0 at boundaries."""
        window = class_counts(target, self.kernel_size, self.border)
        hard = window if target.soft is None else class_counts(target.as_hard(), self.kernel_size, self.border)
        inner = inner_region(hard).to(logits.dtype)
        of_region = self.outer_scale + inner * (self.inner_scale - self.outer_scale)
        return window.counts, of_region / window.total.to(logits.dtype).clamp(min=1), inner

    def _tables(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """lambda and rho [? 2k 1 ...] at boundaries, and what is added to them inside."""
        tables = (of_classes(table, logits) for table in (self.lambdas, self.rhos))
        inner, outer = (torch.cat(parts, 1) for parts in zip(*tables, strict=True))
        return outer, inner - outer

    def _h(self, residual: Tensor) -> Tensor:
        return (residual.abs() if self.residual == "absolute" else residual) - self.tolerance

    def _value(self, logits: Tensor, *constants: Tensor) -> Tensor:
        each, shares, of_shares, inner, *tables = constants
        h = self._h(shares.to(logits.dtype) * of_shares - logits)
        lam, rho = _at(inner, *tables)
        penalty = PENALTIES[self.penalty][0](h, rho, lam)
        return (penalty * each).sum() * self._factor(logits)

    def _fused(self, scale: Scale, slope: Tensor, logits: Tensor, s: None, *constants: Tensor) -> Tensor:
        each, shares, of_shares, inner, *tables = constants
        if self._of_distance():
            factor = self._factor(logits)
            total = numba.to_prior(scale * factor, slope, logits, each, (shares, of_shares), (*tables, inner))
            if total is not None:
                return total.mul_(factor)
        x = shares.to(logits.dtype, copy=True)
        torch.addcmul(logits, x, of_shares, value=-1, out=x)  # l - c tau
        lam, rho = _at(inner, *tables)
        if self.residual == "signed":
            penalty, pull = value_and_slope(self.penalty, (-x).sub_(self.tolerance), rho, lam)
            pull.neg_()
        elif self._of_distance():
            penalty, pull = phr_of_distance(x, rho, lam)
        else:
            penalty, pull = value_and_slope(self.penalty, x.abs().sub_(self.tolerance), rho, lam)
            pull.mul_(x.sign_())
        penalty = penalty.sum(1, keepdim=True).mul_(each).sum().mul_(self._factor(logits))
        slope.addcmul_(pull, each * (scale * self._factor(logits)))
        return penalty

    def _of_distance(self) -> bool:
        """Whether the penalty is PHR(|x|), which has one branch only."""
        return (self.penalty, self.residual, self.tolerance) == ("phr", "absolute", 0)

    def _factor(self, logits: Tensor) -> float:
        return 1 / (logits.shape[1] * (2 if self.scale == "2k" else 1))

    def _ready(self) -> Multipliers:
        if self.multipliers is None:
            raise BadInput("crac has multipliers per class: call loss.setup(num_classes) before using it")
        return self.multipliers


def _at(inner: Tensor, outer: Tensor, more_inside: Tensor) -> tuple[Tensor, Tensor]:
    """Each voxel's own lambda and rho [n k *space]."""
    lam, rho = (inner * more_inside).add_(outer).chunk(2, 1)
    return lam, rho
