r"""The median class id in the window, with certainty.

$$ \tau_k = [\, k = \mathrm{median}_{i \in W} \, y_i \,] $$

Paper: NACL (MICCAI 2023), supplement, Eq. 3 with the median.
Differs: where ignored voxels leave an even number of votes, the lower of the two middle ids is taken. Beware: it
depends on how the classes happen to be numbered.
"""

import torch

from calibseg.core.labels import Target
from calibseg.losses.maths.neighbourhood import class_counts
from calibseg.losses.priors import Prior, Tau, certain


class Median(Prior):
    """Everything on the median class id."""

    depends_on_class_order = True

    def tau(self, target: Target, dtype: torch.dtype) -> Tau:
        counts, total = class_counts(target.as_hard(), self.kernel_size, self.border)
        so_far = counts.cumsum(1, dtype=counts.dtype)
        half = total - total // 2
        short = (half - torch.minimum(so_far, half)).clamp(max=1)  # 1 for every id below the median
        return certain(short.sum(1, dtype=torch.int16), target, dtype)
