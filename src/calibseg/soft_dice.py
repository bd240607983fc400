r"""Soft Dice loss on softmax probabilities, per image and class.

$$ 1 - \frac{2 \sum_i s_{i,k} y_{i,k} + \epsilon}{\sum_i s_{i,k} + \sum_i y_{i,k} + \epsilon} $$

with epsilon = 1e-5, averaged over images and classes. A class absent from an image therefore costs nearly 1 for any
mass put on it. The value agrees with MONAI's DiceLoss(softmax=True, to_onehot_y=True).
Differs: ignored voxels leave all three sums.
"""

import torch
from torch import Tensor

from calibseg.target import Target

EPSILON = 1e-5


def soft_dice_loss(logits: Tensor, target: Target, include_background: bool = True) -> Tensor:
    """Mean soft Dice loss of logits [n k *space], a scalar."""
    space = tuple(range(2, logits.ndim))
    labels = target.one_hot if target.soft is None else target.soft
    s = torch.softmax(logits, 1) * target.valid.unsqueeze(1)
    both = (s * labels).sum(space)
    size = s.sum(space) + labels.sum(space)
    loss = 1 - (2 * both + EPSILON) / (size + EPSILON)
    return (loss if include_background else loss[:, 1:]).mean()
