"""Two who walk one grid, and a job that is taken away: locks, waiting, and saving first."""

import json
import os
import signal
import sys
import threading
import time
from pathlib import Path

import pytest

from calibseg.benchmark.cell import walk
from calibseg.benchmark.cell_stages import stages
from calibseg.benchmark.cluster import CellJob
from calibseg.benchmark.command import STOPPED, _passing_signals_on
from calibseg.core.types import BadInput
from calibseg.runs.lock import locked, wait_for_lock
from support.benches import bench_of, until


def test_who_comes_second_waits_and_finds_nothing_to_do(tmp_path):
    bench = bench_of(tmp_path / "out")
    (cell,) = bench.grid.cells
    outcomes, ran = [], []

    def slow(command):
        ran.append(command.verb)
        time.sleep(0.05)
        return command()

    threads = [threading.Thread(target=lambda: outcomes.append(walk(bench, cell, slow))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert [outcome.status for outcome in outcomes] == ["done", "done"]
    assert sorted(outcome.ran for outcome in outcomes) == [0, len(stages(bench, cell, False))]
    assert len(ran) == len(stages(bench, cell, False))


def test_a_job_that_was_started_again_on_another_machine_takes_its_own_lock_over(tmp_path, monkeypatch):
    path = tmp_path / "lock"
    path.write_text(json.dumps({"pid": 1, "host": "elsewhere", "job": "17", "life": 0}))
    for job, life in (("18", "1"), ("17", "0")):  # another job; the same job on its other machine
        monkeypatch.setenv("SLURM_JOB_ID", job)
        monkeypatch.setenv("SLURM_RESTART_COUNT", life)
        with pytest.raises(BadInput, match="process 1 on elsewhere works in this folder"), locked(path):
            pass
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
    with locked(path):
        assert json.loads(path.read_text())["life"] == 1


def test_who_must_wait_for_a_lock_is_told_once(tmp_path):
    told = []
    with locked(tmp_path / "lock"):
        thread = threading.Thread(target=_hold, args=(tmp_path / "lock", told))
        thread.start()
        while not told:
            time.sleep(0.01)
        time.sleep(0.05)
        assert len(told) == 1
        assert "works in this folder" in told[0]
    thread.join(10)
    assert told[1:] == ["held"]


def _hold(path: Path, told: list[str]) -> None:
    with wait_for_lock(path, told.append, ask_s=0.01):
        told.append("held")


def test_a_job_that_is_taken_away_lets_its_training_save_first(tmp_path):
    """submitit calls `checkpoint` in a signal handler while the job waits for its process."""
    pytest.importorskip("submitit")
    script = "import signal, time; signal.signal(signal.SIGUSR2, lambda *_: (print('saved', flush=True), exit(75)))"
    script += "; print('runs', flush=True); time.sleep(60)"
    job = CellJob([sys.executable, "-c", script], str(tmp_path / "logs" / "log"), 1, 30.0)
    again = []
    before = signal.signal(signal.SIGALRM, lambda *_: again.append(job.checkpoint()))
    log = tmp_path / "logs" / "log"
    watcher = threading.Thread(target=lambda: (until(lambda: log.is_file() and "runs" in log.read_text()), alarm()))
    try:
        watcher.start()
        assert job() == 75
    finally:
        signal.signal(signal.SIGALRM, before)
    watcher.join()
    assert log.read_text() == "runs\nsaved\n"
    assert again[0].function.command == job.command
    assert again[0].function.process is None  # what is put back into the queue is pickled


def alarm() -> None:
    os.kill(os.getpid(), signal.SIGALRM)


def test_a_training_of_several_processes_is_asked_to_stop_and_waited_for(tmp_path):
    script = """
import pathlib, signal, sys, time
def save(*_):
    pathlib.Path("saved").touch()
    sys.exit(75)
signal.signal(signal.SIGTERM, save)
pathlib.Path("started").touch()
time.sleep(60)
"""

    def ask():
        until((tmp_path / "started").exists)
        os.kill(os.getpid(), signal.SIGTERM)

    asking = threading.Thread(target=ask)
    asking.start()
    where = f"import os; os.chdir({str(tmp_path)!r})"
    assert _passing_signals_on([sys.executable, "-c", where + script]) == STOPPED
    asking.join()
    assert (tmp_path / "saved").exists()
