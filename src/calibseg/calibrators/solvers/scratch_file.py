"""Arrays that several passes need, kept on disk between them: memory stays flat however many cases there are.

They lie one tuple after the other in a file without a name: nothing can be left of it. The first few stay in memory,
where reading them costs nothing.
"""

import itertools
import math
import tempfile
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Self

import numpy as np
from numpy import ndarray as Array

LIMIT = 1 << 31  # bytes on disk
HELD = 1 << 24  # bytes in memory


class ArrayFile:
    """Tuples of arrays by their number. Use it in a `with`."""

    def __init__(self) -> None:
        self.file = tempfile.TemporaryFile()  # noqa: SIM115 - lives until the last pass
        self.size = 0
        self.entries: list[tuple[int, list[tuple[np.dtype, tuple[int, ...]]]]] = []  # where each begins, what it holds

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: Any) -> None:
        self.file.close()

    def append(self, arrays: tuple[Array, ...]) -> None:
        """Write a tuple; OSError where there is no room."""
        entry = self.size, [(array.dtype, array.shape) for array in arrays]
        for array in arrays:
            self.size += self.file.write(np.ascontiguousarray(array).data)
        self.entries.append(entry)

    def read(self, number: int) -> tuple[Array, ...]:
        position, kinds = self.entries[number]
        self.file.seek(position)
        return tuple(np.fromfile(self.file, dtype, math.prod(shape)).reshape(shape) for dtype, shape in kinds)


class Scratch(ArrayFile):
    """What `make()` gives, as often as it is asked for; not to be changed.

    The first pass makes it and keeps it; later passes read it back, which spares unpacking and normalising scores
    again. Where it outgrows `LIMIT` or the disk, nothing is kept, and every pass makes it anew.
    """

    def __init__(self, make: Callable[[], Iterable[tuple[Array, ...]]]) -> None:
        super().__init__()
        self.make, self.whole, self.full = make, False, False
        self.held: list[tuple[Array, ...]] = []  # those before the file's first

    def __iter__(self) -> Iterator[tuple[Array, ...]]:
        return itertools.chain(self.held, map(self.read, range(len(self.entries)))) if self.whole else self._first()

    def _first(self) -> Iterator[tuple[Array, ...]]:
        self.entries, self.held, self.size, room = [], [], self.file.seek(0), HELD
        for arrays in self.make():
            size = sum(array.nbytes for array in arrays)
            room -= size
            self.full = self.full or self.size + size > LIMIT
            if room >= 0:
                self.held.append(tuple(array.copy() for array in arrays))
            elif not self.full:
                try:
                    self.append(arrays)
                except OSError:  # the disk is full
                    self.full = True
            yield arrays
        self.whole = not self.full
        if self.full:
            self.file.truncate(0)
            self.held = []
