"""Arrays that several passes need, kept on disk between them: memory stays flat however many cases there are.

The first pass makes them and writes them to a file without a name (nothing can be left of it); later passes read them
back, one tuple of arrays at a time, which spares unpacking and normalising scores again. Where they outgrow `LIMIT` or
the disk, nothing is kept, and every pass makes them anew.
"""

import math
import tempfile
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
from numpy import ndarray as Array

LIMIT = 1 << 31  # bytes


class Scratch:
    """What `make()` gives, as often as it is asked for. Use it in a `with`."""

    def __init__(self, make: Callable[[], Iterable[tuple[Array, ...]]]) -> None:
        self.make, self.room = make, LIMIT
        self.file = tempfile.TemporaryFile()  # noqa: SIM115 - lives until the last pass
        self.kept: list[list[tuple[np.dtype, tuple[int, ...]]]] | None = None

    def __enter__(self) -> "Scratch":
        return self

    def __exit__(self, *_: Any) -> None:
        self.file.close()

    def __iter__(self) -> Iterator[tuple[Array, ...]]:
        if self.kept is None:
            return self._first()
        self.file.seek(0)
        return (
            tuple(
                np.frombuffer(self.file.read(math.prod(shape) * dtype.itemsize), dtype).reshape(shape)
                for dtype, shape in arrays
            )
            for arrays in self.kept
        )

    def _first(self) -> Iterator[tuple[Array, ...]]:
        kept = []
        for arrays in self.make():
            self.room -= sum(array.nbytes for array in arrays)
            try:
                for array in arrays if self.room >= 0 else ():
                    self.file.write(np.ascontiguousarray(array).data)
            except OSError:  # the disk is full
                self.room = -1
            kept.append([(array.dtype, array.shape) for array in arrays])
            yield arrays
        if self.room >= 0:
            self.kept = kept
        else:
            self.file.truncate(0)
