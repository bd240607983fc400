"""Trains nnU-Net on the hippocampus with its own loss, NACL and CRaC, and writes the tables of nnunet.md.

.venv-nnunet/bin/python docs/results/nnunet.py TASK04 WORK    trains, calibrates and keeps score tables; what WORK holds
                                                              is not done again (make .venv-nnunet/installed first)
python docs/results/nnunet.py                                 writes the tables from docs/results/nnunet
python docs/results/nnunet.py --check                         only says whether they are up to date (exit code 1 if not)

Every fourth case is tested on, and never trained on. Calibrators are fitted on the 39 validation cases of fold 0. A
trainer's name behind WORK: this one only.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pandas as pd
import result_pages as pages

from calibseg.analysis import table
from calibseg.benchmark.kept import kept_path, reduced, write_reduced

HERE = Path(__file__).parent
PAGE, KEPT = HERE / "nnunet.md", HERE / "nnunet"
TRAINERS = {"Short": "nnU-Net's own", "ShortNACL": "NACL", "ShortCRaC": "CRaC"}
CALIBRATORS = ("none", "temperature", "region_temperature")
DATASET = "Dataset004_Hippocampus"
METRICS = {"dsc", "ece", "cece", "signed_gap", "nll"}
COLUMNS = ("dsc", "signed_gap@predicted", "ece@predicted", "ece@truth", "cece@truth", "ece@all", "nll@all")
AGAINST = "Short+none"
FEATURES, BATCH = [8, 16, 32, 64], 2  # planned: four times the width, batches of 9


def train(data: Path, work: Path, trainers: list[str]) -> None:
    """Raw data, plans, then each trainer: training, predictions, calibration, kept tables."""
    if not (work / "raw").is_dir():
        make_study(data, work)
    for trainer in trainers:
        name = f"nnUNetTrainer{trainer}"
        model = work / "results" / DATASET / f"{name}__nnUNetPlans__3d_fullres"
        fold, out, calibrated = model / "fold_0", work / "out" / trainer, work / "calibrated" / trainer
        if not (fold / "checkpoint_final.pth").is_file():
            again = "--c" if (fold / "checkpoint_latest.pth").is_file() else ""
            run(work, f"nnUNetv2_train 4 3d_fullres 0 -tr {name} -device cpu --npz {again}")
        elif not (fold / "validation/summary.json").is_file():
            run(work, f"nnUNetv2_train 4 3d_fullres 0 -tr {name} -device cpu --npz --val")
        scans = work / "raw" / DATASET / "imagesTs"
        if len(list(out.glob("*.npz"))) < len(list(scans.iterdir())):
            where = f"-i {scans} -o {out} -d 4 -c 3d_fullres -f 0 -tr {name} --save_probabilities"
            run(work, f"nnUNetv2_predict {where} -device cpu -npp 1 -nps 1")
        methods = f"--method {','.join(CALIBRATORS[1:])} --apply {out} --apply-labels raw/{DATASET}/labelsTs"
        run(work, f"calibseg nnunet calibrate {model} {methods} -o {calibrated} --workers 1")
        keep(trainer, calibrated)


def make_study(data: Path, work: Path) -> None:
    """Raw data as nnU-Net wants them, every fourth case for the test; its plans, with a small network."""
    raw = work / "raw" / DATASET
    cases = sorted(path.name.removesuffix(".nii.gz") for path in (data / "labelsTr").glob("hippocampus_*.nii.gz"))
    for number, case in enumerate(cases):
        end = "Ts" if number % 4 == 3 else "Tr"
        for folder, name in ((f"images{end}", f"{case}_0000.nii.gz"), (f"labels{end}", f"{case}.nii.gz")):
            (raw / folder).mkdir(parents=True, exist_ok=True)
            shutil.copy(data / folder.replace(end, "Tr") / f"{case}.nii.gz", raw / folder / name)
    labels = {"background": 0, "anterior": 1, "posterior": 2}
    number = len(list((raw / "labelsTr").iterdir()))
    facts = {"channel_names": {"0": "MRI"}, "labels": labels, "numTraining": number, "file_ending": ".nii.gz"}
    (raw / "dataset.json").write_text(json.dumps(facts))
    run(work, "nnUNetv2_plan_and_preprocess -d 4 -c 3d_fullres -npfp 1 -np 1", nnUNet_n_proc_DA="1")
    path = work / "preprocessed" / DATASET / "nnUNetPlans.json"
    plans = json.loads(path.read_text())
    chosen = plans["configurations"]["3d_fullres"]
    chosen["batch_size"] = BATCH
    chosen["architecture"]["arch_kwargs"]["features_per_stage"] = FEATURES
    path.write_text(json.dumps(plans, indent=1))


def run(work: Path, words: str, **own: str) -> None:
    folders = {f"nnUNet_{name}": str(work / name) for name in ("raw", "preprocessed", "results")}
    few = {"nnUNet_n_proc_DA": "0", "nnUNet_def_n_proc": "1", "nnUNet_compile": "false", "OMP_NUM_THREADS": "1"}
    program, *rest = words.split()
    environment = {**os.environ, **folders, **few, "nnUNet_extTrainer": str(KEPT), **own}
    subprocess.run([str(Path(sys.executable).parent / program), *rest], env=environment, cwd=work, check=True)


def keep(trainer: str, calibrated: Path) -> None:
    """The scores of a training's test cases, before and after calibration, in one small file."""
    scores = {name: table.read(calibrated / name / "scores.csv") for name in CALIBRATORS}
    parts = [reduced(one.rows, METRICS).assign(calibrator=name, loss=trainer) for name, one in scores.items()]
    write_reduced(kept_path(KEPT, trainer), parts, {"rules": scores["none"].rules})


def tables() -> dict[str, str]:
    """The tables of the page by their name."""
    rows = pd.concat([pages.with_names(table.read(kept_path(KEPT, trainer)).rows) for trainer in TRAINERS])
    rows = rows.assign(method=rows["loss"] + "+" + rows["calibrator"], training="0")
    values = pages.by_case(rows, ["method", "training", "patient", "case"])
    methods = {f"{key}+{name}": [title, name] for key, title in TRAINERS.items() for name in CALIBRATORS}
    means = pages.comparison(values, methods, COLUMNS)
    del methods[AGAINST]
    differences = pages.comparison(values, methods, COLUMNS, AGAINST)
    head = ["loss", "calibrator", "trainings", *COLUMNS]
    return {"means": pages.markdown([head, *means]), "differences": pages.markdown([head, *differences])}


def main(words: list[str]) -> int:
    if words and words != ["--check"]:
        data, work, *trainers = words
        train(Path(data).resolve(), Path(work).resolve(), trainers or list(TRAINERS))
        return 0
    return pages.write_tables(PAGE, tables(), check=words == ["--check"])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
