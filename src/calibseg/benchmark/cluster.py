"""Cells as jobs of a SLURM cluster: one job array through submitit, one task per cell, the same files as anywhere.

A job that the cluster takes away (time limit, preemption) is told beforehand, saves, and is put back into the queue;
one that is killed without a word is submitted again. Either way the walk of the cell goes on from what is on disk.
OUT/jobs/jobs.json remembers which job has which cell, so that the command may be ended and given again: it goes on
watching. `squeue` tells what is alive; no accounting database is needed.
"""

import contextlib
import getpass
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from calibseg.benchmark.cell import Outcome, last_line, read_outcome
from calibseg.benchmark.progress import Board
from calibseg.benchmark.workers import Budget
from calibseg.core import files
from calibseg.core.types import BadInput
from calibseg.runs import folders
from calibseg.runs.signals import StopSignals
from calibseg.stages.train.hardware import Hardware

POLL_S = 2.0
LOST = 3  # how often a cell is tried again whose job vanished without a word
ALIVE_AFTER_S = 10.0  # a job that was just submitted may not be listed yet


@dataclass(frozen=True)
class Cluster:
    """What every job asks for.

    minutes: the time limit; what is not finished by then saves and is queued again
    gpus: for each node
    nodes: of one training
    threads: for each process of a training
    processes: of a training on each node
    at_once: jobs that may run at the same time
    warn_s: how long before the end a job is told
    more: further parameters of submitit, such as qos or mem
    """

    minutes: int = 24 * 60
    gpus: int = 0
    nodes: int = 1
    processes: int = 1
    threads: int = 1
    partition: str = ""
    account: str = ""
    at_once: int = 256
    warn_s: int = 90
    more: Mapping[str, Any] = field(default_factory=dict)

    def parameters(self) -> dict[str, Any]:
        """The same as submitit names it."""
        parameters: dict[str, Any] = {
            "job_name": "calibseg",
            "time": self.minutes,
            "nodes": self.nodes,
            "ntasks_per_node": 1,
            "cpus_per_task": self.threads * self.processes,
            "array_parallelism": self.at_once,
            "signal_delay_s": min(self.warn_s, max(1, self.minutes * 30)),
            "srun_args": ["--nodes=1", "--ntasks=1"],  # one walks the cell; a training calls the others itself
            "stderr_to_stdout": True,
        }
        parameters |= {"gpus_per_node": self.gpus} if self.gpus else {}
        parameters |= {"partition": self.partition} if self.partition else {}
        parameters |= {"account": self.account} if self.account else {}
        extra = dict(self.more)
        parameters["additional_parameters"] = {"requeue": True, **extra.pop("additional_parameters", {})}
        return parameters | extra


class CellJob:
    """What a job does: walk a cell in a process of its own, which writes to the cell's log."""

    def __init__(self, command: Sequence[str], log: str, threads: int, patience_s: float):
        self.command, self.log, self.threads, self.patience_s = list(command), log, threads, patience_s
        self.process: subprocess.Popen[bytes] | None = None

    def __call__(self) -> int:
        Path(self.log).parent.mkdir(parents=True, exist_ok=True)
        environment = Budget(1, self.threads).environment(0)
        with Path(self.log).open("ab") as file:
            self.process = subprocess.Popen(self.command, stdout=file, stderr=file, env=environment)
        while self.process.poll() is None:  # not wait(), which `checkpoint` could not interrupt
            time.sleep(0.2)
        return self.process.returncode

    def checkpoint(self) -> Any:
        """The cluster is about to take the job away: let the training save, then the same again."""
        import submitit

        end = time.monotonic() + self.patience_s
        if self.process is not None:
            self.process.send_signal(signal.SIGUSR2)  # SLURM has told the whole job, or only its first process
            while self.process.poll() is None and time.monotonic() < end:
                time.sleep(0.2)
        return submitit.helpers.DelayedSubmission(CellJob(self.command, self.log, self.threads, self.patience_s))


