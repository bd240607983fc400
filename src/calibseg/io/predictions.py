"""Predictions of any origin: a folder of probabilities beside a folder of labels, as `Prediction`s on one common grid.

| format | file of the case `la_007` | holds |
| --- | --- | --- |
| nnunet | `la_007.npz` | `probabilities` (version 1: `softmax`) [k z y x], the file axes of the image reversed |
| npz | `la_007.npz` | an array called `probabilities` (or `logits`), or the only array; axes as nnU-Net's |
| nifti | `la_007.nii.gz` or `.nii` | 4-D, classes on the last axis |
| nifti | `la_007_class0.nii.gz`, `..._class1.nii.gz` (or `_prob0`) | one 3-D file for every class, counted from 0 |

Arrays become RAS+ transposed to (z, y, x), as everywhere here. An .npz has no geometry of its own: it takes the label
file's, and where nnU-Net's segmentation lies beside it, that must lie there too and say the same (`orientation`). A
NIfTI prediction must lie on the label's grid: equal shape, and no corner of the grid displaced by more than a hundredth
of a voxel edge. nnU-Net's `.pkl` is never opened and nothing is unpickled. Uncompressed files are memory-mapped, so
that a slab costs a slab; compressed ones have to be unpacked whole. What the numbers are (`kind`, `activation`) is
stated by the caller.
"""

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from os import SEEK_END
from pathlib import Path
from typing import Any

import numpy as np
from numpy import ndarray as Array

from calibseg.core.hashing import file_fingerprint
from calibseg.core.ids import check_id, check_patient
from calibseg.core.score_kind import NO_LOGITS, are_probabilities
from calibseg.core.types import IGNORED, Activation, BadInput, FileFormat, Prediction, ScoreKind
from calibseg.io.class_names import ClassNames, check_classes
from calibseg.io.conventions import FileConventions
from calibseg.io.file_matching import (
    CLASS_FILE,
    SINGLE_CLASSES,
    detect_format,
    expected_file,
    nifti_by_case,
    nifti_files,
    npz_files,
    read_patients,
    reoriented_by_reader,
)
from calibseg.io.nifti import ENDINGS, Grid, read_nifti, stem
from calibseg.io.npz import read_npz
from calibseg.io.orientation import check_orientation
from calibseg.io.stacked_array import StackedArray
from calibseg.io.stored_logits import logits_files, open_logits, read_about


@dataclass(frozen=True)
class PredictionFiles:
    """The files of one case, not opened yet."""

    case: str
    patient: str
    files: tuple[Path, ...]
    label: Path
    kind: ScoreKind
    activation: Activation
    reoriented: bool = False  # nnU-Net's reader had turned the image to RAS+ before predicting
    segmentation: Path | None = None  # nnU-Net's own segmentation, for its geometry
    raters: tuple[Path, ...] = ()  # label maps of further raters
    members: tuple["PredictionFiles", ...] = ()  # of the same case, by the members of an ensemble

    def __post_init__(self) -> None:
        check_patient(self.patient, check_id(self.case))

    @property
    def stated(self) -> tuple[Any, ...]:
        """What is said about the files and not in them: with it and them a case is known."""
        return (self.kind, self.activation, self.reoriented)

    @property
    def all_files(self) -> tuple[Path, ...]:
        """Everything that is read."""
        of_members = (path for member in self.members for path in member.files)
        return (*self.files, self.label, *self.raters, *of_members)

    def open(self) -> Prediction:
        """Read the labels and open the scores; everything that can be checked without reading the scores is checked."""
        labels, grid = self._truth()
        if self.files[0].suffix == ".npz":
            scores: Any = self._npz(grid)
        else:
            scores = self._nifti(grid)
        if not np.issubdtype(scores.dtype, np.floating):
            kind = self.kind.replace("_", " ")
            raise BadInput(f"{self.files[0]} holds {scores.dtype}, but {kind} are floating-point numbers")
        if scores.shape[0] < 2 and self.activation == "softmax":
            raise BadInput(f"{self.files[0]} holds one class; softmax needs two or more (one channel is sigmoid's)")
        if self.kind == "logits" and self.activation == "softmax" and are_probabilities(scores):
            raise BadInput(f"{self.files[0]}: the scores {NO_LOGITS}")
        fields = (self.case, self.patient, scores, self.kind, grid.spacing_mm, self.activation, labels)
        return Prediction(*fields, voxel_name=grid.voxel_name)

    def _truth(self) -> tuple[Array | None, Grid]:
        """Labels [z y x], or of several raters [r z y x]."""
        labels, grid = read_labels(self.label)
        every = [labels]
        for path in self.raters:
            more, own = read_labels(path)
            grid.refuse_other(own, path, self.label)
            every.append(more)
        return np.stack(every) if self.raters else labels, grid

    def _nifti(self, grid: Grid) -> Any:
        first, *others = self.files
        if not others and (stem(first) == self.case or CLASS_FILE.fullmatch(stem(first)) is None):
            return np.moveaxis(_on_grid(first, 4, grid, self.label), -1, 0)
        return StackedArray([_on_grid(path, 3, grid, self.label) for path in self.files])

    def _npz(self, grid: Grid) -> Array:
        names = ("probabilities", "softmax") if self.kind == "probabilities" else ("logits",)
        array = read_npz(self.files[0], names)
        shape = grid.shape if self.reoriented else grid.file_shape[::-1]
        if array.ndim != 4 or array.shape[1:] != shape:
            raise BadInput(
                f"{self.files[0]} has the shape {_sizes(array.shape)}, but {self.label} asks for (classes,"
                f" {_sizes(shape)[1:]}"
            )
        turned = array if self.reoriented else np.moveaxis(grid.reoriented(array.T), -1, 0)
        if self.segmentation is not None:
            labels, file_grid = read_labels(self.segmentation)
            grid.refuse_other(file_grid, self.segmentation, self.label)
            check_orientation(turned, labels, self.kind, self.activation, self.files[0], self.segmentation)
        return turned


