"""A small made study for the tests of the report: score tables with known numbers, and run folders around them."""

import json
import re
from pathlib import Path

import numpy as np
import pandas as pd

from calibseg.analysis import table
from calibseg.calibrators import Temperature
from calibseg.core import files
from calibseg.core.types import Case, Split
from calibseg.data import prepared
from calibseg.io.stored_logits import write_logits
from calibseg.runs import folders
from calibseg.runs.info import RunInfo, write_run
from calibseg.stages.score.rows import BIN_COLUMNS

CLASSES = ["background", "organ", "core"]
CASES = ["case_0", "case_1", "case_2", "case_3"]
SHAPE = (6, 10, 12)
BETTER = ("dsc", "soft_dice_confidence")
UNITS = {"nll": "nat", "hd95": "mm"}


def scores(
    path: Path,
    loss: str = "ce",
    ece: float = 0.10,
    dsc: float = 0.80,
    nll: float = 0.30,
    *,
    cases: list[str] = CASES,
    dataset: str = "toy",
    calibrator: str = "",
    variant: str = "",
    subset: str = "test",
    seed: str = "0",
    undefined: str = "",
    bins: int = 5,
) -> Path:
    """A score table in which every case's value is the given mean, plus or minus the same amount in turn."""
    experiment = {"dataset": dataset, "network": "unet", "loss": loss, "calibrator": calibrator, "seed": seed,
                  "variant": variant, "subset": subset}  # fmt: skip
    rows, diagram = [], []
    for number, case in enumerate(cases):
        step = 0.01 if number % 2 else -0.01

        def add(metric: str, value: float, voxels: str = "", name: str = "all", case: str = case) -> None:
            who = {**experiment, "patient": case, "case": case, "scope": "case"}
            kind = {"metric": metric, "unit": UNITS.get(metric, ""), "higher_is_better": metric in BETTER}
            rows.append({**who, **kind, "class": name, "voxels": voxels, "value": value})

        for rule, factor in (("truth", 0.5), ("predicted", 1.0), ("all", 0.1)):
            add("ece", factor * (ece + step), rule)
            add("overconfidence", factor * (ece + step) * 0.75, rule)
            add("underconfidence", factor * (ece + step) * 0.25, rule)
            add("signed_gap", factor * (ece + step) * 0.5, rule)
        add("cece", ece, "truth")
        add("nll", nll + step, "all")
        add("brier", nll / 2 + step, "all")
        for band, value in (("-inf to -1 mm", 0.2), ("-1 to 1 mm", 0.4), ("1 to inf mm", float("nan"))):
            add("ece", value * ece, band)
        for name in CLASSES[1:]:
            add("soft_dice_confidence", 0.5 + 0.1 * number, name=name)
            add("dsc", dsc + step, name=name)
            missing = case == undefined and name == "core"
            add("hd95", float("nan") if missing else 10 * (1 - dsc) + step, name=name)
        diagram += _diagram(experiment | {"patient": case, "case": case, "scope": "case"}, ece, 500, bins)
    diagram += _diagram(experiment | {"patient": "", "case": "", "scope": "pooled"}, ece, 500 * len(cases), bins)
    dataset_rule = {"classes": CLASSES, "regions": {}, "ignore_label": None}
    rules = {"bins": bins, "activation": "softmax", "units": "mm", "datasets": {dataset: dataset_rule}}
    notes = {"versions": {"calibseg": "0"}, "cases": len(cases), "patients": len(cases), "left_out": []}
    found = table.ScoreTable(table.frame(rows), rules, notes, str(path))
    table.write(found, path, pd.DataFrame(diagram, columns=list(BIN_COLUMNS)))
    return path


def _diagram(whose: dict[str, str], ece: float, count: int, bins: int) -> list[dict]:
    found = []
    for rule in ("truth", "predicted", "all"):
        for number in range(bins):
            low, high = number / bins, (number + 1) / bins
            middle = (low + high) / 2
            values = {"count": count, "confidence": middle, "accuracy": max(0.0, middle - ece)}
            found.append({**whose, "class": "all", "voxels": rule, "bin": number, "low": low, "high": high, **values})
    return found


