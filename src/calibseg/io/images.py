"""Image files as arrays: every format is read here, turned to RAS+ and transposed to (z, y, x).

NIfTI goes through nibabel only: SimpleITK reads the wrong file where `a.nii` lies beside `a.nii.gz`. MetaImage and NRRD
need SimpleITK (extra `io`), pictures need Pillow, which comes with matplotlib.

>>> turned, affine = to_ras(np.arange(6).reshape(3, 2, 1), np.diag([-1.0, 1.0, 1.0, 1.0]))
>>> turned[:, 0, 0].tolist()            # the first axis ran from right to left, so it is reversed ...
[4, 2, 0]
>>> affine[0].tolist()                  # ... and starts where it ended
[1.0, 0.0, 0.0, -2.0]
"""

import contextlib
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from nibabel.orientations import aff2axcodes, apply_orientation, inv_ornt_aff, io_orientation
from numpy import ndarray as Array

from calibseg.core.memory import require_memory
from calibseg.core.types import BadInput
from calibseg.io.nifti import ENDINGS, Grid, check_spacing, read_nifti

ITK = (".mhd", ".mha", ".nrrd")
DETACHED = {".mhd": ("elementdatafile",), ".nrrd": ("data file", "datafile")}  # headers that may name another file
PICTURES = (".png", ".bmp", ".jpg", ".jpeg", ".tif", ".tiff")
LEAVE_OUT = "fetch or repair it, or leave such cases out with --skip-bad"


@dataclass(frozen=True)
class Volume:
    """One file. `affine` takes (x, y, z) voxel indices of the turned array to millimetres in RAS+."""

    array: Array  # [z y x], or [c z y x] where the file holds several channels
    affine: Array
    original: dict[str, Any]  # file, shape, affine and orientation as on disk, to go back

    @property
    def spacing_mm(self) -> tuple[float, float, float]:
        """Voxel size along (z, y, x), the order of the array's axes."""
        x, y, z = np.sqrt((self.affine[:3, :3] ** 2).sum(0))
        return float(z), float(y), float(x)


def read_volume(path: Path) -> Volume:
    """Read a file of any known format."""
    if not path.is_file():
        raise BadInput(f"{path}: no such file")
    name = path.name.lower()
    if name.endswith(ENDINGS):
        array, affine = _read_nifti(path)
    elif name.endswith(ITK):
        array, affine = _read_itk(path)
    elif name.endswith(PICTURES):
        array, affine = _read_picture(path)
    else:
        raise BadInput(f"{path}: unknown file ending. Known: {', '.join((*ENDINGS, *ITK, *PICTURES))}")
    if array.ndim not in (3, 4):
        raise BadInput(f"{path}: an image has 3 axes, or 4 with channels last, this one has shape {array.shape}")
    if 0 in array.shape:
        raise BadInput(f"{path}: the image is empty, its shape is {array.shape}")
    check_spacing(path, affine)
    original = {
        "file": path.name,
        "shape": list(array.shape[:3]),
        "affine": affine.tolist(),
        "orientation": "".join(str(code) for code in aff2axcodes(affine)),
    }
    turned, affine = to_ras(array, affine)
    return Volume(turned.transpose(*range(turned.ndim)[::-1]), affine, original)


def read_grid(path: Path) -> Grid | None:
    """Where a file's voxels lie, by its header alone; None for a picture, which does not say."""
    name = path.name.lower()
    if name.endswith(ENDINGS):
        return Grid.of(path)
    if not name.endswith(ITK):
        return None
    with _itk_errors(path):
        reader = _itk_reader(path)
    return Grid(tuple(reader.GetSize()), _itk_affine(reader)) if reader.GetDimension() == 3 else None


def data_file(path: Path) -> Path | None:
    """The file that holds the voxels of a header file (.mhd, .nrrd); None where they are in the file itself."""
    if path.suffix.lower() not in DETACHED:
        return None
    for line in path.read_bytes()[:65536].decode("latin-1").splitlines():
        name, _, value = line.replace(":", "=", 1).partition("=")
        if not line.strip():  # the end of a header that has its voxels behind it
            return None
        if name.strip().casefold() in DETACHED[path.suffix.lower()]:
            named = path.parent / value.strip()
            return named if named.is_file() else None
    return None


