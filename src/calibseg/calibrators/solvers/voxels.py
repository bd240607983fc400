"""Voxels to learn from: the predictions of several cases as chunks of log scores with their targets, case by case.

What a target may be is in `core.labels`; voxels labelled 255 are ignored. With sigmoid the true class of a voxel is 0
where no channel is right, else 1 + the channel that is most.

A stratified sample takes at most so many voxels of each true class of each case, without replacement; a voxel drawn
stands for all that were not (its weight is their number by the number drawn), so that sums over voxels stay unbiased.
What is drawn depends on the seed and the case's id only: every pass sees the same voxels, in whatever order cases come.
"""

import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy import ndarray as Array

from calibseg.calibrators.solvers.log_scores import LogScores
from calibseg.core.labels import likeliest_class
from calibseg.core.target_reader import TargetReader
from calibseg.core.tensors import as_tensor
from calibseg.core.types import IGNORED, Activation, BadInput, Prediction, ScoreKind

FitOn = Literal["all", "foreground"]
Look = Callable[[LogScores, Prediction], Any]


class ScoreChunk(NamedTuple):
    """Voxels of one case that are not ignored."""

    scores: Array  # [k n] log scores, float32 or float64; not to be changed
    target: Array  # [n] int64 labels, or [k n] float64 soft labels
    weight: Array | None  # [n] float64: for how many voxels one stands; None: for itself
    where: slice | Array  # which of the case's flat voxels they are
    case: int  # number of the case, from 0
    case_context: Any  # what the calibrator saw in the whole case

    @property
    def voxels(self) -> int:
        return self.scores.shape[1]

    def weights(self) -> Array:
        return np.ones(self.voxels) if self.weight is None else self.weight

    def soft(self) -> Array:
        """The target as soft labels [k n]."""
        if self.target.ndim == 2:
            return self.target
        return (self.target == np.arange(len(self.scores))[:, None]).astype(np.float64)


@dataclass
class VoxelStream:
    """Chunks of several cases, as often as they are asked for; after a whole pass, what they were."""

    predictions: Iterable[Prediction]
    fit_on: FitOn = "all"
    sample: int = 0
    seed: int = 0
    activations: tuple[Activation, ...] = ("softmax", "sigmoid")
    method: str = "this calibrator"
    case_context: Look | None = None
    normalised: bool = True  # False: scores are known up to a number for each voxel, which is faster
    classes: int = 0
    activation: Activation = "softmax"
    kind: ScoreKind = "logits"  # of the first case
    cases: list[str] = field(default_factory=list)
    patients: list[str] = field(default_factory=list)
    slice_axes: set[int] = field(default_factory=set)
    counted: int = 0  # voxels that the last pass gave

    def __post_init__(self) -> None:
        if iter(self.predictions) is self.predictions:
            raise BadInput(f"{self.method} reads the predictions several times: give a list, not a generator")

    def __iter__(self) -> Iterator[ScoreChunk]:
        cases, patients, counted = [], [], 0
        for prediction in self.predictions:
            scores = self._open(prediction, first=not cases)
            if prediction.case_id in cases:
                raise BadInput(f"case {prediction.case_id!r} is given twice")
            cases.append(prediction.case_id)
            patients.append(prediction.patient)
            for chunk in self._of_case(prediction, scores, len(cases) - 1):
                counted += chunk.voxels
                yield chunk
            del prediction, scores  # before the next case is opened: one case in memory, not two
        if not cases:
            raise BadInput(f"{self.method} has nothing to learn from: no prediction is given")
        if not counted:
            raise BadInput(f"{self.method} has nothing to learn from: no voxel of {len(cases)} cases counts")
        self.cases, self.patients, self.counted = cases, patients, counted

    def peek(self) -> Activation:
        """Open the first case, so that the number of classes and the activation are known."""
        prediction = next(iter(self.predictions), None)
        if prediction is None:
            raise BadInput(f"{self.method} has nothing to learn from: no prediction is given")
        self._open(prediction, first=True)
        return self.activation

    def fit_record(self) -> dict[str, Any]:
        """What was fitted on, for the record."""
        return {
            "cases": self.cases,
            "patients": sorted(set(self.patients)),
            "fit_on": self.fit_on,
            "voxels_counted": self.counted,
            "sample": self.sample,
            "seed": self.seed,
        }

    def _open(self, prediction: Prediction, first: bool) -> LogScores:
        name = f"case {prediction.case_id!r}"
        if prediction.activation not in self.activations:
            known = " or ".join(self.activations)
            raise BadInput(f"{self.method} is defined for {known} scores, and those of {name} are for a sigmoid")
        scores = LogScores(prediction.scores, prediction.kind, prediction.activation, name, prediction.voxel_name)
        self.slice_axes.add(prediction.slice_axis or 0)
        if first:
            self.classes, self.activation, self.kind = scores.classes, prediction.activation, prediction.kind
        if (scores.classes, prediction.activation) != (self.classes, self.activation):
            raise BadInput(
                f"{name} has {scores.classes} {prediction.activation} channels, those before it had {self.classes}"
                f" ({self.activation})"
            )
        return scores

    def _of_case(self, prediction: Prediction, scores: LogScores, number: int) -> Iterator[ScoreChunk]:
        target = Targets(prediction.labels, scores)
        case_context = self.case_context(scores, prediction) if self.case_context else None
        drawn = target.sample(self.fit_on, self.sample, self._generator(prediction)) if self.sample else None
        for where, part in scores.stream(self.normalised or scores.activation == "sigmoid"):
            if drawn is not None:
                begin, end = np.searchsorted(drawn[0], [where.start, where.stop])
                at, weight = drawn[0][begin:end], drawn[1][begin:end]
                if len(at):
                    y, _ = target.read(where)
                    inside = at - where.start
                    yield ScoreChunk(part[:, inside], y[..., inside], weight, at, number, case_context)
                continue
            y, keep = target.read(where)
            if self.fit_on == "foreground":
                keep = target.true_class(y) > 0 if keep is None else keep & (target.true_class(y) > 0)
            if keep is None or keep.all():
                yield ScoreChunk(part, y, None, where, number, case_context)
            elif keep.any():
                at = keep.nonzero()[0]
                yield ScoreChunk(part[:, at], y[..., at], None, at + where.start, number, case_context)

    def _generator(self, prediction: Prediction) -> np.random.Generator:
        return np.random.default_rng([self.seed, zlib.crc32(prediction.case_id.encode())])


