"""Priors: what the labels around a voxel say its class should be. One file each.

A prior is tau = shares * scale, with shares [n k *space] (small integers where possible) and scale [n 1 *space]: a loss
multiplies the two where it reads them, so that tau is never a tensor as large as the logits.

Mean and Gaussian priors take soft labels as they are; the others use the likeliest class (ties: smallest id).
"""

from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from calibseg.core.labels import Target, one_hot
from calibseg.core.registry import lazy
from calibseg.losses.maths.neighbourhood import Border, KernelSize, check_kernel_size

if TYPE_CHECKING:
    from calibseg.losses.priors._members import *
else:
    __getattr__, __dir__ = lazy(__name__)


class Tau(NamedTuple):
    """tau = shares * scale, at every voxel a distribution over classes."""

    shares: Tensor  # [n k *space]
    scale: Tensor  # [n 1 *space]

    def dense(self) -> Tensor:
        return self.shares * self.scale


class Prior:
    """How to read a voxel's window.

    kernel_size: odd, an int or one per spatial axis such as (1, 3, 3).
    border: who votes outside the image: "replicate" or "background".
    """

    depends_on_class_order: ClassVar[bool] = False
    contract_options: ClassVar[tuple[dict[str, Any], ...]] = ({},)  # tried by the contract tests

    def __init__(self, kernel_size: KernelSize = 3, border: Border = "replicate"):
        self.kernel_size = check_kernel_size(kernel_size)
        self.border: Border = border

    def tau(self, target: Target, dtype: torch.dtype) -> Tau:
        """The prior at every voxel of a target."""
        raise TypeError(f"{type(self).__name__} does not say what tau is")


def certain(ids: Tensor, target: Target, dtype: torch.dtype) -> Tau:
    """The prior that puts everything on one class per voxel, ids [n *space]."""
    return Tau(one_hot(ids, target.num_classes), target.valid.unsqueeze(1).to(dtype))
