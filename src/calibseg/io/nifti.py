"""NIfTI files as arrays on a grid that runs to the right, to the front and up, transposed to (z, y, x).

Uncompressed files are memory-mapped through nibabel; a `.nii.gz` is unpacked whole (faster with `isal`, extra `fast`).
"""

import contextlib
import gzip
import math
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
from nibabel import imageglobals
from nibabel.filebasedimages import ImageFileError
from nibabel.orientations import apply_orientation, inv_ornt_aff, io_orientation
from nibabel.spatialimages import HeaderDataError
from numpy import ndarray as Array

from calibseg.core.files import refuse_special
from calibseg.core.memory import require_memory
from calibseg.core.types import BadInput

ENDINGS = (".nii.gz", ".nii")
HEADER = 540  # bytes of the longest header
SLACK = 1 << 20  # bytes behind the image that are no sign of a bomb
GZIP = b"\x1f\x8b"
SMALLEST_MM, LARGEST_MM = 1e-5, 1e4  # edges of a voxel: none was ever measured beyond
MM = {1: 1e3, 3: 1e-3}  # of NIfTI's units: a metre, a micron
_IMAGES = {nib.Nifti1Header: nib.Nifti1Image, nib.Nifti2Header: nib.Nifti2Image}
TOLERANCE = 0.01  # of the smallest voxel edge: how far a corner of two equal grids may be displaced


@dataclass(frozen=True)
class Grid:
    """Where the voxels of a file lie."""

    file_shape: tuple[int, ...]  # (i, j, k) as in the file
    file_affine: Array

    @classmethod
    def of(cls, path: Path) -> "Grid":
        """The grid of a file, from its header alone."""
        with _nifti_errors(path):
            with (gzip.open if path.name.lower().endswith(".gz") else open)(path, "rb") as file:
                read_header(path, file.read(HEADER))
            image: Any = nib.load(path)
            return _checked_grid(path, image)

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

    def voxel_name(self, index: tuple[int, ...]) -> str:
        """A voxel (z, y, x) of the turned array in words, counted along the axes of the file."""
        turns = io_orientation(self.file_affine).astype(int).tolist()
        ijk = [index[2 - to] for to, _ in turns]
        ijk = [i if turn > 0 else n - 1 - i for i, (_, turn), n in zip(ijk, turns, self.file_shape, strict=True)]
        return f"voxel ({', '.join(f'{axis} {i}' for axis, i in zip('xyz', ijk, strict=True))}) of the NIfTI file"

    def refuse_other(self, other: "Grid", path: Path, label: Path) -> None:
        """A prediction (in `path`) must lie where its label lies."""
        if other.shape != self.shape:
            ours, theirs = (" x ".join(map(str, grid.shape)) for grid in (self, other))
            raise BadInput(f"{path} has {theirs} voxels (z, y, x), but its label {label} has {ours}")
        apart = displacement_mm(self.shape, self.affine, other.affine)
        if apart > TOLERANCE * min(self.spacing_mm):
            raise BadInput(f"{path} lies elsewhere than {label}: their affines put one corner {apart:.3g} mm apart")


def displacement_mm(shape: tuple[int, ...], a: Array, b: Array) -> float:
    """How far apart two affines put a corner of a (z, y, x) volume, at worst."""
    z, y, x = shape
    corners = np.array([[i, j, k, 1] for i in (0, x - 1) for j in (0, y - 1) for k in (0, z - 1)], float)
    return float(np.linalg.norm((corners @ (a - b).T)[:, :3], axis=1).max())


def stem(path: Path) -> str:
    """`la_007.nii.gz` -> `la_007`."""
    return path.name.removesuffix(".gz").removesuffix(".nii")


def read_nifti(path: Path) -> tuple[Array, Grid]:
    """The array as in the file [i j k ...] and its grid. A 2-D image is one slice."""
    with _nifti_errors(path):
        if path.name.lower().endswith(".gz"):
            data = path.read_bytes()
            header = read_header(path, _inflated(data, HEADER)[0])
            length = _needed(path, header)
            image: Any = _IMAGES[type(header)].from_bytes(_unpacked(path, data, length))
        else:
            with path.open("rb") as file:
                _needed(path, read_header(path, file.read(HEADER)), mapped=True)
            image = nib.load(path)
        array = image.get_fdata(dtype=np.float32) if _scaled(image) else np.asanyarray(image.dataobj)
    if array.dtype.kind not in "iuf":
        raise BadInput(f"{path} holds {array.dtype} values, expected one number per voxel")
    if array.ndim == 2:
        array = array[:, :, None]
    return array, _checked_grid(path, image)


