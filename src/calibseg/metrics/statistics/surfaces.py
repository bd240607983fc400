"""Surface distances between two label maps: computed once per case, they serve every surface metric.

The surface of an object is what a 6-connected erosion takes away: its voxels that have a neighbour outside the object.
Beyond the border of the image lies nothing, so voxels at the border are surface (MedPy's rule). An axis with a single
voxel has no neighbours and takes no part: a 2-D image is a volume of one slice, and its surfaces are 4-connected
outlines. Distances are measured between voxel centres.

All classes and regions are extracted together, as bits of one byte, in the box that holds both foregrounds. For each
row (class or region) the distances of both directions are kept as exact histograms, a few kilobytes. Unlike overlap
counts they belong to one case: a distance metric of several cases is the mean of the cases' values, never a pooled one.

>>> truth, predicted = np.zeros((1, 5, 9), int), np.zeros((1, 5, 9), int)
>>> truth[0, 2, 1], predicted[0, 2, 4:6] = 1, 1
>>> pair = SurfaceStatistics.of(truth, predicted, num_classes=2, spacing_mm=(3.0, 1.0, 0.5)).rows[1]
>>> pair.to_truth.values, pair.to_predicted.values
(array([1.5, 2. ]), array([1.5]))
"""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from math import hypot, isfinite
from typing import Any, NamedTuple

import numpy as np

from calibseg.core.types import Array, BadInput, Units
from calibseg.metrics.statistics.label_maps import Regions, Row, checked, rows
from calibseg.metrics.statistics.surface_distances import BITS, Distances, Shells, Surface, shells, surface_distances

Box = tuple[slice, slice, slice]

_CHUNK = 1 << 17  # voxels eroded at a time: they stay in the cache


class SurfacePair(NamedTuple):
    """One row's two surfaces: how far each lies from the other. `number` 0 means that the row is absent there."""

    to_truth: Distances  # of the predicted surface's voxels
    to_predicted: Distances  # of the true surface's voxels

    @property
    def truth_absent(self) -> bool:
        return self.to_predicted.number == 0

    @property
    def predicted_absent(self) -> bool:
        return self.to_truth.number == 0


@dataclass(frozen=True)
class SurfaceStatistics:
    """The surface distances of one case, per class and region, in `units`."""

    rows: dict[Row, SurfacePair]
    units: Units
    diagonal: float  # of the whole image, in `units`: the score of a missed object under the policy "worst"

    @classmethod
    def of(
        cls,
        truth: Any,
        predicted: Any,
        num_classes: int,
        regions: Regions | None = None,
        spacing_mm: tuple[float, ...] = (1.0, 1.0, 1.0),
        units: Units = "mm",
        ignore_index: int | None = None,
        workers: int = 1,
    ) -> "SurfaceStatistics":
        """Compare two integer label maps [z y x] of one case.

        spacing_mm: size of a voxel along (z, y, x); not used where units is "voxel".
        ignore_index: voxels with this true label are background in both maps.
        workers: threads to use.
        """
        wanted = rows(num_classes, regions)
        truth, predicted = checked(truth, predicted, num_classes, ignore_index)
        if truth.ndim != 3:
            raise BadInput(f"a label map is [z y x], got shape {truth.shape}; a 2-D image is [1 y x]")
        if workers < 1:
            raise BadInput(f"workers is {workers}, but at least one thread has to work")
        spacing = _spacing(spacing_mm, units)
        diagonal = hypot(*(size * step for size, step in zip(truth.shape, spacing, strict=True)))
        if ignore_index is not None and (ignored := truth == ignore_index).any():
            truth, predicted = np.where(ignored, 0, truth), np.where(ignored, 0, predicted)
        box = _joint_box(truth, predicted)
        if box is None:
            nothing = Distances(np.empty(0), np.empty(0, np.int64))
            return cls(dict.fromkeys(wanted, SurfacePair(nothing, nothing)), units, diagonal)
        near = shells(truth[box].shape, spacing)
        thick = tuple(size > 1 or truth.size == 1 for size in truth.shape)
        pairs_of: dict[Row, SurfacePair] = {}
        names = list(wanted)
        for first in range(0, len(names), BITS):
            group = names[first : first + BITS]
            table = np.zeros(num_classes, np.uint8)
            for bit, name in enumerate(group):
                table[list(wanted[name])] |= 1 << bit
            pairs = _compare(truth[box], predicted[box], table, near, thick, spacing, workers)
            pairs_of |= dict(zip(group, pairs, strict=False))
        return cls(pairs_of, units, diagonal)


