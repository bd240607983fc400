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
from calibseg.losses.maths.cross_entropy import with_penalty
from calibseg.losses.maths.fused_sums import Scale, chunks, scaled


class MEEP(Loss):
    """Maximum entropy on erroneous predictions.

    weight: >= 0, lambda.
    form: "kl", "entropy" or "released" (mean of binary entropies).
    """

    acronym = "MEEP"
    colour = "#332288"
    marker = "h"
    contract_options = ({}, {"form": "entropy", "weight": 0.5}, {"form": "released"})

    def __init__(self, weight: float = 0.3, form: Literal["kl", "entropy", "released"] = "kl", **common: Any):
        super().__init__(**common)
        self.weight = at_least("weight", weight, 0)
        self.form = one_of("form", form, ("kl", "entropy", "released"))

    def objective(self, logits: Tensor, target: Target) -> Terms:
        tensors = (*self.weight_and_shares(logits, target), self._share(logits.detach(), target))
        ce, meep = with_penalty(self._value, self._fused, logits, *tensors, softmax=True)
        return {"ce": ce, "meep": meep}

    def _share(self, logits: Tensor, target: Target) -> Tensor:
        """lambda / |W| [n 1 *space] where the network errs, 0 elsewhere; with sigmoid |W| is a channel's."""
        wrong = logits.new_empty(target.valid.shape)
        for at in chunks(logits):
            here = at[:1] + at[2:]
            wrong[here] = ((likeliest(logits[at], 1) != target.labels[here]) & target.valid[here]).to(logits.dtype)
        channels = target.channels or 1
        wrong = wrong.unflatten(0, (-1, channels))
        number = wrong.transpose(0, 1).flatten(1).sum(1).clamp(min=1)
        share = self.weight / (channels * number)
        return wrong.mul_(share.view(-1, *[1] * (logits.ndim - 2))).flatten(0, 1).unsqueeze(1)

    def _value(self, logits: Tensor, share: Tensor) -> Tensor:
        log_s = torch.log_softmax(logits, 1)
        if self.form == "kl":
            distance = -log_s
        elif self.form == "entropy":
            distance = logits.shape[1] * log_s.exp() * log_s
        else:
            rest = _rest(log_s)
            distance = log_s.exp() * log_s + rest * rest.log()
        return (distance.mean(1, keepdim=True) * share).sum()

    def _fused(self, scale: Scale, slope: Tensor, logits: Tensor, s: Tensor, share: Tensor) -> Tensor:
        """dD/dl_k: s_k - 1/K; s_k (log s_k - D); s_k (g_k - sum_j s_j g_j) with g = (log s - log(1 - s)) / K."""
        d = logits - logits.amax(1, keepdim=True)
        log_s = d.sub_(d.exp().sum(1, keepdim=True).log_())
        if self.form == "kl":
            distance = log_s.mean(1, keepdim=True).neg_()
            pull = s.sub_(1 / logits.shape[1])
        elif self.form == "entropy":
            distance = (s * log_s).sum(1, keepdim=True)
            pull = log_s.sub_(distance).mul_(s)
        else:
            rest = _rest(log_s)
            log_rest = rest.log()
            distance = torch.addcmul(s * log_s, rest, log_rest).mean(1, keepdim=True)
            g = log_s.sub_(log_rest).div_(logits.shape[1])
            pull = g.sub_((g * s).sum(1, keepdim=True)).mul_(s)
        slope.addcmul_(pull, scaled(share, scale))
        return distance.mul_(share).sum()


def _rest(log_s: Tensor) -> Tensor:
    """1 - s, never 0."""
    return (-torch.expm1(log_s)).clamp(min=torch.finfo(log_s.dtype).tiny)
