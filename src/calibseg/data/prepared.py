"""Preprocessed cases on disk: stored slice by slice in safetensors, read one slice at a time.

A case's arrays are stored with the slice axis first, [n c h w]: a slice is one contiguous piece, and reading it opens
the file, reads that piece and closes it again. Nothing stays open and nothing is cached, so a set may exceed memory.
"""

import json
import math
import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, NotRequired, TypedDict

import numpy as np
from numpy import ndarray as Array

from calibseg.core.coerce import coerce
from calibseg.core.files import atomic_write, check_format, format_of, parse_json, read_json, save_tensors, write_json
from calibseg.core.hashing import fingerprint
from calibseg.core.ids import check_id, first_alike
from calibseg.core.types import IGNORED, BadInput, Case, Split
from calibseg.data.preprocessing import AXES

Folder = str | Path


class IndexEntry(TypedDict):
    """A case in the index."""

    id: str
    patient: str
    key: str  # the fingerprint of what it was made from
    slices: int
    height: int
    width: int
    voxels: list[int]


class _Rule(TypedDict):
    """How the dataset is split by default."""

    sizes: NotRequired[tuple[float, float, float]]
    unit: NotRequired[Literal["patient", "case"]]
    leave_one_out: NotRequired[bool]


class Index(TypedDict):
    """WORK/dataset.json."""

    dataset: str
    options: dict[str, Any]
    protocol: dict[str, Any]
    changes: NotRequired[dict[str, Any]]  # those of the dataset's own protocol that were asked for
    split: _Rule
    classes: list[str]
    channels: list[str]
    regions: dict[str, list[int]]
    select: list[int] | None
    cases: list[IndexEntry]
    skipped: dict[str, str]


_AffineRow = tuple[float, float, float, float]


class _Header(TypedDict):
    original: NotRequired[dict[str, Any]]
    geometry: NotRequired[dict[str, list[int]]]
    slice_axis: Literal["axial", "coronal", "sagittal"]


class _About(TypedDict):
    """What a case's file says about it."""

    id: str
    patient: str
    channels: list[str]
    spacing_mm: tuple[float, float, float]
    classes: list[str]
    affine: tuple[_AffineRow, _AffineRow, _AffineRow, _AffineRow]
    regions: dict[str, list[int]]
    ignore_label: int | None
    header: _Header


class _Tensor(TypedDict):
    dtype: Literal["F32", "U8", "I32"]
    shape: list[int]
    data_offsets: tuple[int, int]


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
        axis = 1 + self.axis
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


def write_case(folder: Folder, case: Case, made_from: str) -> None:
    """Store a prepared case under its id, with the fingerprint of what it was made from."""
    axis = 1 + AXES[case.header["slice_axis"]]
    arrays = {"image": case.image.astype(np.float32, copy=False), "labels": case.labels, "true_p": case.true_p}
    tensors = {
        name: np.ascontiguousarray(np.moveaxis(array, axis, 0)) for name, array in arrays.items() if array is not None
    }
    labels = tensors.get("labels", np.zeros((len(tensors["image"]), 1, 1, 1), np.uint8))
    drawn = ((labels > 0) & (labels != IGNORED)).any(1)
    tensors["foreground"] = drawn.sum((1, 2)).astype(np.int32)
    record = {name: getattr(case, name) for name in _About.__annotations__} | {"affine": case.affine.tolist()}
    metadata = {"format": format_of("case"), "key": made_from, "case": json.dumps(record)}
    with atomic_write(case_path(folder, case.id)) as temporary:
        save_tensors(temporary, tensors, metadata)


def open_case(folder: Folder, id: str) -> PreparedCase:
    """A prepared case by its id; only its header is read."""
    path = case_path(folder, id)
    if not path.is_file():
        raise BadInput(f"{path}: case {id!r} is not prepared; run calibseg prepare")
    try:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if not 0 < length < 1 << 27:
                raise BadInput(f"{path}: not a safetensors file")
            header = parse_json(file.read(length), path)
        metadata = coerce(f"{path}: ", header.pop("__metadata__", {}), dict[str, str])
        check_format(metadata.get("format"), "case", path)
        header = coerce(f"{path}: ", header, dict[str, _Tensor])
        record = coerce(f"{path}: ", parse_json(metadata.get("case", ""), path), _About)
        _check_sizes(path, 8 + length, header)
    except (BadInput, OSError) as error:
        raise BadInput(f"{error}; remove it and run calibseg prepare again") from error
    if record["id"] != id:
        raise BadInput(f"{path}: holds the case {record['id']!r}, after which it would be named; was it copied?")
    tensors = {
        name: (DTYPES[entry["dtype"]], tuple(entry["shape"]), 8 + length + entry["data_offsets"][0])
        for name, entry in header.items()
    }
    return PreparedCase(path, tensors, record, metadata.get("key", ""))


