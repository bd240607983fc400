"""Gaussian noise on test images: the papers' distribution-shift experiment."""

import zlib

import numpy as np
from numpy import ndarray as Array

from calibseg.data.slices import SliceSource


class Noisy:
    """A case with Gaussian noise on its prepared image, which runs from 0 to 1: the papers' shift experiment.

    The noise depends on the seed, the case and the slice only, and a larger sigma scales the same noise.
    """

    def __init__(self, case: SliceSource, sigma: float, seed: int = 0) -> None:
        self.case, self.sigma, self.seed = case, sigma, seed
        self.id, self.classes, self.axis, self.shape = case.id, case.classes, case.axis, case.shape

    @property
    def foreground(self) -> Array:
        return self.case.foreground

    def read(self, name: str, index: int) -> Array:
        values = self.case.read(name, index)
        if name != "image":
            return values
        rng = np.random.default_rng([self.seed, zlib.crc32(self.id.encode()), index])
        return values + np.float32(self.sigma) * rng.standard_normal(values.shape, np.float32)
