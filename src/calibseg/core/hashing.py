"""Fingerprints: the one hash of JSON and of files, by which work that is done already is known again.

>>> fingerprint({"b": 1, "a": 2}) == fingerprint({"a": 2, "b": 1}) != fingerprint({"a": 2, "b": 2})
True
>>> len(fingerprint(["text", 1.5], size=4))        # two digits for each byte
8
"""

import contextlib
import hashlib
import json
from collections.abc import Iterable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

from calibseg.core.files import refuse_special
from calibseg.core.registry import PACKAGE
from calibseg.core.types import BadInput


def fingerprint(content: Any, files: Iterable[Path] = (), size: int = 16) -> str:
    """Of what JSON can say (anything else by its text), and of the names and the content of files; `size` bytes."""
    digest = hashlib.blake2b(json.dumps(content, sort_keys=True, default=str).encode(), digest_size=size)
    for path in files:
        digest.update(path.name.encode())
        digest.update(_file_hash(path, 64))
    return digest.hexdigest()


def file_fingerprint(path: Path) -> str:
    """Of a file's content alone. It is read once for each state of the file, as its size and time tell."""
    return _cached_fingerprint(path, *_state(path))


def by_content(value: Any) -> Any:
    """An option that names a Python file, by what the file says instead of where it lies; any other as it is."""
    if isinstance(value, str) and value.endswith(".py") and (path := Path(value)).is_file():
        return [path.stem, file_fingerprint(path)]
    return value


def program_fingerprint(path: Path, rooms: Iterable[str], package: Path = PACKAGE) -> str:
    """Of a Python file and of the rooms of the package that it builds on: what another program made is made anew."""
    files = sorted(file for room in rooms for file in (package / room).rglob("*.py"))
    return fingerprint([file_fingerprint(file) for file in (path, *files)])


def _state(path: Path) -> tuple[int, int]:
    """Size and time of a file: where they are the same, it has not changed."""
    with _read_errors(path):
        stat = path.stat()
    return stat.st_size, stat.st_mtime_ns


@lru_cache(maxsize=1 << 16)
def _cached_fingerprint(path: Path, length: int, changed_ns: int) -> str:
    return _file_hash(path, 16).hex()


def _file_hash(path: Path, size: int) -> bytes:
    refuse_special(path)
    with _read_errors(path), path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=size)).digest()


@contextlib.contextmanager
def _read_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise BadInput(f"{path} cannot be read: {error.strerror or error}") from error