def open_cases(folder: Folder, ids: Iterable[str]) -> tuple[PreparedCase, ...]:
    """Prepared cases as the index knows them: what a `prepare` that never ended has written anew is refused."""
    known = {entry["id"]: entry["key"] for entry in read_index(folder)["cases"]}
    cases = tuple(open_case(folder, id) for id in ids)
    for case in cases:
        if case.fingerprint != known.get(case.id):
            raise BadInput(
                f"{case.path}: is not what the index of {folder} says, as where `calibseg prepare` was interrupted;"
                " run it again, to its end"
            )
    return cases


def _check_sizes(path: Path, begin: int, header: Mapping[str, Any]) -> None:
    """That the arrays are those of a case, have the length that their shapes say, and fill the file."""
    if lacking := sorted({"image", "foreground"} - set(header)):
        raise BadInput(f"{path}: holds no {lacking[0]}")
    for name, entry in header.items():
        low, high = entry["data_offsets"]
        length = math.prod(entry["shape"]) * DTYPES[entry["dtype"]].itemsize
        if (
            min([low, *entry["shape"]]) < 0
            or high - low != length
            or (len(entry["shape"]) != 4) != (name == "foreground")
        ):
            raise BadInput(f"{path}: {name} cannot have the shape {entry['shape']} in {high - low} bytes")
    end = begin + max(entry["data_offsets"][1] for entry in header.values())
    if path.stat().st_size != end:
        raise BadInput(f"{path}: has {path.stat().st_size} bytes instead of {end}")


def training_fingerprint(train: Mapping[str, str | None], validation: Mapping[str, str | None]) -> str:
    """Of the cases that a run learns from, given as id -> fingerprint: what run.json keeps as its data_hash."""
    return fingerprint([list(train.items()), list(validation.items())])


def split_fingerprint(folder: Folder, split: Split) -> str:
    """The same of a folder's cases, as its index knows them."""
    keys = {entry["id"]: entry["key"] for entry in read_index(folder)["cases"]}
    return training_fingerprint(*({id: keys.get(id) for id in ids} for ids in (split.train, split.validation)))


def case_path(folder: Folder, id: str) -> Path:
    return Path(folder) / "cases" / f"{check_id(id)}.safetensors"


def write_index(folder: Folder, index: Mapping[str, Any]) -> None:
    """What the folder holds: dataset, options, protocol, classes, cases, skipped."""
    write_json(_index_path(folder), "dataset", index)


def read_index(folder: Folder) -> Index:
    """What `write_index` wrote, checked: each case named as a case may be, and once."""
    path = _index_path(folder)
    if not path.is_file():
        raise BadInput(f"{folder}: holds no prepared dataset ({path.name} is missing); run calibseg prepare first")
    index: Index = read_json(path, "dataset", Index)
    ids = [check_id(entry["id"], where=path) for entry in index["cases"]]
    if (twice := first_alike(ids)) is not None or not ids:
        raise BadInput(f"{path}: names {f'the case {twice!r} twice' if ids else 'no case'}; run calibseg prepare again")
    return index


def has_index(folder: Folder) -> bool:
    return _index_path(folder).is_file()


def _index_path(folder: Folder) -> Path:
    return Path(folder) / "dataset.json"


def write_split(folder: Folder, name: str, split: Split) -> Path:
    path = split_path(folder, name)
    write_json(path, "split", asdict(split))
    return path


def read_split(folder: Folder, name: str = "default") -> Split:
    path = split_path(folder, name)
    if not path.is_file():
        raise BadInput(f"{folder}: no split named {name!r}. Known: {', '.join(split_names(folder)) or 'none'}")
    return read_json(path, "split", Split)


def split_path(folder: Folder, name: str) -> Path:
    return Path(folder) / "splits" / f"{check_id(name, 'name of a split')}.json"


def split_names(folder: Folder) -> list[str]:
    return sorted(path.stem for path in (Path(folder) / "splits").glob("*.json"))
