"""What lies where on disk: the only file that knows the names of folders and files.

    WORK/dataset.json              which set, how it was prepared, its cases              format calibseg-dataset/1
    WORK/cases/ID.safetensors      one prepared case, slice after slice                   format calibseg-case/1
    WORK/splits/NAME.json          which cases train, select and test                     format calibseg-split/1

    RUN/recipe.toml                the recipe, every value stated
    RUN/run.json                   what was run, on what, with what outcome               format calibseg-run/1
    RUN/log.csv                    one row per epoch
    RUN/weights.safetensors        the chosen epoch's network                             format calibseg-weights/1
    RUN/last/state.safetensors     all that a resume needs, in one file                   format calibseg-state/1
    RUN/logits/PART/ID.npz         what the network says about validation and test cases  format calibseg-logits/1
    RUN/calibrators/METHOD/        calibrator.json (+ .safetensors), fitted on validation format calibseg-calibrator/1
    RUN/calibrators/METHOD/cross-fitted.json   what it is worth on cases it has not seen  format calibseg-cross-fitted/1
    RUN/calibrators/choice.json    which of them was chosen, and the table behind it      format calibseg-choice/1
    RUN/scores-PART+METHOD.csv     the score table of a part, calibrated                  format calibseg-scores/1
    RUN/lock                       who works in the folder

    OUT/grid.toml                  a benchmark's grid, changes included
    OUT/cells.csv                  its cells: folder, names, seed, choice
    OUT/recipes/CELL.toml          each cell's recipe
    OUT/work/DATASET/              prepared cases, as WORK above
    OUT/runs/CELL/                 each cell's training run, as RUN above
    OUT/logs/CELL.log, CELL.csv    what it said; which of its stages ran when, where, how long
    OUT/outcomes/CELL.json         how its last attempt ended                             format calibseg-outcome/1
    OUT/selection.csv              candidates, what they reached on validation, which were chosen
    OUT/scores.csv, ranks.csv      everything together; report.html

A file is written under a temporary name and then renamed, so that what has its right name is whole. A case's arrays are
stored with the slice axis first, [n c h w]: a slice is one contiguous piece, and reading it opens the file, reads
that piece and closes it again. Nothing stays open and nothing is cached, so a set may exceed memory.
"""

import contextlib
import json
import math
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy import ndarray as Array
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from calibseg.formats.images import IGNORED
from calibseg.types import BadInput, Case, Split
from calibseg.volumes import AXES

Folder = str | Path
DTYPES = {"F32": np.dtype("<f4"), "U8": np.dtype("u1"), "I32": np.dtype("<i4")}


def format_of(kind: str) -> str:
    """The name of a file format, as every JSON and safetensors header carries it."""
    return f"calibseg-{kind}/1"


