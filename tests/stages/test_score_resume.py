"""Scoring goes on where it was killed, and the number of workers changes nothing."""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np

from calibseg import cli
from calibseg.analysis import table
from calibseg.api import score
from support.scored_folders import random_case, save_case, spoil

KILLED = """
import os, signal, sys
from pathlib import Path
from calibseg.api import score

def stop(done, total, case):
    if done == 2:
        os.kill(os.getpid(), signal.SIGKILL)

folder = Path(sys.argv[1])
score(predictions=folder / "p", labels=folder / "l", output=folder / "out" / "scores.csv",
      metrics=("dsc", "ece", "hd95", "tace"), progress=stop)
"""
RESUMED = {"metrics": ("dsc", "ece", "hd95", "tace")}


def test_a_killed_run_goes_on_where_it_stopped_and_ends_the_same(folder):
    environment = os.environ | {"PYTHONPATH": str(Path(cli.__file__).parents[2])}
    done = subprocess.run([sys.executable, "-c", KILLED, folder], env=environment, check=False, capture_output=True)
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()
    output, other = folder / "out" / "scores.csv", folder / "other" / "scores.csv"
    assert not output.exists()
    assert len(list((folder / "out" / ".scores.unfinished").iterdir())) == 2
    shutil.copytree(folder / "out", folder / "other")

    resumed = score(predictions=folder / "p", labels=folder / "l", output=output, **RESUMED)
    assert resumed.resumed == 2
    fresh = score(predictions=folder / "p", labels=folder / "l", output=folder / "fresh" / "scores.csv", **RESUMED)
    assert fresh.resumed == 0
    for name in ("scores.csv", "bins.csv", "scores.meta.json"):
        assert (folder / "out" / name).read_bytes() == (folder / "fresh" / name).read_bytes()
    assert not (folder / "out" / ".scores.unfinished").exists()

    kept = next((folder / "other" / ".scores.unfinished").glob("case1*"))
    kept.write_bytes(kept.read_bytes()[:100])  # what is damaged is measured again, and so is a file that has changed
    save_case(folder, "case0", *random_case(9), affine=np.diag([1.0, 2.0, 3.0, 1.0]))
    assert score(predictions=folder / "p", labels=folder / "l", output=other, **RESUMED).resumed == 0
    changed = score(predictions=folder / "p", labels=folder / "l", output=folder / "fresh" / "scores.csv", **RESUMED)
    assert table.read(other).rows.equals(changed.table.rows)
    assert not fresh.table.rows.equals(changed.table.rows)


def test_the_number_of_workers_changes_nothing(folder):
    save_case(folder, "case4", *spoil(lambda p: p[1].__setitem__((0, 0, 0), np.nan)))  # also what is wrong comes back
    left_out = []
    for workers in (1, 2):
        output = folder / str(workers) / "scores.csv"
        left_out.append(
            score(predictions=folder / "p", labels=folder / "l", output=output, workers=workers, skip_bad=True).bad
        )
    assert "case4.npz: " in left_out[0][0]
    assert left_out[0] == left_out[1]
    for name in ("scores.csv", "bins.csv", "scores.meta.json"):
        assert (folder / "1" / name).read_bytes() == (folder / "2" / name).read_bytes()
