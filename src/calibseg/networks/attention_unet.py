"""Attention U-Net: a U-Net whose skip connections are weighted by where the coarser level looks.

At each level a gate alpha = sigmoid(psi(relu(W_g g + W_x x))) in (0, 1), computed from the skipped maps x and the
upsampled maps g, multiplies x before the two are concatenated. Levels of 32-64-128-256-512 maps, batch normalisation.

Paper: Oktay et al., MIDL 2018. MONAI's AttentionUnet.
Parameters: 7,939,844 (1 channel, 4 classes).
Differs: MONAI goes down by strided convolutions, up by transposed ones, and gates with g at the resolution of x (the
paper: max-pooling, and g one level coarser); its merging convolutions end in instance normalisation and PReLU. The top
level has 32 maps, like this package's U-Net.
"""

from typing import ClassVar, Literal

from monai.networks.nets.attentionunet import AttentionUnet as Body
from torch import Tensor

from calibseg.core.options import one_of
from calibseg.networks import Network, level_widths


class AttentionUNet(Network):
    """Attention U-Net.

    width: >= 2, maps of the first level; each level has twice as many as the one before.
    depth: >= 2, number of levels.
    dimensions: 2 or 3, spatial axes.
    """

    small: ClassVar = {"width": 4, "depth": 3}
    positions = 2

    def __init__(
        self, in_channels: int, num_classes: int, width: int = 32, depth: int = 5, dimensions: Literal[2, 3] = 2
    ):
        super().__init__(in_channels, num_classes)
        self.dimensions = one_of("dimensions", dimensions, (2, 3))
        widths = level_widths(width, depth, dimensions, least=2)
        self.multiple = (2 ** (depth - 1),) * dimensions
        self.body = Body(dimensions, in_channels, num_classes, widths, strides=[2] * (depth - 1))

    def segment(self, image: Tensor) -> Tensor:
        return self.body(image)
