"""Provenance of a run: versions, machine, device, source revision, memory. Written beside every run."""

import resource
import subprocess
import sys
from typing import Any

import torch

from calibseg.core.registry import PACKAGE
from calibseg.runs.doctor import examine


def provenance(device: torch.device, processes: int) -> dict[str, Any]:
    """The circumstances of a run that starts now."""
    return {
        **examine(),
        "git": git_state(),
        "device": str(device) if device.type != "cuda" else f"{device} {torch.cuda.get_device_name(device)}",
        "processes": processes,
        "command": sys.argv,
    }


def git_state() -> dict[str, Any] | None:
    """The revision of this package's sources and whether they were changed since; None where they are no checkout."""
    try:
        revision = _git("rev-parse", "HEAD")
        return {"revision": revision, "changed": bool(_git("status", "--porcelain", "--", "."))}
    except (OSError, subprocess.SubprocessError):
        return None


def peak_memory_mib(device: torch.device) -> dict[str, float]:
    """The most memory that this process has held so far."""
    unit = 2**20 if sys.platform == "darwin" else 2**10
    peak = {"process": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit, 1)}
    if device.type == "cuda":
        peak["device"] = round(torch.cuda.max_memory_allocated(device) / 2**20, 1)
    return peak


def _git(*arguments: str) -> str:
    command = ["git", "-C", str(PACKAGE), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout.strip()
