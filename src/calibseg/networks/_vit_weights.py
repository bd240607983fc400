"""Google's .npz files of vision-transformer weights: read safely, checked name by name, copied into a network.

A target is a parameter as a view in the file's layout, so that copying is all that is left to do. Three exceptions: the
first convolution has three colours in the file and any number of channels here; positions lie on a grid of their own,
behind that of a class token; group normalisations may carry leading axes of 1.
"""

import math
import zipfile
import zlib
from collections.abc import Iterable

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import interpolate

from calibseg.core.types import BadInput

UNREADABLE = (ValueError, OSError, EOFError, zipfile.BadZipFile, zlib.error)


def fill(targets: Iterable[tuple[str, Tensor]], path: str) -> None:
    """Copy each named array into its target; nothing is changed unless everything fits."""
    copies: list[tuple[Tensor, Tensor]] = []
    wrong: list[str] = []
    with _opened(path) as archive:
        for key, target in targets:
            if key not in archive.files:
                wrong.append(f"{key} is missing")
                continue
            try:
                array = archive[key]
            except UNREADABLE as error:
                raise BadInput(f"{path}: {key} cannot be read: {error}") from error
            fitted = _fitted(key, array, tuple(target.shape))
            if fitted is None:
                wrong.append(
                    f"{key} is {array.dtype} {array.shape} instead of float {_in_file(key, tuple(target.shape))}"
                )
            else:
                copies.append((target, torch.from_numpy(fitted)))
    if wrong:
        raise BadInput(f"{path} does not fit this network: {'; '.join(wrong)}")
    with torch.no_grad():
        for target, values in copies:
            target.copy_(values)


def _in_file(key: str, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape that the file has for a target of this shape: three colours, and a class token before the positions."""
    if key == "conv_root/kernel":
        return (*shape[:2], 3, shape[3])
    return (1, 1 + shape[1] * shape[2], shape[3]) if key.endswith("pos_embedding") else shape


def _fitted(key: str, array: np.ndarray, shape: tuple[int, ...]) -> np.ndarray | None:
    """The array in the shape of its target, if it can be brought into it."""
    if not np.issubdtype(array.dtype, np.floating):
        return None
    if key == "conv_root/kernel" and array.ndim == 4 and array.shape[2] == 3:
        array = array[:, :, np.arange(shape[2]) % 3]
    elif key.endswith("pos_embedding") and array.ndim == 3 and array.shape[0] == 1 and array.shape[2] == shape[3]:
        return _grid(array, shape)
    elif array.ndim > len(shape) and array.shape == (1,) * (array.ndim - len(shape)) + shape:
        array = array.reshape(shape)  # group normalisations are stored as [1 1 1 c]
    return array if array.shape == shape else None


def _grid(array: np.ndarray, shape: tuple[int, ...]) -> np.ndarray | None:
    """Positions [1, 1 + grid^2, hidden] without that of the class token, on the network's grid."""
    side = math.isqrt(array.shape[1] - 1)
    if side < 1 or side**2 != array.shape[1] - 1:
        return None
    maps = torch.from_numpy(array[:, 1:].reshape(1, side, side, -1).astype(np.float32)).permute(0, 3, 1, 2)
    if side != shape[1]:
        maps = interpolate(maps, size=shape[1:3], mode="bilinear")
    return maps.permute(0, 2, 3, 1).numpy()


def _opened(path: str) -> np.lib.npyio.NpzFile:
    try:
        archive = np.load(path, allow_pickle=False)
    except FileNotFoundError as error:
        raise BadInput(f"no file {path!r}: weights is the path of R50+ViT-B_16.npz, or is left out") from error
    except UNREADABLE as error:
        raise BadInput(f"{path}: not a .npz file of arrays: {error}") from error
    if not isinstance(archive, np.lib.npyio.NpzFile):
        raise BadInput(f"{path}: one array, not a .npz file of named arrays")
    return archive
