r"""Random views of slices, and the way back: what an `Augmentation` allows, drawn and applied.

The geometric part of a view is one 2x2 matrix M about the picture's centre c: the view's pixel q shows the picture at

$$ p = M (q - c) + c, \qquad M = s \, R(\alpha) \, \mathrm{diag}(\pm 1, \pm 1) $$

so the way back is M^-1, exactly; interpolation is all that is lost. For a loss that compares two views (BWCR), `Views`
makes the pictures and maps the logits back to the picture's own grid, with the pixels that each view showed.

>>> picture = torch.arange(6.0).reshape(1, 1, 2, 3)
>>> mirror = torch.tensor([[[1.0, 0.0], [0.0, -1.0]]])          # rows stay, columns are reversed
>>> warped(picture, mirror)[0, 0].round(decimals=4).tolist()
[[2.0, 1.0, 0.0], [5.0, 4.0, 3.0]]
"""

from typing import Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import grid_sample

from calibseg.data.augmentation import Augmentation


class Views:
    """Several views of each picture, and the way back.

    image: the pictures [n c h w]
    augmentation: how far a view may differ
    rng: what decides
    count: views of each picture
    """

    def __init__(self, image: Tensor, augmentation: Augmentation, rng: np.random.Generator, count: int = 2):
        copies = image.repeat(count, 1, 1, 1)  # all first views, then all second ones
        self.matrices = torch.from_numpy(augmentation.matrices(rng, len(copies))).to(image.device)
        self.image = recoloured(warped(copies, self.matrices), augmentation, rng)

    def back(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """Logits of the views [count*n k h w] on the pictures' own grid, and [count*n h w] bool: was it shown?"""
        home = inverse(self.matrices)
        return warped(logits, home), inside(home, *logits.shape[-2:])


def recoloured(image: Tensor, augmentation: Augmentation, rng: np.random.Generator) -> Tensor:
    """Another gamma and new noise for each picture of [n c h w]; where pixels lie does not change."""
    n = len(image)
    if augmentation.gamma > 0:
        power = torch.from_numpy(augmentation.powers(rng, n))[:, None, None, None].to(image.device)
        low = image.amin((1, 2, 3), keepdim=True).clamp(max=0)  # 0 to 1, or further where values were kept as they are
        span = image.amax((1, 2, 3), keepdim=True).clamp(min=1) - low
        image = low + span * ((image - low) / span) ** power
    if augmentation.noise > 0:
        sigma = torch.from_numpy(rng.uniform(0, augmentation.noise, n)).float()[:, None, None, None]
        generator = torch.Generator().manual_seed(int(rng.integers(2**62)))
        image = image + (sigma * torch.randn(image.shape, generator=generator)).to(image.device)
    return image


def inverse(matrices: Tensor) -> Tensor:
    """The matrices that lead back."""
    return torch.linalg.inv(matrices.double()).to(matrices.dtype)


def warped(values: Tensor, matrices: Tensor, mode: Literal["bilinear", "nearest"] = "bilinear") -> Tensor:
    """Views of [n c h w]; 0 where a view shows what lies outside the picture."""
    h, w = values.shape[-2:]
    at = _places(matrices.to(values.device), h, w)
    size = torch.tensor([w, h], device=values.device)
    grid = (2 * at.flip(-1) + 1) / size - 1  # grid_sample wants (x, y) with -1 and 1 at the picture's edges
    return grid_sample(values, grid.to(values.dtype), mode=mode, padding_mode="zeros", align_corners=False)


def warped_labels(labels: Tensor, matrices: Tensor, ignore_index: int) -> Tensor:
    """Views of [n h w] labels, the nearest pixel's; ignore_index outside the picture."""
    shifted = (labels - ignore_index)[:, None].float()  # outside is 0, which is ignore_index again
    return warped(shifted, matrices, "nearest")[:, 0].round().to(labels.dtype) + ignore_index


def inside(matrices: Tensor, h: int, w: int) -> Tensor:
    """[n h w] bool: does this pixel of the view show the picture itself, with all four neighbours it mixes?"""
    at = _places(matrices, h, w)
    last = torch.tensor([h - 1, w - 1], device=matrices.device)
    return ((at >= -1e-3) & (at <= last + 1e-3)).all(-1)


def _places(matrices: Tensor, h: int, w: int) -> Tensor:
    """[n h w 2]: the (row, column) of the picture that each pixel of the view shows."""
    centre = torch.tensor([(h - 1) / 2, (w - 1) / 2], device=matrices.device)
    rows, columns = torch.meshgrid(torch.arange(h), torch.arange(w), indexing="ij")
    offset = torch.stack([rows, columns], -1).to(matrices.device) - centre
    return torch.einsum("nij,hwj->nhwi", matrices, offset) + centre
