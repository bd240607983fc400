"""Prepared cases in the store: written slice after slice, read one slice at a time.

A case's arrays are stored with the slice axis first, [n c h w]: a slice is one contiguous piece, and reading it opens
the file, reads that piece and closes it again. Nothing stays open and nothing is cached, so a set may exceed memory.
"""

import json
import math
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy import ndarray as Array
from safetensors.numpy import save_file

from calibseg.core.files import atomic_write, check_format, format_of, read_json, write_json
from calibseg.core.hashing import fingerprint
from calibseg.core.types import IGNORED, BadInput, Case, Split
from calibseg.data.preprocessing import AXES

Folder = str | Path
DTYPES = {"F32": np.dtype("<f4"), "U8": np.dtype("u1"), "I32": np.dtype("<i4")}


@dataclass(frozen=True)
class PreparedCase:
    """One case in the store, opened only while a part of it is read."""

    path: Path
    tensors: Mapping[str, tuple[np.dtype, tuple[int, ...], int]]  # name -> dtype, shape, position in the file
    about: Mapping[str, Any]
    fingerprint: str  # of what it was made from

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


def write_case(work: Folder, case: Case, mark: str) -> None:
    """Store a prepared case under its id, with the fingerprint of what it was made from."""
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
    metadata = {"format": format_of("case"), "key": mark, "case": json.dumps(about)}
    with atomic_write(case_path(work, case.id)) as temporary:
        save_file(tensors, temporary, metadata)


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
    check_format(metadata.get("format"), "case", path)
    tensors = {
        name: (DTYPES[entry["dtype"]], tuple(entry["shape"]), 8 + length + entry["data_offsets"][0])
        for name, entry in header.items()
    }
    end = 8 + length + max(entry["data_offsets"][1] for entry in header.values())
    if path.stat().st_size != end:
        raise BadInput(f"{path}: has {path.stat().st_size} bytes instead of {end}; remove it and prepare it again")
    case = PreparedCase(path, tensors, json.loads(metadata["case"]), metadata["key"])
    if case.id != id:
        raise BadInput(f"{path}: holds the case {case.id!r}, after which it would be named; was it copied?")
    return case


def training_fingerprint(train: Mapping[str, str | None], validation: Mapping[str, str | None]) -> str:
    """Of the cases that a run learns from, given as id -> fingerprint: what run.json keeps as its data_hash."""
    return fingerprint([list(train.items()), list(validation.items())])


def case_path(work: Folder, id: str) -> Path:
    return Path(work) / "cases" / f"{id}.safetensors"


def write_index(work: Folder, index: Mapping[str, Any]) -> None:
    """What the folder holds: dataset, options, protocol, classes, cases, skipped."""
    write_json(_index_path(work), "dataset", index)


def read_index(work: Folder) -> dict[str, Any]:
    path = _index_path(work)
    if not path.is_file():
        raise BadInput(f"{work}: holds no prepared dataset ({path.name} is missing); run calibseg prepare first")
    return read_json(path, "dataset")


def has_index(work: Folder) -> bool:
    return _index_path(work).is_file()


def _index_path(work: Folder) -> Path:
    return Path(work) / "dataset.json"


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
