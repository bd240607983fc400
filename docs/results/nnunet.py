"""Trains nnU-Net on the hippocampus with its own loss, NACL and CRaC, and writes the tables of nnunet.md.

.venv-nnunet/bin/python docs/results/nnunet.py TASK04 WORK   trains, calibrates and keeps score tables; what WORK holds
                                                            is not done again (make .venv-nnunet/installed comes first)
python docs/results/nnunet.py                               writes the tables from docs/results/nnunet
python docs/results/nnunet.py --check                       only says whether they are up to date (exit code 1 if not)

Every fourth case is tested on, and never trained on. Calibrators are fitted on the 39 validation cases of fold 0; on
these cases they are judged by cross-fitting.
"""

import gzip
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pandas as pd

from calibseg.analysis import table
from calibseg.analysis.paired import Difference, difference
from calibseg.benchmark.kept import reduced
from calibseg.core import files

HERE = Path(__file__).parent
PAGE, KEPT = HERE / "nnunet.md", HERE / "nnunet"
TRAINERS = {"nnU-Net's own": "Short", "NACL": "ShortNACL", "CRaC": "ShortCRaC"}
CALIBRATORS = ("none", "temperature", "region_temperature")
DATASET = "Dataset004_Hippocampus"
METRICS = {"dsc", "ece", "signed_gap", "nll", "brier"}
COLUMNS = ("dsc", "signed_gap@predicted", "ece@predicted", "ece@truth", "ece@all", "nll@all")
FEATURES, BATCH = [16, 32, 64, 128], 16  # planned: twice the width, batches of 274


def train_all(data: Path, work: Path) -> None:
    """Raw data, plans, three trainings one after the other, predictions, calibration, kept tables."""
    if not (work / "raw").is_dir():
        make_study(data, work)
        run(work, "nnUNetv2_plan_and_preprocess -d 4 -c 2d -npfp 1 -np 1", nnUNet_n_proc_DA="1")
        path = work / "preprocessed" / DATASET / "nnUNetPlans.json"
        plans = json.loads(path.read_text())
        chosen = plans["configurations"]["2d"]
        chosen["batch_size"] = BATCH
        chosen["architecture"]["arch_kwargs"]["features_per_stage"] = FEATURES
        path.write_text(json.dumps(plans, indent=1))
    for trainer in TRAINERS.values():
        name = f"nnUNetTrainer{trainer}"
        model = work / "results" / DATASET / f"{name}__nnUNetPlans__2d"
        fold, out, calibrated = model / "fold_0", work / "out" / trainer, work / "calibrated" / trainer
        if not (fold / "checkpoint_final.pth").is_file():
            again = "--c" if (fold / "checkpoint_latest.pth").is_file() else ""
            run(work, f"nnUNetv2_train 4 2d 0 -tr {name} -device cpu --npz {again}")
        elif not (fold / "validation/summary.json").is_file():
            run(work, f"nnUNetv2_train 4 2d 0 -tr {name} -device cpu --npz --val")
        if not (out / "predict_from_raw_data_args.json").is_file() or len(list(out.glob("*.npz"))) < 65:
            where = f"-i raw/{DATASET}/imagesTs -o {out} -d 4 -c 2d -f 0 -tr {name} --save_probabilities"
            run(work, f"nnUNetv2_predict {where} -device cpu -npp 1 -nps 1")
        methods = f"--method {','.join(CALIBRATORS[1:])} --apply {out} --apply-labels raw/{DATASET}/labelsTs"
        run(work, f"calibseg nnunet calibrate {model} {methods} -o {calibrated} --workers 1")
        truth = f"--labels preprocessed/{DATASET}/gt_segmentations"
        run(work, f"calibseg score --predictions {fold}/validation {truth} -o {calibrated}/validation.csv --workers 1")
        keep(trainer, calibrated)


def make_study(data: Path, work: Path) -> None:
    """Raw data as nnU-Net wants them, every fourth case for the test."""
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


def run(work: Path, words: str, **own: str) -> None:
    folders = {f"nnUNet_{name}": str(work / name) for name in ("raw", "preprocessed", "results")}
    few = {"nnUNet_n_proc_DA": "0", "nnUNet_def_n_proc": "1", "nnUNet_compile": "false", "OMP_NUM_THREADS": "1"}
    program, *rest = words.split()
    environment = {**os.environ, **folders, **few, "nnUNet_extTrainer": str(KEPT), **own}
    subprocess.run([str(Path(sys.executable).parent / program), *rest], env=environment, cwd=work, check=True)


