r"""Cross-entropy against shares q of the classes, which is what most objectives start from.

$$ H(q, s) = -\sum_k q_k \log s_k, \qquad \frac{\partial H}{\partial l_k} = s_k \sum_j q_j - q_k $$

q is an integer label as uint8 one-hot, or a soft label. Averaged over the voxels that count; with integer labels and
class weights the average is weighted by the weight of the label, as in `torch.nn.functional.cross_entropy`.
Differs: where no voxel counts the value is 0, not NaN.
"""

import torch
from torch import Tensor

from calibseg.streaming import Scale, voxel_sums
from calibseg.target import Target, along_classes


def cross_entropy(logits: Tensor, target: Target, class_weight: Tensor | None = None, smoothing: float = 0.0) -> Tensor:
    """Mean cross-entropy of `logits` [n k *space], a scalar; `smoothing` spreads that share over all classes alike."""
    weight, q = weight_and_shares(target, logits.dtype, class_weight, smoothing)
    return weighted_cross_entropy(logits, weight, q)


def weighted_cross_entropy(logits: Tensor, weight: Tensor, q: Tensor) -> Tensor:
    """sum_i weight_i H(q_i, softmax(l_i)) with weight [n 1 *space] and shares q [n k *space]."""
    (total,) = voxel_sums(1, _value, _fused, logits, weight, q)
    return total


def weight_and_shares(
    target: Target, dtype: torch.dtype, class_weight: Tensor | None = None, smoothing: float = 0.0
) -> tuple[Tensor, Tensor]:
    """A target as (weight [n 1 *space], shares [n k *space]), the arguments of `weighted_cross_entropy`."""
    weight = target.voxel_weight(dtype)
    q = target.one_hot if target.soft is None else target.soft.to(dtype)
    per_class = None if class_weight is None else class_weight.to(dtype)
    if per_class is not None and target.soft is None:
        of_label = weight * per_class[target.labels.unsqueeze(1)]
        total = of_label.sum().clamp(min=torch.finfo(dtype).tiny)
        if not smoothing:
            return of_label / total, q
        weight = weight / total
    if smoothing:
        q = torch.add(smoothing / target.num_classes, q.to(dtype), alpha=1 - smoothing)
    return weight, q if per_class is None else q * along_classes(per_class, q.ndim)


def nll(logits: Tensor, weight: Tensor, q: Tensor) -> Tensor:
    """sum_i weight_i H(q_i, softmax(l_i)), plain."""
    return -((torch.log_softmax(logits, 1) * q).sum(1, keepdim=True) * weight).sum()


def nll_with_slope(
    scale: Scale, logits: Tensor, weight: Tensor, q: Tensor, softmax: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """The same with its slope times `scale`. A tensor given as `softmax` is filled with the softmax on the way.

    With d = l - max l and z = sum exp d: H = log z sum q - sum q d, and the slope is exp(d) / z sum q - q.
    """
    d = logits - logits.amax(1, keepdim=True)
    shares = q.to(logits.dtype)
    of_label = (d * shares).sum(1, keepdim=True)
    e = d.exp_()
    z = e.sum(1, keepdim=True)
    if softmax is not None:
        torch.div(e, z, out=softmax)
    total = z.log()
    scaled = weight * scale
    if q.is_floating_point():
        mass = shares.sum(1, keepdim=True)
        total.mul_(mass)
        z.div_(mass.clamp_(min=torch.finfo(z.dtype).tiny))
    total = total.sub_(of_label).mul_(weight).sum()
    return total, e.mul_(scaled / z).addcmul_(shares, scaled, value=-1)


def _value(logits: Tensor, weight: Tensor, q: Tensor) -> tuple[Tensor]:
    return (nll(logits, weight, q),)


def _fused(scales: list[Scale], logits: Tensor, weight: Tensor, q: Tensor) -> tuple[tuple[Tensor], Tensor]:
    total, slope = nll_with_slope(scales[0], logits, weight, q)
    return (total,), slope
