"""nnU-Net's network as the calibration papers use it: residual encoder blocks and instance normalisation, nothing else.

Six levels of 32-64-128-256-512-512 maps (at most 320 in 3-D), strides 1,2,2,2,2,2, transposed convolutions on the way
up, leaky ReLU of slope 0.01. Given a patch size, the depth follows nnU-Net's rule: each axis is halved as long as 8 or
more voxels are left, so that 4 or more remain where the network is coarsest.

Paper: Isensee et al., Nature Methods 2021; the configuration of NACL (2023) and CRaC (2024). MONAI's DynUNet.
Parameters: 21,037,508 (1 channel, 4 classes).
Differs: from nnU-Net, this is the architecture only, without its planning, augmentation, deep supervision and loss;
encoder blocks are residual, and the instance normalisation has no scale and shift, as in the papers' release. nnU-Net's
depth also looks at the voxel spacing, which a network does not know: an axis that is given fewer voxels is halved less.

>>> [_strides(size) for size in [(192, 192), (16, 40, 40)]]
[[(1, 1), (2, 2), (2, 2), (2, 2), (2, 2), (2, 2)], [(1, 1, 1), (2, 2, 2), (2, 2, 2), (1, 2, 2)]]
"""

from math import prod
from typing import Any, ClassVar, Literal

from monai.networks.blocks.dynunet_block import UnetResBlock
from monai.networks.nets.dynunet import DynUNet
from torch import Tensor, nn

from calibseg.core.options import one_of, whole_number
from calibseg.core.types import BadInput
from calibseg.networks import Network

MOST_MAPS = {2: 512, 3: 320}
SUBSAMPLE = {2: nn.AvgPool2d, 3: nn.AvgPool3d}  # with windows of one voxel


class NNUNet(Network):
    """nnU-Net's network.

    width: >= 1, maps of the first level; each level has twice as many as the one before, up to 512 (320 in 3-D).
    patch_size: the size of the images, from which the depth follows: one number, or one per axis such as
        [64, 192, 160]; six levels without it.
    dimensions: 2 or 3, spatial axes.
    """

    small: ClassVar = {"width": 4, "patch_size": 16}
    positions = 2

    def __init__(
        self,
        in_channels: int,
        num_classes: int,
        width: int = 32,
        patch_size: list[int] | int | None = None,
        dimensions: Literal[2, 3] = 2,
    ):
        super().__init__(in_channels, num_classes)
        self.dimensions = one_of("dimensions", dimensions, (2, 3))
        if patch_size is None:
            strides = [(1,) * dimensions] + [(2,) * dimensions] * 5
        else:
            strides = _strides(_per_axis(patch_size, dimensions))
        self.multiple = tuple(prod(along) for along in zip(*strides, strict=True))
        whole_number("width", width, 1)
        network = DynUNet(
            spatial_dims=dimensions,
            in_channels=in_channels,
            out_channels=num_classes,
            kernel_size=[3] * len(strides),
            strides=strides,
            upsample_kernel_size=strides[1:],
            filters=[min(width << level, MOST_MAPS[dimensions]) for level in range(len(strides))],
            norm_name="instance",
            res_block=True,
        )
        # DynUNet registers its layers twice, and a safetensors file refuses two names for one tensor.
        self.body, self.head = network.skip_layers, network.output_block
        _take_every_second_voxel_first(self.body, dimensions)

    def segment(self, image: Tensor) -> Tensor:
        return self.head(self.body(image))


def _take_every_second_voxel_first(body: nn.Module, dimensions: int) -> None:
    """Strided 1x1 convolutions become subsampling and a 1x1 convolution: the same numbers, and safe in channels_last.

    The CPU library under torch (oneDNN 3.12) writes beyond a buffer in the backward pass of the former when there are
    few maps (its issue 6035): a crash, or wrong gradients.
    """
    for block in body.modules():
        if isinstance(block, UnetResBlock) and block.downsample:
            convolution: Any = block.conv3.conv
            every = SUBSAMPLE[dimensions](1, stride=convolution.stride)
            convolution.stride = (1,) * dimensions
            block.conv3 = nn.Sequential(every, block.conv3)  # pyright: ignore[reportAttributeAccessIssue]


def _per_axis(patch_size: list[int] | int, dimensions: int) -> tuple[int, ...]:
    sizes = (patch_size,) * dimensions if isinstance(patch_size, int) else tuple(patch_size)
    if len(sizes) != dimensions:
        raise BadInput(f"patch_size must be one number or {dimensions}, one per axis, not {patch_size!r}")
    if max(whole_number("patch_size", size, 1) for size in sizes) < 16:
        raise BadInput(
            f"patch_size must be at least 16 along one axis, so that it can be halved twice, not {patch_size!r}"
        )
    return sizes


def _strides(size: tuple[int, ...]) -> list[tuple[int, ...]]:
    """The stride of each level along each axis for images of this size."""
    strides = [(1,) * len(size)]
    while max(size) >= 8:
        strides.append(tuple(2 if axis >= 8 else 1 for axis in size))
        size = tuple(-(-axis // stride) for axis, stride in zip(size, strides[-1], strict=True))
    return strides
