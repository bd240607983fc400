r"""Lagrange multipliers lambda and penalty weights rho, one pair per class and region, learnt on validation data.

After each epoch, with P' averaged over the validation voxels of a region,

$$ \lambda_{k,r} \leftarrow \overline{P'(h_{k,r}, \rho_{k,r}, \lambda_{k,r})}, \qquad
   \rho_{k,r} \leftarrow \gamma \rho_{k,r} \ \text{ every few updates, where } \ \bar h_{k,r} > \mu \, \bar h'_{k,r}, $$

$\bar h'$ being the mean constraint of the epoch before.

Paper: CRaC (MICCAI 2024), Eq. 8 and 9. Differs: Eq. 9 compares a quantity with itself; the released code, like this
one, compares with the epoch before. average="all" divides by all voxels, as released: voxels outside the region count
as h = 0, for which P' = lambda, so that a small region's multiplier grows slowly. average="region" divides by the
region's own voxels.

update_steps > 0: an update moves lambda only by min(1, steps / update_steps), steps being those trained since the last
update, and rho is looked at every rho_every * update_steps steps: multipliers follow the training, however it is cut
into epochs.

With sigmoid every channel is a problem of two classes with multipliers of its own: k below is then (channel, 2).

Sums are fixed-point integers: the update does not depend on batch order, batch size or the number of DDP ranks.
"""

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from calibseg.core.distributed import reduce_sum
from calibseg.core.fixed_point import joined, split_sum
from calibseg.core.labels import Target
from calibseg.core.options import at_least, one_of, whole_number
from calibseg.core.types import BadInput

REGIONS = ("inner", "outer")


@dataclass(frozen=True)
class Rule:
    """How lambda and rho are updated; the options of CRaC say what each number means."""

    lambda_init: float
    lambda_max: float
    rho: float
    rho_max: float
    gamma: float
    mu: float
    rho_every: int
    average: Literal["all", "region"]
    update_steps: int = 0  # 0: every update is whole

    def __post_init__(self) -> None:
        at_least("lambda_init", self.lambda_init, 0, above=True)
        at_least("lambda_max", self.lambda_max, self.lambda_init)
        at_least("rho", self.rho, 0, above=True)
        at_least("rho_max", self.rho_max, self.rho)
        at_least("gamma", self.gamma, 1)
        at_least("mu", self.mu, 0)
        whole_number("rho_every", self.rho_every, 1)
        one_of("average", self.average, ("all", "region"))


