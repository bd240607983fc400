r"""The smallest class id in the window, with certainty.

$$ \tau_k = [\, k = \min_{i \in W} y_i \,] $$

Paper: NACL (MICCAI 2023), supplement, Eq. 3 with the minimum.
Differs: nothing, but beware: it depends on how the classes happen to be numbered; with border="background" it is
class 0 along the whole border of the image.
"""

import torch

from calibseg.core.labels import Target, along_classes
from calibseg.losses.maths.neighbourhood import class_counts
from calibseg.losses.priors import Prior, Tau, certain


class Min(Prior):
    """Everything on the smallest class id present."""

    depends_on_class_order = True

    def tau(self, target: Target, dtype: torch.dtype) -> Tau:
        counts = class_counts(target.as_hard(), self.kernel_size, self.border).counts
        last = target.num_classes - 1
        from_last = along_classes(torch.arange(last, -1, -1, device=counts.device, dtype=torch.int16), counts.ndim)
        return certain(last - (counts.clamp(max=1) * from_last).amax(1), target, dtype)
