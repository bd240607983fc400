"""One array of an .npz file: memory-mapped where it is stored, unpacked where it is compressed, never unpickled."""

import io
import math
import struct
import zipfile
import zlib
from pathlib import Path
from typing import IO

import numpy as np
from numpy import ndarray as Array

from calibseg.core.files import refuse_special
from calibseg.core.memory import require_memory
from calibseg.core.types import BadInput

# What zipfile and numpy raise at damaged, encrypted and unknown members
DAMAGED = (OSError, EOFError, KeyError, ValueError, RuntimeError, zipfile.BadZipFile, zlib.error, struct.error,
           OverflowError, MemoryError)  # fmt: skip


def read_npz(path: Path, names: tuple[str, ...]) -> Array:
    """The array called by the first of `names` that the file has, or its only array."""
    refuse_special(path)
    try:
        with zipfile.ZipFile(path) as archive:
            members = {member.removesuffix(".npy"): member for member in archive.namelist()}
            key = next((name for name in names if name in members), next(iter(members)) if len(members) == 1 else None)
            if key is None:
                raise BadInput(f"{path} holds the arrays {', '.join(members) or 'none'}, but none called {names[0]!r}")
            info = archive.getinfo(members[key])
            if info.flag_bits & 1:
                raise ValueError(f"{members[key]} is encrypted")
            if info.compress_type != zipfile.ZIP_STORED:
                return read_member(path, archive, info)
        return _mapped(path, info)
    except BadInput:
        raise
    except DAMAGED as error:
        raise BadInput(f"{path} is damaged or not an .npz file of plain numbers: {error}") from error


def read_member(path: Path, archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> Array:
    """An array that is unpacked; more than the file holds, or than there is memory, is refused."""
    with archive.open(info) as stream:
        start = stream.read(1 << 16)  # a header is shorter
    head = io.BytesIO(start)
    shape, _, dtype = _header(head)
    size = math.prod(shape) * dtype.itemsize
    if head.tell() + size != info.file_size:
        raise ValueError(f"{info.filename} is {info.file_size} bytes long and its header says {head.tell() + size}")
    require_memory(size, f"{path}: {info.filename} needs")
    with archive.open(info) as stream:
        return np.lib.format.read_array(stream, allow_pickle=False)


def _header(file: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype]:
    version = np.lib.format.read_magic(file)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, fortran, dtype = read(file)
    if dtype.hasobject:
        raise ValueError("it holds Python objects")
    return shape, fortran, dtype


def _mapped(path: Path, info: zipfile.ZipInfo) -> Array:
    with path.open("rb") as file:
        file.seek(info.header_offset + 26)  # the local header ends with the lengths of the name and of an extra field
        name, extra = struct.unpack("<HH", file.read(4))
        file.seek(info.header_offset + 30 + name + extra)
        shape, fortran, dtype = _header(file)
        return np.memmap(path, dtype, "r", file.tell(), shape, "F" if fortran else "C")
