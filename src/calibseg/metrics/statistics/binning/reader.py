r"""A volume of scores and its target, read a span of voxels at a time, checked, and turned into probabilities.

How scores become probabilities is in `probabilities`. What is summed is a float64 number; its bin and the predicted
class are those of the number rounded to float32, so that two routes whose exponentials differ in the last bit of a
float64 still agree, and so that 0.2 is on the edge 3/15 in whichever type it is stored.
"""

import importlib.util
from collections.abc import Iterator
from functools import cached_property
from typing import Any, Literal, NoReturn

import numpy as np
import torch
from torch import Tensor

from calibseg.core.types import Activation, Array, BadInput
from calibseg.metrics.statistics.binning.chunk import VoxelChunk
from calibseg.metrics.statistics.binning.probabilities import KINDS, TOLERANCE, Kind, probabilities
from calibseg.metrics.statistics.calibration import Bands

Step = tuple[int, int]  # a range of voxels, see `VoxelReader.steps`
Route = Literal["auto", "torch", "numba"]
LENGTH = 1 << 14  # voxels per span: a few MB, which the processor's cache holds
LEAST = {torch.float16: 2.0**-24, torch.bfloat16: 2.0**-133, torch.float32: 2.0**-149, torch.float64: 2.0**-1074}


class VoxelReader:
    """Iterate over it, as often as needed, to get every voxel that is not ignored."""

    def __init__(
        self,
        scores: Any,
        target: Any,
        kind: Kind,
        activation: Activation,
        ignore_label: int | None = None,
        distance_mm: Any = None,
        bands: Bands | None = None,
    ) -> None:
        if kind not in KINDS:
            raise BadInput(f"scores cannot be of the kind {kind!r}. Known: {', '.join(KINDS)}")
        if activation not in ("softmax", "sigmoid"):
            raise BadInput(f"no activation named {activation!r}. Known: softmax, sigmoid")
        if len(scores.shape) < 2:
            raise BadInput(f"scores have the shape {tuple(scores.shape)}; expected [k *space], classes first")
        self.scores, self.target, self.distance_mm = scores, target, distance_mm
        self.kind: Kind = kind
        self.activation: Activation = activation
        self.ignore_label = ignore_label
        self.bands = bands or Bands()
        self.classes, self.space = int(scores.shape[0]), tuple(int(n) for n in scores.shape[1:])
        self.device = scores.device if isinstance(scores, Tensor) else torch.device("cpu")
        if not _is_float(scores):
            raise BadInput(f"scores hold {scores.dtype}; expected float16, float32 or float64")
        if self.classes < 2 and activation == "softmax":
            raise BadInput("softmax needs at least 2 classes; a single channel is activation='sigmoid'")
        self.target_kind = self._target_kind()
        if distance_mm is not None and tuple(distance_mm.shape) != self.space:
            raise BadInput(f"distances have the shape {tuple(distance_mm.shape)}, the scores cover {self.space}")
        if distance_mm is None and self.bands.number > 1:
            raise BadInput("distance bands need distance_mm, the signed distance of every voxel")

    def _target_kind(self) -> Literal["labels", "raters", "soft"]:
        shape = tuple(int(n) for n in self.target.shape)
        if shape == self.space and not _is_float(self.target):
            return "labels"
        if shape == (self.classes, *self.space) and (_is_float(self.target) or self.activation == "sigmoid"):
            return "soft"
        if shape[1:] == self.space and not _is_float(self.target) and self.activation == "softmax":
            return "labels" if shape[0] == 1 else "raters"
        raise BadInput(
            f"the target has the shape {shape} of {self.target.dtype} and the scores cover {self.space} with "
            f"{self.classes} classes; expected integer labels [*space] or [raters *space], or soft labels [k *space]"
        )

    @property
    def numba_can(self) -> bool:
        """Whether the numba routes apply: one label per voxel, softmax, the CPU."""
        return self.target_kind == "labels" and self.activation == "softmax" and self.device.type == "cpu"

    def steps(self, voxels: int) -> list[Step]:
        """Ranges of about so many voxels: of flat voxels where arrays can be read flat, else along the first axis."""
        length, per_step = (int(np.prod(self.space)), 1) if self.flat else (self.space[0], int(np.prod(self.space[1:])))
        size = max(1, voxels // max(1, per_step))
        return [(a, min(a + size, length)) for a in range(0, length, size)]

    def voxels(self, step: Step) -> int:
        """How many voxels a step has, ignored ones included."""
        return (step[1] - step[0]) * (1 if self.flat else int(np.prod(self.space[1:])))

    @cached_property
    def flat(self) -> bool:
        arrays = [a for a in (self.scores, self.target, self.distance_mm) if a is not None]
        return all(_contiguous(a) for a in arrays)

    def part(self, array: Any, step: Step, leading: bool) -> Any:
        """The part [.., n] of an array that belongs to a step: a view where the array is contiguous."""
        a, b = step
        if self.flat:
            return array.reshape(len(array), -1)[:, a:b] if leading else array.reshape(-1)[a:b]
        found = array[:, a:b] if leading else array[a:b]
        if not isinstance(found, Tensor):
            found = np.asarray(found)
        return found.reshape(len(found), -1) if leading else found.reshape(-1)

    def where(self, step: Step, index: int) -> str:
        """The voxel at a place of a step, in words."""
        start = step[0] if self.flat else step[0] * int(np.prod(self.space[1:]))
        place = np.unravel_index(start + index, self.space)
        return f"voxel ({', '.join(str(int(i)) for i in place)})"

    def labels(self, step: Step) -> Any:
        leading = len(self.target.shape) > len(self.space)
        found = self.part(self.target, step, leading)
        return found[0] if leading and self.target_kind == "labels" else found

    def numbers(self, step: Step) -> tuple[Array, int, int]:
        """A flat array, and where in it a step's first class starts and how far apart the classes lie.

        The whole volume where it can be used as it is; else a copy of the step, in float32 unless it is float64.
        """
        if isinstance(self._plain, np.ndarray):
            return self._plain, step[0], self._plain.size // self.classes
        part = self.part(self.scores, step, True)
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

    @property
    def least(self) -> float:
        """The smallest positive number of the type that the scores are stored in."""
        if isinstance(self.scores, Tensor):
            return LEAST[self.scores.dtype]
        return float(np.finfo(self.scores.dtype).smallest_subnormal)

    def zones(self, step: Step) -> Array:
        """The distance band of each voxel: [lo, hi) inside, (lo, hi] outside, so that both sides are alike."""
        distance = np.asarray(self.part(self.distance_mm, step, False))
        if np.isnan(distance).any():
            raise BadInput(f"the distance is NaN at {self.where(step, int(np.isnan(distance).argmax()))}")
        edges = np.array(self.bands.edges)
        return np.where(distance < 0, edges.searchsorted(distance, "right"), edges.searchsorted(distance, "left"))

    def __iter__(self) -> Iterator[VoxelChunk]:
        for step in self.steps(LENGTH):
            chunk = self.read(step)
            if chunk is not None:
                yield chunk

    def read(self, step: Step) -> VoxelChunk | None:
        """The voxels of a step that count; None where there is none."""
        scores, y, places = self._kept(step)
        if not scores.shape[1]:
            return None
        if self.distance_mm is None:
            zone = None
        else:
            zone = torch.from_numpy(self.zones(step)).to(self.device)
            zone = zone if places is None else zone[places]
        p, rounded, nll, impossible = self._probabilities(scores, y, step, places)
        return VoxelChunk(p, rounded, y, nll, impossible, zone)

    def rounded(self, step: Step) -> tuple[Tensor, Tensor]:
        """Only float32 p and y of a `VoxelChunk`, of a step that has been read before and found good.

        Stored probabilities may still lie a little outside 0 to 1.
        """
        scores, y, places = self._kept(step)
        if self.kind == "probabilities":
            return scores.float(), y
        return self._probabilities(scores, y, step, places)[1], y

    def _kept(self, step: Step) -> tuple[Tensor, Tensor, Tensor | None]:
        """The scores and the target of the voxels that count, and which those are (None: all)."""
        scores = _tensor(self.part(self.scores, step, True), self.device)
        y, keep = self._targets(step)
        if keep is None or keep.all():
            return scores, y, None
        places = keep.nonzero()[:, 0]
        return scores[:, places], y[..., places], places

    @property
    def rounds_nothing(self) -> bool:
        """Whether every probability is a float32 number as it is."""
        return self.kind == "probabilities" and self.scores.dtype.itemsize < 8

    def _targets(self, step: Step) -> tuple[Tensor, Tensor | None]:
        """Labels [n] or soft labels [k n], and which voxels count (None: all)."""
        target = _tensor(self.labels(step), self.device)
        if self.target_kind == "soft":
            ignored = torch.zeros_like(target[0], dtype=torch.bool)
            if self.ignore_label is not None and not target.is_floating_point():
                ignored = (target == self.ignore_label).any(0)
            y = target.double()
            total = y.sum(0)
            bad = ~ignored & ~((y >= 0) & (y <= 1)).all(0)
            if self.activation == "softmax":
                ignored |= total == 0
                bad |= ~ignored & ~((total - 1).abs() <= TOLERANCE)
            if bad.any():
                i = int(bad.long().argmax())
                raise BadInput(f"soft labels are {_shown(y[:, i])} at {self.where(step, i)}; expected shares of 1")
            return y, ~ignored
        if self.ignore_label is None and self.target_kind == "labels" and self.activation == "softmax":
            low, high = (int(value) for value in target.aminmax()) if target.numel() else (0, 0)
            if low >= 0 and high < self.classes:  # the usual case costs one look
                return target.long(), None
        ignored = target == self.ignore_label if self.ignore_label is not None else torch.zeros_like(target).bool()
        outside = ~ignored & ((target < 0) | (target >= self.classes))
        if outside.any():
            first = outside.reshape(-1, outside.shape[-1]).any(0)
            i = int(first.long().argmax())
            value = target.reshape(-1, target.shape[-1])[:, i]
            self.refuse_label(int(value[outside.reshape(-1, outside.shape[-1])[:, i]][0]), step, i)
        if self.target_kind == "raters":
            raters = torch.zeros(self.classes, target.shape[1], dtype=torch.float64, device=self.device)
            votes = (~ignored).double()
            raters.scatter_add_(0, target.long().masked_fill(ignored, 0), votes)
            return raters / votes.sum(0), votes.sum(0) > 0
        if self.activation == "sigmoid":
            classes = torch.arange(self.classes, device=self.device)[:, None]
            return (target.long() == classes).double(), ~ignored
        return target.long(), ~ignored

    def _probabilities(
        self, scores: Tensor, y: Tensor, step: Step, places: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        def check(bad: Tensor) -> None:
            if bad.any():
                i = int(bad.long().argmax())
                self.refuse_scores(scores[:, i], self.where(step, i if places is None else int(places[i])))

        return probabilities(scores, y, self.kind, self.activation, self.least, check)

    def refuse_scores(self, values: Any, at: str) -> NoReturn:
        """Say what is wrong with the scores of one voxel."""
        values = [float(value) for value in values]
        if not np.isfinite(values).all():
            raise BadInput(f"scores are NaN or infinite at {at}: {_shown(values)}")
        if self.kind == "log_probabilities":
            values = np.exp(values).tolist()
        name = self.kind.replace("_", " ")
        if self.kind == "probabilities" and (min(values) < -TOLERANCE or max(values) > 1 + TOLERANCE):
            raise BadInput(f"{name} are {_shown(values)} at {at}; expected numbers from 0 to 1")
        raise BadInput(f"{name} sum to {sum(values):.6g} instead of 1 at {at}: {_shown(values)}")

    def refuse_label(self, label: int, step: Step, index: int) -> NoReturn:
        raise BadInput(
            f"the label {label} at {self.where(step, index)} is none of the {self.classes} classes "
            f"0 to {self.classes - 1}; the ignore label is {self.ignore_label}"
        )


def numba_is_here() -> bool:
    """Whether the extra `fast` brought numba."""
    return importlib.util.find_spec("numba") is not None


def takes_numba(reader: VoxelReader, route: Route) -> bool:
    """Whether to take the numba route; refused where it is demanded and does not apply."""
    if route == "numba" and not reader.numba_can:
        raise BadInput("the numba route takes integer labels, softmax and arrays on the CPU: use route='torch'")
    if route == "numba" and not numba_is_here():
        raise BadInput("the numba route needs numba, which the extra `fast` brings: use route='torch'")
    return route != "torch" and reader.numba_can and numba_is_here()


def _is_float(array: Any) -> bool:
    if isinstance(array, Tensor):
        return array.is_floating_point()
    return np.dtype(array.dtype).kind == "f" and np.dtype(array.dtype).itemsize <= 8


def _contiguous(array: Any) -> bool:
    if isinstance(array, Tensor):
        return array.is_contiguous()
    return isinstance(array, np.ndarray) and bool(array.flags.c_contiguous)


def _tensor(array: Any, device: torch.device) -> Tensor:
    if isinstance(array, Tensor):
        return array.detach().to(device)
    array = np.asarray(array)
    if array.dtype.kind == "u" and array.dtype.itemsize > 1:
        array = array.astype(np.int64)
    if not array.flags.writeable or not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))  # torch takes neither read-only nor foreign-endian arrays
    return torch.from_numpy(array).to(device)


def _shown(values: Any) -> str:
    return ", ".join(f"{float(v):.6g}" for v in values)
