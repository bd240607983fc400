r"""Random views of slices: flip, rotate, scale, gamma, noise. Everything is off by default, as in the papers.

The geometric part of a view is one 2x2 matrix M about the picture's centre c: the view's pixel q shows the picture at

$$ p = M (q - c) + c, \qquad M = s \, R(\alpha) \, \mathrm{diag}(\pm 1, \pm 1) $$

so the way back is M^-1, exactly; interpolation is all that is lost. For a loss that compares two views (BWCR), `Views`
makes the pictures and maps the logits back to the picture's own grid, with the pixels that each view showed.

>>> picture = torch.arange(6.0).reshape(1, 1, 2, 3)
>>> mirror = torch.tensor([[[1.0, 0.0], [0.0, -1.0]]])          # rows stay, columns are reversed
>>> warped(picture, mirror)[0, 0].round(decimals=4).tolist()
[[2.0, 1.0, 0.0], [5.0, 4.0, 3.0]]
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import grid_sample

from calibseg.core.types import BadInput


@dataclass(frozen=True)
class Augmentation:
    """How far a view may differ from the slice; 0 is not at all.

    flip: probability of mirroring, for rows and for columns each
    rotate_deg: largest angle to either side
    scale: largest change of size, as a share: 0.2 shows a slice 1/1.2 to 1.2 times as large
    gamma: largest exponent, as a share: 0.3 raises greys to a power between 1/1.3 and 1.3
    noise: largest standard deviation of added Gaussian noise
    """

    flip: float = 0.0
    rotate_deg: float = 0.0
    scale: float = 0.0
    gamma: float = 0.0
    noise: float = 0.0

    def __post_init__(self) -> None:
        for name in ("flip", "rotate_deg", "scale", "gamma", "noise"):
            if getattr(self, name) < 0:
                raise BadInput(f"augmentation {name} cannot be negative, found {getattr(self, name)}")
        if self.flip > 1:
            raise BadInput(f"augmentation flip is a probability, found {self.flip}")

    @property
    def geometric(self) -> bool:
        """Whether a view moves pixels."""
        return self.flip > 0 or self.rotate_deg > 0 or self.scale > 0

    def matrices(self, rng: np.random.Generator, n: int) -> Tensor:
        """n random matrices [n 2 2] in (row, column) pixels, view -> picture."""
        angle = np.deg2rad(rng.uniform(-self.rotate_deg, self.rotate_deg, n))
        shrink = np.exp(-_log_uniform(rng, self.scale, n))
        signs = np.where(rng.random((n, 2)) < self.flip, -1.0, 1.0)
        turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])  # [2 2 n]
        return torch.from_numpy(turn.transpose(2, 0, 1) * shrink[:, None, None] * signs[:, None, :]).float()

    def recoloured(self, image: Tensor, rng: np.random.Generator) -> Tensor:
        """Another gamma and new noise for each picture of [n c h w]; where pixels lie does not change."""
        n = len(image)
        if self.gamma > 0:
            power = torch.from_numpy(np.exp(_log_uniform(rng, self.gamma, n))).float()
            image = image.clamp(0, 1) ** power[:, None, None, None].to(image.device)
        if self.noise > 0:
            sigma = torch.from_numpy(rng.uniform(0, self.noise, n)).float()[:, None, None, None]
            generator = torch.Generator().manual_seed(int(rng.integers(2**62)))
            image = image + (sigma * torch.randn(image.shape, generator=generator)).to(image.device)
        return image


class Views:
    """Several views of each picture, and the way back.

    image: the pictures [n c h w]
    augmentation: how far a view may differ
    rng: what decides
    count: views of each picture
    """

    def __init__(self, image: Tensor, augmentation: Augmentation, rng: np.random.Generator, count: int = 2):
        copies = image.repeat(count, 1, 1, 1)  # all first views, then all second ones
        self.matrices = augmentation.matrices(rng, len(copies)).to(image.device)
        self.image = augmentation.recoloured(warped(copies, self.matrices), rng)

    def back(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """Logits of the views [count*n k h w] on the pictures' own grid, and [count*n h w] bool: was it shown?"""
        home = inverse(self.matrices)
        return warped(logits, home), inside(home, *logits.shape[-2:])


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


def _log_uniform(rng: np.random.Generator, share: float, n: int) -> np.ndarray:
    return rng.uniform(-np.log1p(share), np.log1p(share), n)
