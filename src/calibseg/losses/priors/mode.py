r"""The most frequent class in the window, with certainty; ties go to the smallest id.

$$ \tau_k = [\, k = \mathrm{mode}_{i \in W} \, y_i \,] $$

Paper: NACL (MICCAI 2023), supplement, Eq. 3 with the mode.
Differs: the authors' code leaves ties to torch.mode, which answers differently on CPU and GPU; here the smallest id
wins on every device, which is why class numbers matter where two classes are equally frequent.
"""

import torch

from calibseg.core.labels import Target, along_classes
from calibseg.losses.maths.neighbourhood import class_counts
from calibseg.losses.priors import Prior, Tau, certain


class Mode(Prior):
    """Everything on the most frequent class."""

    depends_on_class_order = True

    def tau(self, target: Target, dtype: torch.dtype) -> Tau:
        counts = class_counts(target.as_hard(), self.kernel_size, self.border).counts
        last = target.num_classes - 1
        rank = along_classes(torch.arange(last, -1, -1, device=counts.device, dtype=torch.int32), counts.ndim)
        key = (counts.to(torch.int32) * target.num_classes + rank).amax(1)  # frequent first, then small ids
        return certain(last - key % target.num_classes, target, dtype)