class UnlabelledFiles(PredictionFiles):
    """A case that nobody labelled: `label` is a file that lies where the prediction lies."""

    def _truth(self) -> tuple[Array | None, Grid]:
        return None, Grid.of(self.label)


class StoredFiles(PredictionFiles):
    """A case that `calibseg predict` stored: logits and labels in one file."""

    def open(self) -> Prediction:
        prediction = open_logits(self.files[0])
        if prediction.labels is None:
            raise BadInput(f"{self.files[0]} holds no labels: it can be calibrated, but not scored")
        return prediction


def stored(folder: Path) -> tuple[list[PredictionFiles], ClassNames]:
    """The cases of a folder that `calibseg predict --subset` wrote, and what their classes are called."""
    infos = {path: read_about(path) for path in logits_files(folder)}
    pairs: list[PredictionFiles] = [
        StoredFiles(info["id"], info["patient"], (path,), path, "logits", "softmax") for path, info in infos.items()
    ]
    path, first = next(iter(infos.items()))  # one run made them all
    regions = {name: tuple(ids) for name, ids in first["regions"].items()}
    check_classes(path, first["classes"], regions, IGNORED)
    return pairs, ClassNames(tuple(first["classes"]), regions, IGNORED)


class NoPrediction(BadInput):
    """A label map that nobody predicted: of another fold, or of a set that was predicted in part."""

    def __init__(self, sentence: str, case: str):
        super().__init__(sentence)
        self.case = case


class _Folder:
    """The predictions of a folder: the files of each case, and why those of others cannot be used."""

    def __init__(self, path: Path, conventions: FileConventions, labelled: Mapping[str, Path]) -> None:
        self.path, self.conventions = path, conventions
        self.form: FileFormat = conventions.file_format or detect_format(path)
        self.patients = read_patients(conventions.patients) if conventions.patients else None
        self.files, self.wrong = nifti_files(path, labelled) if self.form == "nifti" else (npz_files(path), {})
        self.reoriented = self.form == "nnunet" and reoriented_by_reader(path)

    def segmentation(self, case: str) -> Path | None:
        return next((path for end in ENDINGS if (path := self.path / f"{case}{end}").is_file()), None)

    def pair(self, case: str, geometry: Path, kind: type[PredictionFiles] = PredictionFiles) -> PredictionFiles:
        if self.patients is not None and case not in self.patients:
            raise BadInput(f"{self.conventions.patients} does not say which patient case {case!r} belongs to")
        patient = self.patients[case] if self.patients else case
        conventions = self.conventions.kind, self.conventions.activation, self.reoriented
        segmentation = self.segmentation(case) if self.form == "nnunet" else None
        return kind(case, patient, self.files[case], geometry, *conventions, segmentation)


def match_files(
    predictions: Path, labels: Path, conventions: FileConventions = FileConventions()
) -> tuple[list[PredictionFiles], list[BadInput]]:
    """The cases of two folders, by name, and what has no partner or cannot be told."""
    for path in (predictions, labels):
        if not path.is_dir():
            raise BadInput(f"no folder {path}")
    label_files = nifti_by_case(labels)
    folder = _Folder(predictions, conventions, label_files)
    if not label_files:
        raise BadInput(f"{labels} holds no label file: none ends in {' or '.join(ENDINGS)}")
    matched, unmatched = [], []
    for case in sorted({*label_files, *folder.files, *folder.wrong}):
        try:
            if case in folder.wrong:
                raise folder.wrong[case]
            if case not in folder.files:
                expected = expected_file(case, folder.form)
                raise NoPrediction(f"{label_files[case]} has no prediction in {predictions}: {expected}", case)
            if case not in label_files:
                hint = SINGLE_CLASSES if case.rpartition("_")[0] in label_files else ""
                raise BadInput(f"{folder.files[case][0]} has no label in {labels}: no {case}.nii.gz there{hint}")
            matched.append(folder.pair(case, label_files[case]))
        except BadInput as error:
            unmatched.append(error)
    twins = copies(matched)
    unmatched += twins.values()
    return [pair for pair in matched if pair.case not in twins], unmatched


