"""What this machine and this installation are, for bug reports and for the record beside a result."""

import importlib.metadata
import os
import platform
from typing import Any

from calibseg import __version__
from calibseg.core.memory import gib, memory

PACKAGES = ("torch", "numpy", "scipy", "monai", "nibabel", "lightning-fabric", "safetensors", "pandas", "numba", "isal",
            "submitit", "SimpleITK")  # fmt: skip


def examine() -> dict[str, dict[str, Any]]:
    """Versions, devices, threads and memory, as plain values that JSON can hold."""
    import torch

    versions: dict[str, Any] = {"calibseg": __version__, "python": platform.python_version()}
    for name in PACKAGES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            versions[name] = "not installed"
    devices = {
        f"cuda:{index}": f"{torch.cuda.get_device_name(index)}, {gib(torch.cuda.mem_get_info(index)[1])}"
        for index in range(torch.cuda.device_count())
    }
    if torch.backends.mps.is_available():
        devices["mps"] = "Apple GPU"
    return {
        "versions": versions,
        "machine": {"system": platform.platform(), "processor": platform.machine(), "cores": os.cpu_count()},
        "devices": devices or {"cpu": "no GPU found"},
        "threads": {
            "torch": torch.get_num_threads(),
            "between operations": torch.get_num_interop_threads(),
            "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "not set"),
        },
        "memory": {name: gib(size) for name, size in memory().items()},
    }
