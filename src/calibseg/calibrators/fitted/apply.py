"""What a calibrator makes of a case: its probabilities, computed once and piece by piece.

A piece is the least that the calibrator must see at once (`reach`): a slab of planes, some slices, or the volume. The
probabilities are kept for the passes that follow: in memory, or where they are large in a file without a name that is
mapped into memory, so that the system can write them out. `Calibrated` is a case that opens like any other.
"""

import math
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy import ndarray as Array

from calibseg.calibrators import Calibrator
from calibseg.calibrators.fitted.files import load_calibrator
from calibseg.core.files import preallocate
from calibseg.core.types import BadInput, Case, Prediction
from calibseg.io.predictions import PredictionFiles

IN_MEMORY = 64 << 20  # bytes: what is larger lies in a file
PIECE = 1 << 20  # values of a piece: 4 MB
Where = tuple[slice, slice, slice, slice]  # of [k z y x]


@dataclass(frozen=True, kw_only=True)
class Calibrated(PredictionFiles):
    """A case with calibrated probabilities. The calibrator is its folder, or one that was fitted just now."""

    source: PredictionFiles
    calibrator: Path | Calibrator

    @classmethod
    def of(cls, source: PredictionFiles, calibrator: Path | Calibrator) -> "Calibrated":
        own = calibrator_paths(calibrator) if isinstance(calibrator, Path) else ()
        stated = (source.case, source.patient, (*source.files, *own), source.label, "probabilities", source.activation)
        return cls(*stated, source=source, calibrator=calibrator)

    @property
    def stated(self) -> tuple[Any, ...]:
        return ("calibrated", *self.source.stated)

    def open(self) -> Prediction:
        calibrator = _loaded(self.calibrator) if isinstance(self.calibrator, Path) else self.calibrator
        return calibrated(self.source.open(), calibrator, str(self.source.files[0]))


def calibrated(prediction: Prediction, calibrator: Calibrator, name: str = "") -> Prediction:
    """The same case with the calibrator's probabilities. What is wrong names the file."""
    found = scratch_array(prediction.scores.shape)
    try:
        for where, p in transformed(prediction, calibrator):
            found[where] = p
    except BadInput as error:
        raise BadInput(f"{name}: {error}" if name else str(error)) from error
    return replace(prediction, scores=found, kind="probabilities")


def transformed(prediction: Prediction, calibrator: Calibrator) -> Iterator[tuple[Where, Array]]:
    """The probabilities of a case, piece after piece, and where in [k z y x] each belongs."""
    scores, image = prediction.scores, prediction.image
    if calibrator.uses_image and image is None:
        raise BadInput(f"{calibrator.name} looks at the image of a case, and {prediction.case_id!r} comes without one")
    if calibrator.reach == "slice" and prediction.slice_axis and not isinstance(scores, np.ndarray):
        scores = _laid_out(scores)
    for where in pieces(calibrator, scores.shape, prediction.slice_axis):
        seen = np.asarray(image[where]) if calibrator.uses_image else None
        chunk = replace(prediction, scores=np.asarray(scores[where]), labels=None, image=seen)
        yield where, calibrator.transform_prediction(chunk)


def calibrated_slices(parts: Iterable[Array], case: Case, slice_axis: int, calibrator: Calibrator) -> Iterator[Array]:
    """Logits of a case's slices [n k h w], batch after batch -> calibrated probabilities [k h w], slice after slice.

    What reaches over a slice at most is calibrated batch by batch; what reaches over the volume waits for all of it.
    """
    if calibrator.reach == "volume":
        parts = _whole(parts, case, slice_axis)
    done = 0
    for part in parts:
        here = slice(done, done + len(part))
        done += len(part)
        scores = np.moveaxis(part, 0, 1 + slice_axis)  # [n k h w] -> [k z y x]
        image = np.moveaxis(np.moveaxis(case.image, 1 + slice_axis, 0)[here], 0, 1 + slice_axis)
        facts = (case.id, case.patient, scores, "logits", case.spacing_mm, calibrator.activation)
        chunk = Prediction(*facts, image=image, slice_axis=slice_axis)
        yield from np.moveaxis(calibrator.transform_prediction(chunk), 1 + slice_axis, 0)


def _whole(parts: Iterable[Array], case: Case, slice_axis: int) -> Iterator[Array]:
    """All batches as one."""
    classes, space = len(case.classes), np.moveaxis(case.image, 1 + slice_axis, 0).shape
    volume, done = scratch_array((space[0], classes, *space[2:])), 0
    for part in parts:
        volume[done : done + len(part)] = part
        done += len(part)
    yield volume


def pieces(calibrator: Calibrator, shape: tuple[int, ...], slice_axis: int) -> Iterator[Where]:
    """Cuts of [k z y x] into as little at a time as the calibrator's reach allows, but not into crumbs."""
    whole: list[slice] = [slice(None)] * 4
    if calibrator.reach == "volume":
        yield tuple(whole)  # pyright: ignore[reportReturnType]
        return
    axis = 1 + (slice_axis if calibrator.reach == "slice" else 0)
    step = max(1, PIECE * shape[axis] // math.prod(shape))
    for begin in range(0, shape[axis], step):
        whole[axis] = slice(begin, min(begin + step, shape[axis]))
        yield tuple(whole)  # pyright: ignore[reportReturnType]


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
    found = tuple(folder / f"calibrator{end}" for end in (".json", ".safetensors"))
    return tuple(path for path in found if path.is_file()) or found[:1]


def _laid_out(scores: Any) -> Array:
    """Scores that are stored along z, laid out so that slices along another axis can be read."""
    found = scratch_array(scores.shape)
    step = max(1, PIECE * scores.shape[1] // math.prod(scores.shape))
    for begin in range(0, scores.shape[1], step):
        found[:, begin : begin + step] = scores[:, begin : begin + step]
    return found


def _loaded(folder: Path) -> Calibrator:
    """Loaded once in each process, and again when its files have changed."""
    return _load(folder, tuple(path.stat().st_mtime_ns for path in calibrator_paths(folder) if path.is_file()))


@lru_cache(maxsize=4)
def _load(folder: Path, changed: tuple[int, ...]) -> Calibrator:
    return load_calibrator(folder)
