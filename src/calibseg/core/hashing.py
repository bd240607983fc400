"""Fingerprints: the one hash of JSON and of files, by which work that is done already is known again.

>>> fingerprint({"b": 1, "a": 2}) == fingerprint({"a": 2, "b": 1}) != fingerprint({"a": 2, "b": 2})
True
>>> len(fingerprint(["text", 1.5], size=4))        # two digits for each byte
8
"""

import ast
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


def program_fingerprint(path: Path, package: Path = PACKAGE) -> str:
    """Of a Python file and of all that it runs of the package: what was made by another program is made anew."""
    return fingerprint({name: file_fingerprint(file) for name, file in program_files(path, package).items()})


def program_files(path: Path, package: Path = PACKAGE) -> dict[str, Path]:
    """The file, and every module of the package that it imports, also inside functions, and that these import.

    By name: the file's own, and the modules' paths within the package. They are read, not run.
    """
    files = {path.name: path}
    queue = [path]
    while queue:
        path_read = queue.pop()
        for file in _imported_by(path_read, package, *_state(path_read)):
            name = file.relative_to(package).as_posix()
            if name not in files and file != path:
                files[name] = file
                queue.append(file)
    return dict(sorted(files.items()))


def _state(path: Path) -> tuple[int, int]:
    """Size and time of a file: where they are the same, it has not changed."""
    with _read_errors(path):
        stat = path.stat()
    return stat.st_size, stat.st_mtime_ns


@lru_cache(maxsize=1 << 10)
def _imported_by(path: Path, package: Path, length: int, changed_ns: int) -> tuple[Path, ...]:
    """The files of the package that one file's import statements name; of a module also the packages that hold it."""
    modules: set[str] = set()
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            modules |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
            modules |= _lazy_homes(package, node.module, {alias.name for alias in node.names})
    dotted = {tuple(module.split(".")) for module in modules if module.split(".")[0] == package.name}
    bases = {package.joinpath(*names[1:end]) for names in dotted for end in range(1, len(names) + 1)}
    files = {file for base in bases for file in (base.with_suffix(".py"), base / "__init__.py")}
    return tuple(sorted(file for file in files if package in file.parents and file.is_file()))


def _lazy_homes(package: Path, module: str, names: set[str]) -> set[str]:
    """The modules of classes that a family hands out by name: `from calibseg.losses import NACL`, as its list says."""
    first, *folders = module.split(".")
    stub = package.joinpath(*folders, "_members.pyi")
    if first != package.name or not stub.is_file():
        return set()
    imports = (node for node in ast.parse(stub.read_bytes()).body if isinstance(node, ast.ImportFrom) and node.module)
    return {str(node.module) for node in imports if names & {alias.name for alias in node.names}}


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
