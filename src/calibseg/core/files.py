"""Atomic writes of text, JSON and arrays that name their format: a reader sees the old file or the new one."""

import contextlib
import csv
import io
import json
import os
import shutil
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import tomli_w
from safetensors import SafetensorError, safe_open

from calibseg.core.coerce import coerce
from calibseg.core.types import Array, BadInput

# What safetensors calls the types of numpy
_TYPES = {"f8": "F64", "i8": "I64", "u8": "U64", "f4": "F32", "i4": "I32", "u4": "U32", "f2": "F16", "i2": "I16",
          "u2": "U16", "i1": "I8", "u1": "U8", "b1": "BOOL"}  # fmt: skip


def format_of(kind: str) -> str:
    """The name of a file format, as every JSON and safetensors header carries it."""
    return f"calibseg-{kind}/1"


def write_text(path: Path, text: str) -> None:
    """A text file, whole or not at all."""
    with atomic_write(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_csv(path: Path, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """A table with a line of column names, whole or not at all."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(rows)
    write_text(path, text.getvalue())


def write_tensors(path: Path, kind: str, tensors: Mapping[str, Array], metadata: Mapping[str, Any]) -> None:
    """Arrays and a JSON object about them in one safetensors file: both or none, also when the power fails."""
    with atomic_write(path) as temporary:
        save_tensors(temporary, tensors, {"about": json.dumps(metadata), "format": format_of(kind)})
        with temporary.open("rb") as file:
            os.fsync(file.fileno())


def save_tensors(path: Path, tensors: Mapping[str, Array], metadata: Mapping[str, str]) -> None:
    """A safetensors file of which equal content makes equal bytes: the library's own writer puts the metadata in
    another order in every process. Wide types come first, so that every array is aligned."""
    header: dict[str, Any] = {"__metadata__": dict(sorted(metadata.items()))}
    parts, end = [], 0
    for name, array in sorted(tensors.items(), key=lambda item: (-item[1].itemsize, item[0])):
        begin, end = end, end + array.nbytes
        kind = _TYPES[array.dtype.str[1:]]
        header[name] = {"dtype": kind, "shape": array.shape, "data_offsets": [begin, end]}
        parts.append(array.astype(array.dtype.newbyteorder("<"), order="C", copy=False).reshape(-1).data)
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for part in parts:
            file.write(part)


def read_tensors(path: Path, kind: str) -> tuple[dict[str, Array], dict[str, Any]]:
    """What `write_tensors` wrote; anything else is refused. Nothing is ever unpickled."""
    try:
        with safe_open(path, "np") as file:
            metadata = file.metadata() or {}
            check_format(metadata.get("format"), kind, path)
            content = parse_json(metadata.get("about", ""), path)
            return {name: file.get_tensor(name) for name in file.keys()}, content  # noqa: SIM118
    except (SafetensorError, OSError, ValueError) as error:
        if isinstance(error, BadInput):
            raise
        raise BadInput(f"{path}: cannot be read as safetensors: {error}") from error


def under(prefix: str, tensors: Mapping[str, Any]) -> dict[str, Any]:
    """What is named PREFIX..., by the rest of its name."""
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}


def write_json(path: Path, kind: str, content: Mapping[str, Any]) -> None:
    """A JSON object that says its format first."""
    write_text(path, json.dumps({"format": format_of(kind), **content}, indent=1) + "\n")


def read_json(path: Path, kind: str | None = None, shape: Any = dict[str, Any]) -> Any:
    """A JSON object: one of our own formats, or (kind None) somebody else's; what is wrong is said with its place.

    shape: what it must hold: a TypedDict, a dataclass or another type that `coerce` knows
    """
    content = parse_json(read_text(path), path)
    if kind is not None:
        check_format(content.pop("format", None), kind, path)
    return coerce(f"{path}: ", content, shape)


def parse_json(text: str | bytes, source: Any) -> dict[str, Any]:
    """The JSON object in a text; `source` is where it stands."""
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadInput(f"{source}: not JSON: {error}") from error
    if not isinstance(content, dict):
        raise BadInput(f"{source}: holds a {type(content).__name__}, expected an object")
    return content


def read_toml(path: Path) -> dict[str, Any]:
    """A TOML file of ours or of the user's."""
    try:
        return parse_toml(read_text(path))
    except (ValueError, RecursionError) as error:
        if isinstance(error, BadInput):
            raise
        raise BadInput(f"{path}: not TOML: {error}") from error


def parse_toml(text: str) -> dict[str, Any]:
    """The tables in a text; ValueError or RecursionError where it is not TOML, or a number is too long to be shown."""
    content = tomllib.loads(text)
    waiting: list[Any] = [content]
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict | list):
            waiting += value.values() if isinstance(value, dict) else value
        elif isinstance(value, int) and value.bit_length() > 10_000:
            raise ValueError("a whole number has more than 10000 bits")
    return content


def toml_text(tables: Mapping[str, Any]) -> str:
    """Tables as a TOML file has them, which knows no null."""
    try:
        return tomli_w.dumps(tables)
    except TypeError as error:
        raise BadInput(
            f"a recipe is written as TOML: {error}; leave None out, and a length of 0 keeps an axis"
        ) from error


def read_text(path: Path) -> str:
    """A text file in UTF-8."""
    if not path.is_file():
        raise BadInput(f"{path}: no such file")
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise BadInput(f"{path}: is not written in UTF-8: {error}") from error
    except OSError as error:
        raise BadInput(f"{path}: cannot be read: {error.strerror or error}") from error


def check_format(name: Any, kind: str, path: Path) -> None:
    if name != format_of(kind):
        raise BadInput(f"{path}: its format is {name!r}, this version reads {format_of(kind)!r}")


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
def write_errors(path: Path) -> Iterator[None]:
    """A full disk or a missing permission is the user's to mend: one sentence that names the file."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        reason = (error.strerror or error) if isinstance(error, OSError) else error
        raise BadInput(f"{path}: cannot be written: {reason}") from error


def refuse_folder(path: Path) -> None:
    """Stop where a file is to be written and a folder is."""
    if path.is_dir():
        raise BadInput(f"{path}: is a folder, expected the name of a file to write")


def check_output(path: Path, endings: Sequence[str], reads: Iterable[Path | str] = ()) -> None:
    """Refuse a name that another kind of file has (a label map, run.json), and that of a file the command reads."""
    refuse_folder(path)
    if not path.name.lower().endswith(tuple(endings)):
        raise BadInput(f"{path}: expected the name of a file to write that ends with {', '.join(endings)}")
    if path.exists() and any(os.path.exists(one) and os.path.samefile(one, path) for one in reads):
        raise BadInput(f"{path}: is read by this command, which would overwrite it; give the output another name")


def refuse_special(path: Path) -> None:
    """Stop at what is neither a file nor a folder: reading a pipe or device may never end."""
    if path.exists() and not path.is_file() and not path.is_dir():
        raise BadInput(f"{path}: is neither a file nor a folder")


@contextlib.contextmanager
def atomic_write(path: Path) -> Iterator[Path]:
    """A temporary file beside `path` that takes its name when the block ends well, and vanishes when it does not."""
    refuse_folder(path)  # before anything is written: what belongs to it would be renamed first
    temporary = temporary_name(path)
    with write_errors(path):
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            temporary.touch()  # with the rights that files get here; safetensors would give them to the owner only
            mode = temporary.stat().st_mode
            yield temporary
            temporary.chmod(mode)
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)  # after a rename there is nothing left to remove


@contextlib.contextmanager
def temporary_folder(path: Path) -> Iterator[Path]:
    """A hidden folder beside `path` for files that are renamed to it when they are whole; it is removed at the end."""
    folder = temporary_name(path)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def temporary_name(path: Path) -> Path:
    """Hidden, beside `path`, of this process; `remove_temporary` knows the pattern."""
    return path.with_name(f".{path.name}.{os.getpid()}.tmp")


def remove_temporary(folder: Path) -> None:
    """Remove what killed processes left half written anywhere below a folder."""
    for path in sorted(folder.rglob(".*.tmp")):
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
