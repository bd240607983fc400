"""A disk that is really full: a small tmpfs with less and less room, under every command that writes.

Each attempt ends with 2 and one sentence, or it succeeds; nothing half-written stays; with room the same command then
makes what it makes on an empty disk.
"""

import contextlib
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import torch

from calibseg.cli.self_test import run_command
from calibseg.cli.self_test.good_files import make_good_files

PAGE = 4096
SIZE = 8 << 20
COMMANDS = {
    "prepare": ["prepare", "--dataset", "nnunet", "--root", "raw", "-o", "out"],
    "split": ["split", "work", "--folds", "4"],
    "train": ["train", "recipe.toml", "-o", "out", "-q"],
    "predict": ["predict", "run", "--subset", "test", "-o", "out"],
    "scan": ["predict", "run", "--input", "scan.nii.gz", "-o", "out"],
    "calibrate": ["calibrate", "run", "--method", "isotonic"],
    "apply": ["calibrate", "--predictions", "p", "--labels", "l", "--method", "temperature", "-o", "out"],
    "score": ["score", "--predictions", "p", "--labels", "l", "--metrics", "dsc,ece", "-o", "out/scores.csv"],
    "score-run": ["score", "run", "--metrics", "dsc,nll"],
    "rank": [
        "rank",
        "--method",
        "a=scores.csv",
        "--method",
        "b=other.csv",
        "--metrics",
        "dsc,ece",
        "-o",
        "out/ranks.csv",
    ],
    "table": ["table", "scores.csv", "--metrics", "dsc,ece", "-o", "out/table.md"],
    "export": ["table", "scores.csv", "--export", "out/all.parquet"],
    "report": ["report", "scores.csv", "-o", "out/report.html"],
    "plot": ["plot", "reliability", "scores.csv", "-o", "out/figure.png"],
    "decide": ["decide", "fit", "run", "--risk", "fnr=0.6", "--volume", "0.5", "-o", "out/rules.json"],
    "decided": ["decide", "apply", "rules.json", "run", "-o", "out"],
    "nnunet": ["nnunet", "calibrate", "model", "--labels", "l", "--apply", "t", "-o", "out"],
    "release": ["nnunet", "release", "ours", "-o", "out"],
    "onnx": ["export", "run", "-o", "out/run.onnx"],
    "view": ["view", "scans", "--no-open", "-o", "out/scan.html"],
    "new": ["new", "loss", "mine"],
}
HALF = re.compile(r"\.tmp$|(^|/)\.?lock$")


@pytest.fixture(scope="module")
def disk(tmp_path_factory):
    """A file system of eight megabytes."""
    folder = tmp_path_factory.mktemp("disk")
    command = ["mount", "-t", "tmpfs", "-o", f"size={SIZE}", "tmpfs", str(folder)]
    if os.name != "posix" or shutil.which("mount") is None or subprocess.run(command, capture_output=True).returncode:
        pytest.skip("mounting a small file system needs the right to do so")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    folder = tmp_path_factory.mktemp("made") / "good"
    make_good_files(folder)
    with contextlib.chdir(folder):
        words = ["score", "--predictions", "p", "--labels", "l", "--metrics", "dsc,ece", "-o", "other.csv"]
        assert run_command([*words, "--tag", "loss=other"])[0] == 0
        shutil.copytree("model", "ours")  # as our trainers store a network
        checkpoint = {"network_weights": {"w": torch.zeros(40_000)}, "trainer_name": "nnUNetTrainerCE", "calibseg": {}}
        torch.save(checkpoint, "ours/fold_0/checkpoint_final.pth")
    return folder


def files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def results(folder: Path) -> dict[str, bytes]:
    """Tables, arrays and weights; not what tells the time or the folder."""
    kept = (".csv", ".md", ".safetensors", ".npz", ".gz")
    found = {name: (folder / name).read_bytes() for name in files(folder) if name.endswith(kept)}
    return {name: data for name, data in found.items() if not re.search(r"log\.csv|state\.safetensors", name)}


def fill(disk: Path, room: int) -> None:
    """Leave about so many bytes."""
    with contextlib.suppress(OSError), (disk / "ballast").open("wb") as file:
        file.write(bytes(max(0, shutil.disk_usage(disk).free - room)))


@pytest.mark.slow
@pytest.mark.parametrize("name", COMMANDS)
def test_a_full_disk_is_one_sentence_and_leaves_nothing_half_written(name, disk, good, record_property):
    words, attempts, refused = COMMANDS[name], 0, 0
    world = disk / "world"
    shutil.copytree(good, world)
    try:
        with contextlib.chdir(world):
            before = files(world)
            for pages in (0, 1, 2, 3, 5, 8, 13, 21, 34, 55, 89, 144, 233, 377, 610):
                fill(disk, pages * PAGE)
                resume = ["--resume"] if name == "train" and (world / "out" / "run.json").is_file() else []
                code, error, crash = run_command([*words, *resume])
                (disk / "ballast").unlink()
                attempts += 1
                assert not crash, f"{pages} pages: {crash}"
                assert not [path for path in files(world) - before if HALF.search(path)]
                if code == 0:
                    break
                refused += 1
                assert code == 2, f"{pages} pages: exit code {code}: {error}"
                assert error.rstrip().splitlines()[-1].startswith("error: "), error
                assert "No space left" in error or "no space" in error.lower(), error
                assert "Traceback" not in error
            assert (code, refused > 0) == (0, True), error
            assert not [path for path in files(world) if ".unfinished" in path]  # whole cases, kept until it is done
            made = results(world)
        shutil.rmtree(world)
        shutil.copytree(good, world)
        with contextlib.chdir(world):
            assert run_command(words)[0] == 0
            assert made == results(world)
    finally:
        shutil.rmtree(world)
    record_property("attempts", f"{name}: {attempts}, {refused} refused")
