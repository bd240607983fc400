r"""Marginal L1 average calibration error as a loss: in every bin, mean probability and frequency shall agree.

$$ L = \mathrm{CE} + \mathrm{Dice} + \frac{\lambda}{P} \sum_{n,k \,\in\, \text{present}} \frac{1}{B_{n,k}} \sum_b
   \Big| \overline{s}_{n,k,b} - \overline{y}_{n,k,b} \Big| $$

over the B bins of equal width that hold voxels of image n, by the probability of class k; P counts the images and
classes with class k in image n. Every bin counts alike, so that the few voxels of a rare probability pull hard, and the
many that are sure hardly at all.

Paper: Barfoot et al., MICCAI 2024 (arXiv 2403.06759), hard bins; arXiv 2506.03942, soft bins.
Differs: the papers multiply all three terms by 0.33, a scale that Adam does not see; their Dice has squared
denominators. The released code sets the error of a class that is not in an image to 0 but divides by all images and
classes, so that the loss shrinks where organs are missing: released=True. Ignored voxels are in no bin. With sigmoid,
or include_background=False, class 0 has no part in the calibration term either.

>>> import torch
>>> p = torch.tensor([0.02, 0.08, 0.31, 0.33, 0.62, 0.66, 0.91, 0.97], dtype=torch.float64)
>>> y = torch.tensor([0, 0, 1, 0, 0, 1, 1, 1])
>>> loss = ML1ACE(bins=5, activation="sigmoid")
>>> round(loss.terms(torch.logit(p).view(1, 1, 8), y.view(1, 1, 8))["ace"].item(), 6)
0.1075
"""

from typing import Any, Literal

from torch import Tensor

from calibseg.core.labels import Target
from calibseg.core.options import at_least, one_of, whole_number
from calibseg.losses import Loss, Terms
from calibseg.losses.ce import CE
from calibseg.losses.maths.average_error import Bins
from calibseg.losses.maths.softmax_sums import softmax_sums


class ML1ACE(CE):
    """Marginal L1 average calibration error with cross-entropy and Dice.

    weight: >= 0, lambda.
    bins: >= 2, of equal width.
    binning: "hard", or "soft": a voxel is shared by the two bins whose centres are nearest.
    released: whether classes that are not in an image count with an error of 0.
    dice_weight: >= 0, weight of the Dice term.
    """

    acronym = "mL1-ACE"
    colour = "#a07d00"
    marker = "*"
    contract_options = (
        {},
        {"binning": "soft", "bins": 7},
        {"bins": 5, "weight": 0.3, "released": True, "dice_weight": 0.0},
        {"binning": "soft", "bins": 2, "released": True},
    )

    def __init__(
        self,
        weight: float = 1.0,
        bins: int = 20,
        binning: Literal["hard", "soft"] = "hard",
        released: bool = False,
        dice_weight: float = 1.0,
        **common: Any,
    ):
        super().__init__(dice_weight=dice_weight, **common)
        self.weight = at_least("weight", weight, 0)
        self.bins = Bins(whole_number("bins", bins, 2), one_of("binning", binning, ("hard", "soft")) == "soft")
        self.released = released

    def objective(self, logits: Tensor, target: Target) -> Terms:
        if target.soft is not None:
            ace = softmax_sums(logits, target, [self.bins])[1]
            return super().objective(logits, target) | self._calibration(ace, logits, target)
        weight, _ = self.weight_and_shares(logits, target)
        ce, ace = softmax_sums(logits, target, [self.bins], weight)
        return {"ce": ce} | self._calibration(ace, logits, target)

    def with_dice(self, logits: Tensor, target: Target) -> Terms:
        if target.soft is not None:
            return Loss.with_dice(self, logits, target)
        weight, _ = self.weight_and_shares(logits, target)
        ce, ace, overlap = softmax_sums(logits, target, [self.bins, self.overlap.sums(target)], weight)
        dice = self.dice_weight * self.overlap.mean_loss(overlap)
        return {"ce": ce, "dice": dice} | self._calibration(ace, logits, target)

    def _calibration(self, sums: Tensor, logits: Tensor, target: Target) -> Terms:
        y = target.one_hot if target.soft is None else target.soft
        present = y.flatten(2).amax(2) > 0
        errors = self.bins.mean_error(sums) * present
        if not self.overlap.include_background:
            present, errors = present[:, 1:], errors[:, 1:]
        pairs = present.numel() if self.released else present.sum().clamp(min=1)
        return {"ace": (self.weight * errors.sum() / pairs).to(logits.dtype)}