class Multipliers(nn.Module):
    """lambda and rho [k, regions] (inner, outer), the sums of the running validation epoch, and the update rule."""

    lambdas: Tensor
    rhos: Tensor
    previous: Tensor  # mean constraint of the epoch before, NaN at first
    epoch: Tensor  # updates so far
    steps: Tensor  # calls with gradients since the last update
    done: Tensor  # steps accounted for so far (update_steps = 0: updates)
    slopes: Tensor  # int64 [2, k, 2]: running sum of P'(h) per class and region, in the form of fixed_point.split_sum
    constraints: Tensor  # int64 [2, k, 2]: running sum of h
    voxels: Tensor  # int64 [2] (with sigmoid [channel, 2]): voxels seen per region

    def __init__(self, classes: tuple[int, ...], rule: Rule, regions: int = len(REGIONS)):
        super().__init__()
        self.rule = rule
        shape = (*classes, regions)
        self.register_buffer("lambdas", torch.full(shape, float(rule.lambda_init)))
        self.register_buffer("rhos", torch.full(shape, float(rule.rho)))
        self.register_buffer("previous", torch.full(shape, torch.nan, dtype=torch.float64))
        self.register_buffer("epoch", torch.zeros((), dtype=torch.int64))
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))
        self.register_buffer("done", torch.zeros((), dtype=torch.int64))
        self.register_buffer("slopes", torch.zeros((2, *shape), dtype=torch.int64))
        self.register_buffer("constraints", torch.zeros((2, *shape), dtype=torch.int64))
        self.register_buffer("voxels", torch.zeros((*classes[:-1], regions), dtype=torch.int64))

    def observe(self, h: Tensor, slope: Tensor, regions: tuple[Tensor, ...]) -> None:
        """Add a batch: h of Eq. 9 and slope P'(h), both [n k *space]; regions (inner, outer) bool [n 1 *space]."""
        if not bool(h.isfinite().all()):
            raise BadInput("validation logits hold NaN or infinite values: no multiplier can be learnt from them")
        channels = self.voxels.shape[:-1]
        slope = slope.clamp(self.rule.lambda_init, self.rule.lambda_max)
        h, slope, *inner_outer = (part.unflatten(0, (-1, *channels)) for part in (h, slope, *regions))
        everywhere = (0, *range(2 + len(channels), h.ndim))
        for r, region in enumerate(inner_outer):
            self.slopes[..., r] += split_sum(slope * region, everywhere)
            self.constraints[..., r] += split_sum(h * region, everywhere)
            self.voxels[..., r] += region.sum(everywhere).squeeze(-1)

    def update(self) -> None:
        """Set lambda, then rho, from what was observed on all ranks; then start a new epoch."""
        reduce_sum(self.slopes, self.constraints, self.voxels)
        if not int(self.voxels.sum()):  # on all ranks together: one rank may have nothing to observe
            raise BadInput("multipliers are learnt on validation data: call observe() before end_epoch()")
        voxels = self.voxels.double().unsqueeze(-2)
        divisor = voxels.sum(-1, keepdim=True) if self.rule.average == "all" else voxels
        outside = (divisor - voxels) * self.lambdas  # voxels of the other region have h = 0 and P'(0) = lambda
        seen = (voxels > 0).expand_as(self.lambdas)
        lambdas = ((joined(self.slopes) + outside) / divisor).clamp(self.rule.lambda_init, self.rule.lambda_max)
        mean_h = joined(self.constraints) / divisor
        grows = seen & (mean_h > self.rule.mu * self.previous.clamp(min=0))  # False while `previous` is NaN
        whole = self.rule.update_steps or 1
        part = min(int(self.steps), whole) if self.rule.update_steps else 1  # the share part / whole of an update
        between_looks = self.rule.rho_every * whole
        if (int(self.done) + part) // between_looks > int(self.done) // between_looks:
            rhos = (self.rhos * self.rule.gamma).clamp(self.rule.rho, self.rule.rho_max)
            self.rhos.copy_(torch.where(grows, rhos, self.rhos))
        moved = lambdas if part == whole else self.lambdas + (lambdas - self.lambdas) * (part / whole)
        self.lambdas.copy_(torch.where(seen, moved, self.lambdas))
        self.previous.copy_(torch.where(seen, mean_h, self.previous))
        self.epoch += 1
        self.done += part
        for total in (self.slopes, self.constraints, self.voxels, self.steps):
            total.zero_()


def of_classes(table: Tensor, logits: Tensor) -> list[Tensor]:
    """A table [k, regions] or [channel, 2, regions] by region, each [? k 1 ...], to be broadcast against logits."""
    parts = table.to(logits.dtype, copy=True).view(-1, logits.shape[1], table.shape[-1]).unbind(-1)
    times = len(logits) // len(parts[0]) if len(parts[0]) > 1 else 1
    return [part.repeat(times, 1)[(..., *[None] * (logits.ndim - 2))] for part in parts]


class LostClasses(nn.Module):
    """Which classes a network ceases to predict while their multipliers grow: DSC on validation, epoch by epoch."""

    overlaps: Tensor  # int64 [3, k]: voxels predicted, true, and both
    best: Tensor  # DSC

    def __init__(self, classes: tuple[int, ...]):
        super().__init__()
        number = math.prod(classes)
        self.register_buffer("overlaps", torch.zeros((3, number), dtype=torch.int64))
        self.register_buffer("best", torch.zeros(number, dtype=torch.float64))

    def observe(self, logits: Tensor, target: Target) -> None:
        """Add a batch."""
        (images, k), classes = logits.shape[:2], self.overlaps.shape[1]
        first = torch.arange(images, device=logits.device).remainder_(classes // k).mul_(k)  # id of a channel's class 0
        first = first.view(-1, *[1] * (target.valid.ndim - 1))
        labels, predicted = ((first + part)[target.valid] for part in (target.labels, logits.argmax(1)))
        counted = (predicted, labels, labels[labels == predicted])
        self.overlaps += torch.stack([torch.bincount(one, minlength=classes) for one in counted])

    def end_epoch(self, grew: Tensor) -> dict[int, float]:
        """DSC of the classes that fell below a tenth of their best while their multipliers grew."""
        reduce_sum(self.overlaps)
        predicted, true, both = self.overlaps.double()
        dsc = (2 * both / (predicted + true)).nan_to_num(0)
        lost = grew & (true > 0) & (self.best > 0.1) & (dsc < 0.1 * self.best)
        self.best.copy_(torch.maximum(self.best, dsc))
        self.overlaps.zero_()
        return {int(k): float(dsc[k]) for k in lost.nonzero().flatten()}
