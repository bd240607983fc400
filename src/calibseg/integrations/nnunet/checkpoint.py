"""Checkpoints of nnU-Net: read without running what is in them, and written whole or not at all."""

import io
import pickle
from pathlib import Path
from typing import Any

from calibseg.core.files import atomic_write
from calibseg.core.types import BadInput


def read_checkpoint(path: Path) -> dict[str, Any]:
    """What nnU-Net stored, on the CPU; tensors are read from the file when they are used.

    Beside tensors and plain Python there are numpy numbers in it, of nnU-Net's log; whatever else is refused.
    """
    import numpy as np
    import torch

    number: Any = np.float64(0).__reduce__()[0]
    kinds = [type(np.dtype(kind)) for kind in (np.float16, np.float32, np.float64, np.int32, np.int64, np.bool_)]
    try:
        with torch.serialization.safe_globals([number, np.dtype, *kinds]):
            checkpoint = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except (OSError, RuntimeError, ValueError, EOFError, pickle.UnpicklingError) as error:
        raise BadInput(f"{path} is no checkpoint of nnU-Net: {str(error).splitlines()[0]}") from error
    if not isinstance(checkpoint, dict) or not {"network_weights", "trainer_name"} <= set(checkpoint):
        raise BadInput(f"{path} is no checkpoint of nnU-Net: it lacks network_weights or trainer_name")
    return checkpoint


def write_checkpoint(content: dict[str, Any], path: Path) -> None:
    """A checkpoint, whole or not at all."""
    import torch

    content_bytes = io.BytesIO()  # where the disk is full, torch's own writer says something about positions
    torch.save(content, content_bytes)
    with atomic_write(path) as temporary:
        temporary.write_bytes(content_bytes.getbuffer())


def add_entry(part: Path, name: str, entry: Any, path: Path) -> None:
    """Move a checkpoint from `part` to `path` with one entry more."""
    write_checkpoint({**read_checkpoint(part), name: entry}, path)
    part.unlink()
