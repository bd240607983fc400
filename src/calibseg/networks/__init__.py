"""Segmentation networks, one file each: `from calibseg.networks import UNet`.

Every network is a plain `nn.Module` with one signature, `network(image [n c *space]) -> logits [n k *space]`, for any
image size: the image is padded behind its last voxels (bottom, right) with copies of them, and the logits are cropped.
"""

from typing import TYPE_CHECKING, Any, ClassVar

from torch import Tensor, nn
from torch.nn.functional import pad

from calibseg.core.memory import require_memory
from calibseg.core.options import whole_number
from calibseg.core.registry import lazy
from calibseg.core.types import BadInput

if TYPE_CHECKING:
    from calibseg.networks._members import *
else:
    __getattr__, __dir__ = lazy(__name__)


class Network(nn.Module):
    """What every network shares: checks of the image, and padding to a size that its strides divide.

    in_channels: >= 1, channels of the image.
    num_classes: >= 2, channels of the logits; a binary problem has two.
    """

    small: ClassVar[dict[str, Any]] = {}  # options of a variant that is small enough for tests
    only_to_start: ClassVar[tuple[str, ...]] = ()  # options that a trained network does not need again

    dimensions: int = 2  # spatial axes of the image
    multiple: tuple[int, ...] = (1, 1)  # what `segment` needs the size of each axis to be a multiple of
    positions: int = 1  # the fewest positions that normalisation needs where the network is coarsest

    def __init__(self, in_channels: int, num_classes: int):
        super().__init__()
        self.in_channels = whole_number("in_channels", in_channels, 1)
        self.num_classes = whole_number("num_classes", num_classes, 2)

    def forward(self, image: Tensor) -> Tensor:
        """Logits [n k *space] of an image [n c *space] of any size."""
        space = image.shape[2:]
        if len(space) != self.dimensions or image.shape[1] != self.in_channels or 0 in image.shape:
            axes = "z y x" if self.dimensions == 3 else "y x"
            raise BadInput(f"{type(self).__name__} reads images [n {self.in_channels} {axes}], not {list(image.shape)}")
        behind = [size - own for own, size in zip(space, self.padded(tuple(space)), strict=True)]
        if not any(behind):
            return self.segment(image)
        widths = [width for after in reversed(behind) for width in (0, after)]  # the last axis comes first
        return self.segment(pad(image, widths, mode="replicate"))[(..., *(slice(size) for size in space))]

    def padded(self, space: tuple[int, ...]) -> tuple[int, ...]:
        """The smallest size that holds an image of this size and that `segment` can take."""
        sizes = [-(-own // step) * step for own, step in zip(space, self.multiple, strict=True)]
        if sizes == list(self.multiple):  # one position where the network is coarsest
            sizes[-1] *= self.positions
        return tuple(sizes)

    def segment(self, image: Tensor) -> Tensor:
        """What a subclass adds: logits of an image whose sizes are multiples of `multiple`."""
        raise TypeError(f"{type(self).__name__} does not say how it segments")


def level_widths(width: int, depth: int, dimensions: int, least: int = 1) -> list[int]:
    """The maps of each level, twice as many as the one before; too many for this machine are refused.

    least: the smallest `width`
    """
    widest = whole_number("width", width, least) << (min(whole_number("depth", depth, 2), 64) - 1)
    said = f"a network of width {width} and depth {depth} has {widest} maps in its last level, whose weights ask for"
    require_memory(4 * 3**dimensions * widest**2, said)
    return [width << level for level in range(depth)]
