r"""Exact distances between the surfaces of two label maps, for up to eight objects at once.

$$ d(p, T) = \min_{t \in T} \lVert (p - t) \cdot \text{spacing} \rVert $$

A surface is a volume of bytes in which bit r of a voxel says that it lies on the surface of object r. Distances are
found in two steps. Most surface voxels of a prediction lie within a few voxels of the truth, so every voxel first looks
at its neighbours in the order of their distance (offset 0, then the nearest ones, ...) in the other surface's volume:
one gather per offset, for all objects together, on the voxels that have found nothing yet. What remains after `OFFSETS`
neighbours is far away: per object it asks a KD-tree or a distance transform, whichever the measured costs below say is
cheaper (a distance transform pays for every voxel of the box, a KD-tree for every point).

The result is a histogram: on a grid many voxels share few distances.
"""

from dataclasses import dataclass
from math import pi, prod
from typing import NamedTuple

import numpy as np
from scipy.ndimage import distance_transform_edt
from scipy.spatial import KDTree

from calibseg.core.types import Array

Spacing = tuple[float, float, float]

BITS = 8  # objects that share one byte
OFFSETS = 250  # neighbours looked at one by one: about what one KD-tree query costs
TREE_POINT_NS, TREE_QUERY_NS = 150, 3000  # build per point, query per far point (500 to 15000 seen)
VOXEL_NS = 100  # distance transform per voxel of the box


@dataclass(frozen=True)
class Distances:
    """Distances of one surface's voxels to another surface: distinct values, ascending, and how many voxels have each.

    The distance to an empty surface is infinite. An empty surface has no distances.
    """

    values: Array  # float64
    counts: Array  # int64

    @property
    def number(self) -> int:
        """Voxels of the surface."""
        return int(self.counts.sum())

    def mean(self) -> float:
        return float(self.values @ self.counts) / self.number

    def max(self) -> float:
        return float(self.values[-1])

    def within(self, tolerance: float) -> int:
        """Voxels at most `tolerance` away. Equal up to rounding is equal: 3 steps of 0.1 mm are within 0.3 mm."""
        return int(self.counts[: np.searchsorted(self.values, tolerance * (1 + 1e-9), side="right")].sum())

    def quantile(self, q: float) -> float:
        """Linear interpolation between order statistics, as numpy and torch do."""
        place = q * (self.number - 1)
        ends = np.cumsum(self.counts)
        low, high = self.values[np.searchsorted(ends, [int(place), min(int(place) + 1, self.number - 1)], side="right")]
        return float(low + (high - low) * (place - int(place)))

    def __add__(self, other: "Distances") -> "Distances":
        values, where = np.unique(np.concatenate([self.values, other.values]), return_inverse=True)
        counts = np.zeros(len(values), np.int64)
        np.add.at(counts, where, np.concatenate([self.counts, other.counts]))
        return Distances(values, counts)


class Shells(NamedTuple):
    """The neighbours of a voxel in rings of equal distance, nearest first."""

    rings: list[tuple[float, Array]]  # distance, offsets [n, 3]
    margin: tuple[int, int, int]  # how far the offsets reach along each axis


class Surface(NamedTuple):
    """Surface bits in a box with an empty margin wide enough for every offset, and the voxels that have any bit."""

    volume: Array  # uint8 [z y x], margin included
    where: Array  # flat positions of non-zero voxels, ascending
    bits: Array  # uint8, their values


