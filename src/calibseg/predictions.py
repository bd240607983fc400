"""Anybody's predictions: a folder of probabilities beside a folder of labels, as `Prediction`s on one common grid.

| format | file of the case `la_007` | holds |
| --- | --- | --- |
| nnunet | `la_007.npz` | `probabilities` (version 1: `softmax`) [k z y x], the file axes of the image reversed |
| npz | `la_007.npz` | an array called `probabilities` (or `logits`), or the only array; axes as nnU-Net's |
| nifti | `la_007.nii.gz` or `.nii` | 4-D, classes on the last axis |
| nifti | `la_007_class0.nii.gz`, `..._class1.nii.gz` (or `_prob0`) | one 3-D file for every class, counted from 0 |

Arrays become RAS+ transposed to (z, y, x), as everywhere here. An .npz has no geometry of its own: it takes the label
file's, and where nnU-Net's segmentation lies beside it, that file's geometry is checked. A NIfTI prediction must lie on
the label's grid: equal shape, and no corner of the grid displaced by more than a hundredth of a voxel edge. nnU-Net's
`.pkl` is never opened and nothing is unpickled. Uncompressed files are memory-mapped, so that a slab costs a slab;
compressed ones have to be unpacked whole. What the numbers are (`kind`, `activation`) is stated by the caller.
"""

import csv
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy import ndarray as Array

from calibseg.logits import logits_files, open_logits, read_about
from calibseg.nifti import ENDINGS, Grid, read_nifti, stem
from calibseg.npz import read_npz
from calibseg.types import Activation, BadInput, Prediction, ScoreKind
from calibseg.vocabulary import Vocabulary

Format = Literal["nnunet", "nifti", "npz"]
CLASS_FILE = re.compile(r"(?P<case>.+)_(?:class|prob)(?P<number>\d+)")


@dataclass(frozen=True)
class Pair:
    """The files of one case, not opened yet."""

    case: str
    patient: str
    files: tuple[Path, ...]
    label: Path
    kind: ScoreKind
    activation: Activation
    turned: bool = False  # nnU-Net's reader had turned the image to RAS+ before predicting
    beside: Path | None = None  # nnU-Net's own segmentation, for its geometry

    def open(self) -> Prediction:
        """Read the labels and open the scores; everything that can be checked without reading the scores is checked."""
        labels, grid = read_labels(self.label)
        if self.files[0].suffix == ".npz":
            scores: Any = self._npz(grid)
        else:
            scores = self._nifti(grid)
        if not np.issubdtype(scores.dtype, np.floating):
            kind = self.kind.replace("_", " ")
            raise BadInput(f"{self.files[0]} holds {scores.dtype}, but {kind} are floating-point numbers")
        if scores.shape[0] < 2 and self.activation == "softmax":
            raise BadInput(f"{self.files[0]} holds one class; softmax needs two or more (one channel is sigmoid's)")
        return Prediction(self.case, self.patient, scores, self.kind, grid.spacing_mm, self.activation, labels)

    def _nifti(self, grid: Grid) -> Any:
        first, *others = self.files
        if not others and CLASS_FILE.fullmatch(stem(first)) is None:
            return np.moveaxis(_on_grid(first, 4, grid, self.label), -1, 0)
        return Stacked([_on_grid(path, 3, grid, self.label) for path in self.files])

    def _npz(self, grid: Grid) -> Array:
        names = ("probabilities", "softmax") if self.kind == "probabilities" else ("logits",)
        array = read_npz(self.files[0], names)
        shape = grid.shape if self.turned else grid.file_shape[::-1]
        if array.ndim != 4 or array.shape[1:] != shape:
            raise BadInput(
                f"{self.files[0]} has the shape {_sizes(array.shape)}, but {self.label} asks for (classes,"
                f" {_sizes(shape)[1:]}"
            )
        if self.beside is not None:
            grid.refuse_other(Grid.of(self.beside), self.beside, self.label)
        return array if self.turned else np.moveaxis(grid.turned(array.T), -1, 0)


class StoredPair(Pair):
    """A case that `calibseg predict` stored: logits and labels in one file."""

    def open(self) -> Prediction:
        prediction = open_logits(self.files[0])
        if prediction.labels is None:
            raise BadInput(f"{self.files[0]} holds no labels: it can be calibrated, but not scored")
        return prediction


