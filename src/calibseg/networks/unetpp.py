"""UNet++: a U-Net whose skip connections are small networks of their own, so that every level is upsampled on the way.

Node X(i, j) convolves the concatenation of X(i, 0), ..., X(i, j - 1) with the upsampled X(i + 1, j - 1); the head reads
X(0, 4). Five levels of 32-64-128-256-512 maps, instance normalisation, leaky ReLU, transposed convolutions.

Paper: Zhou et al., DLMIA 2018 and IEEE TMI 2020. MONAI's BasicUNetPlusPlus.
Parameters: 9,118,756 (1 channel, 4 classes).
Differs: one head at X(0, 4), as in the paper's runs without deep supervision: MONAI makes three further heads that only
deep supervision would train, and they are removed. MbLS's release takes UNet++ from segmentation-models-pytorch, whose
encoder is a ResNet.
"""

from typing import ClassVar, Literal

from monai.networks.nets.basic_unetplusplus import BasicUNetPlusPlus
from torch import Tensor, nn

from calibseg.core.options import one_of
from calibseg.networks import Network, level_widths


class UNetPP(Network):
    """UNet++, always of five levels.

    width: >= 1, maps of the first level; each level has twice as many as the one before.
    dimensions: 2 or 3, spatial axes.
    """

    small: ClassVar = {"width": 4}
    positions = 2

    def __init__(self, in_channels: int, num_classes: int, width: int = 32, dimensions: Literal[2, 3] = 2):
        super().__init__(in_channels, num_classes)
        self.dimensions = one_of("dimensions", dimensions, (2, 3))
        self.multiple = (16,) * dimensions
        features = level_widths(width, 5, dimensions)
        self.body = BasicUNetPlusPlus(dimensions, in_channels, num_classes, (*features, width))
        for unused in ("final_conv_0_1", "final_conv_0_2", "final_conv_0_3"):
            setattr(self.body, unused, nn.Identity())

    def segment(self, image: Tensor) -> Tensor:
        return self.body(image)[-1]
