r"""Cross-entropy: the usual objective, and the usual cause of over-confidence.

$$ L = -\frac{1}{N} \sum_i \log s_{i, y_i} $$

Paper: the baseline of all three papers.
Differs: where every voxel is ignored the value is 0; torch's is NaN.

>>> import torch
>>> round(CE()(torch.zeros(1, 4, 2, 2), torch.zeros(1, 2, 2, dtype=torch.long)).item(), 4)      # log 4
1.3863
"""

from torch import Tensor

from calibseg.core.labels import Target
from calibseg.losses import Loss, Terms
from calibseg.losses.maths.cross_entropy import weighted_cross_entropy
from calibseg.losses.maths.softmax_sums import softmax_sums


class CE(Loss):
    """Cross-entropy."""

    acronym = "CE"
    colour = "#000000"
    marker = "o"

    def objective(self, logits: Tensor, target: Target) -> Terms:
        return {"ce": weighted_cross_entropy(logits, *self.weight_and_shares(logits, target))}

    def with_dice(self, logits: Tensor, target: Target) -> Terms:
        if target.soft is not None:
            return super().with_dice(logits, target)
        weight, _ = self.weight_and_shares(logits, target)
        ce, sums = softmax_sums(logits, target, [self.overlap.sums(target)], weight)
        return {"ce": ce, "dice": self.dice_weight * self.overlap.mean_loss(sums)}