def stored(folder: Path) -> tuple[list[Pair], Vocabulary]:
    """The cases of a folder that `calibseg predict --cases` wrote, and what their classes are called."""
    abouts = {path: read_about(path) for path in logits_files(folder)}
    pairs: list[Pair] = [
        StoredPair(about["id"], about["patient"], (path,), path, "logits", "softmax") for path, about in abouts.items()
    ]
    first = next(iter(abouts.values()))  # one run made them all
    regions = {name: tuple(ids) for name, ids in first["regions"].items()}
    return pairs, Vocabulary(tuple(first["classes"]), regions, 255)


def pairs(
    predictions: Path,
    labels: Path,
    kind: ScoreKind = "probabilities",
    activation: Activation = "softmax",
    form: Format | None = None,
    patients: Path | None = None,
) -> tuple[list[Pair], list[BadInput]]:
    """The cases of two folders, by name, and what has no partner or cannot be told. `form` None: by what is there."""
    for folder in (predictions, labels):
        if not folder.is_dir():
            raise BadInput(f"no folder {folder}")
    form = form or _form(predictions)
    known = read_patients(patients) if patients else None
    label_files = _by_case(labels)
    if not label_files:
        raise BadInput(f"{labels} holds no label file: none ends in {' or '.join(ENDINGS)}")
    found, wrong = _nifti_files(predictions, label_files) if form == "nifti" else (_npz_files(predictions), {})
    turned = form == "nnunet" and _turned(predictions)
    matched, lonely = [], []
    for case in sorted({*label_files, *found, *wrong}):
        if case in wrong:
            lonely.append(wrong[case])
        elif case not in found:
            lonely.append(BadInput(f"{label_files[case]} has no prediction in {predictions}: {_expected(case, form)}"))
        elif case not in label_files:
            lonely.append(BadInput(f"{found[case][0]} has no label in {labels}: no {case}.nii.gz there"))
        elif known is not None and case not in known:
            lonely.append(BadInput(f"{patients} does not say which patient case {case!r} belongs to"))
        else:
            beside = next((path for end in ENDINGS if (path := predictions / f"{case}{end}").is_file()), None)
            patient = known[case] if known else case
            own = beside if form == "nnunet" else None
            matched.append(Pair(case, patient, found[case], label_files[case], kind, activation, turned, own))
    return matched, lonely


@dataclass(frozen=True)
class Predictions:
    """Cases that are opened one after the other, as often as they are asked for."""

    pairs: Sequence[Pair]

    def __iter__(self) -> Iterator[Prediction]:
        return (pair.open() for pair in self.pairs)

    def __len__(self) -> int:
        return len(self.pairs)


def read_labels(path: Path) -> tuple[Array, Grid]:
    """An integer label map [z y x] and its grid."""
    array, grid = read_nifti(path)
    while array.ndim > 3 and array.shape[-1] == 1:
        array = array[..., 0]
    if array.ndim != 3:
        raise BadInput(f"{path} has the shape {_sizes(array.shape)}, but a label map is 3-D")
    labels = grid.turned(array)
    if np.issubdtype(labels.dtype, np.integer):
        return np.ascontiguousarray(labels, labels.dtype.newbyteorder("=")), grid
    whole = labels.astype(np.int32, "C") if np.isfinite(labels).all() else None
    if whole is None or (whole != labels).any():
        wrong = labels[~np.isfinite(labels)] if whole is None else labels[whole != labels]
        raise BadInput(f"{path} holds {float(wrong.flat[0])!r}, but labels are whole numbers")
    return whole, grid


