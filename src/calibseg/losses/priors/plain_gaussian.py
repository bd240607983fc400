r"""Share of each class under a Gaussian window.

$$ \tau_k = \frac{\sum_{i \in W} g_i \, y_{i,k}}{\sum_{i \in W} g_i}, \qquad g_i = e^{-|i - c|^2 / 2 \sigma^2} $$

Paper: NACL (MICCAI 2023), supplement Eq. 2, as it is printed.
Differs: the released code takes the weights of SVLS, whose centre weighs half: that is the prior gaussian. MONAI's
NACLLoss cuts the Gaussian at 4 sigma, whatever the kernel size, and integrates it over each voxel.
"""

from calibseg.losses.maths.neighbourhood import Border, KernelSize
from calibseg.losses.priors.gaussian import Gaussian


class PlainGaussian(Gaussian):
    """A Gaussian average of the window.

    sigma: > 0, width of the Gaussian in voxels.
    """

    centre_weighs_half = False

    def __init__(self, kernel_size: KernelSize = 3, border: Border = "replicate", sigma: float = 1.0):
        super().__init__(kernel_size, border, sigma)