class Targets:
    """The labels of a case in one of their shapes, read with the scores."""

    def __init__(self, labels: Any, scores: LogScores) -> None:
        if labels is None:
            raise BadInput(f"{scores.name} has no labels to learn from")
        labels = np.asarray(labels)
        self.reader = TargetReader.of(labels, scores.shape, scores.activation, IGNORED, scores.prefix)
        self.scores, self.size = scores, int(np.prod(scores.space))
        self.classes, self.channels = scores.classes, scores.activation == "sigmoid"
        self.labels = labels.reshape(-1) if self.reader.kind == "labels" else labels.reshape(-1, self.size)

    def read(self, where: slice) -> tuple[Array, Array | None]:
        """Labels [n] or soft labels [k n] of a range of voxels, and which of them count (None: all)."""
        stored = as_tensor(self.labels[..., where])
        labels, valid = self.reader.read(stored, lambda i: self.scores.where((0, 1), where.start + i))
        y, keep = labels.numpy(), None if valid is None else valid.numpy()
        if keep is not None and self.reader.kind == "soft" and not self.channels:
            y = y / np.where(keep, y.sum(0), 1)  # float16 shares sum to 1 only about
        return y, keep

    def sample(self, fit_on: FitOn, most: int, rng: np.random.Generator) -> tuple[Array, Array]:
        """Flat voxels that were drawn, ascending, and for how many each stands: at most so many of each true class."""
        chosen, weights = [], []
        length = 1 << 20
        truth = np.empty(self.size, np.int32)
        for begin in range(0, self.size, length):
            y, keep = self.read(slice(begin, min(begin + length, self.size)))
            classes = truth[begin : begin + length]
            classes[:] = self.true_class(y)  # which may be bytes, in which there is no -1
            if keep is not None:
                classes[~keep] = -1
        for k in range(1 if fit_on == "foreground" else 0, self.classes + self.channels):
            voxels_of_class = np.flatnonzero(truth == k)
            number = min(most, len(voxels_of_class))
            if number:
                chosen.append(rng.choice(voxels_of_class, number, replace=False, shuffle=False))
                weights.append(np.full(number, len(voxels_of_class) / number))
        if not chosen:
            return np.zeros(0, np.int64), np.zeros(0)
        at = np.concatenate(chosen)
        order = at.argsort()
        return at[order], np.concatenate(weights)[order]

    def true_class(self, y: Array) -> Array:
        """The class of hard labels [n], or the likeliest of soft labels [k n] (ties: smallest id)."""
        if y.ndim == 1:
            return y
        likeliest = likeliest_class(y)
        return np.where(y.max(0) > 0.5, 1 + likeliest.astype(np.int64), 0) if self.channels else likeliest