def run_on_slurm(
    slugs: Sequence[str],
    command: Callable[[str], Sequence[str]],
    folder: folders.BenchmarkFolder,
    board: Board,
    cluster: Cluster,
) -> dict[str, Outcome]:
    """Submit what no living job has, and watch until every cell has ended. Ctrl-C ends the watching only."""
    _check_slurm()
    jobs = {slug: job for slug, job in _remembered(folder).items() if slug in slugs}
    alive = alive_jobs()  # None: the controller does not answer, and what has a job may still have it
    missing = [slug for slug in slugs if slug not in jobs or (alive is not None and jobs[slug] not in alive)]
    jobs |= _submitted(missing, command, folder, cluster)
    waiting, outcomes = set(slugs), {}
    tries = dict.fromkeys(slugs, 0)
    submitted = time.monotonic()
    with StopSignals() as stop:
        while waiting and not stop.received:
            _pause(stop, POLL_S)
            states = alive_jobs()
            if states is None:  # the controller does not answer: it will
                continue
            again = []
            for slug in sorted(waiting, key=list(slugs).index):
                if jobs[slug] in states:
                    if slug not in board.running and states[jobs[slug]] == "RUNNING":
                        board.start(slug)
                    continue
                outcome = read_outcome(folder, slug)
                if outcome is None and time.monotonic() - submitted < ALIVE_AFTER_S:
                    continue
                if outcome is None or outcome.status == "stopped":
                    tries[slug] += outcome is None
                    if tries[slug] <= LOST:
                        again.append(slug)
                        continue
                    lost = f"its job vanished {tries[slug]} times; {folder.log(slug)}: {last_line(folder.log(slug))}"
                    outcome = Outcome("failed", "", lost)
                outcomes[slug] = outcome
                waiting.discard(slug)
                board.end(slug, outcome)
            if again:
                jobs |= _submitted(again, command, folder, cluster)
                submitted = time.monotonic()
            board.look()
    return outcomes | {slug: Outcome("stopped", "", f"job {jobs[slug]} goes on") for slug in waiting}


def alive_jobs() -> dict[str, str] | None:
    """This user's jobs that wait or run, and their states; None where the controller does not answer."""
    command = ["squeue", "--noheader", "--array", "--user", getpass.getuser(), "--format", "%i %T"]
    try:
        result = subprocess.run(command, capture_output=True, text=True, timeout=60)
    except subprocess.TimeoutExpired:
        return None
    if result.returncode:
        return None
    return dict(line.split(None, 1) for line in result.stdout.splitlines() if line.strip())


def train_across(words: Sequence[str], hardware: Hardware) -> list[str]:
    """The command that starts a training of several processes: under SLURM on all nodes of the job."""
    command = [sys.executable, "-m", "calibseg", *words]
    if "SLURM_JOB_ID" not in os.environ:
        return command
    tasks = [
        f"--nodes={hardware.nodes}",
        f"--ntasks-per-node={hardware.devices}",
        f"--ntasks={hardware.processes}",
    ]
    return ["srun", "--overlap", *tasks, *command]


def _check_slurm() -> None:
    if not shutil.which("sbatch") or not shutil.which("squeue"):
        raise BadInput("--on slurm needs SLURM, and there is no sbatch here: use --on local or --plan")
    try:
        import submitit  # noqa: F401
    except ImportError as error:
        raise BadInput("--on slurm needs submitit: pip install calibseg[cluster]") from error


def _remembered(folder: folders.BenchmarkFolder) -> dict[str, str]:
    """The number of the last job of every cell, from OUT/jobs/jobs.json."""
    path = folder.jobs / "jobs.json"
    return files.read_json(path, "jobs", dict[str, dict[str, str]]).get("jobs", {}) if path.is_file() else {}


def _submitted(
    slugs: Sequence[str], command: Callable[[str], Sequence[str]], folder: folders.BenchmarkFolder, cluster: Cluster
) -> dict[str, str]:
    """Submit an array of jobs: the job's number by cell."""
    if not slugs:
        return {}
    import submitit
    from submitit.core.utils import FailedJobError, FailedSubmissionError

    folder.jobs.mkdir(parents=True, exist_ok=True)
    for slug in slugs:
        folder.outcome(slug).unlink(missing_ok=True)
    executor = submitit.SlurmExecutor(folder=folder.jobs / "%j", max_num_timeout=1000)
    parameters = cluster.parameters()
    try:
        executor.update_parameters(**parameters)
        patience = parameters["signal_delay_s"] / 2
        logs = [str(folder.log(slug).absolute()) for slug in slugs]
        tasks = [CellJob(command(slug), log, cluster.threads, patience) for slug, log in zip(slugs, logs, strict=True)]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that there is no sacct; squeue is what we ask
            with executor.batch():
                jobs = [executor.submit(task) for task in tasks]
    except (ValueError, FailedJobError, FailedSubmissionError) as error:
        raise BadInput(f"SLURM takes no job with {json.dumps(parameters)}: {' '.join(str(error).split())}") from error
    numbers = {slug: job.job_id for slug, job in zip(slugs, jobs, strict=True)}
    files.write_json(folder.jobs / "jobs.json", "jobs", {"jobs": _remembered(folder) | numbers})
    return numbers


def _pause(stop: StopSignals, seconds: float) -> None:
    """Sleep, but not on when asked to stop."""
    end = time.monotonic() + seconds
    while time.monotonic() < end and not stop.received:
        with contextlib.suppress(InterruptedError):
            time.sleep(0.1)
