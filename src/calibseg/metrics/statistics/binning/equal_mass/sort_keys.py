r"""The keys of an exact equal-mass calculation, by row and cell, in one array of just the size that they need.

A key is p's bits << 33 | round(y 2^32), so keys are in the order of p. How many there are of each row and cell the
histogram tells before the first is found, so nothing is ever copied to grow: 8 bytes per key are all.
"""

import itertools
from concurrent.futures import ThreadPoolExecutor
from threading import Lock

import numpy as np

from calibseg.core.types import Array

Keys = dict[tuple[int, int], Array]  # (row, cell) -> keys in order


class KeyStore:
    """Takes keys from several threads; number [4 row + cell] says how many there will be."""

    def __init__(self, number: Array) -> None:
        self.ends = np.cumsum(number)
        self.next = self.ends - number
        self.keys = np.empty(int(self.ends[-1]), np.int64)
        self.lock = Lock()

    def add(self, places: Array, keys: Array) -> None:
        """Add keys at places 4 row + cell."""
        counts = np.bincount(places, minlength=len(self.ends))
        keys = keys[np.argsort(places.astype(np.min_scalar_type(len(self.ends))), kind="stable")]
        with self.lock:
            first = self.next.copy()
            self.next += counts
        parts = itertools.pairwise([0, *np.cumsum(counts)])
        for start, (a, b) in zip(first, parts, strict=True):
            self.keys[start : start + b - a] = keys[a:b]

    def sorted(self, threads: int) -> Keys:
        """All keys, each row and cell in order."""
        if (self.next != self.ends).any():
            raise RuntimeError("the second pass found other voxels than the first: did the scores change in between?")
        by_place = {divmod(i, 4): self.keys[a:b] for i, (a, b) in enumerate(itertools.pairwise([0, *self.ends]))}
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(np.ndarray.sort, by_place.values()))
        return by_place
