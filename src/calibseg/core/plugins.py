"""Plug-ins: the user's own Python files with members of families, and which of them may be imported and run.

What the user names is run: `--loss ./mine.py`, a recipe, `calibseg --plugin ./mine.py`. A run folder or a calibrator
may be anybody's: a file that only they name is not run.
"""

import os
from typing import Any

from calibseg.core.types import BadInput

ALLOWED = "CALIBSEG_PLUGINS"  # files that the user has named; in the environment, because workers inherit it
MEMBERS = (
    "CALIBSEG_MEMBERS"  # "losses=/home/me/mine.py:metrics=...": members by their names; contract tests see them too
)


def own_files(family: str = "") -> list[str]:
    """The files that CALIBSEG_MEMBERS adds to a family, or to any."""
    pairs = (text.partition("=") for text in os.environ.get(MEMBERS, "").split(os.pathsep))
    return [path for name, _, path in pairs if path and family in ("", name)]


def allow(*names: Any) -> None:
    """Let files of the user's naming be run where a run folder or a calibrator names them too, here and in workers."""
    paths = [os.path.realpath(name) for name in names if isinstance(name, str) and name.endswith(".py")]
    if paths:
        os.environ[ALLOWED] = os.pathsep.join(dict.fromkeys([*named(), *paths]))


def refuse_code(source: Any, *names: Any) -> None:
    """Stop where `source`, which may be anybody's, names a Python file that the user has not named."""
    for name in names:
        if isinstance(name, str) and name.endswith(".py") and os.path.realpath(name) not in _allowed():
            raise BadInput(
                f"{source}: names the Python file {name}, which would be run; if you trust it, say so:   "
                f"calibseg --plugin {name} ..."
            )


def named() -> list[str]:
    """The files that the user has named so far."""
    return [path for path in os.environ.get(ALLOWED, "").split(os.pathsep) if path]


def as_words() -> list[str]:
    """The words of a command that let the same files be run."""
    return [word for path in named() for word in ("--plugin", path)]


def _allowed() -> list[str]:
    return [*named(), *map(os.path.realpath, own_files())]