def read_patients(path: Path) -> dict[str, str]:
    """A CSV with the columns case and patient (others are ignored): whose scan a case is."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            rows = list(csv.DictReader(file))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise BadInput(f"{path} cannot be read as a table of patients: {error}") from error
    if not rows or not {"case", "patient"} <= set(rows[0]):
        raise BadInput(f"{path} is not a table of patients: it needs the columns case and patient")
    found: dict[str, str] = {}
    for line, row in enumerate(rows, start=2):
        case, patient = row["case"], row["patient"]
        if not case or not patient:
            raise BadInput(f"{path} line {line}: the case or the patient is blank")
        if found.setdefault(case, patient) != patient:
            raise BadInput(f"{path} line {line}: case {case!r} belongs to {found[case]!r} and to {patient!r}")
    return found


def _form(folder: Path) -> Format:
    if any(folder.glob("*.npz")):
        signs = ("dataset.json", "plans.json", "plans.pkl", "predict_from_raw_data_args.json")
        return "nnunet" if any((folder / sign).exists() for sign in signs) else "npz"
    if _by_case(folder):
        return "nifti"
    raise BadInput(f"{folder} holds no prediction: neither .npz (nnU-Net's with --save_probabilities) nor NIfTI files")


def _turned(folder: Path) -> bool:
    """Whether nnU-Net read the images with the reader that turns them to RAS+; its .npz stays turned."""
    for name, key in (("plans.json", "image_reader_writer"), ("dataset.json", "overwrite_image_reader_writer")):
        path = folder / name
        if path.is_file():
            try:
                reader = json.loads(path.read_text(encoding="utf-8")).get(key)
            except (json.JSONDecodeError, UnicodeDecodeError, AttributeError) as error:
                raise BadInput(f"{path} is not a JSON object") from error
            if reader:
                return reader == "NibabelIOWithReorient"
    return False


def _by_case(folder: Path) -> dict[str, Path]:
    """The NIfTI files of a folder by their name without ending; the same name with two endings is refused."""
    found: dict[str, Path] = {}
    for path in sorted(folder.iterdir()):
        if path.name.startswith(".") or not path.name.endswith(ENDINGS):
            continue
        twin = found.setdefault(stem(path), path)
        if twin != path:
            raise BadInput(f"{folder} holds both {twin.name} and {path.name}; remove the one that is not meant")
    return found


def _npz_files(folder: Path) -> dict[str, tuple[Path, ...]]:
    return {path.stem: (path,) for path in sorted(folder.glob("*.npz")) if not path.name.startswith(".")}


def _nifti_files(folder: Path, cases: Mapping[str, Path]) -> tuple[dict[str, tuple[Path, ...]], dict[str, BadInput]]:
    """One 4-D file or the files of every class, by case; and the cases whose files do not make a whole."""
    found: dict[str, tuple[Path, ...]] = {}
    classes: dict[str, list[tuple[int, Path]]] = {}
    for name, path in _by_case(folder).items():
        match = CLASS_FILE.fullmatch(name)
        if match and name not in cases:
            classes.setdefault(match["case"], []).append((int(match["number"]), path))
        else:
            found[name] = (path,)
    wrong: dict[str, BadInput] = {}
    for case, parts in classes.items():
        numbers, files = zip(*sorted(parts), strict=True)
        missing = next((number for number in range(len(numbers)) if number not in numbers), None)
        if case in found:
            wrong[case] = BadInput(f"{found.pop(case)[0]} stands beside files of single classes, like {files[0].name}")
        elif len(set(numbers)) < len(numbers):
            twice = next(one for one, following in pairwise(numbers) if one == following)
            wrong[case] = BadInput(f"{folder} holds class {twice} of {case} twice, as _class{twice} and _prob{twice}")
        elif missing is not None:
            wrong[case] = BadInput(f"{folder} holds {files[-1].name}, but no file for class {missing} of {case}")
        else:
            found[case] = files
    return found, wrong


def _expected(case: str, form: Format) -> str:
    return f"no {case}.nii.gz or {case}_class0.nii.gz there" if form == "nifti" else f"no {case}.npz there"


def _on_grid(path: Path, axes: int, grid: Grid, label: Path) -> Array:
    """[z y x] or [z y x k] of a NIfTI file that must lie where its label lies."""
    array, own = read_nifti(path)
    if array.ndim == 5 and array.shape[3] == 1:  # a vector image: the fourth axis is time
        array = array[:, :, :, 0]
    if array.ndim != axes:
        wanted = "4-D with the classes last" if axes == 4 else "3-D"
        hint = "; a hard label map has no confidence to score" if array.ndim == 3 else ""
        raise BadInput(f"{path} has the shape {_sizes(array.shape)}, but a prediction is {wanted}{hint}")
    grid.refuse_other(own, path, label)
    return own.turned(array)


class Stacked:
    """One array per class [z y x] as one array-like [k z y x] that reads only what is asked of it."""

    def __init__(self, parts: list[Array]) -> None:
        self.parts = parts
        self.shape = (len(parts), *parts[0].shape)
        self.dtype = np.result_type(*parts)
        self.ndim = len(self.shape)

    def __getitem__(self, key: Any) -> Array:
        first, *rest = key if isinstance(key, tuple) else (key,)
        if isinstance(first, slice):
            return np.stack([part[tuple(rest)] for part in self.parts[first]])
        return self.parts[first][tuple(rest)]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        return np.stack(self.parts).astype(dtype or self.dtype, copy=False)


def _sizes(shape: tuple[int, ...]) -> str:
    return f"({', '.join(map(str, shape))})"
