"""Augmentation options of slices, the largest change of each: flip, rotate, scale, gamma, noise.

Everything is off by default, as in the papers. Recipes hold this; `data.views` makes the views.
"""

from dataclasses import dataclass

import numpy as np

from calibseg.core.types import Array, BadInput

LARGEST = 1000  # of any field: beyond, a view shows nothing of its slice


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
            if not 0 <= getattr(self, name) <= LARGEST:  # NaN is not in range either
                raise BadInput(f"augmentation {name} must be a number from 0 to {LARGEST}, found {getattr(self, name)}")
        if self.flip > 1:
            raise BadInput(f"augmentation flip is a probability, found {self.flip}")

    @property
    def geometric(self) -> bool:
        """Whether a view moves pixels."""
        return self.flip > 0 or self.rotate_deg > 0 or self.scale > 0

    def matrices(self, rng: np.random.Generator, n: int) -> Array:
        """n random float32 matrices [n 2 2] in (row, column) pixels, view -> picture."""
        angle = np.deg2rad(rng.uniform(-self.rotate_deg, self.rotate_deg, n))
        shrink = np.exp(-_log_uniform(rng, self.scale, n))
        signs = np.where(rng.random((n, 2)) < self.flip, -1.0, 1.0)
        turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])  # [2 2 n]
        return (turn.transpose(2, 0, 1) * shrink[:, None, None] * signs[:, None, :]).astype(np.float32)

    def powers(self, rng: np.random.Generator, n: int) -> Array:
        """n random exponents of the greys, float32."""
        return np.exp(_log_uniform(rng, self.gamma, n)).astype(np.float32)


OFF = Augmentation()
# That a loss such as bwcr compares; not mirrored, for that hides which is which where classes differ by where they lie.
VIEWS = Augmentation(rotate_deg=15.0, scale=0.1, gamma=0.3, noise=0.02)


def _log_uniform(rng: np.random.Generator, share: float, n: int) -> Array:
    return rng.uniform(-np.log1p(share), np.log1p(share), n)
