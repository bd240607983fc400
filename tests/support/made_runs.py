"""Run folders made without training: known logits, labels, images and logs, for tests of figures and reports."""

from pathlib import Path

import numpy as np

from calibseg.core.types import Case, Split
from calibseg.data import prepared
from calibseg.io.stored_logits import write_logits
from calibseg.runs import folders
from calibseg.runs.info import RunInfo, write_run

CLASSES = ("background", "left", "right")
SPACE = (4, 10, 12)  # z, y, x
CASES = ("case_a", "case_b", "case_c")


def make_labels(seed: int) -> np.ndarray:
    """[z y x]: two boxes, whose place depends on the seed."""
    labels = np.zeros(SPACE, np.uint8)
    shift = seed % 3
    labels[:, 2 + shift : 7 + shift, 1:5] = 1
    labels[1:, 3:8, 6 + shift : 10] = 2
    return labels


def make_logits(labels: np.ndarray, sharpness: float, seed: int) -> np.ndarray:
    """[k z y x]: the truth raised by `sharpness`, plus noise of unit size."""
    logits = np.random.default_rng(seed).normal(size=(len(CLASSES), *labels.shape))
    for k in range(len(CLASSES)):
        logits[k] += sharpness * (labels == k)
    return logits.astype(np.float32)


def make_work(folder: Path) -> Path:
    """Prepared cases, their images made of their labels."""
    for number, name in enumerate(CASES):
        labels = make_labels(number)
        image = (labels / 2 + np.random.default_rng(number).normal(scale=0.1, size=SPACE)).astype(np.float32)
        case = Case(
            id=name,
            patient=name,
            image=image[None],
            channels=("T1",),
            labels=labels[None],
            spacing_mm=(2.0, 1.0, 1.0),
            classes=CLASSES,
            affine=np.eye(4),
            header={"slice_axis": "axial"},
        )
        prepared.write_case(folder, case, "made")
    prepared.write_index(folder, {"dataset": "made"})
    return folder


def make_run(
    folder: Path,
    work: Path,
    loss: str,
    sharpness: float,
    options: dict | None = None,
    parts: dict[str, float] | None = None,
    seed: int = 0,
) -> Path:
    """A run with logits: parts (test, test-noise0.05-seed0) and how much of the sharpness is left in each."""
    recipe = {
        "data": {"dataset": "made", "work": str(work)},
        "network": {"name": "unet"},
        "loss": {"name": loss, **(options or {})},
        "seed": seed,
    }
    cost = {"epochs_done": 3, "wall_time_s": 360.0, "peak_memory_mib": {"process": 512.0}}
    split = Split((), (), tuple(CASES), 0)
    info = RunInfo(folder.name, recipe, tuple(CLASSES), ("T1",), split, status="finished", **cost)
    write_run(folders.RunFolder(folder), info)
    for part, left in (parts or {"test": 1.0}).items():
        for number, name in enumerate(CASES):
            labels = make_labels(number)
            logits = make_logits(labels, left * sharpness, 10 * number + 1)
            told = {
                "id": name,
                "patient": name,
                "classes": CLASSES,
                "regions": {},
                "spacing_mm": (2.0, 1.0, 1.0),
                "affine": np.eye(4).tolist(),
                "raters": 1,
            }
            path = folders.RunFolder(folder).logits / part / f"{name}.npz"
            write_logits(path, [logits.swapaxes(0, 1)], (len(CLASSES), *SPACE), 0, labels[None], told)
    log = ["epoch,train_ce,train_penalty,val_dsc,val_nll,val_ece_predicted,val_ece_all,train_s,best_epoch"]
    log += [f"{e},{1 / e},{0.5 / e},{1 - 0.5 / e},{0.6 / e},{0.2 / e},{0.1 / e},9.0,2" for e in (1, 2, 3)]
    if loss == "crac":
        columns = [f"{m}_{r}_{k}" for m in ("lambda", "rho") for r in ("inner", "outer") for k in range(len(CLASSES))]
        log[0] += "," + ",".join([*columns, "interior_confidence", "interior_accuracy"])
        for e in (1, 2, 3):
            values = [10.0 ** (e - 3 - k) if c.startswith("lambda") else 0.1 * e for k, c in enumerate(columns)]
            log[e] += "," + ",".join(map(str, [*values, 0.8 + 0.05 * e, 0.97]))
    folders.RunFolder(folder).log.write_text("\n".join(log) + "\n", encoding="utf-8")
    return folder
