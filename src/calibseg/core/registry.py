"""The file name is the registration.

A family is a folder of the package (`losses`, `priors`, ...). Each file in it holds exactly one public class; the
file's name is the key. Summary, documentation and options are read from the source text (`member_source`), so that
listing a family imports nothing. Further members come from the entry-point group `calibseg.<family>` and from a path to
a Python file.

>>> members("priors")["mean"].summary
'Share of each class in the window.'
>>> find("losses", "nakl")
Traceback (most recent call last):
calibseg.core.types.BadInput: no loss named 'nakl'. Did you mean 'nacl'? Known: ...
"""

import difflib
import importlib
import importlib.metadata
import importlib.util
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import EntryPoint
from inspect import signature
from pathlib import Path
from typing import Any

from calibseg.core.coerce import coerce, type_named
from calibseg.core.member_source import Option, read_source
from calibseg.core.plugins import own_files, refuse_code
from calibseg.core.types import BadInput

PACKAGE = Path(__file__).parents[1]
SINGULAR = {
    "losses": "loss",
    "priors": "prior",
    "metrics": "metric",
    "networks": "network",
    "datasets": "dataset",
    "calibrators": "calibrator",
    "decisions": "decision",
}
PLURAL = {singular: plural for plural, singular in SINGULAR.items()}
HOMES = {"priors": "losses.priors", "datasets": "data.datasets"}  # families that are a room inside a room


