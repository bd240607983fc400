"""Write the stubs that tell type checkers what is loaded lazily: the names of the package and the members of families.

    python scripts/stubs.py            writes them (make stubs)
    python scripts/stubs.py --check    exits with 1 where one is stale

A family's `_members.pyi` is one import for each member; its `__init__.py` imports them all for type checkers only. The
package itself has an `__init__.pyi`.
"""

import subprocess
import sys
from pathlib import Path

from calibseg import _HOMES, _MODULES
from calibseg.core import registry

PACKAGE = registry.PACKAGE
HEAD = "# Written by scripts/stubs.py (make stubs): do not edit.\n"


def members_stub(family: str) -> str:
    """One import for each member of a family; plug-ins are nobody else's to know."""
    lines = [
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
    written = {registry.folder(family) / "_members.pyi": members_stub(family) for family in registry.families()}
    written[PACKAGE / "__init__.pyi"] = package_stub()
    return {path: _formatted(text, path) for path, text in written.items()}


def _base(family: str) -> str:
    return registry.SINGULAR[family].capitalize()


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