@dataclass(frozen=True)
class PreparedCase:
    """One case in the store, opened only while a part of it is read."""

    path: Path
    tensors: Mapping[str, tuple[np.dtype, tuple[int, ...], int]]  # name -> dtype, shape, position in the file
    about: Mapping[str, Any]
    key: str  # hash of what it was made from

    @property
    def id(self) -> str:
        return self.about["id"]

    @property
    def patient(self) -> str:
        return self.about["patient"]

    @property
    def classes(self) -> tuple[str, ...]:
        return tuple(self.about["classes"])

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """Slices, channels, height and width."""
        n, c, h, w = self.tensors["image"][1]
        return n, c, h, w

    @property
    def axis(self) -> int:
        """Of (z, y, x), along which slices follow each other."""
        return AXES[self.about["header"]["slice_axis"]]

    @property
    def foreground(self) -> Array:
        """Labelled voxels in each slice."""
        return self.read("foreground")

    def read(self, name: str, index: int | None = None) -> Array:
        """A whole array, or (read-only) its part for one slice."""
        if name not in self.tensors:
            raise BadInput(f"{self.path}: case {self.id!r} has no {name}, only {', '.join(sorted(self.tensors))}")
        dtype, shape, position = self.tensors[name]
        if index is None:
            return np.fromfile(self.path, dtype, math.prod(shape), offset=position).reshape(shape)
        size = math.prod(shape[1:]) * dtype.itemsize
        file = os.open(self.path, os.O_RDONLY | getattr(os, "O_BINARY", 0))  # np.fromfile takes four times as long
        try:
            os.lseek(file, position + index * size, os.SEEK_SET)
            part = os.read(file, size)
        finally:
            os.close(file)
        return np.frombuffer(part, dtype).reshape(shape[1:])

    def case(self) -> Case:
        """The whole case in memory, its axes in the order (z, y, x)."""
        axis = 1 + AXES[self.about["header"]["slice_axis"]]
        arrays = {
            name: np.moveaxis(self.read(name), 0, axis)
            for name in ("image", "labels", "true_p")
            if name in self.tensors
        }
        return Case(
            id=self.id,
            patient=self.patient,
            image=arrays["image"],
            channels=tuple(self.about["channels"]),
            labels=arrays.get("labels"),
            spacing_mm=tuple(self.about["spacing_mm"]),
            classes=self.classes,
            affine=np.array(self.about["affine"]),
            regions={name: tuple(ids) for name, ids in self.about["regions"].items()},
            ignore_label=self.about["ignore_label"],
            true_p=arrays.get("true_p"),
            header=self.about["header"],
        )


def write_case(work: Folder, case: Case, key: str) -> None:
    """Store a prepared case under its id."""
    axis = 1 + AXES[case.header["slice_axis"]]
    arrays = {"image": case.image.astype(np.float32, copy=False), "labels": case.labels, "true_p": case.true_p}
    tensors = {
        name: np.ascontiguousarray(np.moveaxis(array, axis, 0)) for name, array in arrays.items() if array is not None
    }
    labels = tensors.get("labels", np.zeros((len(tensors["image"]), 1, 1, 1), np.uint8))
    drawn = ((labels > 0) & (labels != IGNORED)).any(1)
    tensors["foreground"] = drawn.sum((1, 2)).astype(np.int32)
    about = {
        "id": case.id,
        "patient": case.patient,
        "channels": case.channels,
        "spacing_mm": case.spacing_mm,
        "classes": case.classes,
        "affine": case.affine.tolist(),
        "regions": case.regions,
        "ignore_label": case.ignore_label,
        "header": case.header,
    }
    metadata = {"format": format_of("case"), "key": key, "case": json.dumps(about)}
    _replace(case_path(work, case.id), lambda path: save_file(tensors, path, metadata))


def open_case(work: Folder, id: str) -> PreparedCase:
    """A prepared case by its id; only its header is read."""
    path = case_path(work, id)
    if not path.is_file():
        raise BadInput(f"{path}: case {id!r} is not prepared; run calibseg prepare")
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if not 0 < length < 1 << 27:
            raise BadInput(f"{path}: not a safetensors file; remove it and run calibseg prepare again")
        try:
            header = json.loads(file.read(length))
        except ValueError as error:
            raise BadInput(f"{path}: its header is damaged; remove it and run calibseg prepare again") from error
    metadata = header.pop("__metadata__", {})
    _check_format(metadata.get("format"), "case", path)
    tensors = {
        name: (DTYPES[entry["dtype"]], tuple(entry["shape"]), 8 + length + entry["data_offsets"][0])
        for name, entry in header.items()
    }
    end = 8 + length + max(entry["data_offsets"][1] for entry in header.values())
    if path.stat().st_size != end:
        raise BadInput(f"{path}: has {path.stat().st_size} bytes instead of {end}; remove it and prepare it again")
    return PreparedCase(path, tensors, json.loads(metadata["case"]), metadata["key"])


def case_path(work: Folder, id: str) -> Path:
    return Path(work) / "cases" / f"{id}.safetensors"


