"""Arrays of single classes as one array-like, which reads only what is indexed."""

from typing import Any

import numpy as np
from numpy import ndarray as Array


class StackedArray:
    """One array per class [z y x] as one array-like [k z y x] that reads only what is indexed."""

    def __init__(self, parts: list[Array]) -> None:
        self.parts = parts
        self.shape = (len(parts), *parts[0].shape)
        self.dtype = np.result_type(*parts)
        self.ndim = len(self.shape)

    def __getitem__(self, key: Any) -> Array:
        first, *rest = key if isinstance(key, tuple) else (key,)
        if isinstance(first, slice):
            return np.stack([part[tuple(rest)] for part in self.parts[first]])
        return self.parts[first][tuple(rest)]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        return np.stack(self.parts).astype(dtype or self.dtype, copy=False)
