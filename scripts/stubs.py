"""Write the stubs (`__init__.pyi`) of the package and its families: type checkers then know what is loaded lazily.

    python scripts/stubs.py            writes them (make stubs)
    python scripts/stubs.py --check    exits with 1 where one is stale

A stub hides its `__init__.py` from type checkers, so a family's stub keeps everything that `__init__.py` defines, with
annotations and without bodies, and adds one import for each member.
"""

import ast
import subprocess
import sys
from pathlib import Path

from calibseg import _HOMES, _MODULES
from calibseg.core import registry

PACKAGE = registry.PACKAGE
HEAD = "# Written by scripts/stubs.py (make stubs): do not edit.\n"


def family_stub(family: str) -> str:
    """What a family's `__init__.py` defines, and its members."""
    tree = ast.parse((registry.folder(family) / "__init__.py").read_text(encoding="utf-8"))
    kept: list[ast.stmt] = []
    for node in [inner for outer in tree.body for inner in (outer.body if isinstance(outer, ast.If) else [outer])]:
        if isinstance(node, ast.Import | ast.ImportFrom):
            kept.append(_exported(node))
        elif isinstance(node, ast.ClassDef | ast.FunctionDef):
            kept.append(_bodiless(node))
        elif isinstance(node, ast.AnnAssign) or (isinstance(node, ast.Assign) and not _is_lazy(node)):
            kept.append(node)
    lines = [ast.unparse(node) for node in kept]
    lines += [
        f"from {member.module} import {member.class_name} as {member.class_name}"
        for member in registry.members(family).values()
        if member.module == registry.module_of(family, member.key)
    ]
    return HEAD + "\n".join(lines) + "\n"


def package_stub() -> str:
    """The public names of the package; `create` knows what each family makes."""
    lines = ["from typing import Any, Literal, overload", "from calibseg import api as api"]
    lines += [f"import {module} as {name}" if name != "datasets" else "from calibseg.data import datasets as datasets"
              for name, module in _MODULES.items() if name == "datasets"]  # fmt: skip
    lines += [f"from calibseg import {name} as {name}" for name in _MODULES if name != "datasets"]
    lines += [f"from {home} import {name} as {name}" for name, home in _HOMES.items() if name != "create"]
    bases = {family: f"{registry.module_of(family, '')}".rstrip(".") for family in registry.families()}
    lines += [f"from {module} import {_base(family)} as _{_base(family)}" for family, module in bases.items()]
    lines.append("__version__: str")
    for family in bases:
        names = f'Literal["{family}", "{registry.SINGULAR[family]}"]'
        lines += ["@overload", f"def create(family: {names}, name: str, /, **options: Any) -> _{_base(family)}: ..."]
    lines += ["@overload", "def create(family: str, name: str, /, **options: Any) -> Any: ..."]
    return HEAD + "\n".join(lines) + "\n"


def stubs() -> dict[Path, str]:
    """Every stub by its path, formatted."""
    written = {registry.folder(family) / "__init__.pyi": family_stub(family) for family in registry.families()}
    written[PACKAGE / "__init__.pyi"] = package_stub()
    return {path: _formatted(text, path) for path, text in written.items()}


def _base(family: str) -> str:
    return registry.SINGULAR[family].capitalize()


def _is_lazy(node: ast.Assign) -> bool:
    return "__getattr__" in ast.unparse(node.targets[0])


def _exported(node: ast.Import | ast.ImportFrom) -> ast.stmt:
    """`from a import b` -> `from a import b as b`, which a stub's reader may import from it."""
    if isinstance(node, ast.ImportFrom):
        node.names = [ast.alias(alias.name, alias.asname or alias.name) for alias in node.names]
    return node


def _bodiless(node: ast.ClassDef | ast.FunctionDef) -> ast.stmt:
    """Signatures, annotated attributes (those that `__init__` sets too) and docstrings."""
    if isinstance(node, ast.FunctionDef):
        doc = node.body[0] if ast.get_docstring(node) else None
        node.body = [*([doc] if doc else []), ast.Expr(ast.Constant(...))]
        return node
    body: list[ast.stmt] = []
    for item in node.body:
        if isinstance(item, ast.FunctionDef):
            if item.name == "__init__":
                body += _attributes(item)
            body.append(_bodiless(item))
        else:
            body.append(item)
    node.body = body
    return node


def _attributes(constructor: ast.FunctionDef) -> list[ast.stmt]:
    """`self.name: type = value`, and `self.name = argument` with the argument's type."""
    types = {arg.arg: arg.annotation for arg in [*constructor.args.args, *constructor.args.kwonlyargs]}
    seen: dict[str, ast.expr] = {}
    for node in ast.walk(constructor):
        targets = (
            node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
        )
        for target in targets:
            if isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name) and target.value.id == "self":
                known = node.annotation if isinstance(node, ast.AnnAssign) else types.get(target.attr)
                known = known or _constant(getattr(node, "value", None))
                seen[target.attr] = known if known is not None else seen.get(target.attr, ast.Name("Any"))
    return [ast.AnnAssign(ast.Name(name), kind, None, 1) for name, kind in seen.items()]


def _constant(value: ast.expr | None) -> ast.expr | None:
    kind = type(value.value).__name__ if isinstance(value, ast.Constant) else ""
    return ast.Name(kind) if kind in ("int", "float", "str", "bool") else None


def _formatted(text: str, path: Path) -> str:
    for command in (["check", "--fix", "--quiet", "--exit-zero"], ["format", "--quiet"]):
        call = [sys.executable, "-m", "ruff", *command, "--stdin-filename", str(path), "-"]
        done = subprocess.run(call, input=text, capture_output=True, text=True, check=True, cwd=PACKAGE.parents[1])
        text = done.stdout
    return text


def main(check: bool) -> int:
    """Write the stubs, or name those that are stale."""
    stale = [path for path, text in stubs().items() if not path.is_file() or path.read_text(encoding="utf-8") != text]
    for path in stale:
        print(f"{'stale' if check else 'wrote'}: {path}")
        if not check:
            path.write_text(stubs()[path], encoding="utf-8")
    return int(check and bool(stale))


if __name__ == "__main__":
    sys.exit(main("--check" in sys.argv[1:]))
