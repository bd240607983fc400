"""A study in nnU-Net's three folders, planned and preprocessed by nnU-Net itself, small enough for a CPU."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

DATA = Path(os.environ.get("CALIBSEG_DATA", Path(__file__).parents[3] / "shared" / "data")) / "Task04_Hippocampus"
DATASET = "Dataset004_Hippocampus"
TRAINING, TEST = 16, 4
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
    program = Path(sys.executable).parent / command
    own = {"CALIBSEG_NNUNET": options} | ({} if external else {"nnUNet_extTrainer": ""})
    done = subprocess.run(
        [str(program), *map(str, words)],
        env={**environment(root), **own} | (PLANNING if "plan" in command else {}),
        capture_output=True,
        text=True,
        check=False,
        cwd=root,
    )
    assert done.returncode == expect, f"{command} {words}: {done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return done.stdout + done.stderr


def make_study(root: Path) -> None:
    """Raw data of the hippocampus: 16 cases to train with, 4 to test."""
    raw = root / "raw" / DATASET
    for name in ("imagesTr", "labelsTr", "imagesTs", "labelsTs"):
        (raw / name).mkdir(parents=True)
    cases = sorted(path.name.removesuffix(".nii.gz") for path in (DATA / "labelsTr").glob("hippocampus_*.nii.gz"))
    for number, case in enumerate(cases[: TRAINING + TEST]):
        end = "Tr" if number < TRAINING else "Ts"
        shutil.copy(DATA / "imagesTr" / f"{case}.nii.gz", raw / f"images{end}" / f"{case}_0000.nii.gz")
        shutil.copy(DATA / "labelsTr" / f"{case}.nii.gz", raw / f"labels{end}" / f"{case}.nii.gz")
    labels = {"background": 0, "anterior": 1, "posterior": 2}
    facts = {"channel_names": {"0": "MRI"}, "labels": labels, "numTraining": TRAINING, "file_ending": ".nii.gz"}
    (raw / "dataset.json").write_text(json.dumps(facts))


def plan(root: Path, configuration: str = "3d_fullres") -> Path:
    """Plan and preprocess; batches and the network are then made small. Returns the file of the plans."""
    run(
        root,
        "nnUNetv2_plan_and_preprocess",
        "-d",
        4,
        "-c",
        configuration,
        "-npfp",
        1,
        "-np",
        1,
        "--verify_dataset_integrity",
    )
    path = root / "preprocessed" / DATASET / "nnUNetPlans.json"
    plans = json.loads(path.read_text())
    chosen = plans["configurations"][configuration]
    chosen["batch_size"] = 2
    network = chosen["architecture"]["arch_kwargs"]
    network["features_per_stage"] = [4, 8, 16, 32, 32, 32][: len(network["strides"])]
    path.write_text(json.dumps(plans))
    return path
