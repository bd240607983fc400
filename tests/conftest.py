"""Made inputs that several test files share."""

import pytest
import torch
from torch import Tensor


@pytest.fixture
def batch():
    """Logits and labels of smooth shapes: `batch(classes, space, dtype, seed)` -> (logits, labels)."""

    def make(
        classes: int = 3, space: tuple[int, ...] = (7, 9), dtype: torch.dtype = torch.float64, seed: int = 0, n: int = 2
    ) -> tuple[Tensor, Tensor]:
        generator = torch.Generator().manual_seed(seed)
        logits = torch.randn((n, classes, *space), generator=generator, dtype=torch.float64) * 2
        field = torch.rand((n, *space), generator=generator, dtype=torch.float64).cumsum(-1)
        labels = (field / field.amax() * classes).long().clamp(max=classes - 1)
        return logits.to(dtype), labels

    return make