def _scaled(image: Any) -> bool:
    slope, intercept = image.dataobj.slope, image.dataobj.inter
    return (slope, intercept) != (1.0, 0.0)


def _checked_grid(path: Path, image: Any) -> Grid:
    """In mm, whatever unit the header says; one that it does not say is mm."""
    shape, affine = image.shape, np.array(image.affine, float)
    affine[:3] *= MM.get(int(image.header["xyzt_units"]) & 7, 1.0)
    check_spacing(path, affine)
    if 0 in shape:
        raise BadInput(f"{path} is empty: its shape is ({', '.join(map(str, shape))})")
    return Grid((*shape, 1)[:3], affine)


def check_spacing(path: Path, affine: Array) -> None:
    """An affine must place voxels, and voxels of a scan: tiny or huge ones would ask for endless memory later."""
    edges = np.sqrt((affine[:3, :3] ** 2).sum(0))
    if not np.isfinite(affine).all() or abs(np.linalg.det(affine[:3, :3])) <= 1e-9 * edges.prod():
        raise BadInput(f"{path}: voxel spacing must be positive, the header's affine is {affine[:3].tolist()}")
    if edges.min() < SMALLEST_MM or edges.max() > LARGEST_MM:
        raise BadInput(f"{path}: a voxel spacing of {edges.tolist()} mm is no scan's; is the unit right?")


@contextlib.contextmanager
def _nifti_errors(path: Path) -> Iterator[None]:
    refuse_special(path)
    logger = imageglobals.logger  # it would print beside our sentence what nibabel mends or cannot mend
    before, logger.disabled = logger.disabled, True
    try:
        yield
    except BadInput:
        raise
    except HeaderDataError as error:
        raise BadInput(f"{path} has a header that nibabel refuses: {error}") from error
    except (OSError, EOFError, KeyError, zlib.error, ValueError, OverflowError, MemoryError, ImageFileError) as error:
        raise BadInput(f"{path} is damaged or not a NIfTI file: {error}") from error
    finally:
        logger.disabled = before


def read_header(path: Path, data: bytes) -> Any:
    """The header as it is written, refused where its spacing is none: nibabel would take 1 mm, and only log it."""
    second = 540 in (int.from_bytes(data[:4], "little"), int.from_bytes(data[:4], "big"))
    if len(data) < (540 if second else 348):
        raise BadInput(f"{path} is damaged or not a NIfTI file: it is {len(data)} bytes long, shorter than a header")
    header: Any = nib.Nifti2Header(data, check=False) if second else nib.Nifti1Header(data[:348], check=False)
    spacing = header["pixdim"][1 : 1 + min(3, max(2, int(header["dim"][0])))]
    if not (spacing > 0).all():
        raise BadInput(f"{path}: voxel spacing must be positive, the header says {spacing.tolist()}")
    return header


def _needed(path: Path, header: Any, mapped: bool = False) -> int:
    """The length that the header says the file has; refused where that is more than there is memory."""
    size = math.prod(max(0, int(n)) for n in header.get_data_shape()) * header.get_data_dtype().itemsize
    if not mapped or header.get_slope_inter() not in ((None, None), (1.0, 0.0)):
        require_memory(2 * size, f"{path}: its header says that it needs")
    return max(0, int(header["vox_offset"])) + size


def _unpacked(path: Path, data: bytes, length: int) -> bytes:
    """A .gz of several members, if need be; what follows the image may be a little (padding), not a flood."""
    limit = max(length, HEADER) + SLACK
    content, rest = _inflated(data, limit)
    while rest[:2] == GZIP and len(content) < limit:
        more, rest = _inflated(rest, limit - len(content))
        content += more
    if len(content) >= limit:
        raise BadInput(f"{path} holds far more than the {length} bytes that its header says")
    return content


def _inflated(data: bytes, limit: int) -> tuple[bytes, bytes]:
    """The first member of a .gz, or as much of it as is asked for, and what follows it."""
    try:
        from isal import isal_zlib as library
    except ImportError:
        library = zlib
    stream = library.decompressobj(wbits=31)
    try:
        content = stream.decompress(data, limit)
    except (library.error, zlib.error) as error:  # pyright: ignore[reportGeneralTypeIssues]
        raise EOFError(error) from error
    if not stream.eof and len(content) < limit:
        raise EOFError("it ends too early")
    return content, stream.unused_data
