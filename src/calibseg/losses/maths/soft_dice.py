r"""Soft Dice loss on softmax probabilities, per image and class.

$$ 1 - \frac{2 \sum_i s_{i,k} y_{i,k} + \epsilon}{\sum_i s_{i,k} + \sum_i y_{i,k} + \epsilon} $$

with epsilon = 1e-5, averaged over images and classes. A class absent from an image therefore costs nearly 1 for any
mass put on it. The value agrees with MONAI's DiceLoss(softmax=True, to_onehot_y=True).
Differs: ignored voxels leave all three sums.

The two sums that depend on s have a gradient that is cheap to write down: it is recomputed piece by piece in the
backward pass, as in `streaming.py`, instead of keeping s.
"""

import torch
from torch import Tensor

from calibseg.core.labels import Target
from calibseg.losses.maths.fused_sums import pieces

EPSILON = 1e-5


def soft_dice_loss(logits: Tensor, target: Target, include_background: bool = True) -> Tensor:
    """Mean soft Dice loss of logits [n k *space], a scalar."""
    labels = target.one_hot if target.soft is None else target.soft.to(logits.dtype)
    valid = target.valid.unsqueeze(1)
    sums = _sums if torch.compiler.is_compiling() else _Sums.apply
    common, predicted = sums(logits, labels, valid)  # pyright: ignore[reportGeneralTypeIssues]
    true = labels.sum(tuple(range(2, logits.ndim)), dtype=logits.dtype)
    loss = 1 - (2 * common + EPSILON) / (predicted + true + EPSILON)
    return (loss if include_background else loss[:, 1:]).mean()


def _sums(logits: Tensor, labels: Tensor, valid: Tensor) -> tuple[Tensor, Tensor]:
    """sum_i s_i y_i and sum_i s_i over the voxels that count, each [n k]."""
    space = tuple(range(2, logits.ndim))
    s = torch.softmax(logits, 1)
    common = (s * labels.to(s.dtype)).sum(space)
    return common, (s * valid.to(s.dtype)).sum(space)


class _Sums(torch.autograd.Function):
    @staticmethod
    def forward(ctx, *tensors: Tensor) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(*tensors)
        totals = tensors[0].new_zeros((2, *tensors[0].shape[:2]))
        for piece in pieces(tensors[0]):
            totals[:, piece[0]] += torch.stack(_sums(*(tensor[piece] for tensor in tensors)))
        return totals[0], totals[1]

    @staticmethod
    def backward(ctx, *grads: Tensor):
        """With g = a y + b per image and class: d/dl_k = s_k (g_k - sum_j s_j g_j)."""
        logits, labels, valid = ctx.saved_tensors
        if torch.is_grad_enabled():
            (slope,) = torch.autograd.grad(_sums(logits, labels, valid), logits, grads, create_graph=True)
            return slope, None, None
        a, b = (grad.view(*grad.shape, *[1] * (logits.ndim - 2)) for grad in grads)
        slope = torch.empty_like(logits)
        for piece in pieces(logits):
            g = labels[piece].to(logits.dtype, copy=True).mul_(a[piece[0]])
            g.addcmul_(valid[piece].to(logits.dtype), b[piece[0]])
            s = torch.softmax(logits[piece], 1)
            g.sub_(torch.mul(s, g, out=slope[piece]).sum(1, keepdim=True))
            torch.mul(s, g, out=slope[piece])
        return slope, None, None