@dataclass(frozen=True)
class Member:
    """One member of a family: everything that can be known without importing it."""

    family: str
    key: str
    class_name: str
    module: str
    path: Path
    doc: str
    options: tuple[Option, ...]
    facts: dict[str, Any]  # literal class attributes, e.g. {"views": 2}

    @property
    def summary(self) -> str:
        return self.doc.split("\n", 1)[0].strip()

    def load(self, source: Any = None) -> type:
        """Import the file and return its class; `source` is the file that names it, where the user did not."""
        if source is not None and self.module.startswith("calibseg_file_"):
            refuse_code(source, str(self.path))
        if self.module in sys.modules:
            return getattr(sys.modules[self.module], self.class_name)
        if not self.module.startswith("calibseg_file_"):
            return getattr(importlib.import_module(self.module), self.class_name)
        spec = importlib.util.spec_from_file_location(self.module, self.path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[self.module] = module  # dataclasses, torch.compile and copy look a class up by its module
        try:
            spec.loader.exec_module(module)
        except BaseException:
            del sys.modules[self.module]
            raise
        return getattr(module, self.class_name)


def families() -> list[str]:
    """The families that exist in this installation."""
    return [name for name in SINGULAR if (folder(name) / "__init__.py").exists()]


def folder(family: str) -> Path:
    """Where the package keeps a family's files."""
    return PACKAGE.joinpath(*HOMES.get(family, family).split("."))


def module_of(family: str, key: str) -> str:
    """The name under which a member of the package is imported."""
    return f"calibseg.{HOMES.get(family, family)}.{key}"


def members(family: str) -> dict[str, Member]:
    """Every member of a family, by key: the package's files first, then plug-ins."""
    files = _files(family)
    own = {key: read_member(family, path, module_of(family, key)) for key, path in files.items()}
    plug_ins = {entry.name: _plug_in(family, entry) for entry in _entries(family, files)}
    return own | plug_ins | {Path(path).stem: find(family, path) for path in own_files(family)}


def summaries(family: str) -> dict[str, str]:
    """One line for every member, in the same order. It tops the file, so that a list need not parse the sources."""
    lines = {}
    for key, path in (files := _files(family)).items():
        with path.open(encoding="utf-8") as file:
            opening, quotes, line = file.readline().rstrip().partition('"""')
        plain = opening in ("", "r") and quotes and line and '"""' not in line
        lines[key] = line if plain else read_member(family, path, module_of(family, key)).summary
    return lines | {entry.name: _plug_in(family, entry).summary for entry in _entries(family, files)}


def _files(family: str) -> dict[str, Path]:
    """The package's own files of a family, by key."""
    if family not in families():
        raise BadInput(unknown("family", family, families()))
    return {path.stem: path for path in sorted(folder(family).glob("*.py")) if not path.stem.startswith("_")}


def _entries(family: str, files: Mapping[str, Path]) -> Iterator[EntryPoint]:
    """The plug-ins of a family; none may take the name of one of the package's files."""
    for entry in _plug_ins(importlib.metadata.entry_points, f"calibseg.{family}", tuple(sys.path)):
        if entry.name in files:
            raise BadInput(
                f"the plug-in {entry.value!r} is named {entry.name!r}, which {files[entry.name].name} already is"
            )
        yield entry


def find(family: str, name: str) -> Member:
    """The member called `name`, or the one in the Python file that `name` is a path to."""
    if name.endswith(".py"):
        path = Path(os.path.realpath(name))
        if not path.is_file():
            raise BadInput(f"no file {name!r}: a {SINGULAR[family]} is a known name or a path to a Python file")
        return read_member(family, path, f"calibseg_file_{abs(hash(path))}.{path.stem}")
    choices = members(family)
    if name not in choices:
        raise BadInput(unknown(SINGULAR[family], name, list(choices)))
    return choices[name]


def load(family: str, name: str, source: Any = None) -> type:
    """The class called `name` in a family; `source` is the file that says so, see `Member.load`."""
    return find(family, name).load(source)


def build(family: str, name: str, options: dict[str, Any] | None = None, source: Any = None) -> Any:
    """An instance of `name`; an option that it does not have, or of another type, is an error that lists the known."""
    if family not in families():
        raise BadInput(unknown("family", family, families()))
    member = find(family, name)
    cls = member.load(source)
    hints, arguments = {option.name: type_named(option.type) for option in member.options}, {}
    takes_any = not hints and any(p.kind is p.VAR_KEYWORD for p in signature(cls).parameters.values())
    for option, value in (options or {}).items():
        if option not in hints and not takes_any:
            raise BadInput(unknown(f"option of {SINGULAR[family]} {member.key!r}", option, list(hints)))
        arguments[option] = coerce(f"{member.key}.{option}", value, hints.get(option, Any))
    return cls(**arguments)


def available(family: str) -> dict[str, str]:
    """Every member of a family by key, with its line of summary: `available("losses")["nacl"]`."""
    return summaries(PLURAL.get(family, family))


def create(family: str, name: str, /, **options: Any) -> Any:
    """An instance of a member: `create("losses", "nacl", weight=0.1)`; `name` may be a path to a Python file."""
    return build(PLURAL.get(family, family), name, options)


def lazy(module_name: str):
    """`__getattr__` and `__dir__` for a family's `__init__.py`: `from calibseg.losses import NACL` imports one file."""
    family = module_name.rsplit(".", 1)[-1]

    def classes() -> dict[str, Member]:
        return {member.class_name: member for member in members(family).values()}

    def __getattr__(name: str) -> Any:
        if not name.startswith("_") and name in (by_name := classes()):
            return by_name[name].load()
        raise AttributeError(f"module {module_name!r} has no attribute {name!r}")

    def __dir__() -> list[str]:
        return sorted({*vars(sys.modules[module_name]), *classes()})

    return __getattr__, __dir__


def read_member(family: str, path: Path, module: str) -> Member:
    """What one file says of its member, without running it."""
    source = read_source(SINGULAR[family], path, folder(family) / "__init__.py")
    return Member(family, path.stem, source.class_name, module, path, source.doc, source.options, source.facts)


@cache
def _plug_ins(ask: Callable[..., Iterable[EntryPoint]], group: str, path: tuple[str, ...]) -> tuple[EntryPoint, ...]:
    """The installed plug-ins of a group; looking through all distributions takes as long as reading a family."""
    return tuple(ask(group=group))


def _plug_in(family: str, entry: EntryPoint) -> Member:
    """A plug-in's source is read where its distribution put it; where that cannot be told, only its name is known."""
    relative = Path(*entry.module.split(".")).with_suffix(".py")
    path = Path(str(entry.dist.locate_file(relative))) if entry.dist else relative
    if path.is_file():
        member = read_member(family, path, entry.module)
        return Member(family, entry.name, entry.attr, entry.module, path, member.doc, member.options, member.facts)
    owner = entry.dist.name if entry.dist else "a plug-in"
    return Member(family, entry.name, entry.attr, entry.module, relative, f"From {owner}.", (), {"methods": ()})


def unknown(kind: str, name: str, known: list[str]) -> str:
    """The sentence for a name that does not exist: what was asked, the nearest name, the choices."""
    guess = "".join(f" Did you mean {near!r}?" for near in difflib.get_close_matches(name, known, n=1, cutoff=0.5))
    return f"no {kind} named {name!r}.{guess} Known: {', '.join(known)}"
