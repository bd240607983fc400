# Written by scripts/stubs.py (make stubs): do not edit.
from typing import Any as Any
from typing import ClassVar as ClassVar
from typing import NamedTuple as NamedTuple

import torch
from torch import Tensor as Tensor

from calibseg.core.labels import Target as Target
from calibseg.core.labels import one_hot as one_hot
from calibseg.core.registry import lazy as lazy
from calibseg.losses.maths.neighbourhood import Border as Border
from calibseg.losses.maths.neighbourhood import KernelSize as KernelSize
from calibseg.losses.maths.neighbourhood import check_kernel_size as check_kernel_size

class Tau(NamedTuple):
    """tau = shares * scale, at every voxel a distribution over classes."""

    shares: Tensor
    scale: Tensor

    def dense(self) -> Tensor: ...

class Prior:
    """How to read a voxel's window.

    kernel_size: odd, an int or one per spatial axis such as (1, 3, 3).
    border: who votes outside the image: "replicate" or "background".
    """

    depends_on_class_order: ClassVar[bool] = False
    contract_options: ClassVar[tuple[dict[str, Any], ...]] = ({},)
    kernel_size: KernelSize
    border: Border

    def __init__(self, kernel_size: KernelSize = 3, border: Border = "replicate"): ...
    def tau(self, target: Target, dtype: torch.dtype) -> Tau:
        """The prior at every voxel of a target."""

def certain(ids: Tensor, target: Target, dtype: torch.dtype) -> Tau:
    """The prior that puts everything on one class per voxel, ids [n *space]."""

from calibseg.losses.priors.gaussian import Gaussian as Gaussian
from calibseg.losses.priors.max import Max as Max
from calibseg.losses.priors.mean import Mean as Mean
from calibseg.losses.priors.median import Median as Median
from calibseg.losses.priors.min import Min as Min
from calibseg.losses.priors.mode import Mode as Mode
from calibseg.losses.priors.plain_gaussian import PlainGaussian as PlainGaussian
