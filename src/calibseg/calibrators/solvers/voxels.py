"""Voxels to learn from: the predictions of several cases as slabs of log scores with their targets, one case at a time.

A target is one of: labels [z y x] of integers; several raters' labels [r z y x] of integers (the target is then the
share of the raters who did not ignore the voxel); soft labels [k z y x] of floats. With sigmoid, [k z y x] of any type
holds each channel's own label; the true class of a voxel is then 0 where no channel is right, else 1 + the channel that
is most. A voxel labelled 255, or whose soft labels are all 0 (softmax only), counts for nobody.

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

from calibseg.calibrators.solvers.log_scores import TOLERANCE, LogScores, likeliest
from calibseg.core.types import Activation, BadInput, Prediction, ScoreKind

IGNORE = 255
VoxelRule = Literal["all", "foreground"]
Look = Callable[[LogScores, Prediction], Any]


class ScoreChunk(NamedTuple):
    """Voxels of one case that count."""

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
    """Slabs of several cases, as often as they are asked for; after a whole pass, what they were."""

    predictions: Iterable[Prediction]
    voxels: VoxelRule = "all"
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
            "voxels": self.voxels,
            "voxels_counted": self.counted,
            "sample": self.sample,
            "seed": self.seed,
        }

    def _open(self, prediction: Prediction, first: bool) -> LogScores:
        name = f"case {prediction.case_id!r}"
        if prediction.activation not in self.activations:
            known = " or ".join(self.activations)
            raise BadInput(f"{self.method} is defined for {known} scores, and those of {name} are for a sigmoid")
        scores = LogScores(prediction.scores, prediction.kind, prediction.activation, name)
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
        drawn = target.sample(self.voxels, self.sample, self._generator(prediction)) if self.sample else None
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
            if self.voxels == "foreground":
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
        name, (k, *space) = scores.name, scores.shape
        if labels is None:
            raise BadInput(f"{name} has no labels to learn from")
        labels = np.asarray(labels)
        self.name, self.classes, self.size = name, k, int(np.prod(space))
        self.channels = scores.activation == "sigmoid"
        floating = labels.dtype.kind == "f"
        if labels.ndim == 4 and len(labels) == 1 and not floating and not self.channels:
            labels = labels[0]
        if self.channels and labels.shape == tuple(space) and k == 1:
            labels = labels[None]
        shares = (floating or self.channels) and labels.shape == (k, *space)
        raters = not floating and not self.channels and labels.ndim == 4 and labels.shape[1:] == tuple(space)
        if not (shares or raters or (labels.shape == tuple(space) and not floating and not self.channels)):
            known = f"integers {space} or [raters, ...], or soft labels {[k, *space]} of floats"
            known = f"each channel's own, {[k, *space]}" if self.channels else known
            raise BadInput(
                f"{name}: labels must be {known}, for scores {[k, *space]}, not {labels.dtype} {list(labels.shape)}"
            )
        self.shape: Literal["labels", "raters", "shares"] = "shares" if shares else "raters" if raters else "labels"
        self.labels = labels.reshape(-1) if self.shape == "labels" else labels.reshape(len(labels), -1)

    def read(self, where: slice) -> tuple[Array, Array | None]:
        """Labels [n] or soft labels [k n] of a range of voxels, and which of them count (None: all)."""
        part = self.labels[..., where]
        if self.shape == "shares":
            return self._shares(part)
        if self.shape == "labels" and part.size and part.min() >= 0 and part.max() < self.classes:
            return part.astype(np.int64), None  # the usual case costs one look
        ignored = part == IGNORE
        wrong = ~ignored & ((part < 0) | (part >= self.classes))
        if wrong.any():
            raise BadInput(
                f"{self.name} holds the label {part[wrong][0]}, which is none of the {self.classes} classes 0 to"
                f" {self.classes - 1}, nor {IGNORE} for a voxel to ignore"
            )
        if self.shape == "raters":
            votes = np.stack([(part == k).sum(0) for k in range(self.classes)]).astype(np.float64)
            number = votes.sum(0)
            return votes / np.maximum(number, 1), number > 0
        return part.astype(np.int64), ~ignored

    def _shares(self, part: Array) -> tuple[Array, Array]:
        ignored = (part == IGNORE).any(0) if part.dtype.kind != "f" else np.zeros(part.shape[1], bool)
        y = part.astype(np.float64)
        total = y.sum(0)
        good = ((y >= 0) & (y <= 1)).all(0)
        if not self.channels:
            ignored |= total == 0
            good &= np.abs(total - 1) <= TOLERANCE
        if not (good | ignored).all():
            i = int((~(good | ignored)).argmax())
            values = ", ".join(f"{value:.6g}" for value in y[:, i])
            raise BadInput(f"{self.name}: soft labels are {values} at a voxel; expected shares of 1")
        if not self.channels:
            y /= np.where(ignored, 1, total)  # float16 shares sum to 1 only about
        return y, ~ignored

    def sample(self, rule: VoxelRule, most: int, rng: np.random.Generator) -> tuple[Array, Array]:
        """Flat voxels that were drawn, ascending, and for how many each stands: at most so many of each true class."""
        chosen, weights = [], []
        step = 1 << 20
        truth = np.empty(self.size, np.int32)
        for begin in range(0, self.size, step):
            y, keep = self.read(slice(begin, min(begin + step, self.size)))
            truth[begin : begin + step] = self.true_class(y) if keep is None else np.where(keep, self.true_class(y), -1)
        for k in range(1 if rule == "foreground" else 0, self.classes + self.channels):
            found = np.flatnonzero(truth == k)
            number = min(most, len(found))
            if number:
                chosen.append(rng.choice(found, number, replace=False, shuffle=False))
                weights.append(np.full(number, len(found) / number))
        if not chosen:
            return np.zeros(0, np.int64), np.zeros(0)
        at = np.concatenate(chosen)
        order = at.argsort()
        return at[order], np.concatenate(weights)[order]

    def true_class(self, y: Array) -> Array:
        """The class of hard labels [n], or the likeliest of soft labels [k n] (ties: smallest id)."""
        if y.ndim == 1:
            return y
        return np.where(y.max(0) > 0.5, 1 + likeliest(y).astype(np.int64), 0) if self.channels else likeliest(y)
