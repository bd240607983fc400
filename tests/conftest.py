"""Made inputs that several test files share."""

import os
import sys

import pytest
import torch
from torch import Tensor

from calibseg import cli
from calibseg.core import plugins

# Some virtual machines announce AMX but stop oneDNN's bfloat16 transposed convolution with an illegal instruction.
# Read when oneDNN is first used; float32, which every other test computes in, has no AMX path.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")


@pytest.fixture(autouse=True)
def forgotten_plugins(monkeypatch):
    """What one test has allowed to be run is not allowed in the next."""
    monkeypatch.setenv(plugins.ALLOWED, "")


@pytest.fixture
def calibseg(monkeypatch, capsys):
    """Run the command; gives the exit code and what was printed."""

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["calibseg", *map(str, arguments)])
        monkeypatch.setenv("COLUMNS", "160")
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            cli.main()
        printed = capsys.readouterr()
        return ended.value.code or 0, printed.out, printed.err

    return run


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
