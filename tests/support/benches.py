"""Small benchmarks of a phantom, and how they are started and waited for."""

import csv
import os
import subprocess
import sys
import time
from pathlib import Path

from rich.console import Console
from typer.main import get_command

from calibseg.benchmark import benchmark, open_bench
from calibseg.benchmark.cell import walk
from calibseg.benchmark.command import Command
from calibseg.benchmark.grid import read_grid
from calibseg.cli import app

CELLS = {
    "data": {"dataset": "phantom", "options": {"cases": 8, "size": [4, 24, 24]}},
    "network": {"name": "unet", "width": 4, "depth": 2},
    "train": {"epochs": 1, "batch_size": 4},
    "split": {"sizes": [4.0, 2.0, 2.0]},
    "score": {"metrics": "dsc,ece,nll", "voxels": "predicted,all"},
    "report": {"metrics": "dsc,ece,nll"},
}
QUIET = Console(quiet=True)


def calibseg(words) -> int:
    """A command in this process."""
    return get_command(app).main(list(words), standalone_mode=False) or 0


def bench_of(folder: Path, axes=None, changes=(), **tables):
    grid = read_grid(CELLS | tables | {"axes": axes or {}}, changes)
    return open_bench(grid, folder, {})


def in_turn(bench, run=Command.__call__):
    """A runner that walks cells one after the other in this process."""
    return lambda slugs, command, folder, board: {slug: walk(bench, bench.cell(slug), run) for slug in slugs}


def finished(bench, run=Command.__call__, cells=None):
    return benchmark(bench, cells or bench.grid.cells, in_turn(bench, run), QUIET)


def noted(bench, cell) -> list[str]:
    with bench.folder.stages(cell.slug).open(newline="") as file:
        return [row["stage"] for row in csv.DictReader(file)]


def files_below(folder: Path) -> dict[str, int]:
    """What lies in the runs and when it was written; locks are touched by whoever looks."""
    paths = [*(folder / "runs").rglob("*"), *(folder / "work").rglob("*")]
    return {str(path): path.stat().st_mtime_ns for path in paths if path.is_file() and path.name != "lock"}


def start(folder: Path, *words: str) -> "subprocess.Popen[str]":
    environment = os.environ | {"OMP_NUM_THREADS": "1", "COLUMNS": "160"}
    command = [sys.executable, "-m", "calibseg", "benchmark", "g.toml", "-o", "out", *words]
    return subprocess.Popen(
        command, cwd=folder, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment
    )


def until(true, seconds: float = 120) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, f"waited {seconds} s in vain"
        time.sleep(0.02)
