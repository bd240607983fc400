"""Folders of over-confident predictions, as others store them, and the command that calibrates them."""

import json

import nibabel as nib
import numpy as np
from scipy.optimize import minimize_scalar
from typer.testing import CliRunner

from calibseg.cli import app
from calibseg.core.types import BadInput

SHAPE = (9, 11, 6)  # (i, j, k) as in the files
TURNED = np.array([[0, -1.25, 0, 3.0], [0, 0, 2.0, 1.0], [-0.75, 0, 0, 2.0], [0, 0, 0, 1.0]])
TRUE_T = 2.5


def softmax(logits):
    e = np.exp(logits - logits.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def make_case(seed, classes=3, shape=SHAPE):
    """Logits [i j k class] that are 2.5 times too sure, and the labels that were drawn from what they should be."""
    rng = np.random.default_rng(seed)
    honest = rng.normal(0, 1.5, (*shape, classes))
    p = softmax(honest)
    labels = (p.cumsum(-1) > rng.random((*shape, 1))).argmax(-1)
    return (honest * TRUE_T).astype(np.float32), labels.astype(np.uint8)


def save(array, path, affine=TURNED, codes=(2, 1)):
    path.parent.mkdir(parents=True, exist_ok=True)
    image = nib.Nifti1Image(array, affine)
    image.set_sform(affine, codes[0])
    image.set_qform(affine, codes[1])
    nib.save(image, path)


def write_nnunet(folder, case, logits, labels):
    folder.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(folder / f"{case}.npz", probabilities=softmax(logits).astype(np.float32).transpose(3, 2, 1, 0))
    (folder / "dataset.json").write_text('{"labels": {"background": 0, "organ": 1, "tumour": 2}}')


def write_probabilities(folder, case, logits, labels):
    save(softmax(logits).astype(np.float32), folder / f"{case}.nii.gz")


def write_logits(folder, case, logits, labels):
    save(logits, folder / f"{case}.nii.gz")


def write_classes(folder, case, logits, labels):
    p = softmax(logits).astype(np.float32)
    for number in range(p.shape[-1]):
        save(p[..., number], folder / f"{case}_class{number}.nii.gz")


FORMS = {
    "nnunet": (write_nnunet, "probabilities"),
    "nifti": (write_probabilities, "probabilities"),
    "logits": (write_logits, "logits"),
    "classes": (write_classes, "probabilities"),
}


def make_folders(root, form="nifti", fit=4, apply=2, classes=3):
    """val, val_labels, test, test_labels and what is in them, by case."""
    write, _ = FORMS[form]
    made = {}
    for part, number, first in (("val", fit, 0), ("test", apply, 100)):
        for seed in range(first, first + number):
            case = f"{part}_{seed:03d}"
            logits, labels = make_case(seed, classes)
            made[case] = logits, labels
            write(root / part, case, logits, labels)
            save(labels, root / f"{part}_labels" / f"{case}.nii.gz")
    return made


def words(root, *more, form="nifti", output="out"):
    kind = FORMS[form][1]
    told = ["calibrate", "--predictions", root / "val", "--labels", root / "val_labels", "--kind", kind]
    return [str(word) for word in (*told, "-o", root / output, *more)]


def run_cli(arguments):
    done = CliRunner().invoke(app, [str(word) for word in arguments])
    if done.exception is not None and not isinstance(done.exception, SystemExit | BadInput):
        raise done.exception
    return done


def best_temperature(logits, labels):
    """Independent of the package: the NLL of all voxels together, minimised over log T."""

    def nll(log_t):
        scaled = [one.astype(float) / np.exp(log_t) for one in logits]
        logs = [x - x.max(-1, keepdims=True) for x in scaled]
        logs = [x - np.log(np.exp(x).sum(-1, keepdims=True)) for x in logs]
        return -sum(
            np.take_along_axis(x, y[..., None].astype(int), -1).sum() for x, y in zip(logs, labels, strict=True)
        )

    return float(np.exp(minimize_scalar(nll, bounds=(-4, 4), method="bounded", options={"xatol": 1e-10}).x))


def what_is_there(folder):
    """Every file's content without the seconds."""
    found = {}
    for path in sorted(folder.rglob("*.json")):
        content = json.loads(path.read_text())
        content.pop("seconds", None)
        for row in content.get("table", []):
            row.pop("seconds")
        found[str(path.relative_to(folder))] = content
    return found