def shells(shape: tuple[int, ...], spacing: Spacing) -> Shells:
    """All offsets up to the distance that holds about `OFFSETS` of them, none longer than the box."""
    radius = (OFFSETS * prod(spacing) * 3 / (4 * pi)) ** (1 / 3)
    reach = [min(int(radius / step), size - 1) for step, size in zip(spacing, shape, strict=True)]
    offsets = np.stack(np.meshgrid(*(np.arange(-r, r + 1) for r in reach), indexing="ij"), -1).reshape(-1, 3)
    squares = ((offsets * np.asarray(spacing)) ** 2).sum(1)
    order = np.argsort(squares, kind="stable")
    squares, offsets = squares[order], offsets[order]
    limit = min(radius**2, squares[OFFSETS]) if len(squares) > OFFSETS else radius**2
    squares, offsets = squares[squares < limit], offsets[squares < limit]
    new_ring = np.flatnonzero(np.diff(squares) > 1e-9 * limit) + 1
    radii = np.sqrt(squares[np.concatenate([[0], new_ring])])
    rings = list(zip(radii.tolist(), np.split(offsets, new_ring), strict=True))
    margin = np.maximum(np.abs(offsets).max(0), 1)  # erosion looks one voxel far
    return Shells(rings, (int(margin[0]), int(margin[1]), int(margin[2])))


def surface_distances(start: Surface, goal: Surface, near: Shells, spacing: Spacing, workers: int) -> list[Distances]:
    """For each of eight objects, how far the voxels of its surface in `start` lie from its surface in `goal`."""
    present = np.bitwise_or.reduce(goal.bits, initial=0)
    lost = _per_object(start.bits & ~present)  # they have nothing to be near to
    ring_counts, where, wanted = _look_around(start.where, start.bits & present, goal, near)
    radii = np.array([distance for distance, _ in near.rings])
    result = []
    for row in range(BITS):
        hit = np.flatnonzero(ring_counts[:, row])
        values, counts = radii[hit], ring_counts[hit, row]
        if lost[row]:
            values, counts = np.array([np.inf]), lost[row : row + 1]
        far = where[wanted & (1 << row) != 0]
        if far.size:
            far_values, far_counts = np.unique(_far(far, goal, 1 << row, spacing, workers), return_counts=True)
            values, counts = np.concatenate([values, far_values]), np.concatenate([counts, far_counts])
        result.append(Distances(values, counts))
    return result


def _look_around(where: Array, wanted: Array, goal: Surface, near: Shells) -> tuple[Array, Array, Array]:
    """How many voxels find each object in each ring [ring, object]; the voxels that still want a bit, and which."""
    ring_counts = np.zeros((len(near.rings), BITS), np.int64)
    flat, steps = goal.volume.reshape(-1), np.array(goal.volume.strides)  # a voxel is a byte, so strides are steps
    reach = int(steps @ near.margin)
    where = where - reach  # a neighbour is then the same position in a view that starts later, and never before 0
    left = _per_object(wanted)
    for ring, (_, offsets) in enumerate(near.rings):
        for offset in offsets @ steps:
            wanted &= ~flat[reach + offset :].take(where)
        still = wanted != 0
        where, wanted = where[still], wanted[still]
        before, left = left, _per_object(wanted)
        ring_counts[ring] = before - left
        if not where.size:
            break
    return ring_counts, where + reach, wanted


def _per_object(bits: Array) -> Array:
    """How many of the voxels have each of the eight bits."""
    return np.array([np.count_nonzero(bits & np.uint8(1 << row)) for row in range(BITS)])


def _far(where: Array, goal: Surface, bit: int, spacing: Spacing, workers: int) -> Array:
    """Distances of the voxels that found nothing around them, by the cheaper of two exact methods."""
    targets = goal.where[goal.bits & bit != 0]
    tree_ns = TREE_POINT_NS * targets.size + TREE_QUERY_NS * where.size
    if tree_ns <= VOXEL_NS * goal.volume.size:
        tree = KDTree(_points(targets, goal, spacing), leafsize=32, compact_nodes=False, balanced_tree=False)
        return tree.query(_points(where, goal, spacing), workers=workers)[0]
    outside = (goal.volume & bit == 0).view(np.uint8)
    return np.asarray(distance_transform_edt(outside, sampling=spacing)).reshape(-1)[where]


def _points(where: Array, surface: Surface, spacing: Spacing) -> Array:
    return np.stack(np.unravel_index(where, surface.volume.shape), 1) * np.asarray(spacing)
