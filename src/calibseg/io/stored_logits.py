r"""Stored logits: one compressed .npz file per case, read a slab of slices at a time.

    scores_0000.npy, scores_0001.npy, ...    float32 [k z y x], slab after slab along z
    largest.npy                              float16 [z y x], each voxel's largest logit
    labels.npy                               uint8 [r z y x], 255 where nothing counts; absent where there are none
    about.json                               case, patient, classes, spacing, ...              format calibseg-logits/1

A score is the logit minus the voxel's largest logit, $d_k = l_k - \max_j l_j \le 0$: the softmax is the same, the label
too, and because the winner is always 0, deflate at its fastest leaves 0.54 of the bytes instead of 0.82. In float16 a
file would take 0.21, but a voxel that crosses the edge of a bin then moves the ECE of one case by up to
1e-3; in float32 it moves by less than 1e-8 (`benchmarks/logits.py` measures all of this). The largest logit itself has
no part in probabilities; figures of raw logits add it again. Equal content makes equal bytes: dates are not stored.

>>> relative(np.array([[30.0], [29.75], [10.0]], np.float32))[:, 0].tolist()
[0.0, -0.25, -20.0]
"""

import json
import math
import tempfile
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NotRequired, TypedDict

import numpy as np
from numpy import ndarray as Array

from calibseg.core.coerce import coerce
from calibseg.core.files import atomic_write, check_format, format_of, parse_json, preallocate, refuse_special
from calibseg.core.ids import check_id, check_patient
from calibseg.core.types import BadInput, Prediction
from calibseg.io.npz import DAMAGED, read_member

SLAB = 1 << 20  # values of a slab: 4 MB


class About(TypedDict):
    """about.json of a stored prediction."""

    format: str
    id: str
    patient: str
    classes: list[str]
    regions: dict[str, list[int]]
    spacing_mm: tuple[float, float, float]
    shape: tuple[int, int, int, int]
    slice_axis: Literal[0, 1, 2]
    raters: int
    key: NotRequired[str]  # the fingerprint of what it was made from
    weights: NotRequired[str]
    noise: NotRequired[float]
    seed: NotRequired[int]


def relative(logits: Array) -> Array:
    """Logits [k ...] -> their distances to the largest one."""
    return np.subtract(logits, logits.max(0), dtype=np.float32)


