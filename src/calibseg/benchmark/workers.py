"""Cells side by side on this machine: one process each, so that a crash ends its cell only.

Two torch processes with two threads each on two cores run ten times slower than with one thread each: workers times
threads never exceeds the cores unless both are stated. Where there are several GPUs, each worker sees as many of them
as its training has processes (`--devices`), its own as long as they last.
"""

import itertools
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from calibseg.benchmark.cell import Outcome, last_line, read_outcome
from calibseg.benchmark.progress import Board
from calibseg.core.types import BadInput
from calibseg.runs import folders
from calibseg.runs.signals import StopSignals

THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS")
POLL_S = 0.1


@dataclass(frozen=True)
class Budget:
    """So many workers, so many threads in each of their processes, and the names of the GPUs to share out.

    devices: processes of one training
    """

    workers: int
    threads: int
    gpus: tuple[str, ...] = ()
    devices: int = 1

    def environment(self, slot: int) -> dict[str, str]:
        """What a worker finds in its environment."""
        variables = {**os.environ, **dict.fromkeys(THREADS, str(self.threads)), "COLUMNS": "160"}
        if self.gpus:
            first = slot * self.devices % len(self.gpus)
            own = (*self.gpus[first:], *self.gpus[:first])[: self.devices]
            variables["CUDA_VISIBLE_DEVICES"] = ",".join(own)
        return variables


def budget(
    cells: int,
    workers: int | None,
    threads: int | None,
    cores: int | None = None,
    gpus: tuple[str, ...] = (),
    devices: int = 1,
) -> Budget:
    """Share the cores out: a worker per GPU, else one thread each up to four workers, then more threads.

    devices: processes of one training, of which a worker has so many

    >>> [(share.workers, share.threads) for share in (budget(12, None, None, cores) for cores in (2, 32))]
    [(2, 1), (4, 8)]
    """
    cores = cores or (len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)
    for name, value in (("--workers", workers), ("--threads", threads)):
        if value is not None and value < 1:
            raise BadInput(f"{name} = {value} must be at least 1")
    if workers and threads and workers * threads > cores:
        raise BadInput(f"{workers} workers with {threads} threads each need more than the {cores} cores that there are")
    if threads and threads > cores:
        raise BadInput(f"{threads} threads are more than the {cores} cores that there are")
    if workers is None:
        workers = len(gpus) // devices if gpus else min(4, cores)
        workers = max(1, min(workers, cells, cores // (devices * (threads or 1))))
    if workers > cores:
        raise BadInput(f"{workers} workers are more than the {cores} cores that there are")
    return Budget(workers, threads or max(1, cores // (workers * devices)), gpus, devices)


def visible_gpus() -> tuple[str, ...]:
    """The GPUs that CUDA_VISIBLE_DEVICES names, else all that the driver lists; torch would take seconds to say."""
    if (named := os.environ.get("CUDA_VISIBLE_DEVICES")) is not None:
        return tuple(itertools.takewhile(lambda name: name not in ("", "-1"), map(str.strip, named.split(","))))
    if not shutil.which("nvidia-smi"):
        return ()
    result = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=60)
    return tuple(map(str, range(sum(line.startswith("GPU ") for line in result.stdout.splitlines()))))


def run_here(
    slugs: Sequence[str],
    command: Callable[[str], Sequence[str]],
    folder: folders.BenchmarkFolder,
    board: Board,
    share: Budget,
) -> dict[str, Outcome]:
    """Walk every cell in a process of its own. Asked to stop, ask the processes to; they save, and all can go on."""
    waiting, outcomes = list(slugs), {}
    running: dict[int, tuple[str, subprocess.Popen[bytes]]] = {}
    stopping = False
    with StopSignals() as stop:
        while running or (waiting and not stop.received):
            for slot in range(share.workers):
                if slot not in running and waiting and not stop.received:
                    slug = waiting.pop(0)
                    folder.outcome(slug).unlink(missing_ok=True)  # an older one must not speak for this attempt
                    running[slot] = slug, _start(command(slug), folder.log(slug), share.environment(slot))
                    board.start(slug)
            if stop.received and not stopping:
                stopping = True
                for _, process in running.values():
                    process.send_signal(signal.SIGTERM)
            time.sleep(POLL_S)
            for slot, (slug, process) in list(running.items()):
                if process.poll() is not None:
                    del running[slot]
                    outcomes[slug] = ending(folder, slug, process.returncode, stopping)
                    board.end(slug, outcomes[slug])
            board.look()
    return outcomes


def ending(folder: folders.BenchmarkFolder, slug: str, code: int, asked: bool = False) -> Outcome:
    """How an attempt ended: as it says itself, or, where it was killed, as its exit code and its log do."""
    outcome = read_outcome(folder, slug)
    if outcome is not None:
        return outcome
    if asked:
        return Outcome("stopped")
    why = f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
    return Outcome("failed", "", f"{why}; the last line of {folder.log(slug)}: {last_line(folder.log(slug))}")


def _start(command: Sequence[str], log: Path, environment: dict[str, str]) -> "subprocess.Popen[bytes]":
    """Start a worker in a session of its own: Ctrl-C reaches the benchmark, which asks its workers to stop."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as file:
        return subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=file, stderr=file, env=environment, start_new_session=True
        )
