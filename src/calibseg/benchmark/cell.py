"""One cell of a benchmark, walked from raw data to scores: the same on a laptop, in a job of a cluster, or by hand.

A lock on the cell makes sure that no stage is done twice at once: whoever comes second waits, and then finds nothing
left to do. How an attempt ended is written to OUT/outcomes/CELL.json, every stage that ended to OUT/logs/CELL.csv.
"""

import csv
import os
import socket
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Literal

from calibseg.analysis.run_names import chosen_cells
from calibseg.benchmark.cell_stages import Bench, Stage, data_stages, stages
from calibseg.benchmark.command import STOPPED, Command
from calibseg.benchmark.grid import Cell
from calibseg.benchmark.kept import made_from, write_kept
from calibseg.core import files
from calibseg.core.types import BadInput
from calibseg.runs import folders
from calibseg.runs.lock import wait_for_lock

Run = Callable[[Command], int]  # -> its exit code; tests look on

COLUMNS = ("stage", "began", "seconds", "exit_code", "host", "pid", "job")


@dataclass(frozen=True)
class Outcome:
    """How an attempt to walk a cell ended.

    ran: stages that this attempt did itself
    """

    status: Literal["done", "failed", "stopped"]
    stage: str = ""
    error: str = ""
    ran: int = 0
    seconds: float = 0.0

    @property
    def exit_code(self) -> int:
        return {"done": 0, "failed": 1, "stopped": STOPPED}[self.status]


def pending(bench: Bench, cell: Cell, chosen: bool) -> list[Stage]:
    """What is still to do in a cell, in order."""
    return [stage for stage in stages(bench, cell, chosen) if not stage.done()]


def planned(bench: Bench, cell: Cell, chosen: bool) -> list[Stage]:
    """The same, and what is made from that: it is done for now, and will not be then."""
    left: list[Stage] = []
    anew: set[Path] = set()
    for stage in stages(bench, cell, chosen):
        if not stage.done() or anew.intersection(stage.sources()):
            left.append(stage)
            anew.update(stage.outputs())
    return left


def walk(bench: Bench, cell: Cell, run: Run = Command.__call__) -> Outcome:
    """Do what is still to do in a cell; a failure ends it and is told."""
    with wait_for_lock(bench.folder.lock(cell.slug), _waits):
        began = time.monotonic()
        bench.folder.outcome(cell.slug).unlink(missing_ok=True)
        outcome = _walk(bench, cell, run, began)
        files.write_json(bench.folder.outcome(cell.slug), "outcome", asdict(outcome))
    return outcome


def read_outcome(folder: folders.BenchmarkFolder, slug: str) -> Outcome | None:
    """How the last attempt at a cell ended; None while one is under way, and where one was killed."""
    path = folder.outcome(slug)
    try:
        return files.read_json(path, "outcome", Outcome) if path.is_file() else None
    except BadInput:
        if path.is_file():
            raise
        return None  # an attempt has just begun


def last_line(path: Path) -> str:
    """The last line of a log that says anything."""
    if not path.is_file():
        return ""
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - 8192))
        lines = file.read().decode("utf-8", "replace").splitlines()
    return next((line.strip() for line in reversed(lines) if line.strip()), "")


def _walk(bench: Bench, cell: Cell, run: Run, began: float) -> Outcome:
    ran = 0
    chosen = cell.slug in chosen_cells(bench.folder.path)
    for group in (data_stages, partial(stages, chosen=False), partial(stages, chosen=chosen)):
        for stage in group(bench, cell):  # asked anew: only a trained run tells whether there are validation cases
            code, error, did = _do(bench, cell, stage, run)
            ran += did
            if code:
                status = "stopped" if code == STOPPED else "failed"
                return Outcome(status, stage.name, error, ran, round(time.monotonic() - began, 1))
    keep_scores(bench, cell, chosen)
    return Outcome("done", ran=ran, seconds=round(time.monotonic() - began, 1))


def keep_scores(bench: Bench, cell: Cell, chosen: bool) -> None:
    """The reduced scores of a finished cell, where they are to be kept and are not yet."""
    path = bench.kept_table(cell)
    if path is not None and not bench.is_kept(cell) and (chosen or not cell.choice):
        write_kept(path, bench.run(cell), bench.grid, made_from(bench.grid, cell, bench.work(cell)))


def _waits(why: str) -> None:
    print(f"waiting: {why}", flush=True)


def _do(bench: Bench, cell: Cell, stage: Stage, run: Run) -> tuple[int, str, bool]:
    """Run a stage unless it is done: exit code, what went wrong, whether it ran."""
    if stage.done():
        return 0, "", False
    if stage.name in ("prepare", "split"):
        with wait_for_lock(bench.folder.lock(f"{bench.work(cell).name}.data"), _waits):
            return (0, "", False) if stage.done() else _run(bench, cell, stage, run)
    return _run(bench, cell, stage, run)


def _run(bench: Bench, cell: Cell, stage: Stage, run: Run) -> tuple[int, str, bool]:
    began, clock = time.strftime("%Y-%m-%dT%H:%M:%S%z"), time.monotonic()
    print(f"== {stage.name}", flush=True)
    error = ""
    try:
        code = run(stage.command)
    except BadInput as mistake:
        code, error = 2, str(mistake)
        print(f"error: {mistake}", file=sys.stderr, flush=True)
    except Exception as mistake:  # whatever it is, it ends this cell only
        code, error = 1, f"{type(mistake).__name__}: {mistake}"
        traceback.print_exc()
    if code == 0 and not stage.done():
        for path in stage.outputs():  # the command found them current: now they are newer than what they are made from
            if path.is_file():
                os.utime(path)
        if not stage.done():
            code, error = 1, "it ended well, but not all of its files are there"
    _note(bench.folder.stages(cell.slug), stage.name, began, time.monotonic() - clock, code)
    return code, error or (f"exit code {code}" if code else ""), True


def _note(path: Path, stage: str, began: str, seconds: float, code: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    new = not path.is_file()
    with path.open("a", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        if new:
            writer.writerow(COLUMNS)
        job = os.environ.get("SLURM_JOB_ID", "")
        writer.writerow([stage, began, f"{seconds:.1f}", code, socket.gethostname(), os.getpid(), job])
