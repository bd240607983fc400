"""What the source of a member says about it, read without running it: its class, documentation, options and facts.

A member's file holds exactly one public class. Its options are those of its constructor and of the classes of the
family's `__init__.py` that it builds on; a line `name: note` of a class docstring says what an option means.
"""

import ast
import contextlib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from calibseg.core.types import BadInput


@dataclass(frozen=True)
class Option:
    """One argument of a member's constructor, as written in its source."""

    name: str
    type: str
    default: str
    note: str = ""


@dataclass(frozen=True)
class MemberSource:
    """What is known of a member without importing it."""

    class_name: str
    doc: str
    options: tuple[Option, ...]
    facts: dict[str, Any]  # literal class attributes, e.g. {"views": 2}


def read_source(kind: str, path: Path, base: Path) -> MemberSource:
    """Read one file; `kind` is what a member is called (loss, metric), `base` its family's `__init__.py`."""
    return _read(kind, path, base, _version(path), _version(base))


@cache  # a grid asks for the same few files thousands of times
def _read(kind: str, path: Path, base: Path, *versions: tuple[int, int]) -> MemberSource:
    try:
        tree = ast.parse(path.read_bytes())
    except SyntaxError as error:
        raise BadInput(f"{path}: line {error.lineno} is not Python: {error.msg}") from error
    except (ValueError, RecursionError, MemoryError, OSError) as error:
        raise BadInput(f"{path}: not Python: {error}") from error
    public = [node for node in tree.body if isinstance(node, ast.ClassDef) and not node.name.startswith("_")]
    if len(public) != 1:
        names = ", ".join(node.name for node in public) or "none"
        raise BadInput(f"{path}: a {kind} file holds exactly one public class, found {names}")
    doc = ast.get_docstring(tree)
    if not doc:
        raise BadInput(f"{path}: the first line of the file's docstring is its summary, and there is no docstring")
    chain = [public[0], *_bases(public[0], kind, base, versions[1])]
    notes = {name: note for node in reversed(chain) for name, note in _notes(ast.get_docstring(node) or "").items()}
    options: list[Option] = []
    for node in chain:
        options += [option for option in _options(node, notes) if option.name not in {o.name for o in options}]
    between = [node for node in chain if node.name != kind.capitalize()]
    facts = {name: value for node in reversed(between) for name, value in _facts(node).items()}
    facts["methods"] = tuple(node.name for node in public[0].body if isinstance(node, ast.FunctionDef))
    return MemberSource(public[0].name, doc, tuple(options), facts)


def _version(path: Path) -> tuple[int, int]:
    """What changes when a file does."""
    return (stat := path.stat()).st_mtime_ns, stat.st_size


@cache
def _classes(path: Path, version: tuple[int, int]) -> dict[str, ast.ClassDef]:
    """The classes of a family's `__init__.py`, by name."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}


def _bases(node: ast.ClassDef, kind: str, path: Path, version: tuple[int, int]) -> list[ast.ClassDef]:
    """The classes of the family's `__init__.py` that a member builds on, nearest first; every member on the last."""
    classes = _classes(path, version)
    chain: list[ast.ClassDef] = []
    for base in node.bases:
        if isinstance(base, ast.Name) and base.id in classes:
            chain += [classes[base.id], *_bases(classes[base.id], kind, path, version)]
    common = classes.get(kind.capitalize())
    return [*chain, common] if common and common is not node and common not in chain else chain


def _facts(node: ast.ClassDef) -> dict[str, Any]:
    """The class attributes whose values are literals."""
    facts = {}
    for item in node.body:
        if isinstance(item, ast.Assign | ast.AnnAssign) and item.value is not None:
            target = item.targets[0] if isinstance(item, ast.Assign) else item.target
            if isinstance(target, ast.Name):
                with contextlib.suppress(ValueError, TypeError):  # an expression: known only by running it
                    facts[target.id] = ast.literal_eval(item.value)
    return facts


def _options(node: ast.ClassDef, notes: dict[str, str]) -> list[Option]:
    for item in node.body:
        if isinstance(item, ast.FunctionDef) and item.name == "__init__":
            positional = item.args.args[1:]
            defaults = [None] * (len(positional) - len(item.args.defaults)) + list(item.args.defaults)
            pairs = [*zip(positional, defaults, strict=True)]
            pairs += zip(item.args.kwonlyargs, item.args.kw_defaults, strict=True)
            return [
                Option(
                    arg.arg,
                    ast.unparse(arg.annotation) if arg.annotation else "",
                    ast.unparse(default) if default else "required",
                    notes.get(arg.arg, ""),
                )
                for arg, default in pairs
            ]
    return []


def _notes(doc: str) -> dict[str, str]:
    """The lines `name: note` of a class docstring; an indented line continues the note above it."""
    notes: dict[str, str] = {}
    name = ""
    for line in doc.splitlines():
        head, colon, note = line.partition(": ")
        if colon and head.isidentifier():
            name = head
            notes[name] = note.strip()
        elif name and line.startswith(" "):
            notes[name] += " " + line.strip()
        else:
            name = ""
    return notes
