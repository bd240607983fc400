"""A small world of good files: what a study, a run and tables look like before something is wrong with them.

raw/            a study in nnU-Net's layout          work/      the phantom, prepared and split
p/, l/, l2/     predictions, labels of two raters    run/       trained, predicted, calibrated, scored
model/, t/      a model of nnU-Net and what it says of another case
scores.csv      their scores                         scans/     maps of scan.nii.gz
rules.json      decisions about the run's cases      rows/      a row of a leaderboard
scan.nii.gz, recipe.toml, grid.toml
"""

import contextlib
import json
from pathlib import Path

import numpy as np

SHAPE = (9, 8, 7)  # of a case, as NIfTI has its axes
RECIPE = """
[data]
dataset = "phantom"
work = "work"
options = { cases = 8, size = [4, 16, 16] }
[network]
name = "unet"
width = 4
depth = 2
[loss]
name = "ce"
[train]
epochs = 1
batch_size = 8
"""


def make_good_files(folder: Path) -> None:
    """Make the world in `folder` by the commands themselves, which must succeed."""
    from calibseg.cli.self_test import check_good

    folder.mkdir()
    with contextlib.chdir(folder):
        Path("recipe.toml").write_text(RECIPE)
        Path("grid.toml").write_text(RECIPE.replace('[loss]\nname = "ce"', '[axes]\nloss = ["ce", "ls"]'))
        _predictions()
        _study()
        _model()
        _row()
        phantom = ["prepare", "--dataset", "phantom", "--option", "cases=8", "--option", "size=[4,16,16]", "-o", "work"]
        check_good(phantom)
        check_good(["split", "work", "--sizes", "4", "2", "2"])
        check_good(["train", "recipe.toml", "-o", "run", "-q"])
        check_good(["predict", "run", "--subset", "validation"])
        check_good(["predict", "run", "--subset", "test"])
        check_good(["calibrate", "run", "--method", "temperature"])
        check_good(["predict", "run", "--input", "scan.nii.gz", "-o", "scans"])
        check_good(["score", "run", "--metrics", "dsc,ece"])
        check_good(["decide", "fit", "run", "--risk", "fnr=0.6", "--volume", "0.5", "-o", "rules.json"])
        check_good(["score", "--predictions", "p", "--labels", "l", "--metrics", "dsc,ece", "-o", "scores.csv"])


def _row() -> None:
    from calibseg.analysis import leaderboard

    to = leaderboard.benchmark("hippocampus")
    values: leaderboard.Values = {
        key: {of: [0.5] * len(to.cases) for of in told["classes"]} for key, told in to.metrics.items()
    }
    leaderboard.add(leaderboard.Entry("a method", "", 1, "0", values), to, Path("rows"))


def random_case(seed: int, classes: int = 3) -> tuple[np.ndarray, np.ndarray]:
    """Probabilities [k x y z] and labels [x y z]."""
    rng = np.random.default_rng(seed)
    labels = np.zeros(SHAPE, np.uint8)
    labels[2:6, 2:6, 2:5] = 1
    labels[5:8, 3:7, 3:6] = 2
    logits = np.stack([labels == k for k in range(classes)]) * 2.0 + rng.normal(size=(classes, *SHAPE))
    p = np.exp(logits)
    return (p / p.sum(0)).astype(np.float32), labels


def save_probabilities(path: Path, p: np.ndarray) -> None:
    """As nnU-Net stores them: z y x."""
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(path, probabilities=p.transpose(0, *range(p.ndim - 1, 0, -1)))


def save_nifti(path: Path, array: np.ndarray, affine: np.ndarray | None = None) -> None:
    import nibabel as nib

    path.parent.mkdir(parents=True, exist_ok=True)
    nib.save(nib.Nifti1Image(array, np.eye(4) if affine is None else affine), path)


def _predictions() -> None:
    for number in range(3):
        p, labels = random_case(number)
        save_probabilities(Path("p") / f"case{number}.npz", p)
        save_nifti(Path("l") / f"case{number}.nii.gz", labels)
        save_nifti(Path("l2") / f"case{number}.nii.gz", np.roll(labels, 1, 0))


def _model() -> None:
    """The folds of nnU-Net's cross-validation, and a prediction of a fourth case."""
    facts = {"channel_names": {"0": "MR"}, "labels": {"background": 0, "a": 1, "b": 2}, "file_ending": ".nii.gz"}
    for folder in ("model", "t"):
        Path(folder).mkdir()
        Path(folder, "dataset.json").write_text(json.dumps(facts))
        Path(folder, "plans.json").write_text(json.dumps({"dataset_name": "Dataset001_A", "plans_name": "nnUNetPlans"}))
    for number in range(4):
        p, _ = random_case(number)
        folder = Path("t") if number == 3 else Path(f"model/fold_{number % 2}/validation")
        save_probabilities(folder / f"case{number}.npz", p)
        save_nifti(folder / f"case{number}.nii.gz", p.argmax(0).astype(np.uint8))
        (folder / f"case{number}.pkl").write_bytes(b"never opened")
    Path("model/fold_0/checkpoint_final.pth").write_bytes(b"no network")


def _study() -> None:
    rng = np.random.default_rng(0)
    for number in range(3):
        _, labels = random_case(number)
        image = (labels * 100 + rng.normal(0, 10, SHAPE)).astype(np.float32)
        save_nifti(Path("raw/imagesTr") / f"case{number}_0000.nii.gz", image)
        save_nifti(Path("raw/labelsTr") / f"case{number}.nii.gz", labels)
    save_nifti(Path("scan.nii.gz"), rng.random((16, 16, 4), np.float32))
    facts = {
        "channel_names": {"0": "MR"},
        "labels": {"background": 0, "a": 1, "b": 2},
        "numTraining": 3,
        "file_ending": ".nii.gz",
    }
    Path("raw/dataset.json").write_text(json.dumps(facts))
