"""`calibseg doctor --self-test`: wrong inputs of every kind, given to every command of this installation.

Each is tried on a fresh copy of a small world of good files (`good_files`). The command must refuse it: exit code 2,
one sentence (or typer's usage), no file made or changed. What crashes, is taken for good or leaves something behind is
listed.
"""

import contextlib
import io
import os
import re
import shutil
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from calibseg.cli.self_test.bad_files import bad_files
from calibseg.cli.self_test.bad_words import bad_words
from calibseg.cli.self_test.good_files import make_good_files
from calibseg.core.types import BadInput

_KEPT = re.compile(r"out/cases/[^/]*\.safetensors$")  # whole prepared cases, which the next attempt need not repeat
Progress = Callable[[int, int, str], None]


@dataclass
class Result:
    """How many wrong inputs each command refused, and those that it did not."""

    refused: Counter[str] = field(default_factory=Counter)
    tried: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)
    seconds: float = 0.0


def self_test(only: str = "", progress: Progress = lambda done, total, name: None) -> Result:
    """Try everything whose name contains `only`, or that is given to the command `only`."""
    result, began = Result(), time.monotonic()
    with tempfile.TemporaryDirectory(prefix="calibseg-self-test-") as temporary, contextlib.chdir(temporary):
        good = Path("good")
        make_good_files(good)
        zoo = [bad for bad in (*bad_files(), *bad_words()) if only in bad.name or only == bad.words[0]]
        for number, bad in enumerate(zoo):
            command = bad.words[0]
            progress(number, len(zoo), bad.name)
            world = Path("world")
            shutil.copytree(good, world)  # times of files too: what is older than its sources would be made again
            with contextlib.chdir(world):
                bad.damage()
                fault = try_command(bad.words)
            shutil.rmtree(world)
            result.tried[command] += 1
            if fault:
                result.faults.append(f"{bad.name}: calibseg {' '.join(bad.words)}: {fault}")
            else:
                result.refused[command] += 1
    result.seconds = time.monotonic() - began
    return result


def try_command(words: Sequence[str]) -> str:
    """Run a command that must refuse; what is wrong with how it ended, or nothing."""
    before = _files()
    code, error, crash = run_command(words)
    after = _files()
    if crash:
        return f"crashed: {crash}"
    if code != 2:
        return f"exit code {code} instead of 2 {error[-200:]!r}"
    if not error.strip():
        return "refused without a word"
    lines = [line for line in error.splitlines() if line.startswith("error:")]
    if "Usage:" not in error and (len(lines) != 1 or not error.rstrip().splitlines()[-1].startswith("error:")):
        return f"not one sentence: {error!r}"
    made = sorted(path for path in after if before.get(path) != after[path] and not _KEPT.search(path))
    gone = sorted(set(before) - set(after))
    return f"left behind or changed: {', '.join([*made, *gone])}" if made or gone else ""


def run_command(words: Sequence[str]) -> tuple[int, str, str]:
    """A command in this process: exit code, what it wrote to stderr, and the last line of a traceback."""
    from calibseg.cli import main

    out, err, argv = io.StringIO(), io.StringIO(), sys.argv
    sys.argv = ["calibseg", *words]
    code, crash = 0, ""
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), warnings.catch_warnings():
            main()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
    except Exception as error:  # a crash is what we look for
        where = traceback.extract_tb(error.__traceback__)[-1]
        crash = f"{type(error).__name__}: {error} ({Path(where.filename).name}:{where.lineno})"
    finally:
        sys.argv = argv
    return code, err.getvalue(), crash


def check_good(words: Sequence[str]) -> None:
    """Run a command on which the world of good files rests."""
    code, error, crash = run_command(words)
    if code or crash:
        raise BadInput(f"self-test: calibseg {' '.join(words)} fails on good input: {crash or error.strip()}")


def _files() -> dict[str, tuple[int, int]]:
    """Every file below this folder, with its size and time."""
    files = {}
    for folder, _, names in os.walk("."):
        for name in names:
            state = os.lstat(os.path.join(folder, name))
            files[os.path.join(folder, name)] = (state.st_size, state.st_mtime_ns)
    return files
