"""A real SLURM on this machine, two virtual nodes: jobs die in mid-run and are queued again; no cell is lost or twice.

No systemd and no accounting are needed: munged, slurmctld and two slurmd are started here, in a folder of their own,
and stopped in the end.
"""

import csv
import getpass
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from calibseg.benchmark.grid import read_grid
from calibseg.runs import folders
from calibseg.runs.info import read_run

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "squeue", "scontrol", "scancel", "sinfo")
MISSING = [name for name in PROGRAMS if not shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin:/sbin")]
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(MISSING), reason=f"no SLURM here: {', '.join(MISSING)} missing (slurm-wlm, munge)"),
    pytest.mark.skipif(os.name != "posix" or os.geteuid() != 0, reason="starting slurmd and munged needs root"),
]

GRID = """
[data]
dataset = "phantom"
options = { cases = 8, size = [4, 24, 24] }
[network]
name = "unet"
width = 4
depth = 2
[train]
epochs = 200
batch_size = 4
[split]
sizes = [4, 2, 2]
[score]
metrics = "dsc,ece,nll"
[axes]
loss = ["ce", "ls", "nacl"]
"""


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def until(true: Callable[[], bool], seconds: float, what: str) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, f"waited {seconds} s in vain: {what}"
        time.sleep(0.1)


class Slurm:
    """The daemons and their folder."""

    def __init__(self, folder: Path):
        self.folder, self.daemons = folder, []
        self.environment = os.environ | {
            "SLURM_CONF": str(folder / "slurm.conf"),
            "PATH": f"{os.environ['PATH']}:/usr/sbin:/sbin",
            "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
            "OMP_NUM_THREADS": "1",
            "COLUMNS": "160",
        }

    def start(self) -> None:
        folder, host, user = self.folder, socket.gethostname().split(".")[0], getpass.getuser()
        folder.chmod(0o755)
        key = folder / "munge.key"
        key.write_bytes(os.urandom(1024))
        key.chmod(0o600)
        for name in ("state", "n1", "n2"):
            (folder / name).mkdir()
        munge = folder / "munge.socket"
        words = [f"--key-file={key}", f"--socket={munge}", f"--pid-file={folder / 'munged.pid'}", "--num-threads=2"]
        words += [f"--log-file={folder / 'munged.log'}", f"--seed-file={folder / 'munged.seed'}", "--force"]
        self.daemon("munged", "--foreground", *words)
        until(munge.exists, 30, "munged")
        cores = os.cpu_count() or 1
        (folder / "slurm.conf").write_text(
            f"""ClusterName=calibseg
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={free_port()}
SlurmUser={user}
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={munge}
CredType=cred/munge
StateSaveLocation={folder / "state"}
SlurmdSpoolDir={folder}/%n
SlurmctldPidFile={folder / "slurmctld.pid"}
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder / "slurmctld.log"}
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SchedulerType=sched/backfill
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
ReturnToService=2
SwitchType=switch/none
MpiDefault=none
JobRequeue=1
MinJobAge=300
SchedulerParameters=bf_interval=1,sched_min_interval=0,batch_sched_delay=0
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port={free_port()} CPUs={cores} State=UNKNOWN
NodeName=n2 NodeHostname={host} NodeAddr=127.0.0.1 Port={free_port()} CPUs={cores} State=UNKNOWN
PartitionName=all Nodes=n1,n2 Default=YES MaxTime=INFINITE State=UP
"""
        )
        self.daemon("slurmctld", "-D")
        for node in ("n1", "n2"):
            self.daemon("slurmd", "-D", "-N", node)
        until(lambda: self.ask("sinfo", "-h", "-N", "-o", "%t").split() == ["idle", "idle"], 60, "two idle nodes")

    def daemon(self, *words: str) -> None:
        log = (self.folder / f"{words[0]}.out").open("ab")
        self.daemons.append(subprocess.Popen(words, stdout=log, stderr=log, env=self.environment))

    def stop(self) -> None:
        subprocess.run(["scancel", "-u", getpass.getuser()], env=self.environment, timeout=30)
        time.sleep(1)
        for daemon in reversed(self.daemons):
            daemon.terminate()
            try:
                daemon.wait(20)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()

    def ask(self, *words: str) -> str:
        return subprocess.run(words, capture_output=True, text=True, env=self.environment, timeout=60).stdout

    def benchmark(self, folder: Path, *words: str) -> "subprocess.Popen[str]":
        command = [sys.executable, "-m", "calibseg", "benchmark", "g.toml", "-o", "out", "--on", "slurm", *words]
        return subprocess.Popen(
            command, cwd=folder, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=self.environment
        )


