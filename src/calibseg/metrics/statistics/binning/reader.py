r"""A volume of scores and its target, read a chunk of voxels at a time, checked, and turned into probabilities.

How scores become probabilities is in `probabilities`. What is summed is a float64 number; its bin and the predicted
class are those of the number rounded to float32, so that two routes whose exponentials differ in the last bit of a
float64 still agree, and so that 0.2 is on the edge 3/15 in whichever type it is stored.
"""

from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from calibseg.core.labels import likeliest_class
from calibseg.core.scores import ChunkRange, ScoreReader
from calibseg.core.target_reader import TargetReader
from calibseg.core.tensors import as_tensor
from calibseg.core.types import Activation, Array, BadInput, ScoreKind, VoxelName
from calibseg.metrics.statistics.binning.chunk import VoxelChunk
from calibseg.metrics.statistics.binning.probabilities import probabilities
from calibseg.metrics.statistics.calibration import Bands

CHUNK = 1 << 18  # voxels whose target is looked at alone


class VoxelReader(ScoreReader):
    """Gives the voxels of a chunk that are not ignored, as often as needed."""

    def __init__(
        self,
        scores: Any,
        target: Any,
        kind: ScoreKind,
        activation: Activation,
        ignore_label: int | None = None,
        distance_mm: Any = None,
        bands: Bands | None = None,
        voxel: VoxelName | None = None,
    ) -> None:
        super().__init__(scores, kind, activation, voxel=voxel)
        self.target, self.distance_mm, self.bands = target, distance_mm, bands or Bands()
        self.targets = TargetReader.of(target, self.shape, activation, ignore_label)
        self.flat = all(_contiguous(array) for array in (scores, target, distance_mm) if array is not None)
        if distance_mm is not None and tuple(distance_mm.shape) != self.space:
            raise BadInput(f"distances have the shape {tuple(distance_mm.shape)}, the scores cover {self.space}")
        if distance_mm is None and self.bands.number > 1:
            raise BadInput("distance bands need distance_mm, the signed distance of every voxel")

    @property
    def hard(self) -> bool:
        """Whether every voxel has one label, one of classes that exclude each other, on the CPU: the fast ways."""
        return self.targets.kind == "labels" and self.activation == "softmax" and self.device.type == "cpu"

    @property
    def rounds_nothing(self) -> bool:
        """Whether every probability is a float32 number as it is."""
        return self.kind == "probabilities" and self.scores.dtype.itemsize < 8

    def labels(self, at: ChunkRange) -> Any:
        """The stored target of a chunk: [n], [r n] or [k n]."""
        leading = len(self.target.shape) > len(self.space)
        values = self.part(self.target, at, leading)
        return values[0] if leading and self.targets.kind == "labels" else values

    def numbers(self, at: ChunkRange) -> tuple[Array, int, int]:
        """A flat array, and where in it a chunk's first class starts and how far apart the classes lie.

        The whole volume where it can be used as it is; else a copy of the chunk, in float32 unless it is float64.
        """
        if isinstance(self._plain, np.ndarray):
            return self._plain, at[0], self._plain.size // self.classes
        part = self.part(self.scores, at, True)
        if isinstance(part, Tensor):
            part = part.detach().double().numpy() if part.dtype == torch.float64 else part.detach().float().numpy()
        dtype = np.float64 if part.dtype.itemsize == 8 else np.float32
        return np.array(part, dtype, order="C").reshape(-1), 0, part.shape[1]

    @cached_property
    def _plain(self) -> Array | None:
        """The scores as one flat writable native float32 or float64 array on the CPU, where that costs nothing."""
        array = self.scores
        if isinstance(array, Tensor):
            if array.device.type != "cpu" or array.dtype not in (torch.float32, torch.float64):
                return None
            array = array.detach().numpy() if array.is_contiguous() else None
        if not isinstance(array, np.ndarray) or not self.flat or not array.flags.writeable:
            return None
        usable = array.dtype.isnative and array.dtype.itemsize >= 4
        return np.asarray(array).reshape(-1) if usable else None

    def zones(self, at: ChunkRange) -> Array:
        """The distance band of each voxel: [lo, hi) inside, (lo, hi] outside, so that both sides are alike."""
        distance = np.asarray(self.part(self.distance_mm, at, False))
        if np.isnan(distance).any():
            raise BadInput(f"the distance is NaN at {self.where(at, int(np.isnan(distance).argmax()))}")
        edges = np.array(self.bands.edges)
        return np.where(distance < 0, edges.searchsorted(distance, "right"), edges.searchsorted(distance, "left"))

    def read(self, at: ChunkRange) -> VoxelChunk | None:
        """The voxels of a chunk that are not ignored; None where there is none."""
        scores, y, places = self._kept(at)
        if not scores.shape[1]:
            return None
        zone = None
        if self.distance_mm is not None:
            zone = torch.from_numpy(self.zones(at)).to(self.device)
            zone = zone if places is None else zone[places]
        p, rounded, nll, clipped = self._probabilities(scores, y, at, places)
        return VoxelChunk(p, rounded, y, nll, clipped, zone)

    def counted(self) -> Array | None:
        """Which voxels [*space] are not ignored; None: all. The scores are not read."""
        if not self.targets.may_ignore:
            return None
        counted = None
        for at in self.chunks(CHUNK):
            _, keep = self._target(at)
            if keep is None or keep.all():
                continue
            counted = np.ones(self.space, bool) if counted is None else counted
            self.part(counted, at, leading=False)[:] = keep.cpu().numpy()
        return counted

    def rounded(self, at: ChunkRange) -> tuple[Tensor, Tensor]:
        """Only float32 p and y of a `VoxelChunk`, of a chunk that has been read before and found good.

        Stored probabilities may still lie a little outside 0 to 1.
        """
        scores, y, places = self._kept(at)
        if self.kind == "probabilities":
            return scores.float(), y
        return self._probabilities(scores, y, at, places)[1], y

    def _kept(self, at: ChunkRange) -> tuple[Tensor, Tensor, Tensor | None]:
        """The scores and the target of the voxels that are not ignored, and which those are (None: all)."""
        scores = as_tensor(self.part(self.scores, at, True), self.device)
        y, keep = self._target(at)
        if keep is None or keep.all():
            return scores, y, None
        places = keep.nonzero()[:, 0]
        return scores[:, places], y[..., places], places

    def _target(self, at: ChunkRange) -> tuple[Tensor, Tensor | None]:
        """Labels [n] or soft labels [k n] of a chunk, and which of its voxels are not ignored (None: all)."""
        return self.targets.read(as_tensor(self.labels(at), self.device), lambda i: self.where(at, i))

    def _probabilities(
        self, scores: Tensor, y: Tensor, at: ChunkRange, places: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        def check(bad: Tensor) -> None:
            if bad.any():
                i = int(bad.long().argmax())
                raise self.wrong_scores(scores[:, i], self.where(at, i if places is None else int(places[i])))

        return probabilities(scores, y, self.kind, self.activation, check)


def chunk_probabilities(reader: ScoreReader, at: ChunkRange, keep: Array | None = None) -> tuple[Array, Array | None]:
    """Float32 probabilities [k n] of a chunk, and the predicted class [n] (None with sigmoid); refused if no such.

    keep: which voxels of the chunk are read; None: all.
    """
    stored = reader.part(reader.scores, at, leading=True)
    if keep is not None:
        stored = stored[:, keep]
    scores = as_tensor(stored)

    def check(bad: Tensor) -> None:
        if bad.any():
            i = int(bad.long().argmax())
            raise reader.wrong_scores(stored[:, i], reader.where(at, i if keep is None else np.flatnonzero(keep)[i]))

    softmax = reader.activation == "softmax"
    nothing = torch.zeros(scores.shape[1:] if softmax else scores.shape, dtype=torch.long)
    p = probabilities(scores, nothing, reader.kind, reader.activation, check)[1].numpy()
    return p, likeliest_class(np.asarray(stored)) if softmax else None


def _contiguous(array: Any) -> bool:
    if isinstance(array, Tensor):
        return array.is_contiguous()
    return isinstance(array, np.ndarray) and bool(array.flags.c_contiguous)
