"""One array of an .npz file: memory-mapped where it is stored, unpacked where it is compressed, never unpickled."""

import struct
import zipfile
import zlib
from pathlib import Path

import numpy as np
from numpy import ndarray as Array

from calibseg.core.types import BadInput


def read_npz(path: Path, names: tuple[str, ...]) -> Array:
    """The array called by the first of `names` that the file has, or its only array."""
    try:
        with zipfile.ZipFile(path) as archive:
            members = {member.removesuffix(".npy"): member for member in archive.namelist()}
            key = next((name for name in names if name in members), next(iter(members)) if len(members) == 1 else None)
            if key is None:
                raise BadInput(f"{path} holds the arrays {', '.join(members) or 'none'}, but none called {names[0]!r}")
            info = archive.getinfo(members[key])
            if info.compress_type != zipfile.ZIP_STORED:
                with archive.open(info) as stream:
                    return np.lib.format.read_array(stream, allow_pickle=False)
        return _mapped(path, info)
    except BadInput:
        raise
    except (OSError, EOFError, ValueError, zipfile.BadZipFile, zlib.error, struct.error) as error:
        raise BadInput(f"{path} is damaged or not an .npz file of plain numbers: {error}") from error


def _mapped(path: Path, info: zipfile.ZipInfo) -> Array:
    with path.open("rb") as file:
        file.seek(info.header_offset + 26)  # the local header ends with the lengths of the name and of an extra field
        name, extra = struct.unpack("<HH", file.read(4))
        file.seek(info.header_offset + 30 + name + extra)
        version = np.lib.format.read_magic(file)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, fortran, dtype = read(file)
        if dtype.hasobject:
            raise ValueError("it holds Python objects")
        return np.memmap(path, dtype, "r", file.tell(), shape, "F" if fortran else "C")
