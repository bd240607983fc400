r"""Cross-entropy against shares q of the classes, which is what most objectives start from.

$$ H(q, s) = -\sum_k q_k \log s_k, \qquad \frac{\partial H}{\partial l_k} = s_k \sum_j q_j - q_k $$

q is an integer label as uint8 one-hot, or a soft label. Averaged over the voxels that count; with integer labels and
class weights the average is weighted by the weight of the label, as in `torch.nn.functional.cross_entropy`.
Differs: where no voxel counts the value is 0, not NaN.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from calibseg.core.labels import Target, along_classes
from calibseg.losses.maths import numba
from calibseg.losses.maths.fused_sums import Scale, scaled, voxel_sums


def weighted_cross_entropy(logits: Tensor, weight: Tensor, q: Tensor) -> Tensor:
    """sum_i weight_i H(q_i, softmax(l_i)) with weight [n 1 *space] and shares q [n k *space]."""
    (total,) = voxel_sums(1, _value, _fused, logits, weight, q, compiled=True)
    return total


def with_penalty(
    value: Callable[..., Tensor],
    fused: Callable[..., Tensor],
    logits: Tensor,
    *tensors: Tensor,
    softmax: bool = False,
    compiled: bool = False,
) -> tuple[Tensor, ...]:
    """The same and a penalty, a further sum over voxels, from one walk over the logits.

    tensors: weight, q, and the constants of the penalty.

    value(logits, *constants): the penalty, plain differentiable PyTorch.
    fused(scale, slope, logits, s, *constants): the same; adds its derivative times `scale` to slope. s is the softmax
        where it is asked for, and may be overwritten, else None.
    """

    def values(logits: Tensor, *tensors: Tensor) -> tuple[Tensor, Tensor]:
        return nll(logits, *tensors[:2]), value(logits, *tensors[2:])

    def both(scales: list[Scale], slope: Tensor, logits: Tensor, *tensors: Tensor) -> tuple[Tensor, Tensor]:
        s = torch.empty_like(logits) if softmax else None
        ce = nll_with_slope(scales[0], slope, logits, *tensors[:2], softmax=s)
        return ce, fused(scales[1], slope, logits, s, *tensors[2:])

    return voxel_sums(2, values, both, logits, *tensors, compiled=compiled)


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
        weight = weight * (total > torch.finfo(dtype).tiny) / total  # 0 where no voxel has a weight
    if smoothing:
        q = torch.add(smoothing / target.num_classes, q.to(dtype), alpha=1 - smoothing)
    return weight, q if per_class is None else q * along_classes(per_class, q.ndim)


def nll(logits: Tensor, weight: Tensor, q: Tensor) -> Tensor:
    """sum_i weight_i H(q_i, softmax(l_i)), plain."""
    return -((torch.log_softmax(logits, 1) * q).sum(1, keepdim=True) * weight).sum()


def nll_with_slope(
    scale: Scale, slope: Tensor, logits: Tensor, weight: Tensor, q: Tensor, softmax: Tensor | None = None
) -> Tensor:
    """The same; fills `slope` with its derivative times `scale`, and `softmax`, if given, with the softmax.

    With d = l - max l and z = sum exp d: H = log z sum q - sum q d, and the slope is exp(d) / z sum q - q.
    """
    total = numba.cross_entropy(scale, slope, logits, weight, q, softmax)
    if total is not None:
        return total
    d = torch.sub(logits, logits.amax(1, keepdim=True), out=slope)
    shares = q.to(logits.dtype)
    of_label = (d * shares).sum(1, keepdim=True)
    e = d.exp_()
    z = e.sum(1, keepdim=True)
    if softmax is not None:
        torch.div(e, z, out=softmax)
    entropy = z.log()
    weights = scaled(weight, scale)
    if q.is_floating_point():
        mass = shares.sum(1, keepdim=True)
        entropy.mul_(mass)
        z.div_(mass.clamp_(min=torch.finfo(z.dtype).tiny))
    e.mul_(weights / z).addcmul_(shares, weights, value=-1)
    return entropy.sub_(of_label).mul_(weight).sum()


def _value(logits: Tensor, weight: Tensor, q: Tensor) -> tuple[Tensor]:
    return (nll(logits, weight, q),)


def _fused(scales: list[Scale], slope: Tensor, logits: Tensor, weight: Tensor, q: Tensor) -> tuple[Tensor]:
    return (nll_with_slope(scales[0], slope, logits, weight, q),)
