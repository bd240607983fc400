"""Files that ask for more than there is, or that hide what they hold: one sentence each, before memory is taken."""

import io
import zipfile
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest

from calibseg.core.types import BadInput
from calibseg.io import images, nifti
from calibseg.io.npz import read_npz


def packed(path: Path, method: int = zipfile.ZIP_DEFLATED, flags: int = 0, code: int | None = None) -> Path:
    """An .npz of one array; `flags` and `code` are put into both headers of its member."""
    array = io.BytesIO()
    np.save(array, np.ones((2, 3, 3, 3), np.float32))
    with zipfile.ZipFile(path, "w", method) as archive:
        archive.writestr("probabilities.npy", array.getvalue())
    data = bytearray(path.read_bytes())
    for at in (6, data.rindex(b"PK\x01\x02") + 8):  # the flags, then the method of compression
        data[at] |= flags
        if code is not None:
            data[at + 2 : at + 4] = code.to_bytes(2, "little")
    path.write_bytes(data)
    return path


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_an_npz_is_read_by_every_compression_that_python_knows(method, tmp_path):
    assert (read_npz(packed(tmp_path / "a.npz", method), ("probabilities",)) == 1).all()


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ({"flags": 1}, "probabilities.npy is encrypted"),
        ({"flags": 1, "method": zipfile.ZIP_STORED}, "probabilities.npy is encrypted"),
        ({"flags": 0x20}, "patched data"),
        ({"code": 97}, "compression method is not supported"),
    ],
)
def test_an_npz_that_is_encrypted_or_packed_otherwise_is_refused(what, said, tmp_path):
    with pytest.raises(BadInput, match=rf"a\.npz is damaged or not an \.npz file of plain numbers: .*{said}"):
        read_npz(packed(tmp_path / "a.npz", **what), ("probabilities",))


def written(path: Path, place: int, value: bytes, sform: bool = True) -> Path:
    """A NIfTI file with other bytes at a place of its header."""
    image = nib.Nifti1Image(np.zeros((3, 3, 3), np.float32), np.eye(4))
    image.set_sform(np.eye(4), int(sform))
    nib.save(image, path)
    data = bytearray(path.read_bytes())
    data[place : place + len(value)] = value
    path.write_bytes(data)
    return path


@pytest.mark.parametrize("read", [nifti.read_nifti, nifti.Grid.of, images.read_volume])
@pytest.mark.parametrize(
    ("place", "value", "said"),
    [
        (70, (999).to_bytes(2, "little"), "999"),  # a type that nobody knows
        (80, bytes(4), r"voxel spacing must be positive, the header says \[0\.0, 1\.0, 1\.0\]"),
        (84, np.float32(-2).tobytes(), r"voxel spacing must be positive, the header says \[1\.0, -2\.0, 1\.0\]"),
        (88, np.float32(np.nan).tobytes(), "voxel spacing must be positive"),
    ],
    ids=["type", "zero", "negative", "nan"],
)
def test_a_header_is_refused_by_every_reader_and_nibabel_prints_nothing(read, place, value, said, tmp_path, capfd):
    with pytest.raises(BadInput, match=said):
        read(written(tmp_path / "a.nii", place, value))
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("ending", ["mhd", "mha", "nrrd"])
def test_an_itk_header_that_asks_for_more_memory_than_there_is_is_refused(ending, tmp_path):
    path = tmp_path / f"a.{ending}"
    if ending == "nrrd":
        path.write_bytes(
            b"NRRD0004\ntype: float\ndimension: 3\nsizes: 30000 30000 30000\nencoding: raw\nendian: little\n\n1234"
        )
    else:
        data = "LOCAL" if ending == "mha" else "a.raw"
        facts = "ObjectType = Image\nNDims = 3\nDimSize = 30000 30000 30000\nElementType = MET_FLOAT\n"
        path.write_text(f"{facts}ElementDataFile = {data}\n")
        (tmp_path / "a.raw").write_bytes(b"1234")
    with pytest.raises(BadInput, match=r"its header says that it needs \d+\.\d GiB, and there are"):
        images.read_volume(path)


@pytest.mark.parametrize(("edge", "said"), [(12000, "its header says that it needs"), (60000, "far more pixels")])
def test_a_picture_that_asks_for_more_memory_than_there_is_is_refused(edge, said, tmp_path, monkeypatch):
    from PIL import Image

    monkeypatch.setattr("calibseg.core.memory.memory", lambda: {"free": 1 << 20})
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 12000**2)
    Image.new("L", (4, 4)).save(tmp_path / "a.bmp")
    data = bytearray((tmp_path / "a.bmp").read_bytes())
    data[18:26] = edge.to_bytes(4, "little") * 2  # width and height
    (tmp_path / "a.bmp").write_bytes(data)
    with pytest.raises(BadInput, match=rf"a\.bmp: .*{said}.*--skip-bad"):
        images.read_volume(tmp_path / "a.bmp")
