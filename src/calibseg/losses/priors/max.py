r"""The largest class id in the window, with certainty.

$$ \tau_k = [\, k = \max_{i \in W} y_i \,] $$

Paper: NACL (MICCAI 2023), supplement Eq. 3.
Differs: nothing, but beware: it depends on how the classes happen to be numbered.
"""

import torch

from calibseg.core.labels import Target, along_classes
from calibseg.losses.maths.neighbourhood import class_counts
from calibseg.losses.priors import Prior, Tau, certain


class Max(Prior):
    """Everything on the largest class id present."""

    depends_on_class_order = True

    def tau(self, target: Target, dtype: torch.dtype) -> Tau:
        counts = class_counts(target.as_hard(), self.kernel_size, self.border).counts
        ids = along_classes(torch.arange(target.num_classes, device=counts.device, dtype=torch.int16), counts.ndim)
        return certain((counts.clamp(max=1) * ids).amax(1), target, dtype)
