"""Faults: a killed run goes on as if nothing had happened; a full disk, a NaN and a second process do no harm."""

import json
import math
import os
import random
import resource
import shlex
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from calibseg.core import files
from calibseg.core.types import BadInput
from calibseg.data import prepared
from calibseg.runs import folders
from calibseg.runs.info import read_run
from calibseg.runs.lock import STALE_S, locked
from calibseg.runs.recipe import read_recipe
from calibseg.runs.signals import StopSignals
from calibseg.stages.train.loop import train
from support.training import in_child, outcome, phantom, recipe, rows, run_and_die, run_to_the_end, start, tiny

pytestmark = pytest.mark.filterwarnings("ignore:crac. inside organs")  # three epochs are too few to be confident

SOURCE = Path(__file__).parents[2] / "src"
EPOCHS, BATCHES = 3, 4


@pytest.fixture(scope="module")
def wanted(tmp_path_factory):
    """All that has a state: batch normalisation, dropout, augmentation, Adam, multipliers; saved at each step."""
    folder = tmp_path_factory.mktemp("resume")
    return recipe(
        phantom(folder / "work"),
        f"train.epochs={EPOCHS}",
        "train.save_minutes=0",
        "train.learning_rate=0.01",
        network={"name": tiny(folder)},
        loss={"name": "crac", "rho_every": 1},
        augmentation={"flip": 0.5, "rotate_deg": 10.0, "noise": 0.05},
    )


@pytest.fixture(scope="module")
def unbroken(wanted, tmp_path_factory):
    """What a run leaves that nobody interrupts."""
    run = tmp_path_factory.mktemp("unbroken") / "run"
    assert in_child(run_to_the_end, wanted, run) == 0
    assert len(rows(run)) == EPOCHS
    return outcome(run)


@pytest.mark.parametrize(
    ("where", "number", "how"),
    [
        ("a step", 1, "before"),  # nothing is saved yet
        ("a step", 3, "after"),
        ("a file of tensors", 1, "half"),  # the first state
        ("a file of tensors", 3, "half"),  # a later state
        ("a file of tensors", BATCHES + 1, "half"),  # the first epoch's weights
        ("a file of tensors", BATCHES + 2, "half"),  # the state that says the epoch is done
        ("a rename", 5, "before"),  # written whole, not yet renamed
        ("validation", 1, "after"),
        ("the end of an epoch", 2, "before"),
        ("the end of an epoch", 3, "after"),  # all is done, but nobody has said so
        ("the log", 2, "after"),
        ("the run's record", 2, "before"),
    ],
)
def test_a_run_that_is_killed_and_resumed_ends_with_the_same_bits(where, number, how, wanted, unbroken, tmp_path):
    run = tmp_path / "run"
    assert in_child(run_and_die, wanted, run, where, number, how) == -signal.SIGKILL
    assert in_child(run_to_the_end, wanted, run) == 0
    assert outcome(run) == unbroken
    assert not list(run.rglob("*.tmp"))
    assert read_run(run).status == "finished"


def test_a_run_that_is_killed_again_and_again_ends_with_the_same_bits(wanted, unbroken, tmp_path):
    run = tmp_path / "run"
    for number in (2, 3, 2, 4):
        assert in_child(run_and_die, wanted, run, "a step", number, "after") == -signal.SIGKILL
    assert in_child(run_to_the_end, wanted, run) == 0
    assert outcome(run) == unbroken


@pytest.mark.slow
def test_twenty_kills_at_any_moment_change_nothing(wanted, unbroken, tmp_path, record_property):
    rng, kills = random.Random(0), 0
    for number in range(100):
        run = tmp_path / f"run{number}"
        while True:
            process = start(run_to_the_end, wanted, run)
            process.join(rng.uniform(0, 1.5))
            if process.exitcode is not None:
                assert process.exitcode == 0
                break
            process.kill()
            process.join()
            kills += process.exitcode == -signal.SIGKILL
        assert outcome(run) == unbroken
        if kills >= 20:
            record_property("kills", f"{kills} in {number + 1} runs")
            return
    pytest.fail(f"only {kills} kills met a living process")


@pytest.mark.parametrize("sign", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR2])
def test_a_run_that_is_asked_to_stop_saves_and_stops(sign, wanted, unbroken, tmp_path):
    run = tmp_path / "run"
    lazy = read_recipe(wanted.as_dict(), ["train.save_minutes=1000"])  # it saves because it is asked
    assert in_child(run_and_die, lazy, run, "a step", BATCHES + 2, "before", sign) == 0
    assert read_run(run).status == "stopped"
    about = files.read_tensors(folders.RunFolder(run).state, "state")[1]
    assert (about["epoch"], about["batch"]) == (1, 2)
    assert in_child(run_to_the_end, lazy, run) == 0
    assert outcome(run) == unbroken


