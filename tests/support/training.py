"""What the tests of training share: a prepared phantom, a tiny network, and runs in processes that can be killed."""

import csv
import multiprocessing
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from calibseg.core import files
from calibseg.runs import folders
from calibseg.runs.recipe import Recipe, read_recipe
from calibseg.stages.prepare import make_splits, prepare
from calibseg.stages.train.loop import Trained, train
from calibseg.stages.train.recorder import RunRecorder
from calibseg.stages.train.validation import Validation

TIMES = ("train_s", "epoch_s")

# Batch normalisation has buffers and dropout draws random numbers: both must survive a resume.
NETWORK = '''"""Two convolutions."""
from torch import nn

class Tiny(nn.Module):
    def __init__(self, in_channels: int, num_classes: int, width: int = 8, dropout: float = 0.2):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(in_channels, width, 5, padding=2), nn.BatchNorm2d(width), nn.ReLU(),
            nn.Dropout2d(dropout), nn.Conv2d(width, num_classes, 3, padding=1),
        )

    def forward(self, image):
        return self.layers(image)
'''


def phantom(work: Path) -> Path:
    """Six small cases: 4 train (16 slices), 1 validation, 1 test."""
    prepare("phantom", None, work, options={"cases": 6, "size": [4, 32, 32]})
    make_splits(work)
    return work


def tiny(folder: Path) -> str:
    """The path of a network file."""
    path = folder / "tiny.py"
    path.write_text(NETWORK)
    return str(path)


def recipe(work: Path, *changes: str, **tables: Any) -> Recipe:
    """A U-Net of a few weights on the phantom; four batches in an epoch."""
    base = {
        "data": {"dataset": "phantom", "work": str(work)},
        "network": {"name": "unet", "width": 4, "depth": 3},
        "train": {"epochs": 2, "batch_size": 4},
    }
    return read_recipe(base | tables, changes)


def rows(run: Path) -> list[dict[str, str]]:
    """log.csv without the times."""
    with folders.RunFolder(run).log.open(newline="") as file:
        return [{name: value for name, value in row.items() if name not in TIMES} for row in csv.DictReader(file)]


def outcome(run: Path) -> tuple[Any, ...]:
    """All that a run leaves and that must not depend on interruptions: chosen weights, state, log; bit for bit.

    (Two safetensors files of the same content may differ in the order of their header.)
    """
    folder = folders.RunFolder(run)
    weights, about = files.read_tensors(folder.weights, "weights")
    state, at = files.read_tensors(folder.state, "state")
    bits = [{name: (array.dtype, array.tobytes()) for name, array in part.items()} for part in (weights, state)]
    return bits[0], about, rows(run), bits[1], {name: at[name] for name in ("epoch", "batch", "best", "best_epoch")}


def in_child(function: Callable[..., None], *arguments: Any) -> int:
    """Run in a process of its own; its exit code, negative for a signal."""
    process = start(function, *arguments)
    process.join(120)
    assert process.exitcode is not None
    return process.exitcode


def start(function: Callable[..., None], *arguments: Any) -> Any:
    """A process that can be killed. A server with everything imported forks it, so that it starts at once."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["calibseg.stages.train.loop", "lightning_fabric", "support.training"])
    process = context.Process(target=function, args=arguments)
    process.start()
    return process


def run_and_die(wanted: Recipe, run: Path, where: str, number: int, how: str, sign: int = signal.SIGKILL) -> None:
    """Train, and signal oneself at the `number`-th call of a function of the store, the network, ...

    how: "before" the call, "after" it, or "half": a file is written, cut in two, and then it happens.
    """
    module, name = PLACES[where]
    original, calls = getattr(module, name), 0

    def hooked(*arguments: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == number and how == "before":
            os.kill(os.getpid(), sign)
        result = original(*arguments, **options)
        if calls == number and how == "half":
            path = arguments[0]
            path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
        if calls == number and how != "before":
            os.kill(os.getpid(), sign)
        return result

    setattr(module, name, hooked)
    expect(train(wanted, run, resume=True), "stopped")


def run_to_the_end(wanted: Recipe, run: Path) -> None:
    expect(train(wanted, run, resume=True), "finished")


def expect(done: Trained, status: str) -> None:
    if done.status != status:
        raise SystemExit(f"{done.status} instead of {status}")


LOOP = sys.modules["calibseg.stages.train.loop"]._Run
PLACES = {
    "a step": (LOOP, "_step"),
    "a file of tensors": (files, "save_tensors"),
    "the log": (files, "write_text"),
    "the run's record": (sys.modules["calibseg.stages.train.recorder"], "write_run"),
    "validation": (Validation, "update"),
    "the end of an epoch": (RunRecorder, "keep"),
    "a rename": (os, "replace"),
}
