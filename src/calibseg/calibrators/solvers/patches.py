"""What a step of training sees of a case, kept on disk between epochs: memory stays flat however many cases there are.

A piece is some whole slices of a case (2-D), or a run of neighbouring planes with HALO more on each side (3-D), so that
convolutions have real surroundings inside the volume. Beyond its border the volume is mirrored; where an axis is too
short for that (4 voxels or fewer), its last voxel is repeated. Of a case with more than CASE_VOXELS voxels, evenly
spaced pieces are kept.
"""

import math
import tempfile
from typing import NamedTuple

import numpy as np
import torch
from numpy import ndarray as Array
from torch import Tensor

from calibseg.calibrators.solvers.scratch_file import ArrayFile
from calibseg.calibrators.solvers.temperature_tree import HALO, LEAST
from calibseg.core.types import BadInput

STEP_VOXELS = 1 << 15  # of a piece: half a hippocampus, a slice of 180 x 180
CASE_VOXELS = 1 << 19  # kept of a case
RUN = 16  # planes that a run has at least in 3-D: the halo adds 8


class Volume(NamedTuple):
    """One case, its slice axis first: [z y x] stands for that order."""

    scores: Array  # [k z y x] normalised log scores
    image: Array | None  # [c z y x]
    expected: Array  # [z y x] the target's mean log score, sum_k q_k log p_k
    weight: Array  # [z y x] for how many voxels one stands; 0: it does not count


class Piece(NamedTuple):
    """What a step sees: [n k *space]; scores and image padded by HALO, the others [n *space] not."""

    scores: Tensor
    image: Tensor | None
    expected: Tensor
    weight: Tensor


class Pieces(ArrayFile):
    """The pieces of all cases by their number, as float32. Use it in a `with`."""

    def __init__(self, dimensions: int) -> None:
        super().__init__()
        self.dimensions = dimensions
        self.patients: list[str] = []  # whose each piece is
        self.score, self.image = Moments(), Moments()

    def add(self, volume: Volume, patient: str) -> None:
        """Cut a case into pieces and keep them."""
        planes, *plane = volume.weight.shape
        counted = np.asarray(volume.weight.any((1, 2)))
        chosen = counted.nonzero()[0] if self.dimensions == 2 else np.arange(planes)
        cut = [run for run in runs(chosen, math.prod(plane), self.dimensions, STEP_VOXELS) if counted[run].any()]
        most = max(1, CASE_VOXELS * len(cut) // max(1, len(chosen) * math.prod(plane)))
        for at in np.linspace(0, len(cut) - 1, min(most, len(cut))).round().astype(int):
            self._keep(volume, cut[at], planes)
            self.patients.append(patient)

    def _keep(self, volume: Volume, run: Array, planes: int) -> None:
        around = run if self.dimensions == 2 else surroundings(run, planes)
        image = np.zeros((0, 1, 1, 1), np.float32) if volume.image is None else volume.image[:, around]
        parts = (volume.scores[:, around], image, volume.expected[run], volume.weight[run])
        self.score.add(np.maximum(parts[0], LEAST))
        self.image.add(image)
        try:
            self.append(tuple(part.astype(np.float32, copy=False) for part in parts))
        except OSError as error:
            room = f"{self.size / 1e9:.1f} GB in {tempfile.gettempdir()}"
            raise BadInput(f"local_temperature keeps {room} while it learns, and there is no more room") from error

    def piece(self, number: int) -> Piece:
        scores, image, expected, weight = self.read(number)
        lead = (1,) if self.dimensions == 3 else ()
        return Piece(
            padded(scores, self.dimensions),
            padded(image, self.dimensions) if len(image) else None,
            torch.from_numpy(expected.reshape(*lead, *expected.shape)),
            torch.from_numpy(weight.reshape(*lead, *weight.shape)),
        )


class Moments:
    """Mean and standard deviation of every channel over all that was added [c ...]."""

    def __init__(self) -> None:
        self.number, self.sums = 0, np.zeros((2, 0))

    def add(self, part: Array) -> None:
        flat = part.reshape(len(part), math.prod(part.shape[1:])).astype(np.float64)
        sums = np.stack([flat.sum(1), np.square(flat).sum(1)])
        self.sums = sums if not self.number else self.sums + sums
        self.number += flat.shape[1]

    def mean_and_deviation(self) -> tuple[Array, Array]:
        """The mean and the deviation; 1 in place of a deviation of 0."""
        mean, square = self.sums / max(1, self.number)
        deviation = np.sqrt(np.maximum(square - mean * mean, 0))
        return mean.astype(np.float32), np.where(deviation > 1e-6, deviation, 1).astype(np.float32)


def runs(chosen: Array, plane: int, dimensions: int, step: int) -> list[Array]:
    """Which planes are looked at together, about `step` voxels: every m-th in 2-D, neighbours in 3-D."""
    number = -(-len(chosen) * plane // step)
    if dimensions == 2:
        number = min(number, len(chosen))
        return [chosen[begin::number] for begin in range(number)]
    return np.array_split(chosen, max(1, min(number, -(-len(chosen) // RUN)))) if number else []


def surroundings(run: Array, size: int) -> Array:
    """A run of positions with HALO more on each side, mirrored (or repeated) at the ends of their axis.

    >>> surroundings(np.arange(6), 6).tolist()
    [4, 3, 2, 1, 0, 1, 2, 3, 4, 5, 4, 3, 2, 1]
    >>> surroundings(np.arange(2), 2).tolist()
    [0, 0, 0, 0, 0, 1, 1, 1, 1, 1]
    """
    wanted = np.arange(run[0] - HALO, run[-1] + HALO + 1)
    if size <= HALO:
        return wanted.clip(0, size - 1)
    wanted = np.abs(wanted)
    return np.where(wanted < size, wanted, 2 * (size - 1) - wanted)


def padded(part: Array, dimensions: int) -> Tensor:
    """[c n h w], its planes already chosen -> [n c h w] or [1 c n h w], padded in the plane."""
    rows, columns = (torch.from_numpy(surroundings(np.arange(size), size)) for size in part.shape[2:])
    tensor = torch.from_numpy(np.ascontiguousarray(part, np.float32))
    tensor = tensor if dimensions == 3 else tensor.transpose(0, 1)
    tensor = tensor.index_select(2, rows).index_select(3, columns)
    return tensor.unsqueeze(0) if dimensions == 3 else tensor