def _compare(
    truth: Array,
    predicted: Array,
    table: Array,
    near: Shells,
    thick: tuple[bool, ...],
    spacing: tuple[float, float, float],
    workers: int,
) -> Iterator[SurfacePair]:
    """The pairs of up to eight rows, bit by bit; with two workers or more the two maps are treated side by side."""

    def surface(labels: Array) -> Surface:
        return _surface(labels, table, near, thick)

    def distances(ends: tuple[Surface, Surface]) -> list[Distances]:
        return surface_distances(*ends, near, spacing, max(1, workers // 2))

    with ThreadPoolExecutor(min(workers, 2)) as pool:
        true, guess = pool.map(surface, (truth, predicted))
        to_truth, to_predicted = pool.map(distances, ((guess, true), (true, guess)))
    return map(SurfacePair, to_truth, to_predicted)


def _spacing(spacing_mm: tuple[float, ...], units: Units) -> tuple[float, float, float]:
    if units not in ("mm", "voxel"):
        raise BadInput(f"no unit named {units!r}. Known: mm, voxel")
    if units == "voxel":
        return (1.0, 1.0, 1.0)
    steps = [float(step) for step in spacing_mm]
    if len(steps) != 3 or not all(step > 0 and isfinite(step) for step in steps):
        raise BadInput(f"spacing_mm is {tuple(steps)}, but a voxel has three positive sizes (z, y, x)")
    return (steps[0], steps[1], steps[2])


def _joint_box(truth: Array, predicted: Array) -> Box | None:
    """The smallest box with every foreground voxel of both maps; None where there is none."""
    sides = []
    plane = np.bitwise_or.reduce(truth, axis=0) | np.bitwise_or.reduce(predicted, axis=0)
    depth = truth.any((1, 2)) | predicted.any((1, 2))
    for present in (depth, plane.any(1), plane.any(0)):
        where = np.flatnonzero(present)
        if not where.size:
            return None
        sides.append(slice(int(where[0]), int(where[-1]) + 1))
    return (sides[0], sides[1], sides[2])


def _surface(labels: Array, table: Array, near: Shells, thick: tuple[bool, ...]) -> Surface:
    """The membership bits of each voxel, without those that all its neighbours share.

    In a box with a margin a neighbour is a fixed step away in the flat array, so erosion is six ANDs of shifted views.
    """
    inside = tuple(slice(margin, margin + size) for margin, size in zip(near.margin, labels.shape, strict=True))
    bits = np.zeros([size + 2 * margin for margin, size in zip(near.margin, labels.shape, strict=True)], np.uint8)
    slices = max(1, _CHUNK // labels[0].size)
    for start in range(0, len(labels), slices):
        bits[inside][start : start + slices] = _members(labels[start : start + slices], table)
    volume = np.zeros_like(bits)
    steps = [step for step, moves in zip(bits.strides, thick, strict=True) if moves]  # a voxel is a byte
    flat, surface, where = bits.reshape(-1), volume.reshape(-1), []
    margin = bits.strides[0]  # the margin of the first slice at least, where nothing lies
    for start in range(margin, flat.size - margin, _CHUNK):
        stop = min(start + _CHUNK, flat.size - margin)
        shared = flat[start:stop].copy()
        for step in steps:
            shared &= flat[start - step : stop - step]
            shared &= flat[start + step : stop + step]
        part = np.bitwise_xor(flat[start:stop], shared, out=surface[start:stop])
        where.append(np.flatnonzero(part != 0) + start)
    index = np.concatenate(where)
    return Surface(volume, index, surface[index])


def _members(labels: Array, table: Array) -> Array:
    """`table[labels]`; for bytes, the bytes type's own look-up is three times faster than numpy's."""
    if len(table) > 256:
        return table[labels]
    codes = labels.astype(np.uint8, copy=False).tobytes().translate(table.tobytes().ljust(256, b"\0"))
    return np.frombuffer(codes, np.uint8).reshape(labels.shape)
