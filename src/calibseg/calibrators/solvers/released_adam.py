"""The temperature as the segmentation papers' code fits it: Adam with the learning rate 1e-4 from T = 1, 100 epochs.

A step takes about as many voxels as `SLICES` slices have, of one case, cases in their order. After every epoch the NLL
of all voxels is taken, and the best epoch's T is kept (that code selects on validation; here both use the same voxels).
A step moves T by about the learning rate whatever the gradient is, so that after s steps T is within s 1e-4 of 1.
"""

from collections.abc import Callable, Iterable, Iterator

import numpy as np
from numpy import ndarray as Array

from calibseg.calibrators.solvers.scratch_file import Scratch
from calibseg.calibrators.solvers.temperatures import Part, TemperatureFit, voxel_sums
from calibseg.calibrators.solvers.voxels import ScoreChunk, VoxelStream

EPOCHS, RATE, SLICES = 100, 1e-4, 16
MOMENTS, EPSILON = (0.9, 0.999), 1e-8  # Adam's, as torch has them


def released_temperatures(
    stream: VoxelStream, groups: int, parts: Callable[[ScoreChunk], Iterable[Part]]
) -> TemperatureFit:
    """The temperature of each group after `EPOCHS`; `chunk.case_context` says how many voxels a slice has."""

    def made() -> Iterator[tuple[Array, ...]]:
        for chunk in stream:
            for part in parts(chunk):
                weight = np.ones(len(part.a)) if part.weight is None else part.weight
                yield part.d, part.a, weight, np.array([part.group, chunk.case, chunk.case_context * SLICES])

    adam = _Adam(groups)
    with Scratch(made) as kept:
        first, number = _nll(kept, adam.t)
        least, best = first, adam.t
        for _ in range(EPOCHS):
            _epoch(kept, adam)
            value, _ = _nll(kept, adam.t)
            best = np.where(value < least, adam.t, best)
            least = np.minimum(value, least)
    never = np.zeros(groups, bool)
    return TemperatureFit(best, first / number, least / number, number, never, never, 1 + 2 * EPOCHS)


def _epoch(kept: Scratch, adam: "_Adam") -> None:
    """Every batch once. A batch ends when it has its voxels, or with its case."""
    seen, slope = np.zeros(len(adam.t)), np.zeros(len(adam.t))
    before = np.full(len(adam.t), -1)

    def step(group: int) -> None:
        if seen[group]:
            adam.step(group, -slope[group] / seen[group] / adam.t[group] ** 2)  # dF/dT = -F'(1/T) / T^2
        seen[group] = slope[group] = 0

    for d, a, weight, (group, case, batch) in kept:
        if before[group] != case:
            step(group)
        before[group] = case
        begin = 0
        while begin < len(a):
            end = min(len(a), begin + max(1, int(batch - seen[group])))
            piece = slice(begin, end)
            mean = voxel_sums(d[:, piece], 1 / float(adam.t[group]), weight[piece])[1]
            slope[group] += mean - float(a[piece] @ weight[piece])
            seen[group] += end - begin
            begin = end
            if seen[group] >= batch:
                step(group)
    for group in range(len(adam.t)):
        step(group)


def _nll(kept: Scratch, t: Array) -> tuple[Array, Array]:
    """The summed NLL and the number of voxels of every group."""
    total, number = np.zeros(len(t)), np.zeros(len(t))
    for d, a, weight, (group, _, _) in kept:
        total[group] += voxel_sums(d, 1 / float(t[group]), weight)[0] - float(a @ weight) / t[group]
        number[group] += weight.sum()
    return total, number


class _Adam:
    """Adam on one temperature per group."""

    def __init__(self, groups: int) -> None:
        self.t = np.ones(groups)
        self.moments, self.steps = np.zeros((2, groups)), np.zeros(groups, int)

    def step(self, group: int, gradient: float) -> None:
        self.steps[group] += 1
        scaled = []
        for moment, decay, value in zip(self.moments, MOMENTS, (gradient, gradient**2), strict=True):
            moment[group] = decay * moment[group] + (1 - decay) * value
            scaled.append(moment[group] / (1 - decay ** self.steps[group]))
        self.t = self.t.copy()
        self.t[group] -= RATE * scaled[0] / (np.sqrt(scaled[1]) + EPSILON)
