"""Which files of a folder belong to which case, and which patient a case belongs to.

The names say it: `la_007.npz`, `la_007.nii.gz`, or `la_007_class0.nii.gz`, `la_007_class1.nii.gz`, ... for every class.
Nothing is opened here but the small JSON and CSV files that lie beside.
"""

import csv
import os
import re
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path

from calibseg.core.files import read_json, refuse_special
from calibseg.core.ids import check_id, check_patient
from calibseg.core.types import BadInput, FileFormat
from calibseg.io.nifti import ENDINGS, stem

REORIENTS = "NibabelIOWithReorient"  # nnU-Net's reader that turns images to RAS+
CLASS_FILE = re.compile(r"(?P<case>.+)_(?:class|prob)(?P<number>\d+)")
SINGLE_CLASSES = "; files of single classes are called CASE_class0.nii.gz, CASE_class1.nii.gz, ..."


def read_patients(path: Path) -> dict[str, str]:
    """A CSV with the columns case and patient (others are ignored): whose scan a case is."""
    refuse_special(path)
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            rows = list(csv.DictReader(file))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise BadInput(f"{path} cannot be read as a table of patients: {error}") from error
    if not rows or not {"case", "patient"} <= set(rows[0]):
        raise BadInput(f"{path} is not a table of patients: it needs the columns case and patient")
    patients: dict[str, str] = {}
    for line, row in enumerate(rows, start=2):
        case, patient = row["case"], row["patient"]
        check_patient(patient, check_id(case, where=f"{path} line {line}"), f"{path} line {line}")
        if patients.setdefault(case, patient) != patient:
            raise BadInput(f"{path} line {line}: case {case!r} belongs to {patients[case]!r} and to {patient!r}")
    return patients


def detect_format(folder: Path) -> FileFormat:
    if any(folder.glob("*.npz")):
        names = ("dataset.json", "plans.pkl", "predict_from_raw_data_args.json")
        signs = any((folder / sign).exists() for sign in names) or nnunet_file(folder, "plans.json")
        return "nnunet" if signs else "npz"
    if nifti_by_case(folder):
        return "nifti"
    raise BadInput(f"{folder} holds no prediction: neither .npz (nnU-Net's with --save_probabilities) nor NIfTI files")


def nnunet_file(folder: Path, name: str) -> Path | None:
    """nnU-Net's plans.json or dataset.json of a folder of predictions: there, or above MODEL/fold_X/validation."""
    above = Path(os.path.abspath(folder))
    for path in (folder / name, above.parent / name, above.parent.parent / name):
        if path.is_file() and (path.parent == folder or {"labels", "plans_name"} & set(read_json(path))):
            return path
    return None


def reoriented_by_reader(folder: Path) -> bool:
    """Whether nnU-Net read the images with the reader that turns them to RAS+; its .npz stays turned."""
    for name, key in (("plans.json", "image_reader_writer"), ("dataset.json", "overwrite_image_reader_writer")):
        path = nnunet_file(folder, name)
        if path is not None and (reader := read_json(path).get(key)):
            return reader == REORIENTS
    return False


def nifti_by_case(folder: Path) -> dict[str, Path]:
    """The NIfTI files of a folder by their name without ending; the same name with two endings is refused."""
    files: dict[str, Path] = {}
    for path in sorted(folder.iterdir()):
        if path.name.startswith(".") or not path.name.endswith(ENDINGS):
            continue
        twin = files.setdefault(stem(path), path)
        if twin != path:
            raise BadInput(f"{folder} holds both {twin.name} and {path.name}; remove the one that is not meant")
    return files


def npz_files(folder: Path) -> dict[str, tuple[Path, ...]]:
    return {path.stem: (path,) for path in sorted(folder.glob("*.npz")) if not path.name.startswith(".")}


def nifti_files(folder: Path, cases: Mapping[str, Path]) -> tuple[dict[str, tuple[Path, ...]], dict[str, BadInput]]:
    """One 4-D file or the files of every class, by case; and the cases whose files do not make a whole."""
    files: dict[str, tuple[Path, ...]] = {}
    classes: dict[str, list[tuple[int, Path]]] = {}
    for name, path in nifti_by_case(folder).items():
        match = CLASS_FILE.fullmatch(name)
        if match and name not in cases:
            classes.setdefault(match["case"], []).append((int(match["number"]), path))
        else:
            files[name] = (path,)
    wrong: dict[str, BadInput] = {}
    for case, parts in classes.items():
        numbers, paths = zip(*sorted(parts), strict=True)
        missing = next((number for number in range(len(numbers)) if number not in numbers), None)
        if case in files:
            wrong[case] = BadInput(f"{files.pop(case)[0]} stands beside files of single classes, like {paths[0].name}")
        elif len(set(numbers)) < len(numbers):
            twice = next(a for a, b in pairwise(numbers) if a == b)
            wrong[case] = BadInput(f"{folder} holds class {twice} of {case} twice, as _class{twice} and _prob{twice}")
        elif missing is not None:
            wrong[case] = BadInput(f"{folder} holds {paths[-1].name}, but no file for class {missing} of {case}")
        else:
            files[case] = paths
    return files, wrong


def expected_file(case: str, form: FileFormat) -> str:
    return f"no {case}.nii.gz or {case}_class0.nii.gz there" if form == "nifti" else f"no {case}.npz there"