def keep(trainer: str, calibrated: Path) -> None:
    """The scores of a training's test and validation cases, before and after calibration, in one small file."""
    tables = {name: table.read(calibrated / name / "scores.csv") for name in CALIBRATORS}
    parts = [reduced(one.rows, METRICS).assign(calibrator=name, subset="test") for name, one in tables.items()]
    before = table.read(calibrated / "validation.csv")
    validation = reduced(before.rows, METRICS).assign(calibrator="none", subset="validation")
    parts.append(validation)
    for name in CALIBRATORS[1:]:
        found = files.read_json(calibrated / name / "cross-fitted.json", "cross-fitted")["cases"]
        pooled = table.plain(validation[validation["class"] == "all"])
        keys = pooled["metric"] + "@" + pooled["voxels"]
        values = [found[case].get(key) for case, key in zip(pooled["case"], keys, strict=True)]
        made = pooled.assign(calibrator=name, value=values)
        parts.append(made[made["value"].notna()])
    rows = table.as_text(table.concat([one.assign(loss=trainer) for one in parts]))
    rows = rows.assign(value=[f"{float(value):.6g}" for value in rows["value"]])
    path = KEPT / f"{trainer}.csv.gz"
    path.write_bytes(gzip.compress(rows.to_csv(index=False).encode(), mtime=0))
    meta = {"format": table.FORMAT, "rules": tables["none"].rules}
    table.meta_path(path).write_text(json.dumps(meta, indent=1) + "\n", encoding="utf-8")


def values() -> pd.DataFrame:
    """One row per subset, trainer, calibrator and case."""
    parts = []
    for title, trainer in TRAINERS.items():
        rows = table.plain(table.read(KEPT / f"{trainer}.csv.gz").rows)
        parts.append(rows.assign(method=title + " + " + rows["calibrator"]))
    rows = pd.concat(parts)
    rows = rows.assign(name=rows["metric"] + ("@" + rows["voxels"]).where(rows["voxels"] != "", ""), training="0")
    keys = ["subset", "method", "training", "patient", "case"]
    return rows.groupby([*keys, "name"], sort=False)["value"].mean().unstack("name").reset_index()


def tables() -> dict[str, str]:
    """The tables of the page by their name."""
    found, against = values(), f"{next(iter(TRAINERS))} + none"
    made = {}
    for subset in ("test", "validation"):
        here = found[found["subset"] == subset]
        columns = [name for name in COLUMNS if here[name].notna().any()]
        means, gaps = [["trainer", "calibrator", *columns]], [["trainer", "calibrator", *columns]]
        for title in TRAINERS:
            for calibrator in CALIBRATORS:
                method = f"{title} + {calibrator}"
                shown = [name for name in columns if here.loc[here["method"] == method, name].notna().any()]
                own = difference(here, method, None, shown)
                means.append([title, calibrator, *(text(own[name]) if name in own else "" for name in columns)])
                if method != against:
                    gap = difference(here, method, against, shown)
                    gaps.append([title, calibrator, *(text(gap[n], sign=True) if n in gap else "" for n in columns)])
        made |= {subset: _lines(means), f"{subset} differences": _lines(gaps)}
    return made


def text(one: Difference, sign: bool = False) -> str:
    """A mean or a difference with its interval; a difference in round brackets where the interval holds 0."""
    form = "+.3f" if sign else ".3f"
    said = f"{one.mean:{form}} [{one.low:{form}}, {one.high:{form}}]"
    return said if one.is_clear or not sign else f"({said})"


def _lines(rows: list[list[str]]) -> str:
    rows = [rows[0], ["---"] * len(rows[0]), *rows[1:]]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def page() -> str:
    """The page with its tables as they are now; the words between them are kept."""
    content = PAGE.read_text(encoding="utf-8")
    for name, lines in tables().items():
        begin, end = f"<!-- {name}: begin (written by docs/results/nnunet.py) -->", f"<!-- {name}: end -->"
        before, rest = content.split(begin)
        content = f"{before}{begin}\n{lines}\n{end}{rest.split(end)[1]}"
    return content


def main(words: list[str]) -> int:
    if words == ["--check"]:
        return int(PAGE.read_text(encoding="utf-8") != page())
    if words:
        train_all(*(Path(word).resolve() for word in words))
        return 0
    PAGE.write_text(page(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
