"""Calibrated probabilities of a case, computed once, chunk by chunk.

A piece is the least that the calibrator must see at once (`reach`): a slab of planes, some slices, or the volume. The
probabilities are kept for the passes that follow: in memory, or where they are large in a file without a name that is
mapped into memory, so that the system can write them out. `Calibrated` is a case that opens like any other.
"""

import math
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from operator import add
from pathlib import Path
from typing import Any

import numpy as np
from numpy import ndarray as Array

from calibseg.calibrators import Calibrator
from calibseg.calibrators.fitted.files import load_calibrator
from calibseg.core.files import preallocate
from calibseg.core.types import BadInput, Case, Prediction, voxel_name
from calibseg.io.predictions import PredictionFiles
from calibseg.runs.folders import CalibratorFolder

IN_MEMORY = 64 << 20  # bytes: what is larger lies in a file
PIECE = 1 << 20  # values of a piece: 4 MB
Where = tuple[slice, slice, slice, slice]  # of [k z y x]
EVERYTHING: Where = (slice(None), slice(None), slice(None), slice(None))


@dataclass(frozen=True, kw_only=True)
class Calibrated(PredictionFiles):
    """A case with calibrated probabilities. The calibrator is its folder, or one that was fitted just now."""

    source: PredictionFiles
    calibrator: Path | Calibrator

    @classmethod
    def of(cls, source: PredictionFiles, calibrator: Path | Calibrator) -> "Calibrated":
        files = (*source.files, *(calibrator_paths(calibrator) if isinstance(calibrator, Path) else ()))
        fields = (source.case, source.patient, files, source.label, "probabilities", source.activation)
        beside = {"raters": source.raters, "members": source.members}
        return cls(*fields, **beside, source=source, calibrator=calibrator)

    @property
    def stated(self) -> tuple[Any, ...]:
        return ("calibrated", *self.source.stated)

    def open(self) -> Prediction:
        calibrator = _loaded(self.calibrator) if isinstance(self.calibrator, Path) else self.calibrator
        return calibrated(self.source.open(), calibrator, str(self.source.files[0]))


def calibrated(prediction: Prediction, calibrator: Calibrator, name: str = "") -> Prediction:
    """The same case with the calibrator's probabilities. What is wrong names the file."""
    probabilities = scratch_array(prediction.scores.shape)
    try:
        for where, p in transformed(prediction, calibrator):
            probabilities[where] = p
    except BadInput as error:
        raise BadInput(f"{name}: {error}" if name else str(error)) from error
    return replace(prediction, scores=probabilities, kind="probabilities")


def transformed(prediction: Prediction, calibrator: Calibrator) -> Iterator[tuple[Where, Array]]:
    """The probabilities of a case, piece after piece, and where in [k z y x] each belongs."""
    scores, image = prediction.scores, prediction.image
    looks = calibrator.looks_at_image
    if looks and image is None:
        raise BadInput(f"{calibrator.name} looks at the image of a case, and {prediction.case_id!r} comes without one")
    axis = calibrator.slice_axis_of(prediction) if calibrator.reach == "slice" else 0
    if axis and not isinstance(scores, np.ndarray):
        scores = _laid_out(scores)
    for where in [EVERYTHING] if calibrator.reach == "volume" else pieces(scores.shape, 1 + axis):
        image_part = np.asarray(image[where]) if looks else None
        chunk = replace(prediction, scores=np.asarray(scores[where]), labels=None, image=image_part)
        yield where, calibrator.transform_prediction(_named_in_case(chunk, where))


def calibrated_slices(parts: Iterable[Array], case: Case, slice_axis: int, calibrator: Calibrator) -> Iterator[Array]:
    """Logits of a case's slices [n k h w], batch after batch -> calibrated probabilities [k h w], slice after slice.

    What reaches over a slice at most is calibrated batch by batch; what reaches over the volume waits for all of it.
    """
    if calibrator.reach == "volume":
        parts = _as_one_batch(parts, case, slice_axis)
    count = 0
    for part in parts:
        where = _cut(1 + slice_axis, count, count + len(part))
        count += len(part)
        scores = np.moveaxis(part, 0, 1 + slice_axis)  # [n k h w] -> [k z y x]
        fields = (case.id, case.patient, scores, "logits", case.spacing_mm, calibrator.activation)
        chunk = _named_in_case(Prediction(*fields, image=case.image[where], slice_axis=slice_axis), where)
        yield from np.moveaxis(calibrator.transform_prediction(chunk), 1 + slice_axis, 0)


def _as_one_batch(parts: Iterable[Array], case: Case, slice_axis: int) -> Iterator[Array]:
    """All batches as one."""
    classes, space = len(case.classes), np.moveaxis(case.image, 1 + slice_axis, 0).shape
    volume, count = scratch_array((space[0], classes, *space[2:])), 0
    for part in parts:
        volume[count : count + len(part)] = part
        count += len(part)
    yield volume


def pieces(shape: tuple[int, ...], axis: int) -> Iterator[Where]:
    """[k z y x] cut along an axis into chunks of about PIECE values."""
    step = max(1, PIECE * shape[axis] // math.prod(shape))
    for begin in range(0, shape[axis], step):
        yield _cut(axis, begin, min(begin + step, shape[axis]))


def _cut(axis: int, begin: int, end: int) -> Where:
    cut = [slice(None)] * 4
    cut[axis] = slice(begin, end)
    return tuple(cut)  # pyright: ignore[reportReturnType]


def _named_in_case(piece: Prediction, where: Where) -> Prediction:
    """A piece of a case, whose voxels a message calls by their place in the case."""
    name, first = piece.voxel_name or voxel_name, [cut.start or 0 for cut in where[1:]]
    return replace(piece, voxel_name=lambda place: name(tuple(map(add, first, place))))


def scratch_array(shape: tuple[int, ...]) -> Array:
    """An array of float32 to be filled: in memory, or if it is large in a file that vanishes with it."""
    if 4 * math.prod(shape) <= IN_MEMORY:
        return np.empty(shape, np.float32)
    with tempfile.TemporaryFile() as file:
        try:
            preallocate(file.fileno(), 4 * math.prod(shape))
        except OSError as error:
            size = 4 * math.prod(shape) / 2**30
            raise BadInput(f"{tempfile.gettempdir()}: no room for {size:.2g} GiB of probabilities: {error}") from error
        return np.memmap(file, np.float32, "r+", shape=shape)


def calibrator_paths(folder: Path) -> tuple[Path, ...]:
    """The files of a fitted calibrator."""
    paths = (CalibratorFolder(folder).info, CalibratorFolder(folder).arrays)
    return tuple(path for path in paths if path.is_file()) or paths[:1]


def _laid_out(scores: Any) -> Array:
    """Scores that are stored along z, laid out so that slices along another axis can be read."""
    copy = scratch_array(scores.shape)
    for where in pieces(scores.shape, 1):
        copy[where] = scores[where]
    return copy


def _loaded(folder: Path) -> Calibrator:
    """Loaded once in each process, and again when its files have changed."""
    return _load(folder, tuple(path.stat().st_mtime_ns for path in calibrator_paths(folder) if path.is_file()))


@lru_cache(maxsize=4)
def _load(folder: Path, changed: tuple[int, ...]) -> Calibrator:
    return load_calibrator(folder)
