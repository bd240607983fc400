"""A study in nnU-Net's three folders, planned and preprocessed by nnU-Net itself, small enough for a CPU."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

from support.real_data import DATA

HIPPOCAMPUS = DATA / "Task04_Hippocampus"
DATASET = "Dataset004_Hippocampus"
TRAINING, TEST = 16, 4
BIN = Path(sys.executable).parent
PLANNING = {"nnUNet_n_proc_DA": "1"}  # which sets torch's threads by it


def environment(root: Path) -> dict[str, str]:
    """Where nnU-Net finds its folders and our trainers; few processes, one thread each."""
    from calibseg.integrations.nnunet.trainers import FOLDER

    folders = {f"nnUNet_{name}": str(root / name) for name in ("raw", "preprocessed", "results")}
    few = {"nnUNet_n_proc_DA": "0", "nnUNet_def_n_proc": "1", "nnUNet_compile": "false"}
    threads = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "0"}
    return {**os.environ, **folders, **few, **threads, "nnUNet_extTrainer": str(FOLDER)}


def run(root: Path, command: str, *words: object, options: str = "", expect: int = 0, external: bool = True) -> str:
    """A command of nnU-Net or of calibseg; what it printed. external: whether our trainers can be found."""
    own = {"CALIBSEG_NNUNET": options} | ({} if external else {"nnUNet_extTrainer": ""})
    env = {**environment(root), **own} | (PLANNING if "process" in command else {})
    words = (BIN / command, *words)
    done = subprocess.run([*map(str, words)], env=env, capture_output=True, text=True, check=False, cwd=root)
    assert done.returncode == expect, f"{command} {words}: {done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return done.stdout + done.stderr


def _training(trainer: str, fold: int, configuration: str, *words: object) -> tuple[object, ...]:
    return ("nnUNetv2_train", 4, configuration, fold, "-tr", f"nnUNetTrainer{trainer}", "-device", "cpu", *words)


def train(root: Path, trainer: str, fold: int, *words: object, options: str, configuration: str = "3d_fullres",
          expect: int = 0) -> str:  # fmt: skip
    """Train and validate a fold; what was printed."""
    command, *rest = _training(trainer, fold, configuration, *words)
    return run(root, str(command), *rest, options=options, expect=expect)


def kill_training(root: Path, trainer: str, fold: int, options: str, epochs: int) -> Path:
    """Train until so many epochs are kept, then end the process without notice; the kept checkpoint."""
    from calibseg.integrations.nnunet.checkpoint import read_checkpoint

    command, *rest = _training(trainer, fold, "3d_fullres")
    path = model(root, trainer) / f"fold_{fold}" / "checkpoint_latest.pth"
    env = {**environment(root), "CALIBSEG_NNUNET": options}
    with (root / "killed.txt").open("w") as log:
        process = subprocess.Popen(
            [str(BIN / str(command)), *map(str, rest)], env=env, stdout=log, stderr=log, cwd=root
        )
        try:
            while process.poll() is None and not (path.is_file() and read_checkpoint(path)["current_epoch"] >= epochs):
                time.sleep(1)
        finally:
            process.kill()
            process.wait()
    assert process.returncode == -signal.SIGKILL, (root / "killed.txt").read_text()[-3000:]
    return path


def model(root: Path, trainer: str, configuration: str = "3d_fullres") -> Path:
    """The folder of what was trained."""
    return root / "results" / DATASET / f"nnUNetTrainer{trainer}__nnUNetPlans__{configuration}"


def make_study(root: Path) -> None:
    """Raw data of the hippocampus: 16 cases to train with, 4 to test."""
    raw = root / "raw" / DATASET
    for name in ("imagesTr", "labelsTr", "imagesTs", "labelsTs"):
        (raw / name).mkdir(parents=True)
    cases = sorted(
        path.name.removesuffix(".nii.gz") for path in (HIPPOCAMPUS / "labelsTr").glob("hippocampus_*.nii.gz")
    )
    for number, case in enumerate(cases[: TRAINING + TEST]):
        end = "Tr" if number < TRAINING else "Ts"
        shutil.copy(HIPPOCAMPUS / "imagesTr" / f"{case}.nii.gz", raw / f"images{end}" / f"{case}_0000.nii.gz")
        shutil.copy(HIPPOCAMPUS / "labelsTr" / f"{case}.nii.gz", raw / f"labels{end}" / f"{case}.nii.gz")
    labels = {"background": 0, "anterior": 1, "posterior": 2}
    facts = {"channel_names": {"0": "MRI"}, "labels": labels, "numTraining": TRAINING, "file_ending": ".nii.gz"}
    (raw / "dataset.json").write_text(json.dumps(facts))


def plan(root: Path, configuration: str = "3d_fullres") -> Path:
    """Plan and preprocess; batches and the network are then made small. Returns the file of the plans."""
    run(root, "nnUNetv2_plan_and_preprocess", "-d", 4, "-c", configuration, "-npfp", 1, "-np", 1,
        "--verify_dataset_integrity")  # fmt: skip
    path = root / "preprocessed" / DATASET / "nnUNetPlans.json"
    plans = json.loads(path.read_text())
    chosen = plans["configurations"][configuration]
    chosen["batch_size"] = 2
    network = chosen["architecture"]["arch_kwargs"]
    network["features_per_stage"] = [4, 8, 16, 32, 32, 32][: len(network["strides"])]
    path.write_text(json.dumps(plans))
    return path


def add_cascade(root: Path, folds: int = 2) -> None:
    """The two configurations that nnU-Net plans for large images only, and so few folds that they are soon trained.

    The entries are those of nnU-Net's planner: a 3d_lowres at twice the spacing, and a cascade on it.
    """
    path = root / "preprocessed" / DATASET / "nnUNetPlans.json"
    plans = json.loads(path.read_text())
    full = plans["configurations"]["3d_fullres"]
    low = json.loads(json.dumps(full)) | {
        "data_identifier": "nnUNetPlans_3d_lowres",
        "next_stage": "3d_cascade_fullres",
    }
    low["spacing"] = [2 * step for step in full["spacing"]]
    low["patch_size"] = [24, 32, 24]
    low["median_image_size_in_voxels"] = [size / 2 for size in full["median_image_size_in_voxels"]]
    plans["configurations"]["3d_lowres"] = low
    plans["configurations"]["3d_cascade_fullres"] = {"inherits_from": "3d_fullres", "previous_stage": "3d_lowres"}
    path.write_text(json.dumps(plans))
    run(root, "nnUNetv2_preprocess", "-d", 4, "-c", "3d_lowres", "-np", 1)
    cases = sorted(label.name.removesuffix(".nii.gz") for label in (root / "raw" / DATASET / "labelsTr").iterdir())
    parts = [cases[fold::folds] for fold in range(folds)]
    splits = [{"train": [case for case in cases if case not in part], "val": part} for part in parts]
    (path.parent / "splits_final.json").write_text(json.dumps(splits))
