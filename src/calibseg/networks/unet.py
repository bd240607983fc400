"""U-Net as the calibration papers train it: two 3x3 convolutions per level, no normalisation, nearest upsampling.

Levels of 32-64-128-256-512 maps; max-pooling by 2, 2, 2 and then 4, so that the coarsest level sees 1/32 of the image.

Paper: Ronneberger et al., MICCAI 2015; this layout is the one behind MbLS (2023), NACL (2023) and CRaC (2024).
Parameters: 7,846,180 (1 channel, 4 classes).
Differs: from 2015, convolutions keep the size (zero padding), upsampling is nearest and has no weights, the levels are
half as wide and the last pooling is by 4. From the authors' release: no dropout (theirs stays on in evaluation), and
images of any size (theirs must be multiples of 32).

>>> network = UNet(1, 4)
>>> sum(p.numel() for p in network.parameters())
7846180
"""

from itertools import pairwise
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import interpolate

from calibseg.core.options import one_of
from calibseg.networks import Network, level_widths

CONVOLUTION = {2: nn.Conv2d, 3: nn.Conv3d}
POOL = {2: nn.MaxPool2d, 3: nn.MaxPool3d}
NORM = {"batch": {2: nn.BatchNorm2d, 3: nn.BatchNorm3d}, "instance": {2: nn.InstanceNorm2d, 3: nn.InstanceNorm3d}}


class UNet(Network):
    """The papers' U-Net.

    width: >= 1, maps of the first level; each level has twice as many as the one before.
    depth: >= 2, number of levels; the last pooling is by 4, those before by 2.
    norm: "none" (as in the papers), "batch" or "instance", after each convolution.
    dimensions: 2 or 3, spatial axes.
    """

    small: ClassVar = {"width": 4, "depth": 3}

    def __init__(
        self,
        in_channels: int,
        num_classes: int,
        width: int = 32,
        depth: int = 5,
        norm: Literal["none", "batch", "instance"] = "none",
        dimensions: Literal[2, 3] = 2,
    ):
        super().__init__(in_channels, num_classes)
        self.dimensions = one_of("dimensions", dimensions, (2, 3))
        self.positions = 1 if one_of("norm", norm, ("none", *NORM)) == "none" else 2
        widths = level_widths(width, depth, dimensions)
        self.pools = [2] * (depth - 2) + [4]
        self.multiple = (2 ** (depth - 2) * 4,) * dimensions
        self.down = nn.ModuleList(
            _level(into, out, norm, dimensions) for into, out in zip([in_channels, *widths], widths, strict=False)
        )
        self.up = nn.ModuleList(_level(coarse + own, own, norm, dimensions) for own, coarse in pairwise(widths))
        self.pool = nn.ModuleList(POOL[dimensions](by) for by in self.pools)
        self.head = CONVOLUTION[dimensions](width, num_classes, 1)

    def segment(self, image: Tensor) -> Tensor:
        levels = [self.down[0](image)]
        for pool, down in zip(self.pool, self.down[1:], strict=True):
            levels.append(down(pool(levels[-1])))
        x = levels.pop()
        for by, up in zip(reversed(self.pools), reversed(self.up), strict=True):
            x = up(torch.cat([interpolate(x, scale_factor=by), levels.pop()], 1))
        return self.head(x)


def _level(into: int, out: int, norm: str, dimensions: int) -> nn.Sequential:
    """Two convolutions, each with its normalisation (if any) and ReLU."""
    layers: list[nn.Module] = []
    for channels in (into, out):
        layers.append(CONVOLUTION[dimensions](channels, out, 3, padding=1, bias=norm == "none"))
        if norm != "none":
            layers.append(NORM[norm][dimensions](out, affine=True))
        layers.append(nn.ReLU(inplace=True))
    return nn.Sequential(*layers)
