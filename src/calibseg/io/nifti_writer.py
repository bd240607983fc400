"""NIfTI files that are written piece by piece: on the grid of a scan, memory-mapped into memory, then compressed.

Geometry is copied from the scan's own header number by number (affine, codes, units), so that nothing is rounded.
"""

import gzip
import os
import shutil
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
from nibabel.filebasedimages import ImageFileError
from numpy import ndarray as Array

from calibseg.core import files
from calibseg.core.types import BadInput
from calibseg.io.nifti import ENDINGS, Grid

OFFSET = 352  # bytes of a NIfTI-1 header and its extension flag
GEOMETRY = ("qform_code", "sform_code", "quatern_b", "quatern_c", "quatern_d", "qoffset_x", "qoffset_y", "qoffset_z",
            "srow_x", "srow_y", "srow_z")  # fmt: skip


def place_of(scan: Path, affine: Array) -> Any:
    """A header that puts voxels where the scan has them: its very own numbers where it is NIfTI."""
    header: Any = nib.Nifti1Header()
    header.set_sform(affine, 1)
    header.set_qform(affine, 1, strip_shears=True)
    header.set_xyzt_units("mm")
    if scan.name.lower().endswith(ENDINGS):
        try:
            theirs: Any = nib.load(scan).header  # pyright: ignore[reportPrivateImportUsage, reportAttributeAccessIssue]
        except (OSError, ImageFileError) as error:
            raise BadInput(f"{scan}: not a NIfTI image ({error})") from error
        for name in GEOMETRY:
            header[name] = theirs[name]
        header["pixdim"][:4] = theirs["pixdim"][:4]
        header["xyzt_units"] = theirs["xyzt_units"]
    return header


def mapped_nifti(
    path: Path, shape: tuple[int, ...], dtype: Any, geometry: Any, window: tuple[float, float] = (0, 0)
) -> Array:
    """A new uncompressed NIfTI file, its array mapped into memory. The room is taken now: a full disk is found here.

    window: the values that a viewer shows as black and as white (cal_min, cal_max); (0, 0): it finds them by itself
    """
    header = geometry.copy()
    pixdim = header["pixdim"][:4].copy()
    header.set_data_dtype(dtype)
    header.set_data_shape(shape)
    header["pixdim"][:4] = pixdim
    header["scl_slope"], header["scl_inter"], header["vox_offset"], header["descrip"] = 1, 0, OFFSET, b"calibseg"
    header["cal_min"], header["cal_max"] = window
    size = OFFSET + int(np.prod(shape)) * np.dtype(dtype).itemsize
    with path.open("wb") as file:
        file.write(header.binaryblock + bytes(OFFSET - len(header.binaryblock)))
        files.preallocate(file.fileno(), size)
    return np.memmap(path, dtype, "r+", OFFSET, shape, "F")


def write_mask(path: Path, mask: Array, geometry: Path | Array) -> None:
    """A mask [z y x] as a compressed NIfTI of bytes, where a NIfTI file lies or, by an affine, on its own (x, y, z)."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with files.write_errors(path), files.temporary_folder(path) as scratch:
        if isinstance(geometry, Path):
            grid = Grid.of(geometry)
            file = mapped_nifti(scratch / "m.nii", grid.file_shape, np.uint8, place_of(geometry, grid.file_affine))
            grid.reoriented(file)[:] = mask
        else:
            file = mapped_nifti(scratch / "m.nii", mask.shape[::-1], np.uint8, place_of(Path(), geometry))
            file[:] = mask.T
        del file  # the last holder of the mapped file
        os.replace(compressed(scratch / "m.nii"), path)


def compressed(path: Path) -> Path:
    """x.nii -> x.nii.gz, piece by piece; the same bytes whenever it is made."""
    target = path.with_name(f"{path.name}.gz")
    with path.open("rb") as source, target.open("wb") as raw, _gzip(raw) as out:
        shutil.copyfileobj(source, out, 1 << 20)
    path.unlink()
    return target


def _gzip(raw: Any) -> Any:
    try:
        from isal import igzip
    except ImportError:
        return gzip.GzipFile("", "wb", 1, raw, 0)
    return igzip.IGzipFile("", "wb", 1, raw, 0)
