"""The images of predicted cases, for the calibrators that look at them; read when asked for and not before.

A run's images are its prepared cases, as the network saw them. For somebody else's predictions they are NIfTI files on
the grid of the labels, `la_007.nii.gz` or, as nnU-Net names channels, `la_007_0000.nii.gz`, `la_007_0001.nii.gz`, ...;
each channel is clipped to its 0.5 to 99.5 percentiles and scaled to [0, 1], which is how datasets are prepared here.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy import ndarray as Array

from calibseg.core.types import BadInput, Prediction
from calibseg.data import prepared
from calibseg.data.noise import Noisy
from calibseg.data.preprocessing import Preprocessing, scale_intensity
from calibseg.io.file_matching import nifti_by_case
from calibseg.io.nifti import Grid, read_nifti
from calibseg.io.predictions import PredictionFiles

CHANNEL_FILE = re.compile(r"(?P<case>.+)_(?P<number>\d{4})")


class LazyImage:
    """An image [c z y x] as an array-like that is read when somebody looks at it."""

    def __init__(self, read: Callable[[], Array]) -> None:
        self.read = read

    @cached_property
    def array(self) -> Array:
        return self.read()

    @property
    def shape(self) -> tuple[int, ...]:
        return self.array.shape

    @property
    def dtype(self) -> np.dtype:
        return self.array.dtype

    @property
    def ndim(self) -> int:
        return 4

    def __getitem__(self, key: Any) -> Array:
        return self.array[key]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        return self.array.astype(dtype or self.dtype, copy=False)


@dataclass(frozen=True)
class PreparedImages:
    """The images of prepared cases in a folder, with the noise with which the network saw them."""

    work: Path
    noise: float = 0.0
    seed: int = 0

    @property
    def stated(self) -> tuple[Any, ...]:
        return (self.noise, self.seed)

    def read(self, pair: PredictionFiles) -> Array:
        case = prepared.open_case(self.work, pair.case)
        if not self.noise:
            return np.moveaxis(case.read("image"), 0, 1 + case.axis)
        noisy = Noisy(case, self.noise, self.seed)
        return np.stack([noisy.read("image", index) for index in range(case.shape[0])], 1 + case.axis)

    def files(self, case: str) -> tuple[Path, ...]:
        path = prepared.case_path(self.work, case)
        if not path.is_file():
            raise BadInput(f"{path}: the prepared case is not there; say where prepared cases lie with --work DIR")
        return (path,)


@dataclass(frozen=True)
class ImageFiles:
    """NIfTI images by case, a file for each channel."""

    by_case: Mapping[str, tuple[Path, ...]]

    @property
    def stated(self) -> tuple[Any, ...]:
        return ()

    def read(self, pair: PredictionFiles) -> Array:
        grid = Grid.of(pair.label)
        return scale_intensity(
            np.stack([_on_grid(path, grid, pair.label) for path in self.by_case[pair.case]]), Preprocessing()
        )

    def files(self, case: str) -> tuple[Path, ...]:
        return self.by_case[case]


@dataclass(frozen=True, kw_only=True)
class FilesWithImage(PredictionFiles):
    """A case whose prediction also has an image."""

    source: PredictionFiles
    images: PreparedImages | ImageFiles

    @property
    def stated(self) -> tuple[Any, ...]:
        return (*self.source.stated, *self.images.stated)

    def open(self) -> Prediction:
        return replace(self.source.open(), image=LazyImage(lambda: self.images.read(self.source)))


def with_images(pairs: Sequence[PredictionFiles], images: PreparedImages | ImageFiles) -> list[PredictionFiles]:
    """The same cases, each with its image; one that has none is refused."""
    result: list[PredictionFiles] = []
    for pair in pairs:
        if isinstance(images, ImageFiles) and pair.case not in images.by_case:
            raise BadInput(f"case {pair.case!r} has no image: neither {pair.case}.nii.gz nor {pair.case}_0000.nii.gz")
        of_pair = {field.name: getattr(pair, field.name) for field in fields(PredictionFiles)}
        of_pair["files"] = (*pair.files, *images.files(pair.case))
        result.append(FilesWithImage(**of_pair, source=pair, images=images))
    return result


def image_files(folder: Path) -> dict[str, tuple[Path, ...]]:
    """The NIfTI images of a folder by case: one file, or one for each channel counted from 0000."""
    if not folder.is_dir():
        raise BadInput(f"no folder {folder}")
    by_case: dict[str, dict[int, Path]] = {}
    for name, path in nifti_by_case(folder).items():
        match = CHANNEL_FILE.fullmatch(name)
        case, number = (match["case"], int(match["number"])) if match else (name, 0)
        twin = by_case.setdefault(case, {}).setdefault(number, path)
        if twin != path:
            raise BadInput(f"{folder} holds both {twin.name} and {path.name} for case {case!r}")
    for case, parts in by_case.items():
        missing = next((number for number in range(len(parts)) if number not in parts), None)
        if missing is not None:
            raise BadInput(f"{folder} holds {parts[max(parts)].name}, but no file for channel {missing} of {case}")
    return {case: tuple(parts[number] for number in sorted(parts)) for case, parts in by_case.items()}


def _on_grid(path: Path, grid: Grid, label: Path) -> Array:
    array, file_grid = read_nifti(path)
    while array.ndim > 3 and array.shape[-1] == 1:
        array = array[..., 0]
    if array.ndim != 3:
        raise BadInput(
            f"{path} has {array.ndim} axes, but an image has 3: give each channel a file, like a_0000.nii.gz"
        )
    grid.refuse_other(file_grid, path, label)
    image = np.ascontiguousarray(file_grid.reoriented(array), np.float32)
    if not np.isfinite(image).all():
        raise BadInput(f"{path}: {int((~np.isfinite(image)).sum())} voxels of the image are NaN or infinite")
    return image
