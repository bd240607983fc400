"""Arrays and tensors of the caller: dtype checks, conversion to plain tensors, descriptions for messages."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from calibseg.core.types import BadInput

_WIDE_UNSIGNED = (torch.uint16, torch.uint32, torch.uint64)
_INTEGERS = (torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, *_WIDE_UNSIGNED)


def is_float(array: Any) -> bool:
    """Whether an array or tensor holds floating-point numbers of 16 to 64 bits."""
    if isinstance(array, Tensor):
        return array.is_floating_point() and array.dtype.itemsize > 1
    return np.dtype(array.dtype).kind == "f" and np.dtype(array.dtype).itemsize <= 8


def is_integer(array: Any) -> bool:
    """Whether an array or tensor holds whole numbers (or truth values)."""
    if isinstance(array, Tensor):
        return array.dtype in _INTEGERS
    return np.dtype(array.dtype).kind in "iub"


def is_one_hot(array: Any) -> bool:
    """Whether integers [k *space] are exactly one 1 among zeros at every voxel, which several raters never are."""
    values = as_tensor(array)
    return bool(values.numel() and values.min() >= 0 and values.max() == 1 and (values.sum(0) == 1).all())


def equals(values: Tensor, label: int | None) -> Tensor:
    """Where a label stands. (torch would wrap one that the type cannot hold: 156 equals -100 as a uint8.)"""
    limits = torch.iinfo(torch.int64 if values.is_floating_point() or values.dtype == torch.bool else values.dtype)
    representable = label is not None and limits.min <= label <= limits.max
    return values == label if representable else torch.zeros_like(values, dtype=torch.bool)


def described_container(given: Any) -> str:
    """What was given in place of a tensor, and how to get at one."""
    kind = type(given).__name__
    if isinstance(given, dict) or hasattr(given, "keys"):
        return f"a {kind} of {', '.join(map(str, given.keys()))}: give the one that is meant, such as output['logits']"
    if isinstance(given, list | tuple):
        return (
            f"a {kind} of {len(given)}: for the heads of deep supervision there is losses.DeepSupervision(loss); else "
            "call the loss with each of them"
        )
    return f"{kind}: torch.as_tensor makes one of an array"


def described(tensor: Any) -> str:
    if not isinstance(tensor, Tensor):
        return type(tensor).__name__
    return f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"


def as_tensor(array: Any, device: torch.device | None = None) -> Tensor:
    """An array or tensor as a tensor without gradient, which shares its memory where it can."""
    if isinstance(array, Tensor):
        plain = array.detach() if device is None else array.detach().to(device)
        return plain.long() if plain.dtype in _WIDE_UNSIGNED else plain  # torch can hardly calculate with these
    array = np.asarray(array)
    if not is_float(array) and not is_integer(array):
        raise BadInput(f"an array of {array.dtype} cannot be calculated with; expected floats or integers")
    if array.dtype.kind == "u" and array.dtype.itemsize > 1:
        array = array.astype(np.int64)
    if not array.flags.writeable or not array.dtype.isnative or min(array.strides, default=0) < 0:
        array = array.astype(array.dtype.newbyteorder("="), order="C")  # torch takes none of these: it is copied
    return torch.from_numpy(array).to(device)


def shown(values: Any) -> str:
    """Numbers for a message."""
    return ", ".join(f"{float(v):.6g}" for v in values)