def write_index(work: Folder, index: Mapping[str, Any]) -> None:
    """What the folder holds: dataset, options, protocol, classes, cases, skipped."""
    write_json(Path(work) / "dataset.json", "dataset", index)


def read_index(work: Folder) -> dict[str, Any]:
    path = Path(work) / "dataset.json"
    if not path.is_file():
        raise BadInput(f"{work}: holds no prepared dataset ({path.name} is missing); run calibseg prepare first")
    return read_json(path, "dataset")


def has_index(work: Folder) -> bool:
    return (Path(work) / "dataset.json").is_file()


def write_split(work: Folder, name: str, split: Split) -> Path:
    path = split_path(work, name)
    write_json(path, "split", asdict(split))
    return path


def read_split(work: Folder, name: str = "default") -> Split:
    path = split_path(work, name)
    if not path.is_file():
        raise BadInput(f"{work}: no split named {name!r}. Known: {', '.join(split_names(work)) or 'none'}")
    found = read_json(path, "split")
    parts = {part: tuple(found.get(part, ())) for part in ("train", "validation", "test", "calibration")}
    return Split(split_seed=found["split_seed"], **parts)


def split_path(work: Folder, name: str) -> Path:
    return Path(work) / "splits" / f"{name}.json"


def split_names(work: Folder) -> list[str]:
    return sorted(path.stem for path in (Path(work) / "splits").glob("*.json"))


@dataclass(frozen=True)
class RunFolder:
    """Where the parts of a training run lie."""

    path: Path

    @property
    def recipe(self) -> Path:
        return self.path / "recipe.toml"

    @property
    def about(self) -> Path:
        return self.path / "run.json"

    @property
    def log(self) -> Path:
        return self.path / "log.csv"

    @property
    def weights(self) -> Path:
        return self.path / "weights.safetensors"

    @property
    def state(self) -> Path:
        return self.path / "last" / "state.safetensors"

    @property
    def logits(self) -> Path:
        return self.path / "logits"

    @property
    def calibrators(self) -> Path:
        return self.path / "calibrators"

    def scores(self, cases: str, calibrator: str = "none") -> Path:
        return self.path / f"scores-{cases}{'' if calibrator == 'none' else f'+{calibrator}'}.csv"

    @property
    def lock(self) -> Path:
        return self.path / "lock"

    def sweep(self) -> None:
        """Remove what a killed process left half written."""
        sweep(self.path)


def sweep(folder: Path) -> None:
    """Remove what a killed process left half written below a folder in which nobody else works."""
    for path in sorted(folder.rglob(".*.tmp")):
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


@dataclass(frozen=True)
class BenchmarkFolder:
    """Where the parts of a benchmark lie."""

    path: Path

    @property
    def grid(self) -> Path:
        return self.path / "grid.toml"

    @property
    def cells(self) -> Path:
        return self.path / "cells.csv"

    @property
    def selection(self) -> Path:
        return self.path / "selection.csv"

    @property
    def scores(self) -> Path:
        return self.path / "scores.csv"

    @property
    def validation_scores(self) -> Path:
        return self.path / "scores-validation.csv"

    @property
    def ranks(self) -> Path:
        return self.path / "ranks.csv"

    @property
    def report(self) -> Path:
        return self.path / "report.html"

    @property
    def jobs(self) -> Path:
        return self.path / "jobs"

    def work(self, dataset: str) -> Path:
        return self.path / "work" / re.sub(r"[^A-Za-z0-9._+-]+", "_", dataset)

    def run(self, cell: str) -> Path:
        return self.path / "runs" / cell

    def recipe(self, cell: str) -> Path:
        return self.path / "recipes" / f"{cell}.toml"

    def log(self, cell: str) -> Path:
        return self.path / "logs" / f"{cell}.log"

    def stages(self, cell: str) -> Path:
        return self.path / "logs" / f"{cell}.csv"

    def outcome(self, cell: str) -> Path:
        return self.path / "outcomes" / f"{cell}.json"

    def lock(self, name: str) -> Path:
        return self.path / "locks" / f"{name}.lock"


