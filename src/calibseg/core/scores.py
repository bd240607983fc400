"""The one reader of scores [k *space] by chunks of voxels, for the statistics and the calibrators.

What the numbers are is stated by the caller and never guessed from their values: `kind` is "logits",
"log_probabilities" or "probabilities", `activation` "softmax" (classes exclude each other) or "sigmoid" (each channel
is its own yes-or-no question). `scores` is anything with a shape, a dtype and slices: array, tensor, memory map, lazy
file. What is made of the numbers is up to the two readers built on this one: `VoxelReader` of `metrics.statistics`
(float64 probabilities and sums, on any device) and `LogScores` of `calibrators.solvers` (float32 log-probabilities).
"""

from typing import Any, get_args

import numpy as np
import torch
from torch import Tensor

from calibseg.core.tensors import is_float, shown
from calibseg.core.types import TOLERANCE, Activation, BadInput, ScoreKind, VoxelName, voxel_name

KINDS: tuple[ScoreKind, ...] = get_args(ScoreKind)
ChunkRange = tuple[int, int]  # first voxel and end where arrays are read flat, else of the first axis


def batch_voxel_name(place: tuple[int, ...]) -> str:
    """A voxel of a batch [n *space] with its axes.

    >>> batch_voxel_name((2, 0, 7))
    'voxel (y 0, x 7) of image 2 of the batch'
    """
    return f"{voxel_name(place[1:])} of image {place[0]} of the batch"


class ScoreReader:
    """Scores of one case, checked for what can be told without reading them.

    name: what a message calls the case; empty: nothing. voxel: how a message calls a voxel, as its file counts.
    """

    flat = False  # whether chunks are ranges of flat voxels, and not of the first axis

    def __init__(
        self,
        scores: Any,
        kind: ScoreKind,
        activation: Activation = "softmax",
        name: str = "",
        voxel: VoxelName | None = None,
    ) -> None:
        self.scores, self.name, self.prefix = scores, name, f"{name}: " if name else ""
        self.voxel_name = voxel or voxel_name
        if kind not in KINDS:
            raise BadInput(f"{self.prefix}scores cannot be of the kind {kind!r}. Known: {', '.join(KINDS)}")
        if activation not in get_args(Activation):
            raise BadInput(f"{self.prefix}no activation named {activation!r}. Known: softmax, sigmoid")
        shape = tuple(int(n) for n in scores.shape)
        if len(shape) < 2:
            raise BadInput(f"{self.prefix}scores have the shape {shape}; expected [k *space], classes first")
        if not is_float(scores):
            raise BadInput(f"{self.prefix}scores hold {scores.dtype}; expected float16, float32 or float64")
        self.kind: ScoreKind = kind
        self.activation: Activation = activation
        self.shape, self.classes, self.space = shape, shape[0], shape[1:]
        self.device = scores.device if isinstance(scores, Tensor) else torch.device("cpu")
        if self.classes < 2 and activation == "softmax":
            raise BadInput(f"{self.prefix}softmax needs at least 2 classes; a single channel is activation='sigmoid'")

    @property
    def plane(self) -> int:
        """Voxels at one place of the first axis."""
        return int(np.prod(self.space[1:]))

    def chunks(self, voxels: int) -> list[ChunkRange]:
        """Ranges of about so many voxels: of flat voxels where arrays can be read flat, else along the first axis."""
        length, unit = (int(np.prod(self.space)), 1) if self.flat else (self.space[0], self.plane)
        size = max(1, voxels // max(1, unit))
        return [(a, min(a + size, length)) for a in range(0, length, size)]

    def voxels(self, at: ChunkRange) -> int:
        """How many voxels a chunk has, ignored ones included."""
        return (at[1] - at[0]) * (1 if self.flat else self.plane)

    def part(self, array: Any, at: ChunkRange, leading: bool) -> Any:
        """What of an array [*space], or with a leading axis [k *space], belongs to a chunk: [n] or [k n]."""
        a, b = at
        if self.flat:
            return array.reshape(len(array), -1)[:, a:b] if leading else array.reshape(-1)[a:b]
        values = array[:, a:b] if leading else array[a:b]
        if not isinstance(values, Tensor):
            values = np.asarray(values)
        return values.reshape(len(values), -1) if leading else values.reshape(-1)

    def where(self, at: ChunkRange, index: int) -> str:
        """The voxel at a place of a chunk, in words."""
        position = np.unravel_index(at[0] * (1 if self.flat else self.plane) + index, self.space)
        return self.voxel_name(tuple(int(i) for i in position))

    def wrong_scores(self, values: Any, where: str) -> BadInput:
        """What is to be raised where the scores [k] of one voxel are impossible."""
        values = np.array([float(value) for value in values])
        if not np.isfinite(values).all():
            return BadInput(f"{self.prefix}scores are NaN or infinite at {where}: {shown(values)}")
        p = np.exp(values) if self.kind == "log_probabilities" else values
        kind, hint = self.kind.replace("_", " "), "; if they are logits, say so (kind logits)"
        if p.min() < -TOLERANCE or p.max() > 1 + TOLERANCE:
            bounds = "at most 0" if self.kind == "log_probabilities" else "from 0 to 1"
            return BadInput(f"{self.prefix}{kind} are {shown(values)} at {where}; expected numbers {bounds}{hint}")
        return BadInput(f"{self.prefix}{kind} sum to {p.sum():.6g} instead of 1 at {where}: {shown(p)}{hint}")