def test_a_run_that_is_asked_to_stop_during_validation_observes_nothing_twice(wanted, unbroken, tmp_path):
    run = tmp_path / "run"
    assert in_child(run_and_die, wanted, run, "a step", BATCHES, "before", signal.SIGTERM) == 0
    assert in_child(run_to_the_end, wanted, run) == 0
    assert outcome(run) == unbroken
    work = wanted.data.folder
    single = recipe(work, "train.batch_size=2", "train.epochs=2", loss={"name": "crac"})  # two validation batches
    assert in_child(run_to_the_end, single, tmp_path / "a") == 0
    assert in_child(run_and_die, single, tmp_path / "b", "validation", 1, "after", signal.SIGTERM) == 0
    assert files.read_tensors(folders.RunFolder(tmp_path / "b").state, "state")[1]["epoch"] == 0
    assert in_child(run_to_the_end, single, tmp_path / "b") == 0
    assert outcome(tmp_path / "a") == outcome(tmp_path / "b")


def test_the_command_stops_on_sigterm_with_a_code_of_its_own_and_goes_on(wanted, unbroken, tmp_path):
    (tmp_path / "recipe.toml").write_text(wanted.toml())
    run = tmp_path / "run"
    command = [sys.executable, "-c", "from calibseg.cli import main; main()", "train", "-q", "--resume"]
    environment = os.environ | {"PYTHONPATH": str(SOURCE)}
    process = subprocess.Popen(
        [*command, str(tmp_path / "recipe.toml"), "-o", str(run)], env=environment, stdout=subprocess.PIPE, text=True
    )
    state = folders.RunFolder(run).state
    while not state.is_file() and process.poll() is None:
        time.sleep(0.005)
    process.send_signal(signal.SIGTERM)
    said, _ = process.communicate(timeout=120)
    if process.returncode == 75:  # else it was done before the signal came, which a slow machine allows
        words = shlex.split(said.replace("\n", " ").partition("go on with   ")[2])
        assert words[0] == "calibseg"
        assert words[-3:] == ["train", str(run), "--resume"]
        line = [*command[:3], *words[1:]]
        done = subprocess.run(line, env=environment, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
    assert outcome(run) == unbroken


@pytest.mark.slow
def test_two_processes_stop_together_and_go_on_together(wanted, tmp_path):
    (tmp_path / "recipe.toml").write_text(read_recipe(wanted.as_dict(), ["train.epochs=12"]).toml())
    script = tmp_path / "calibseg_command.py"
    script.write_text("from calibseg.cli import main\nmain()\n")
    command = [sys.executable, str(script), "train", str(tmp_path / "recipe.toml"), "-q", "--devices", "2"]
    command += ["--device", "cpu", "--resume"]
    environment = os.environ | {"PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1"}
    done = subprocess.run([*command, "-o", str(tmp_path / "a")], env=environment, timeout=300)
    assert done.returncode == 0
    interrupted = subprocess.Popen([*command, "-o", str(tmp_path / "b")], env=environment)
    while not folders.RunFolder(tmp_path / "b").log.is_file():
        time.sleep(0.01)
    interrupted.send_signal(signal.SIGTERM)  # only the first process is told
    assert interrupted.wait(120) == 75
    at = files.read_tensors(folders.RunFolder(tmp_path / "b").state, "state")[1]
    assert 0 < at["epoch"] < 12
    with pytest.raises(BadInput, match="was trained by 2 processes, so it cannot go on with 1"):
        train(read_recipe(tmp_path / "recipe.toml"), tmp_path / "b", resume=True)
    killed = subprocess.Popen([*command, "-o", str(tmp_path / "b")], env=environment, start_new_session=True)
    before = folders.RunFolder(tmp_path / "b").state.stat().st_mtime_ns
    while folders.RunFolder(tmp_path / "b").state.stat().st_mtime_ns == before and killed.poll() is None:
        time.sleep(0.01)
    os.killpg(killed.pid, signal.SIGKILL)  # the machine is gone
    killed.wait()
    done = subprocess.run([*command, "-o", str(tmp_path / "b")], env=environment, timeout=300)
    assert done.returncode == 0
    for one, other in zip(outcome(tmp_path / "a"), outcome(tmp_path / "b"), strict=True):
        assert one == other


def test_a_second_ctrl_c_is_obeyed_at_once():
    before = signal.getsignal(signal.SIGINT)
    with StopSignals() as stopping:
        os.kill(os.getpid(), signal.SIGINT)
        assert stopping.received == "SIGINT"
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before


def test_a_loss_that_is_not_finite_stops_with_the_last_good_state(wanted, tmp_path):
    run = tmp_path / "run"
    # The learning rate "drops" to something absurd in the third of four epochs.
    bad = read_recipe(wanted.as_dict(), ["train.epochs=4", "train.drop_by=1e30", "train.save_minutes=0"])
    with pytest.raises(BadInput) as error:
        train(bad, run)
    message = str(error.value)
    assert "epoch 3, batch" in message
    assert "not finite" in message or "NaN or infinite" in message
    assert "the last good state is kept" in message
    arrays, about = files.read_tensors(folders.RunFolder(run).state, "state")
    assert about["epoch"] == 2
    assert all(math.isfinite(float(abs(array).max())) for name, array in arrays.items() if name.startswith("network."))
    assert len(rows(run)) == 2


def fill_the_disk(wanted, run) -> None:
    """No file may grow beyond 2 kB after the first epoch: writing fails as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    original, calls = files.save_tensors, 0

    def limited(*arguments):
        nonlocal calls
        calls += 1
        if calls == BATCHES + 4:
            resource.setrlimit(resource.RLIMIT_FSIZE, (2000, hard))
        return original(*arguments)

    files.save_tensors = limited
    try:
        train(wanted, run)
    except BadInput as error:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        (run / "message").write_text(str(error))
        raise SystemExit(2) from error


def test_a_full_disk_stops_with_a_sentence_and_the_last_good_state(wanted, unbroken, tmp_path):
    run = tmp_path / "run"
    assert in_child(fill_the_disk, wanted, run) == 2
    message = (run / "message").read_text()
    assert "state.safetensors: cannot be written: " in message
    assert "the last good state is kept; mend the cause and add --resume" in message
    assert not list(run.rglob("*.tmp"))
    assert files.read_tensors(folders.RunFolder(run).state, "state")[1]["epoch"] == 1
    assert in_child(run_to_the_end, wanted, run) == 0
    assert outcome(run) == unbroken


def test_a_second_process_in_the_same_folder_is_refused(wanted, tmp_path):
    run = tmp_path / "run"
    process = start(run_to_the_end, wanted, run)
    try:
        while not (run / "lock").is_file() or not (run / "lock").read_text():
            time.sleep(0.001)
        os.kill(process.pid, signal.SIGSTOP)  # it lives, and waits
        with pytest.raises(BadInput, match=rf"process {process.pid} on {socket.gethostname()} works in this folder"):
            train(wanted, run, resume=True)
    finally:
        process.kill()
        process.join()
    assert train(wanted, run, resume=True).status == "finished"  # the dead one's lock is stale


def test_a_lock_of_another_host_counts_while_it_gives_signs_of_life(tmp_path):
    path = tmp_path / "lock"
    path.write_text(json.dumps({"pid": 17, "host": "elsewhere"}))
    with pytest.raises(BadInput, match="process 17 on elsewhere works in this folder"), locked(path):
        pass
    old = time.time() - STALE_S - 1
    os.utime(path, (old, old))
    with locked(path) as lock:
        told = json.loads(path.read_text())
        assert (told["pid"], told["host"]) == (os.getpid(), socket.gethostname())
        os.utime(path, (1, 1))
        lock._touched -= 3600
        lock.touch()
        assert path.stat().st_mtime > time.time() - 60
    assert not path.exists()


def test_changed_data_are_not_mixed_into_a_run(tmp_path):
    work = phantom(tmp_path / "work")
    stops = recipe(work, network={"name": tiny(tmp_path)})
    train(stops, tmp_path / "run")
    split = prepared.read_split(work)
    other = type(split)(split.train[1:], split.validation, (*split.test, split.train[0]), 0)
    prepared.write_split(work, "default", other)
    with pytest.raises(BadInput, match="its training or validation cases have changed since"):
        train(stops, tmp_path / "run", resume=True)


def test_a_damaged_state_is_refused_and_not_replaced(wanted, tmp_path):
    run = tmp_path / "run"
    assert in_child(run_and_die, wanted, run, "a step", 3, "after") == -signal.SIGKILL
    state = folders.RunFolder(run).state
    state.write_bytes(b"\x80\x04pickle")
    with pytest.raises(BadInput, match=r"state\.safetensors: cannot be read as safetensors"):
        train(wanted, run, resume=True)
    assert state.read_bytes() == b"\x80\x04pickle"
