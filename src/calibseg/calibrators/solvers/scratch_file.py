"""Arrays that several passes need, kept on disk between them: memory stays flat however many cases there are.

The first pass makes them and writes them to a file without a name (nothing can be left of it); later passes read them
back, one group of arrays at a time, which spares unpacking and normalising scores again. Where they outgrow `LIMIT` or
the disk, nothing is kept, and every pass makes them anew.
"""

import math
import tempfile
from collections.abc import Callable, Iterable, Iterator
from typing import IO, Any

import numpy as np
from numpy import ndarray as Array

LIMIT = 1 << 31  # bytes

Arrays = tuple[Array, ...]


class Scratch:
    """What `make()` gives, as often as it is asked for. Use it in a `with`."""

    def __init__(self, make: Callable[[], Iterable[Arrays]], limit: int | None = None) -> None:
        self.make, self.limit = make, LIMIT if limit is None else limit
        self.entries: list[list[tuple[np.dtype, tuple[int, ...]]]] | None = None  # None: not kept (yet)
        self.file: IO[bytes] | None = None

    def __enter__(self) -> "Scratch":
        return self

    def __exit__(self, *_: Any) -> None:
        if self.file is not None:
            self.file.close()

    def __iter__(self) -> Iterator[Arrays]:
        return self._first() if self.entries is None else self._again(self.entries)

    def _first(self) -> Iterator[Arrays]:
        entries, size = [], 0
        file = tempfile.TemporaryFile() if self.limit else None  # noqa: SIM115 - lives until the last pass
        for arrays in self.make():
            size += sum(array.nbytes for array in arrays)
            if file is not None and size > self.limit:
                file.close()
                file = None
            if file is not None:
                try:
                    for array in arrays:
                        file.write(np.ascontiguousarray(array).data)
                except OSError:  # no room: later passes make the arrays anew
                    file.close()
                    file = None
                entries.append([(array.dtype, array.shape) for array in arrays])
            yield arrays
        if file is not None:
            self.file, self.entries = file, entries
        else:
            self.limit = 0

    def _again(self, entries: list[list[tuple[np.dtype, tuple[int, ...]]]]) -> Iterator[Arrays]:
        assert self.file is not None
        self.file.seek(0)
        for entry in entries:
            arrays = []
            for dtype, shape in entry:
                count = math.prod(shape)
                piece = self.file.read(count * dtype.itemsize)
                arrays.append(np.frombuffer(piece, dtype, count).reshape(shape))
            yield tuple(arrays)
