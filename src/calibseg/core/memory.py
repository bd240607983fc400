"""Available memory, checked before an array of the size that a file's header states is allocated.

>>> require_memory(1 << 60, "huge.nii.gz: its header asks for")
Traceback (most recent call last):
calibseg.core.types.BadInput: huge.nii.gz: its header asks for 1073741824.0 GiB, and there are ... GiB of memory
"""

import contextlib
import os
from pathlib import Path

from calibseg.core.types import BadInput

CGROUP = Path("/sys/fs/cgroup")
ALWAYS_FITS = 1 << 28  # bytes: smaller sizes are not checked


def memory() -> dict[str, int]:
    """Bytes of memory, "total" and "free" (without swapping); empty where the system does not tell."""
    sizes: dict[str, int] = {}
    with contextlib.suppress(OSError, ValueError, AttributeError):
        page = os.sysconf("SC_PAGE_SIZE")
        sizes = {"total": page * os.sysconf("SC_PHYS_PAGES"), "free": page * os.sysconf("SC_AVPHYS_PAGES")}
    with contextlib.suppress(OSError, KeyError):
        sizes["free"] = 1024 * _numbers(Path("/proc/meminfo"))["MemAvailable:"]
    with contextlib.suppress(OSError, ValueError, KeyError):  # a container's own bound; its cache of files gives way
        bound = int((CGROUP / "memory.max").read_text())
        available = bound - _numbers(CGROUP / "memory.stat")["anon"]
        sizes = {name: min(size, bound if name == "total" else available) for name, size in sizes.items()}
    return sizes


def _numbers(path: Path) -> dict[str, int]:
    """Lines like `name 12 kB`."""
    rows = (line.split() for line in path.read_text().splitlines())
    return {row[0]: int(row[1]) for row in rows if len(row) > 1 and row[1].isdigit()}


def require_memory(size: int, what: str) -> None:
    """Refuse what does not fit: `what` says which file asks for it."""
    if size > ALWAYS_FITS and size > (free := memory().get("free", size)):
        raise BadInput(f"{what} {gib(size)}, and there are {gib(max(free, 0))} of memory")


def gib(count: int) -> str:
    return f"{count / 2**30:.1f} GiB"
