r"""Probabilities of prepared slices -> slices of the grid of the file they came from, a few slices at a time.

The numbers of resampling a whole volume without holding it: resampling is one matrix along each axis, so a slice is
brought to the file's rows and columns when it arrives, and a slice of the file is a mean of the few that lie near it:

$$ q_i = \sum_j W_{ij} \, p_j, \qquad W_{ij} \ne 0 \text{ for few } j $$

Outside the crop nothing was predicted: that is background for certain. Probabilities are interpolated, never logits or
labels, and renormalised.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
from numpy import ndarray as Array

from calibseg.core.types import BadInput
from calibseg.data.preprocessing import AXES, crop_overlap, interpolation_matrix, resampled


def original_slices(slices: Iterable[Array], classes: int, header: Mapping[str, Any]) -> Iterator[Array]:
    """Probabilities [k h w] of a prepared case, slice after slice -> [k H W] of the file (turned to RAS+), in order."""
    geometry = header["geometry"]
    axis = AXES[header["slice_axis"]]
    arriving = _resized(slices, classes, geometry, axis)
    near: deque[Array] = deque()  # resized slices from number `first` on
    first = 0
    for row in interpolation_matrix(geometry["resized"][axis], geometry["shape"][axis]).astype(np.float32):
        used = np.flatnonzero(row)
        begin, end = int(used[0]), int(used[-1]) + 1
        while first + len(near) < end:
            near.append(next(arriving))
        while first < begin:
            near.popleft()
            first += 1
        yield _renormalised(near, row[begin:end])
    for _ in arriving:  # slices of which only padding is left: a missing one is found there
        pass


def _resized(slices: Iterable[Array], classes: int, geometry: Mapping[str, Any], axis: int) -> Iterator[Array]:
    """The slices of the resampled grid, rows and columns already the file's; background where nothing was predicted."""
    start, final, resized = (geometry[name][axis] for name in ("start", "final", "resized"))
    arriving, background = iter(slices), None
    for number in range(min(start, 0), max(resized, start + final)):
        if start <= number < start + final:
            probabilities = next(arriving, None)
            if probabilities is None:
                raise BadInput(f"the case has {final} slices, probabilities were given for {number - start}")
            if 0 <= number < resized:
                yield _in_plane(probabilities, geometry, axis)
        else:
            if background is None:
                height, width = _plane(geometry["shape"], axis)
                background = np.zeros((classes, height, width), np.float32)
                background[0] = 1
            yield background


def _in_plane(probabilities: Array, geometry: Mapping[str, Any], axis: int) -> Array:
    """One slice [k h w] of the crop -> [k H W] with the file's rows and columns."""
    start, final, resized, shape = (_plane(geometry[name], axis) for name in ("start", "final", "resized", "shape"))
    if probabilities.shape[1:] != final:
        raise BadInput(f"probabilities of a slice have shape {probabilities.shape[1:]}, the case {final}")
    if final != resized:
        padded = np.zeros((len(probabilities), *resized), np.float32)
        padded[0] = 1
        theirs, ours = crop_overlap(start, final, resized)
        padded[:, *theirs] = probabilities[:, *ours]
        probabilities = padded
    return resampled(probabilities, shape)


def _plane(sizes: Any, axis: int) -> tuple[int, ...]:
    return tuple(size for number, size in enumerate(sizes) if number != axis)


def _renormalised(near: Iterable[Array], row: Array) -> Array:
    """The weighted mean of slices, its classes summing to 1."""
    parts = zip(near, row, strict=True)
    part, weight = next(parts)
    mean = part * weight
    for part, weight in parts:
        mean += part * weight
    mean /= mean.sum(0)
    return mean