def to_ras(array: Array, affine: Array) -> tuple[Array, Array]:
    """Flip and permute the first three axes so that they run to the right, to the front and up (a view)."""
    turn = io_orientation(affine)
    return apply_orientation(array, turn), affine @ inv_ornt_aff(turn, array.shape[:3])


def nifti(folder: Path, stem: str) -> Path:
    """The file `stem`.nii.gz or `stem`.nii; that there is neither shows when it is read."""
    paths = [path for ending in ENDINGS if (path := folder / f"{stem}{ending}").is_file()]
    if len(paths) > 1:
        raise BadInput(f"{folder}: holds both {paths[0].name} and {paths[1].name}; remove the one that is not meant")
    return paths[0] if paths else folder / f"{stem}{ENDINGS[0]}"


def _read_nifti(path: Path) -> tuple[Array, Array]:
    try:
        array, grid = read_nifti(path)
    except BadInput as error:
        raise BadInput(f"{error}; {LEAVE_OUT}") from error
    while array.ndim > 3 and array.shape[-1] == 1:
        array = array[..., 0]
    return array, grid.file_affine


def _read_itk(path: Path) -> tuple[Array, Array]:
    sitk = _sitk(path)
    with _itk_errors(path):
        reader = _itk_reader(path)
        parts = reader.GetNumberOfComponents()
        itemsize = sitk.Image([1] * reader.GetDimension(), reader.GetPixelID(), parts).GetSizeOfPixelComponent()
        require_memory(2 * math.prod(reader.GetSize()) * parts * itemsize, f"{path}: its header says that it needs")
        image = reader.Execute()
    if image.GetDimension() != 3:
        raise BadInput(f"{path}: an image has 3 axes, this one has {image.GetDimension()}")
    array = sitk.GetArrayFromImage(image)
    array = np.moveaxis(array, [2, 1, 0], [0, 1, 2])  # ITK hands out (z, y, x[, channels])
    return array, _itk_affine(image)


def _itk_reader(path: Path) -> Any:
    """It has read the header."""
    reader = _sitk(path).ImageFileReader()
    reader.SetFileName(str(path))
    reader.ReadImageInformation()
    return reader


def _itk_affine(image: Any) -> Array:
    """Of an image or of a reader that has read the header."""
    affine = np.eye(4)
    affine[:3, :3] = np.array(image.GetDirection()).reshape(3, 3) * np.array(image.GetSpacing())
    affine[:3, 3] = image.GetOrigin()
    return np.diag([-1.0, -1.0, 1.0, 1.0]) @ affine  # ITK's axes run to the left and to the back


def _sitk(path: Path) -> Any:
    try:
        import SimpleITK
    except ImportError as error:
        raise BadInput(f"{path}: reading {path.suffix} needs SimpleITK: pip install 'calibseg[io]'") from error
    return SimpleITK


@contextlib.contextmanager
def _itk_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        reason = " ".join(str(error).split())[-200:]
        raise BadInput(f"{path}: the file is cut short or damaged ({reason}); {LEAVE_OUT}") from error


def _read_picture(path: Path) -> tuple[Array, Array]:
    """A picture is one slice: columns are x, rows are y, 1 mm a pixel because a picture does not say."""
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(path) as picture:
            size = 8 * math.prod(picture.size) * len(picture.getbands())  # numbers of 32 bits, and a copy
            require_memory(size, f"{path}: its header says that it needs")
            if (pages := getattr(picture, "n_frames", 1)) > 1:
                raise BadInput(f"{path}: holds {pages} pages, and a picture is one slice: save it as NIfTI")
            if picture.mode in ("P", "1", "LA", "RGBA", "PA"):
                picture = picture.convert("RGB" if picture.mode in ("P", "RGBA", "PA") else "L")
            array = np.asarray(picture)
    except Image.DecompressionBombError as error:
        raise BadInput(f"{path}: has far more pixels than a picture ({error}); {LEAVE_OUT}") from error
    except (UnidentifiedImageError, OSError, SyntaxError, ValueError) as error:
        if isinstance(error, BadInput):
            raise BadInput(f"{error}; {LEAVE_OUT}") from error
        raise BadInput(f"{path}: the file is cut short or damaged ({error}); {LEAVE_OUT}") from error
    array = array[:, :, None] if array.ndim == 2 else array
    return array.transpose(1, 0, 2)[:, :, None, :] if array.shape[2] > 1 else array.transpose(1, 0, 2), np.eye(4)
