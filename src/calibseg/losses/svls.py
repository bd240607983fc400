r"""Spatially varying label smoothing: soften a label by the labels around it.

$$ L = -\frac{1}{N} \sum_i \sum_k \tilde y_{i,k} \log s_{i,k}, \qquad
   \tilde y = \tfrac12 \, y + \tfrac12 \, \frac{\sum_{j \neq i} g_j \, y_j}{\sum_{j \neq i} g_j} $$

with Gaussian weights g around each voxel: the Gaussian prior. As NACL shows, this is
$(\mathrm{CE} + \mathrm{KL}(\tau \| s) + H(\tau)) / 2$ with $\tau$ the neighbours' share.

Paper: Islam and Glocker, IPMI 2021.
Differs: the authors' code takes cell [1, 1] for the window's centre, which is wrong for kernel_size > 3; here it is
the true centre. Borders repeat the edge voxel, as in their code.
"""

from typing import Any

from torch import Tensor

from calibseg.core.labels import Target, along_classes
from calibseg.losses import Loss, Terms
from calibseg.losses.maths.cross_entropy import weighted_cross_entropy
from calibseg.losses.maths.neighbourhood import KernelSize
from calibseg.losses.priors.gaussian import Gaussian


class SVLS(Loss):
    """Spatially varying label smoothing.

    sigma: > 0, width of the Gaussian in voxels; the papers try 0.5, 1, 2.
    kernel_size: odd, an int or one per spatial axis such as (1, 3, 3).
    """

    acronym = "SVLS"
    colour = "#56b4e9"
    marker = "P"
    contract_options = ({}, {"sigma": 0.6, "kernel_size": 5}, {"kernel_size": 1})

    def __init__(self, sigma: float = 2.0, kernel_size: KernelSize = 3, **common: Any):
        super().__init__(**common)
        self.prior = Gaussian(kernel_size, "replicate", sigma)

    def objective(self, logits: Tensor, target: Target) -> Terms:
        tau = self.prior.tau(target, logits.dtype)
        weight = tau.scale.mul_(target.voxel_weight(logits.dtype))
        q = tau.shares if self.class_weight is None else tau.shares * along_classes(self.class_weight, logits.ndim)
        return {"svls": weighted_cross_entropy(logits, weight, q.to(logits.dtype))}
