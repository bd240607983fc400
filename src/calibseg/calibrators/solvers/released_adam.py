"""The temperature as the segmentation papers' code fits it: Adam with the learning rate 1e-4 from T = 1, 100 epochs.

A step takes about as many voxels as `SLICES` slices have, of one case, cases in their order. After every epoch the NLL
of all voxels is taken, and the best epoch's T is kept (that code selects on validation; here both use the same voxels).
A step moves T by about the learning rate whatever the gradient is, so that after s steps T is within s 1e-4 of 1.
"""

from collections.abc import Iterator

import numpy as np
import torch
from numpy import ndarray as Array

from calibseg.calibrators.solvers.scratch_file import Scratch
from calibseg.calibrators.solvers.temperatures import Parts, TemperatureFit, voxel_sums
from calibseg.calibrators.solvers.voxels import VoxelStream

EPOCHS, RATE, SLICES = 100, 1e-4, 16


def released_temperatures(stream: VoxelStream, groups: int, parts: Parts) -> TemperatureFit:
    """The temperature of each group after `EPOCHS`; `chunk.case_context` says how many voxels a slice has."""

    def made() -> Iterator[tuple[Array, ...]]:
        for chunk in stream:
            for part in parts(chunk):
                weight = np.ones(len(part.a)) if part.weight is None else part.weight
                yield part.d, part.a, weight, np.array([part.group, chunk.case, chunk.case_context * SLICES])

    adams = [_Adam() for _ in range(groups)]
    with Scratch(made) as kept:
        first, number = _nll(kept, adams)
        least, best = first, np.ones(groups)
        for _ in range(EPOCHS):
            for d, a, weight, (group, case, batch) in kept:
                adams[group].learn(d, a, weight, case, batch)
            for adam in adams:
                adam.step()
            value, _ = _nll(kept, adams)
            best = np.where(value < least, [float(adam.t) for adam in adams], best)
            least = np.minimum(value, least)
    return TemperatureFit(best, first / number, least / number, number, np.zeros(groups, bool), 1 + 2 * EPOCHS)


def _nll(kept: Scratch, adams: "list[_Adam]") -> tuple[Array, Array]:
    """The summed NLL and the number of voxels of every group."""
    total, number = np.zeros((2, len(adams)))
    for d, a, weight, (group, _, _) in kept:
        b = 1 / float(adams[group].t)
        total[group] += voxel_sums(d, b, weight)[0] - float(a @ weight) * b
        number[group] += weight.sum()
    return total, number


class _Adam:
    """Adam on one temperature. A batch ends when it has its voxels, or with its case."""

    def __init__(self) -> None:
        self.t = torch.ones((), dtype=torch.float64)
        self.optimiser = torch.optim.Adam([self.t], RATE)
        self.case, self.seen, self.slope = -1, 0, 0.0

    def learn(self, d: Array, a: Array, weight: Array, case: int, batch: int) -> None:
        """Take the voxels of a chunk, and a step wherever a batch ends."""
        if case != self.case:
            self.step()
        self.case = case
        begin = 0
        while begin < len(a):
            chunk = slice(begin, begin + max(1, batch - self.seen))
            mean = voxel_sums(d[:, chunk], 1 / float(self.t), weight[chunk])[1]
            self.slope += mean - float(a[chunk] @ weight[chunk])
            self.seen += len(a[chunk])
            begin = chunk.stop
            if self.seen >= batch:
                self.step()

    def step(self) -> None:
        if self.seen:
            self.t.grad = -self.slope / self.seen / self.t**2  # dF/dT = -F'(1/T) / T^2
            self.optimiser.step()
        self.seen, self.slope = 0, 0.0
