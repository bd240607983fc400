"""Images made worse on purpose: the papers' experiment on shifted data."""

import zlib
from dataclasses import dataclass

import numpy as np
from numpy import ndarray as Array

from calibseg.data.slices import SliceSource


@dataclass(frozen=True)
class Noisy:
    """A case with Gaussian noise on its prepared image, which runs from 0 to 1: the papers' shift experiment.

    The noise depends on the seed, the case and the slice only, and a larger sigma scales the same noise.
    """

    case: SliceSource
    sigma: float
    seed: int = 0

    @property
    def id(self) -> str:
        return self.case.id

    @property
    def classes(self) -> tuple[str, ...]:
        return self.case.classes

    @property
    def axis(self) -> int:
        return self.case.axis

    @property
    def shape(self) -> tuple[int, int, int, int]:
        return self.case.shape

    @property
    def foreground(self) -> Array:
        return self.case.foreground

    def read(self, name: str, index: int) -> Array:
        values = self.case.read(name, index)
        if name != "image":
            return values
        rng = np.random.default_rng([self.seed, zlib.crc32(self.id.encode()), index])
        return values + np.float32(self.sigma) * rng.standard_normal(values.shape, np.float32)