def write_run(folder: RunFolder, about: Mapping[str, Any]) -> None:
    with _writing(folder.about):
        write_json(folder.about, "run", about)


def read_run(run: str | Path) -> dict[str, Any]:
    """What a run folder says about itself."""
    path = RunFolder(Path(run)).about
    if not path.is_file():
        raise BadInput(f"{run}: holds no training run ({path.name} is missing); run calibseg train first")
    return read_json(path, "run")


def choice_path(shelf: Path) -> Path:
    """Where a folder of calibrators, a run's or any other, says which of them was chosen."""
    return shelf / "choice.json"


def cross_fitted_path(shelf: Path, method: str) -> Path:
    return shelf / method / "cross-fitted.json"


def write_text(path: Path, text: str) -> None:
    """A text file, whole or not at all."""
    with _writing(path):
        _replace(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))


def write_tensors(path: Path, kind: str, tensors: Mapping[str, Array], about: Mapping[str, Any]) -> None:
    """Arrays and a JSON object about them in one safetensors file: both or none, also when the power fails."""
    metadata = {"format": format_of(kind), "about": json.dumps(about)}

    def write(temporary: Path) -> None:
        save_file(dict(tensors), temporary, metadata)
        with temporary.open("rb") as file:
            os.fsync(file.fileno())

    with _writing(path):
        _replace(path, write)


def read_tensors(path: Path, kind: str) -> tuple[dict[str, Array], dict[str, Any]]:
    """What `write_tensors` wrote; anything else is refused. Nothing is ever unpickled."""
    try:
        with safe_open(path, "np") as file:
            metadata = file.metadata() or {}
            _check_format(metadata.get("format"), kind, path)
            return {name: file.get_tensor(name) for name in file.keys()}, json.loads(metadata["about"])  # noqa: SIM118
    except (SafetensorError, OSError, ValueError) as error:
        if isinstance(error, BadInput):
            raise
        raise BadInput(f"{path}: cannot be read as safetensors: {error}") from error


def write_json(path: Path, kind: str, content: Mapping[str, Any]) -> None:
    """A JSON object that says its format first."""
    text = json.dumps({"format": format_of(kind), **content}, indent=1) + "\n"
    _replace(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))


def read_json(path: Path, kind: str) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise BadInput(f"{path}: not JSON: {error}") from error
    _check_format(found.pop("format", None) if isinstance(found, dict) else None, kind, path)
    return found


def _check_format(found: Any, kind: str, path: Path) -> None:
    if found != format_of(kind):
        raise BadInput(f"{path}: its format is {found!r}, this version reads {format_of(kind)!r}")


def take_room(file: int, size: int) -> None:
    """Make an open file so long on disk. Writing into a mapped file for which there is no room kills the process."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(file, 0, size)
    else:
        os.lseek(file, 0, os.SEEK_END)
        written = os.fstat(file).st_size
        while written < size:
            written += os.write(file, bytes(min(1 << 20, size - written)))


@contextlib.contextmanager
def _writing(path: Path) -> Iterator[None]:
    """A full disk or a missing permission is the user's to mend: one sentence that names the file."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        reason = (error.strerror or error) if isinstance(error, OSError) else error
        raise BadInput(f"{path}: cannot be written: {reason}") from error


@contextlib.contextmanager
def _removed_on_failure(path: Path) -> Iterator[None]:
    try:
        yield
    finally:
        path.unlink(missing_ok=True)  # after a rename there is nothing left to remove


def _replace(path: Path, write: Callable[[Path], Any]) -> None:
    """Write under a temporary name beside the file, then rename: a reader sees the old file or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with _removed_on_failure(temporary):
        temporary.touch()  # with the rights that files get here; safetensors would give them to the owner only
        mode = temporary.stat().st_mode
        write(temporary)
        temporary.chmod(mode)
        os.replace(temporary, path)
