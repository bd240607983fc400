r"""Share of each class in the window.

$$ \tau_k = \frac{1}{|W|} \sum_{i \in W} y_{i,k} $$

Paper: NACL (MICCAI 2023), supplement Eq. 1. The centre voxel belongs to the window.
Differs: the paper's main text prints the sum without dividing; the authors' code and this one divide. Outside the image
the authors' zero-padded labels vote for class 0: that is border="background".
"""

import torch

from calibseg.core.labels import Target
from calibseg.losses.maths.neighbourhood import class_counts
from calibseg.losses.priors import Prior, Tau


class Mean(Prior):
    """Class proportions: the prior of NACL and CRaC."""

    def tau(self, target: Target, dtype: torch.dtype) -> Tau:
        window = class_counts(target, self.kernel_size, self.border)
        return Tau(window.counts, window.total.to(dtype).clamp_(min=1).reciprocal_())
