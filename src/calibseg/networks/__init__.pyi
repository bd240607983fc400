# Written by scripts/stubs.py (make stubs): do not edit.
from typing import Any as Any
from typing import ClassVar as ClassVar

from torch import Tensor as Tensor
from torch import nn as nn
from torch.nn.functional import pad as pad

from calibseg.core.memory import require_memory as require_memory
from calibseg.core.options import whole_number as whole_number
from calibseg.core.registry import lazy as lazy
from calibseg.core.types import BadInput as BadInput

class Network(nn.Module):
    """What every network shares: checks of the image, and padding to a size that its strides divide.

    in_channels: >= 1, channels of the image.
    num_classes: >= 2, channels of the logits; a binary problem has two.
    """

    small: ClassVar[dict[str, Any]] = {}
    only_to_start: ClassVar[tuple[str, ...]] = ()
    dimensions: int = 2
    multiple: tuple[int, ...] = (1, 1)
    positions: int = 1
    in_channels: int
    num_classes: int

    def __init__(self, in_channels: int, num_classes: int): ...
    def forward(self, image: Tensor) -> Tensor:
        """Logits [n k *space] of an image [n c *space] of any size."""

    def padded(self, space: tuple[int, ...]) -> tuple[int, ...]:
        """The smallest size that holds an image of this size and that `segment` can take."""

    def segment(self, image: Tensor) -> Tensor:
        """What a subclass adds: logits of an image whose sizes are multiples of `multiple`."""

def level_widths(width: int, depth: int, dimensions: int, least: int = 1) -> list[int]:
    """The maps of each level, twice as many as the one before; too many for this machine are refused.

    least: the smallest `width`
    """

from calibseg.networks.attention_unet import AttentionUNet as AttentionUNet
from calibseg.networks.nnunet import NNUNet as NNUNet
from calibseg.networks.transunet import TransUNet as TransUNet
from calibseg.networks.unet import UNet as UNet
from calibseg.networks.unetpp import UNetPP as UNetPP