@pytest.fixture(scope="module")
def slurm(tmp_path_factory) -> Iterator[Slurm]:
    found = Slurm(tmp_path_factory.mktemp("slurm"))
    try:
        found.start()
        yield found
    finally:
        found.stop()


def stages(out: Path, slug: str) -> list[dict[str, str]]:
    path = folders.BenchmarkFolder(out).stages(slug)
    if not path.is_file():
        return []
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def epochs(run: Path) -> list[str]:
    with folders.RunFolder(run).log.open(newline="") as file:
        return [row["epoch"] for row in csv.DictReader(file)]


def training(out: Path, slug: str) -> Callable[[], bool]:
    """Whether a cell has begun to train and has a state to lose."""
    run = folders.RunFolder(folders.BenchmarkFolder(out).run(slug))
    return lambda: run.state.is_file() and read_run(run.path).status == "running"


def jobs(out: Path) -> dict[str, str]:
    path = out / "jobs" / "jobs.json"
    return json.loads(path.read_text())["jobs"] if path.is_file() else {}


def test_jobs_that_die_in_mid_run_are_queued_again_and_no_cell_is_lost_or_done_twice(slurm, tmp_path):
    """One job is requeued while it trains, another killed without a word, and the watching command is ended too."""
    (tmp_path / "g.toml").write_text(GRID)
    out, cells = tmp_path / "out", read_grid(tmp_path / "g.toml").cells
    requeued, killed, _ = (cell.slug for cell in cells)
    first = slurm.benchmark(tmp_path, "--workers", "2")
    until(training(out, requeued), 240, "the first cell trains")
    before = jobs(out)
    slurm.ask("scontrol", "requeue", before[requeued])
    until(training(out, killed), 240, "the second cell trains")
    slurm.ask("scancel", "--signal=KILL", before[killed])
    until(lambda: jobs(out)[killed] != before[killed], 240, "the killed job is submitted again")
    first.send_signal(signal.SIGINT)  # the watching ends, the jobs go on
    told, _ = first.communicate(timeout=60)
    assert first.returncode == 75, told
    known = jobs(out)
    second = slurm.benchmark(tmp_path, "--workers", "2")
    told, _ = second.communicate(timeout=600)
    assert second.returncode == 0, told
    assert "3 cells: 3 done" in told
    assert jobs(out) == known  # what was alive was not submitted again
    assert known[requeued] == before[requeued]  # requeued by SLURM under its own number
    for cell in cells:
        ended = [row["stage"] for row in stages(out, cell.slug) if row["exit_code"] == "0"]
        assert len(ended) == len(set(ended)), ended
        assert "train" in ended
        run = out / "runs" / cell.slug
        assert read_run(run).status == "finished"
        assert epochs(run) == [str(number) for number in range(1, 201)]
        assert (run / "scores-test.csv").is_file()
    assert (out / "scores.parquet").is_file()


def test_a_cell_that_fails_says_why_and_is_not_tried_for_ever(slurm, tmp_path):
    text = GRID.replace('loss = ["ce", "ls", "nacl"]', 'loss = [{ name = "ls", train = { learning_rate = 1e30 } }]')
    (tmp_path / "g.toml").write_text(text)
    done = slurm.benchmark(tmp_path)
    told, _ = done.communicate(timeout=300)
    assert done.returncode == 1, told
    assert "the loss is not finite any more" in told
    (cell,) = read_grid(tmp_path / "g.toml").cells
    assert [row["stage"] for row in stages(tmp_path / "out", cell.slug)].count("train") == 1


def test_one_training_spans_two_nodes(slurm, tmp_path):
    """The node names are no host names here, so the address of the first process is given."""
    (tmp_path / "g.toml").write_text(GRID.replace('["ce", "ls", "nacl"]', '["ce"]').replace("= 200", "= 2"))
    slurm.environment |= {"MASTER_ADDR": "127.0.0.1"}
    done = slurm.benchmark(tmp_path, "--nodes", "2", "--device", "cpu")
    told, _ = done.communicate(timeout=300)
    (cell,) = read_grid(tmp_path / "g.toml").cells
    log = folders.BenchmarkFolder(tmp_path / "out").log(cell.slug)
    assert done.returncode == 0, told + log.read_text()
    info = read_run(tmp_path / "out" / "runs" / cell.slug)
    assert info.provenance["processes"] == 2
    assert info.status == "finished"
