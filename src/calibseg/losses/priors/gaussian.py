r"""Share of each class under a Gaussian window whose centre weighs as much as all neighbours together.

$$ \tau = \tfrac12 \, y + \tfrac12 \, \frac{\sum_{i \neq c} g_i \, y_i}{\sum_{i \neq c} g_i} $$

Paper: the label smoothing of SVLS (Islam and Glocker, IPMI 2021), used as a prior by NACL's released code.
Differs: NACL's supplement (Eq. 2) prints a plain Gaussian average, which is plain_gaussian; the released code uses the
SVLS weights, as here. SVLS's code takes cell [1, 1] for the centre, which is wrong for windows larger than 3; here it
is the true centre.
"""

import math
from typing import ClassVar

import torch

from calibseg.core.labels import Target
from calibseg.core.options import at_least
from calibseg.losses.maths.neighbourhood import Border, KernelSize, kernel_shape, weighted_shares
from calibseg.losses.priors import Prior, Tau


class Gaussian(Prior):
    """The smoothing weights of SVLS.

    sigma: > 0, width of the Gaussian in voxels.
    """

    centre_weighs_half: ClassVar[bool] = True
    contract_options = ({}, {"sigma": 0.6}, {"sigma": 2.0})

    def __init__(self, kernel_size: KernelSize = 3, border: Border = "replicate", sigma: float = 1.0):
        super().__init__(kernel_size, border)
        self.sigma = at_least("sigma", sigma, 0, above=True)

    def tau(self, target: Target, dtype: torch.dtype) -> Tau:
        shape = kernel_shape(self.kernel_size, target.valid.ndim - 1)
        weights = [self._weights(size) for size in shape]
        neighbours = math.prod([sum(axis) for axis in weights]) - 1
        # the centre, of weight 1, shall weigh as much as all of them
        extra = neighbours - 1 if self.centre_weighs_half and neighbours else 0.0
        window = weighted_shares(target, weights, self.border, dtype, extra)
        return Tau(window.counts, window.total.clamp(min=torch.finfo(dtype).tiny).reciprocal_())

    def _weights(self, size: int) -> list[float]:
        """The Gaussian along one axis, 1 at the centre."""
        return [math.exp(-((i - size // 2) ** 2) / (2 * self.sigma**2)) for i in range(size)]
