"""Whether numba can keep what it compiles, and whether what it kept is of today's sources.

numba looks at the time stamp of a function's own file. What that imports and compiles in (layouts of memory, constants,
functions) may have changed since, and old machine code would read new memory.
"""

import zlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any


def keeps_code(probe: Callable[[], None], sources: Iterable[Path]) -> bool:
    """Whether numba has a folder for the file that `probe` stands in: else every process compiles anew.

    What lies there is removed unless it was compiled from these sources.
    """
    from numba import njit

    try:
        compiled: Any = njit(cache=True)(probe)
    except RuntimeError:  # a package that cannot be written to, and no home
        return False
    if not hasattr(compiled, "_cache"):  # NUMBA_DISABLE_JIT
        return False
    folder = Path(compiled._cache.cache_path)
    mark, now = folder / "sources.crc", str(zlib.crc32(b"".join(file.read_bytes() for file in sorted(sources))))
    if not mark.is_file() or mark.read_text() != now:
        for file in folder.glob("*.nb?"):
            file.unlink(missing_ok=True)
        folder.mkdir(parents=True, exist_ok=True)
        mark.write_text(now)
    return True