def run(folder: Path, loss: str = "ce", seed: int = 0, work: Path | None = None, **numbers: float) -> Path:
    """A run folder as the stages leave it: record, log, two stored predictions, test and validation scores."""
    work = work or folder.parent.parent / "work" / "toy"
    recipe = {
        "data": {"dataset": "toy", "work": str(work)},
        "network": {"name": "unet"},
        "loss": {"name": loss, **numbers},
        "train": {"select": "miou"},
        "seed": seed,
    }
    split = Split(("t0", "t1"), ("v0", "v1"), tuple(CASES), 0)
    info = RunInfo(
        folder.name, recipe, tuple(CLASSES), ("T1",), split, status="finished", epochs_done=3, best_epoch=2,
        wall_time_s=90.0, peak_memory_mib={"process": 512.0},
        provenance={"device": "cpu", "processes": 1, "versions": {"torch": "2"}},
    )  # fmt: skip
    write_run(folders.RunFolder(folder), info)
    files.write_tensors(folder / "weights.safetensors", "weights", {"a": np.zeros((3, 4), np.float32)}, {})
    log = {"epoch": [1, 2, 3], "train_ce": [0.9, 0.5, 0.4], "val_dsc": [0.5, 0.8, 0.79], "val_nll": [0.4, 0.3, 0.31]}
    if loss == "crac":
        log |= {"lambda_inner_0": [0.1, 0.2, 0.3], "rho_outer_1": [0.1, 0.1, 1.0]}
        log |= {"interior_confidence": [0.6, 0.7, 0.8], "interior_accuracy": [0.8, 0.9, 0.9]}
    pd.DataFrame(log).to_csv(folder / "log.csv", index=False)
    for number, case in enumerate(CASES[:2]):
        predict(folder, case, number)
    return folder


def predict(folder: Path, case: str, number: int = 0) -> None:
    """A stored prediction: a block of organ with a core, seen one voxel too far to the right; doubtful at `number`."""
    labels = np.zeros(SHAPE, np.uint8)
    labels[1:5, 2:8, 2:8], labels[2:4, 4:6, 4:6] = 1, 2
    logits = 4.0 * np.eye(3, dtype=np.float32)[np.roll(labels, 1, axis=2)].transpose(3, 0, 1, 2)
    logits[:, 2] *= 0.5 + 0.5 * number
    about = {"id": case, "patient": case, "classes": CLASSES, "regions": {}, "spacing_mm": [2.0, 1.0, 1.0], "raters": 1}
    path = folders.RunFolder(folder).logits / "test" / f"{case}.npz"
    write_logits(path, [logits.transpose(1, 0, 2, 3)], logits.shape, 0, labels[None], about)


def calibrate(folder: Path, temperature: float) -> None:
    """A temperature that was fitted to the run; its value is set."""
    fitted = Temperature().fit(4 * np.eye(3, dtype=np.float32).reshape(3, 1, 3), np.array([[0, 1, 2]]), kind="logits")
    fitted.temperature = np.array([temperature])
    fitted.save(folders.RunFolder(folder).calibrators / "temperature")


def prepare_images(work: Path) -> None:
    """The images of the cases: a ramp, so that a picture's place can be read off its grey."""
    for case in CASES[:2]:
        image = np.broadcast_to(np.arange(SHAPE[2], dtype=np.float32), SHAPE)[None].copy()
        header = {"slice_axis": "axial"}
        prepared.write_case(work, Case(case, case, image, ("T1",), None, (2.0, 1.0, 1.0), tuple(CLASSES), np.eye(4),
                                    header=header), "key")  # fmt: skip
    prepared.write_index(work, {"dataset": "toy", "cases": CASES[:2]})


def study(folder: Path) -> Path:
    """Three runs with test and validation scores, with a fitted calibrator and with noise; returns the folder."""
    prepare_images(folder / "work" / "toy")
    numbers = {"ce": (0.20, 0.800, 0.30), "nacl": (0.10, 0.798, 0.25), "crac": (0.05, 0.700, 0.20)}
    for loss, (ece, dsc, nll) in numbers.items():
        where = run(folder / "runs" / f"{loss}-s0", loss)
        scores(where / "scores-test.csv", loss, ece, dsc, nll)
        scores(where / "scores-validation.csv", loss, ece, dsc, nll, subset="validation", cases=["v0", "v1"])
        scores(where / "scores-test-noise0.1-seed0.csv", loss, ece * 2, dsc / 2, nll, variant="noise0.1-seed0")
        scores(where / "scores-test+temperature.csv", loss, ece / 2, dsc, nll * 0.9, calibrator="temperature")
        calibrate(where, 2.0)
    return folder


def data_of(text: str) -> dict:
    """The data that a page holds."""
    data = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.S)
    assert data
    return json.loads(data[1])