def unlabelled(
    predictions: Path,
    conventions: FileConventions = FileConventions(),
    images: Mapping[str, Sequence[Path]] | None = None,
) -> list[PredictionFiles]:
    """The cases of a folder without labels. An .npz takes its geometry from the segmentation beside it, or an image."""
    if not predictions.is_dir():
        raise BadInput(f"no folder {predictions}")
    folder = _Folder(predictions, conventions, {})
    if folder.wrong:
        raise next(iter(folder.wrong.values()))
    pairs: list[PredictionFiles] = []
    for case, files in folder.files.items():
        beside = (folder.segmentation(case), *(images or {}).get(case, ()))
        geometry = files[0] if folder.form == "nifti" else next(filter(None, beside), None)
        if geometry is None:
            raise BadInput(
                f"{files[0]} does not say where its voxels lie: give labels or images, or put the segmentation"
                f" {case}.nii.gz beside it"
            )
        pairs.append(folder.pair(case, geometry, UnlabelledFiles))
    return pairs


def copies(pairs: Sequence[PredictionFiles]) -> dict[str, BadInput]:
    """By case, why a prediction that stands under two names belongs to neither.

    Two networks' answers to two scans are never equal, unless they say the same at every voxel.
    """
    alike: dict[Any, list[PredictionFiles]] = {}
    for pair in pairs:
        if not pair.files[0].is_file():
            continue  # told when the case is opened
        with contextlib.suppress(OSError), pair.files[0].open("rb") as file:
            size = file.seek(0, SEEK_END)
            file.seek(size // 2)
            alike.setdefault((size, file.read(1 << 16)), []).append(pair)
    problems: dict[str, BadInput] = {}
    for group in (group for group in alike.values() if len(group) > 1):
        by_hash: dict[Any, PredictionFiles] = {}
        for pair in group:
            twin = by_hash.setdefault(tuple(map(file_fingerprint, pair.files)), pair)
            if twin is not pair and not is_constant(pair):
                for a, b in ((twin, pair), (pair, twin)):
                    problems[a.case] = BadInput(
                        f"{a.files[0]} and {b.files[0]} are the same file, byte for byte, under two cases' names"
                    )
    return problems


def is_constant(pair: PredictionFiles) -> bool:
    """Whether it says the same at every voxel, as an empty mask does: such files are equal by chance."""
    scores = np.asarray(pair.open().scores)
    return bool((scores.reshape(len(scores), -1) == scores.reshape(len(scores), -1)[:, :1]).all())


def read_labels(path: Path) -> tuple[Array, Grid]:
    """An integer label map [z y x] and its grid."""
    array, grid = read_nifti(path)
    while array.ndim > 3 and array.shape[-1] == 1:
        array = array[..., 0]
    if array.ndim != 3:
        raise BadInput(f"{path} has the shape {_sizes(array.shape)}, but a label map is 3-D")
    labels = grid.reoriented(array)
    if np.issubdtype(labels.dtype, np.integer):
        return np.ascontiguousarray(labels, labels.dtype.newbyteorder("=")), grid
    with np.errstate(invalid="ignore"):  # numbers that no int32 holds are found below
        integers = labels.astype(np.int32, "C") if np.isfinite(labels).all() else None
    if integers is None or (integers != labels).any():
        wrong = labels[~np.isfinite(labels)] if integers is None else labels[integers != labels]
        raise BadInput(f"{path} holds {float(wrong.flat[0])!r}, but labels are whole numbers below 2^31")
    return integers, grid


def _on_grid(path: Path, axes: int, grid: Grid, label: Path) -> Array:
    """[z y x] or [z y x k] of a NIfTI file that must lie where its label lies."""
    array, file_grid = read_nifti(path)
    if array.ndim == 5 and array.shape[3] == 1:  # a vector image: the fourth axis is time
        array = array[:, :, :, 0]
    if array.ndim != axes:
        expected = "4-D with the classes last" if axes == 4 else "3-D"
        hint = f"; a hard label map has no confidence to score{SINGLE_CLASSES}" if array.ndim == 3 else ""
        raise BadInput(f"{path} has the shape {_sizes(array.shape)}, but a prediction is {expected}{hint}")
    grid.refuse_other(file_grid, path, label)
    return file_grid.reoriented(array)


def _sizes(shape: tuple[int, ...]) -> str:
    return f"({', '.join(map(str, shape))})"
