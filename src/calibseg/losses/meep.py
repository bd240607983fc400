r"""Maximum entropy on erroneous predictions: be unsure where you are wrong.

$$ L = \mathrm{CE} + \frac{\lambda}{|W|} \sum_{i \in W} D(s_i), \qquad W = \{ i : \arg\max_k s_{i,k} \neq y_i \} $$
$$ D = -\frac{1}{K} \sum_k \log s_k \ \text{("kl": KL from the uniform distribution, plus } \log K), \qquad
   D = -H(s) \ \text{("entropy")} $$

Only voxels that are wrong are pulled towards the uniform distribution; W has no gradient.

Paper: Larrazabal et al., MICCAI 2023 (arXiv 2112.12218); form "kl" with cross-entropy and 0.3 is the released script.
Differs: where no voxel is wrong the term is 0; the released code divides by 0. Its "entropy" of several classes is the
mean over channels of binary entropies: form="released". Of soft labels the likeliest class counts.

>>> import torch
>>> logits = torch.log(torch.tensor([[[[0.8, 0.8]], [[0.2, 0.2]]]]))                # the second pixel is wrong
>>> terms = MEEP(weight=1.0, form="entropy").terms(logits, torch.tensor([[[0, 1]]]))
>>> round(terms["meep"].item(), 4)                                                   # 0.8 log 0.8 + 0.2 log 0.2
-0.5004
"""

from typing import Any, Literal

import torch
from torch import Tensor

from calibseg.core.labels import Target, likeliest
from calibseg.core.options import at_least, one_of
from calibseg.losses import Loss, Terms
from calibseg.losses.maths.cross_entropy import weighted_cross_entropy


class MEEP(Loss):
    """Maximum entropy on erroneous predictions.

    weight: >= 0, lambda.
    form: "kl", "entropy" or "released" (mean of binary entropies).
    """

    acronym = "MEEP"
    colour = "#332288"
    marker = "h"
    contract_options = (
        {},
        {"form": "entropy", "weight": 0.5},
        {"form": "released"},
    )

    def __init__(self, weight: float = 0.3, form: Literal["kl", "entropy", "released"] = "kl", **common: Any):
        super().__init__(**common)
        self.weight = at_least("weight", weight, 0)
        self.form = one_of("form", form, ("kl", "entropy", "released"))

    def objective(self, logits: Tensor, target: Target) -> Terms:
        ce = weighted_cross_entropy(logits, *self.weight_and_shares(logits, target))
        wrong = (likeliest(logits.detach(), 1) != target.labels) & target.valid
        distance, wrong = (
            part.unflatten(0, (-1, target.channels or 1)).transpose(0, 1).flatten(1)  # with sigmoid channel by channel
            for part in (self._distance(logits) * wrong, wrong)
        )
        return {"ce": ce, "meep": self.weight * (distance.sum(1) / wrong.sum(1).clamp(min=1)).mean()}

    def _distance(self, logits: Tensor) -> Tensor:
        """D [n *space]."""
        log_s = torch.log_softmax(logits, 1)
        if self.form == "kl":
            return -log_s.mean(1)
        minus_entropy = log_s.exp() * log_s
        if self.form == "entropy":
            return minus_entropy.sum(1)
        rest = (-torch.expm1(log_s)).clamp(min=torch.finfo(log_s.dtype).tiny)  # 1 - s, never 0
        return (minus_entropy + rest * rest.log()).mean(1)