def write_logits(
    path: Path,
    parts: Iterable[Array],
    shape: tuple[int, int, int, int],
    axis: int,
    labels: Array | None,
    metadata: Mapping,
) -> None:
    """Store logits that come as slices [n k h w] along an axis of (z, y, x); `shape` is [k z y x].

    The slices are first laid out on disk, because a slab along z may need all of them. The file appears when whole.
    """
    with atomic_write(path) as temporary, tempfile.TemporaryFile(dir=path.parent) as scratch:  # it has no name
        preallocate(scratch.fileno(), 4 * math.prod(shape) + 2 * math.prod(shape[1:]))
        volume = np.memmap(scratch, np.float32, "r+", shape=shape)
        largest = np.memmap(scratch, np.float16, "r+", 4 * math.prod(shape), shape[1:])
        _fill(volume, largest, parts, axis, path.stem)
        header = {"format": format_of("logits"), "shape": list(shape), "slice_axis": axis, **metadata}
        with zipfile.ZipFile(temporary, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
            for number, (_, slab) in enumerate(slabs(volume)):
                _write_array(archive, f"scores_{number:04d}", slab)
            _write_array(archive, "largest", largest)
            if labels is not None:
                _write_array(archive, "labels", labels)
            with archive.open(_undated("about.json"), "w") as file:
                file.write(json.dumps(header, indent=1).encode())


def _fill(volume: Array, largest: Array, parts: Iterable[Array], axis: int, id: str) -> None:
    """Put slices [n k h w] into [k z y x], relative to the largest logit, and that into [z y x]."""
    slices, tops = np.moveaxis(volume, 1 + axis, 0), np.moveaxis(largest, axis, 0)
    count, limit = 0, float(np.finfo(np.float16).max)
    for part in parts:
        tops[count : count + len(part)] = part.max(1).clip(-limit, limit)
        slices[count : count + len(part)] = relative(part.swapaxes(0, 1)).swapaxes(0, 1)
        count += len(part)
    if count != len(slices):
        raise BadInput(f"{id}: has {len(slices)} slices, logits were given for {count}")


def planes(shape: tuple[int, ...]) -> int:
    """Planes of (y, x) in a slab."""
    k, _, y, x = shape
    return max(1, SLAB // (k * y * x))


def slabs(scores: Any) -> Iterator[tuple[slice, Array]]:
    """Scores [k z y x] a few planes at a time: which they are, and their numbers."""
    step = planes(scores.shape)
    for begin in range(0, scores.shape[1], step):
        part = slice(begin, min(begin + step, scores.shape[1]))
        yield part, np.asarray(scores[:, part])


def read_about(path: Path) -> About:
    """The metadata (about.json) of a file of logits; a damaged file is refused."""
    refuse_special(path)
    try:
        with zipfile.ZipFile(path) as archive:
            content = parse_json(archive.read("about.json"), path)
    except DAMAGED as error:
        raise BadInput(f"{path}: no logits of calibseg, or damaged ({error}); run calibseg predict again") from error
    check_format(content.get("format"), "logits", path)
    info: About = coerce(f"{path}: ", content, About)
    check_patient(info["patient"], check_id(info["id"], where=path), path)
    if info["id"] != path.stem:
        raise BadInput(f"{path}: holds the case {info['id']!r}, after which it would be named; was it copied?")
    if min(info["shape"]) < 1 or info["shape"][0] != len(info["classes"]):
        raise BadInput(f"{path}: cannot have the shape {list(info['shape'])} with {len(info['classes'])} classes")
    return info


def open_logits(path: Path) -> Prediction:
    """A stored prediction. Labels are read ([z y x], or [r z y x] of several raters); scores when asked for."""
    metadata = read_about(path)
    labels = None
    if metadata["raters"]:
        labels = _read_array(path, "labels", (metadata["raters"], *metadata["shape"][1:]))
        labels = labels[0] if len(labels) == 1 else labels
    return Prediction(
        case_id=metadata["id"],
        patient=metadata["patient"],
        scores=Scores(path, metadata["shape"]),
        kind="logits",
        spacing_mm=metadata["spacing_mm"],
        labels=labels,
        slice_axis=metadata["slice_axis"],
    )


def read_largest(path: Path) -> Array | None:
    """Each voxel's largest logit, float16 [z y x]; None in a file of a version that did not store it."""
    shape = read_about(path)["shape"]
    with zipfile.ZipFile(path) as archive:
        stored = "largest.npy" in archive.namelist()
    return _read_array(path, "largest", shape[1:]) if stored else None


def logits_files(folder: Path) -> list[Path]:
    """The files of a folder of stored predictions, in the order of their names."""
    paths = sorted(path for path in folder.glob("*.npz") if not path.name.startswith(".")) if folder.is_dir() else []
    if not paths:
        raise BadInput(f"{folder}: holds no logits; run calibseg predict first")
    return paths


@dataclass
class Scores:
    """Stored scores [k z y x] as an array-like that reads what is asked of it; the slab read last is kept."""

    path: Path
    shape: tuple[int, int, int, int]
    dtype: np.dtype = field(default_factory=lambda: np.dtype(np.float32))
    ndim: int = 4
    _last: tuple[int, Array] = field(default=(-1, np.zeros(0, np.float32)), repr=False)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, key: Any) -> Array:
        """Any basic index; only the slabs that its part along z touches are read."""
        key = key if isinstance(key, tuple) else (key,)
        if Ellipsis in key or None in key:
            return np.asarray(self)[key]
        classes, along, *rest = (*key, *[slice(None)] * (2 - len(key)))
        if isinstance(along, slice) and along.step in (None, 1):
            begin, end, _ = along.indices(self.shape[1])
            return self._planes(begin, max(begin, end))[(classes, slice(None), *rest)]
        if isinstance(along, int | np.integer):
            index = int(along) + (self.shape[1] if along < 0 else 0)
            if not 0 <= index < self.shape[1]:
                raise IndexError(f"plane {along} of {self.shape[1]}")
            return self._planes(index, index + 1)[(classes, 0, *rest)]
        return np.asarray(self)[key]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        return self._planes(0, self.shape[1]).astype(dtype or self.dtype, copy=False)

    def _planes(self, begin: int, end: int) -> Array:
        """[k begin:end y x], out of one slab or joined from several."""
        step = planes(self.shape)
        parts = []
        for number in range(begin // step, -(-end // step)):
            low = number * step
            parts.append(self._slab(number)[:, max(begin - low, 0) : end - low])
        if not parts:
            return np.zeros((self.shape[0], 0, *self.shape[2:]), self.dtype)
        return parts[0] if len(parts) == 1 else np.concatenate(parts, 1)

    def _slab(self, number: int) -> Array:
        last, slab = self._last
        if last != number:
            k, z, y, x = self.shape
            step = planes(self.shape)
            slab = _read_array(self.path, f"scores_{number:04d}", (k, min(step, z - number * step), y, x))
            self._last = number, slab
        return slab


def _undated(name: str) -> zipfile.ZipInfo:
    """A member of an archive without a date, so that equal content makes equal bytes."""
    info = zipfile.ZipInfo(name)
    info.compress_type, info.external_attr = zipfile.ZIP_DEFLATED, 0o600 << 16
    return info


def _write_array(archive: zipfile.ZipFile, name: str, array: Array) -> None:
    with archive.open(_undated(f"{name}.npy"), "w", force_zip64=True) as file:
        np.lib.format.write_array(file, np.ascontiguousarray(array), allow_pickle=False)


def _read_array(path: Path, name: str, shape: tuple[int, ...]) -> Array:
    try:
        with zipfile.ZipFile(path) as archive:
            array = read_member(path, archive, archive.getinfo(f"{name}.npy"))
        if array.shape != shape:
            raise ValueError(f"its shape is {array.shape} instead of {shape}")
        return array
    except DAMAGED as error:
        raise BadInput(f"{path}: {name} is missing or damaged ({error}); run calibseg predict again") from error
