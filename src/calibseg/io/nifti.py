"""NIfTI files as arrays on a grid that runs to the right, to the front and up, transposed to (z, y, x).

Uncompressed files are memory-mapped through nibabel; a `.nii.gz` is unpacked whole (faster with `isal`, extra `fast`).
"""

import gzip
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
from nibabel.filebasedimages import ImageFileError
from nibabel.orientations import apply_orientation, inv_ornt_aff, io_orientation
from nibabel.spatialimages import HeaderDataError
from numpy import ndarray as Array

from calibseg.core.types import BadInput

ENDINGS = (".nii.gz", ".nii")
TOLERANCE = 0.01  # of the smallest voxel edge: how far a corner of two equal grids may be displaced


@dataclass(frozen=True)
class Grid:
    """Where the voxels of a file lie."""

    file_shape: tuple[int, ...]  # (i, j, k) as in the file
    file_affine: Array

    @classmethod
    def of(cls, path: Path) -> "Grid":
        """The grid of a file, from its header alone."""
        try:
            image: Any = nib.load(path)
            return _checked_grid(path, image.shape, image.affine)
        except (OSError, EOFError, zlib.error, ImageFileError) as error:
            raise BadInput(f"{path} is damaged or not a NIfTI file: {error}") from error

    @property
    def affine(self) -> Array:
        """From (x, y, z) voxel indices of the turned array to mm."""
        return self.file_affine @ inv_ornt_aff(io_orientation(self.file_affine), self.file_shape)

    @property
    def spacing_mm(self) -> tuple[float, float, float]:
        x, y, z = np.sqrt((self.affine[:3, :3] ** 2).sum(axis=0)).tolist()
        return z, y, x

    @property
    def shape(self) -> tuple[int, ...]:
        """(z, y, x) of the turned array."""
        to = io_orientation(self.file_affine)[:, 0].astype(int).tolist()
        return tuple(self.file_shape[to.index(axis)] for axis in (2, 1, 0))

    def reoriented(self, array: Array) -> Array:
        """[i j k ...] as in the file -> [z y x ...], a view."""
        return apply_orientation(array, io_orientation(self.file_affine)).swapaxes(0, 2)

    def refuse_other(self, other: "Grid", path: Path, label: Path) -> None:
        """A prediction (in `path`) must lie where its label lies."""
        if other.shape != self.shape:
            ours, theirs = (" x ".join(map(str, grid.shape)) for grid in (self, other))
            raise BadInput(f"{path} has {theirs} voxels (z, y, x), but its label {label} has {ours}")
        z, y, x = self.shape
        corners = np.array([[i, j, k, 1.0] for i in (0, x - 1) for j in (0, y - 1) for k in (0, z - 1)])
        apart = float(np.linalg.norm((corners @ (self.affine - other.affine).T)[:, :3], axis=1).max())
        if apart > TOLERANCE * min(self.spacing_mm):
            raise BadInput(f"{path} lies elsewhere than {label}: their affines put one corner {apart:.3g} mm apart")


def stem(path: Path) -> str:
    """`la_007.nii.gz` -> `la_007`."""
    return path.name.removesuffix(".gz").removesuffix(".nii")


def read_nifti(path: Path) -> tuple[Array, Grid]:
    """The array as in the file [i j k ...] and its grid. A 2-D image is one slice."""
    try:
        if path.name.endswith(".gz"):
            data = _unpacked(path.read_bytes())
            sizes = int.from_bytes(data[:4], "little"), int.from_bytes(data[:4], "big")
            image: Any = (nib.Nifti2Image if 540 in sizes else nib.Nifti1Image).from_bytes(data)
        else:
            image = nib.load(path)
        array = image.get_fdata(dtype=np.float32) if _scaled(image) else np.asanyarray(image.dataobj)
    except (OSError, EOFError, zlib.error, ValueError, ImageFileError) as error:
        raise BadInput(f"{path} is damaged or not a NIfTI file: {error}") from error
    except HeaderDataError as error:
        raise BadInput(f"{path} has a header that nibabel refuses: {error}") from error
    if array.ndim == 2:
        array = array[:, :, None]
    return array, _checked_grid(path, array.shape, image.affine)


def _scaled(image: Any) -> bool:
    slope, intercept = image.dataobj.slope, image.dataobj.inter
    return (slope, intercept) != (1.0, 0.0)


def _checked_grid(path: Path, shape: tuple[int, ...], affine: Any) -> Grid:
    affine = np.asarray(affine, float)
    if not np.isfinite(affine).all() or abs(np.linalg.det(affine[:3, :3])) < 1e-12:
        raise BadInput(f"{path} has an affine that places no voxels: {affine[:3].tolist()}")
    if 0 in shape:
        raise BadInput(f"{path} is empty: its shape is ({', '.join(map(str, shape))})")
    return Grid((*shape, 1)[:3], affine)


def _unpacked(data: bytes) -> bytes:
    try:
        from isal import igzip
    except ImportError:
        return gzip.decompress(data)
    return igzip.decompress(data)
