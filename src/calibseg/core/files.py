"""Files that are whole or not there: text, JSON and arrays that name their format, written aside and then renamed."""

import contextlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from numpy import ndarray as Array
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from calibseg.core.types import BadInput


def format_of(kind: str) -> str:
    """The name of a file format, as every JSON and safetensors header carries it."""
    return f"calibseg-{kind}/1"


def write_text(path: Path, text: str) -> None:
    """A text file, whole or not at all."""
    with writing(path):
        replace(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))


def write_tensors(path: Path, kind: str, tensors: Mapping[str, Array], about: Mapping[str, Any]) -> None:
    """Arrays and a JSON object about them in one safetensors file: both or none, also when the power fails."""
    metadata = {"format": format_of(kind), "about": json.dumps(about)}

    def write(temporary: Path) -> None:
        save_file(dict(tensors), temporary, metadata)
        with temporary.open("rb") as file:
            os.fsync(file.fileno())

    with writing(path):
        replace(path, write)


def read_tensors(path: Path, kind: str) -> tuple[dict[str, Array], dict[str, Any]]:
    """What `write_tensors` wrote; anything else is refused. Nothing is ever unpickled."""
    try:
        with safe_open(path, "np") as file:
            metadata = file.metadata() or {}
            check_format(metadata.get("format"), kind, path)
            return {name: file.get_tensor(name) for name in file.keys()}, json.loads(metadata["about"])  # noqa: SIM118
    except (SafetensorError, OSError, ValueError) as error:
        if isinstance(error, BadInput):
            raise
        raise BadInput(f"{path}: cannot be read as safetensors: {error}") from error


def write_json(path: Path, kind: str, content: Mapping[str, Any]) -> None:
    """A JSON object that says its format first."""
    text = json.dumps({"format": format_of(kind), **content}, indent=1) + "\n"
    replace(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))


def read_json(path: Path, kind: str) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise BadInput(f"{path}: not JSON: {error}") from error
    check_format(found.pop("format", None) if isinstance(found, dict) else None, kind, path)
    return found


def check_format(found: Any, kind: str, path: Path) -> None:
    if found != format_of(kind):
        raise BadInput(f"{path}: its format is {found!r}, this version reads {format_of(kind)!r}")


def preallocate(file: int, size: int) -> None:
    """Make an open file so long on disk. Writing into a mapped file for which there is no room kills the process."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(file, 0, size)
    else:
        os.lseek(file, 0, os.SEEK_END)
        written = os.fstat(file).st_size
        while written < size:
            written += os.write(file, bytes(min(1 << 20, size - written)))


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """A full disk or a missing permission is the user's to mend: one sentence that names the file."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        reason = (error.strerror or error) if isinstance(error, OSError) else error
        raise BadInput(f"{path}: cannot be written: {reason}") from error


@contextlib.contextmanager
def _removed_on_failure(path: Path) -> Iterator[None]:
    try:
        yield
    finally:
        path.unlink(missing_ok=True)  # after a rename there is nothing left to remove


def replace(path: Path, write: Callable[[Path], Any]) -> None:
    """Write under a temporary name beside the file, then rename: a reader sees the old file or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with _removed_on_failure(temporary):
        temporary.touch()  # with the rights that files get here; safetensors would give them to the owner only
        mode = temporary.stat().st_mode
        write(temporary)
        temporary.chmod(mode)
        os.replace(temporary, path)
