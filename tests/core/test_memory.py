"""Sizes are compared with the memory there is before anything is allocated."""

import gzip
import io
import zipfile

import nibabel as nib
import numpy as np
import pytest

from calibseg.core import memory
from calibseg.core.types import BadInput
from calibseg.io.images import read_volume
from calibseg.io.nifti import Grid, read_nifti
from calibseg.io.npz import read_npz


def header(shape, dtype=np.float32, spacing=(1.0, 1.0, 1.0)):
    made = nib.Nifti1Header()
    made.set_data_dtype(dtype)
    made.set_data_shape(shape)
    made["pixdim"][1:4] = spacing
    made["magic"], made["vox_offset"], made["sform_code"] = b"n+1", 352, 1
    for row, name in enumerate(("srow_x", "srow_y", "srow_z")):
        made[name] = np.eye(4)[row] * spacing[row]
    return made.binaryblock + bytes(4)


@pytest.mark.parametrize("ending", [".nii", ".nii.gz"])
def test_a_small_file_whose_header_asks_for_everything_is_refused(tmp_path, ending):
    path = tmp_path / f"bomb{ending}"
    data = header((32767, 32767, 32767)) + bytes(1000)
    path.write_bytes(gzip.compress(data) if ending.endswith("gz") else data)
    with pytest.raises(BadInput, match=r"bomb\.nii"):
        read_volume(path)


def test_gigabytes_behind_a_small_gzip_are_not_unpacked(tmp_path, monkeypatch):
    path = tmp_path / "bomb.nii.gz"
    with gzip.open(path, "wb", 1) as file:
        file.write(header((4, 4, 4)))
        for _ in range(64):
            file.write(bytes(1 << 20))
    with pytest.raises(BadInput, match=r"holds far more than the 608 bytes that its header says"):
        read_nifti(path)


def test_a_gzip_of_several_members_and_a_little_padding_are_read_as_before(tmp_path):
    values = np.arange(64, dtype=np.float32)
    data = header((4, 4, 4)) + values.tobytes() + bytes(100)
    path = tmp_path / "a.nii.gz"
    path.write_bytes(gzip.compress(data[:500]) + gzip.compress(data[500:]))
    assert (read_nifti(path)[0].ravel("F") == values).all()


def test_an_array_whose_header_is_a_lie_is_refused(tmp_path):
    text = io.BytesIO()
    np.lib.format.write_array_header_1_0(text, {"descr": "<f4", "fortran_order": False, "shape": (5 << 30,)})
    path = tmp_path / "bomb.npz"
    for compression in (zipfile.ZIP_DEFLATED, zipfile.ZIP_STORED):
        with zipfile.ZipFile(path, "w", compression) as archive:
            archive.writestr("probabilities.npy", text.getvalue() + bytes(100))
        with pytest.raises(BadInput, match=r"bomb\.npz"):
            read_npz(path, ("probabilities",))


def test_what_fits_the_file_but_not_the_memory_is_refused_before_it_is_taken(tmp_path, monkeypatch):
    path = tmp_path / "big.npz"
    np.savez_compressed(path, probabilities=np.zeros((2, 8, 8, 8), np.float32))
    nib.save(nib.Nifti1Image(np.zeros((8, 8, 8), np.float32), np.eye(4)), tmp_path / "big.nii.gz")
    monkeypatch.setattr(memory, "ALWAYS_FITS", 0)
    monkeypatch.setattr(memory, "memory", lambda: {"free": 100})
    with pytest.raises(
        BadInput, match=r"big\.npz: probabilities\.npy needs 0\.0 GiB, and there are 0\.0 GiB of memory"
    ):
        read_npz(path, ("probabilities",))
    with pytest.raises(BadInput, match=r"big\.nii\.gz: its header says that it needs"):
        read_nifti(tmp_path / "big.nii.gz")


@pytest.mark.parametrize("spacing", [(1e-9, 1, 1), (1, 1, 1e9), (1e-9,) * 3, (np.nan, 1, 1)])
def test_a_spacing_that_no_scan_has_is_refused(tmp_path, spacing):
    path = tmp_path / "a.nii.gz"
    path.write_bytes(gzip.compress(header((4, 4, 4), spacing=spacing) + bytes(256)))
    for read in (read_nifti, Grid.of, read_volume):
        with pytest.raises(BadInput, match=r"voxel spacing|affine|damaged"):
            read(path)


def test_a_container_s_bound_counts_and_its_file_cache_does_not(tmp_path, monkeypatch):
    (tmp_path / "memory.max").write_text("1000000\n")
    (tmp_path / "memory.stat").write_text("anon 400000\nfile 500000\n")
    monkeypatch.setattr(memory, "CGROUP", tmp_path)
    assert memory.memory() == {"total": 1000000, "free": 600000}
    (tmp_path / "memory.max").write_text("max\n")
    assert memory.memory()["free"] > 1 << 26


@pytest.mark.parametrize(
    "content",
    [b"", b"\x1f\x8b", gzip.compress(b"", mtime=0), gzip.compress(b"x" * 100, mtime=0), b"x" * 400],
    ids=["nothing", "two bytes", "gzip of nothing", "gzip of 100 bytes", "400 bytes"],
)
def test_an_empty_or_tiny_file_is_damaged(tmp_path, content):
    path = tmp_path / "tiny.nii.gz"
    path.write_bytes(content)
    for read in (read_nifti, Grid.of, read_volume):
        with pytest.raises(BadInput, match=r"tiny\.nii\.gz"):
            read(path)
