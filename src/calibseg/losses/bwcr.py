r"""Boundary-weighted logit consistency: two augmented views of an image must agree, most of all near boundaries.

$$ L = \mathrm{CE} + \frac{\lambda}{n K |\Omega|} \sum_{i,k} w_i \, v^a_i v^b_i \, (l^a_{i,k} - l^b_{i,k})^2, \qquad
   w_i = w_{\max} \frac{\max(R - d_i, 0)}{R} + w_{\min} $$

d is the distance in voxels to the nearest voxel that touches another class, v is 1 where a view saw the voxel.
Cross-entropy is the mean over both views. The trainer runs the network on two augmented copies, maps the logits back
to the original grid and gives both: logits [2n k *space] (view a, then view b), target [n *space], valid [2n *space],
the voxels that each view saw.

Paper: Karani, Dey and Golland, MICCAI 2023.
Differs: the authors floor the distance, measure it per foreground class and take the largest, so that a rim voxel
outside an object has distance 1 and not 0; they divide the cross-entropy by K and invert their augmentation only
approximately. How CRaC's comparison set it up is not published.
"""

from typing import Any

import torch
from torch import Tensor

from calibseg.core.labels import Target
from calibseg.core.options import at_least, whole_number
from calibseg.core.tensors import described
from calibseg.core.types import BadInput
from calibseg.losses import Loss, Terms
from calibseg.losses.maths.cross_entropy import weighted_cross_entropy
from calibseg.losses.maths.fused_sums import Scale, voxel_sums
from calibseg.losses.maths.neighbourhood import distance_to_boundary
from calibseg.losses.maths.soft_dice import soft_dice_loss


class BWCR(Loss):
    """Boundary-weighted logit consistency.

    weight: >= 0, lambda.
    min_weight: >= 0, the weight far from any boundary.
    max_weight: >= 0, what is added to it on a boundary.
    radius_px: >= 1, voxels from the boundary at which the added weight has fallen to 0.
    """

    acronym = "BWCR"
    colour = "#882255"
    marker = "X"
    views = 2
    contract_options = ({}, {"weight": 0.3, "min_weight": 0.2, "max_weight": 0.7, "radius_px": 2})

    def __init__(
        self, weight: float = 1.0, min_weight: float = 0.01, max_weight: float = 1.0, radius_px: int = 10, **common: Any
    ):
        super().__init__(**common)
        self.weight = at_least("weight", weight, 0)
        self.min_weight = at_least("min_weight", min_weight, 0)
        self.max_weight = at_least("max_weight", max_weight, 0)
        self.radius_px = whole_number("radius_px", radius_px, 1)

    def terms(self, logits: Tensor, target: Tensor, image: Tensor | None = None, valid: Tensor | None = None) -> Terms:
        logits, read = self.read(logits, target)
        n = read.valid.shape[0]
        per_view = [2 * n // (read.channels or 1), *read.valid.shape[1:]]
        seen = torch.ones(per_view, dtype=torch.bool, device=logits.device) if valid is None else valid
        if not isinstance(seen, Tensor) or seen.dtype != torch.bool or list(seen.shape) != per_view:
            raise BadInput(f"valid must be bool {per_view} like the logits of both views, not {described(seen)}")
        seen = seen if read.channels is None else seen.repeat_interleave(read.channels, 0)
        both = _repeated(read, seen)
        terms = {
            "ce": weighted_cross_entropy(logits, *self.weight_and_shares(logits, both)),
            "consistency": self._consistency(logits, read, seen),
        }
        if self.dice_weight:
            terms["dice"] = self.dice_weight * soft_dice_loss(logits, both, self.overlap)
        return terms

    def _consistency(self, logits: Tensor, target: Target, seen: Tensor) -> Tensor:
        a, b = logits.unflatten(0, (2, -1)).unbind()
        near = 1 - distance_to_boundary(target.as_hard(), self.radius_px).to(a.dtype) / self.radius_px
        w = (self.max_weight * near + self.min_weight) * (seen.unflatten(0, (2, -1)).all(0) & target.valid)
        (total,) = voxel_sums(1, _squares, _squares_with_slope, a - b, w.unsqueeze(1) * (self.weight / a.numel()))
        return total


def _squares(gap: Tensor, weight: Tensor) -> tuple[Tensor]:
    """sum_{i,k} weight_i gap_{i,k}^2."""
    return ((gap.square() * weight).sum(),)


def _squares_with_slope(scales: list[Scale], slope: Tensor, gap: Tensor, weight: Tensor) -> tuple[Tensor]:
    torch.mul(gap, weight, out=slope)
    total = (slope * gap).sum()
    slope.mul_(2 * scales[0])
    return (total,)


def _repeated(target: Target, seen: Tensor) -> Target:
    """The target of both views: a voxel that a view did not see counts for nobody there."""
    twice = [2, *[1] * (target.valid.ndim - 1)]
    valid = target.valid.repeat(*twice) & seen
    if target.soft is None:
        return Target(valid, target.num_classes, hard=target.labels.repeat(*twice))
    return Target(valid, target.num_classes, soft=target.soft.repeat(*twice, 1) * valid.unsqueeze(1))
