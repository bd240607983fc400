"""Calibrate what nnU-Net predicted (nnUNetv2_predict --save_probabilities) and report it, without training anything.

python nnunet_folder.py VALIDATION_PREDICTIONS VALIDATION_LABELS TEST_PREDICTIONS TEST_LABELS OUTPUT

Validation cases fit the calibrators, test cases show what they are worth; no patient may be in both. Without arguments
the folders are made up: networks three times too sure of themselves, so that the temperature should be found to be 3.
"""

import sys
import tempfile
from pathlib import Path

import nibabel as nib
import numpy as np

from calibseg.api import calibrate
from calibseg.calibrators.fitted.files import load_calibrator
from calibseg.report.html import report


def made_up(folder: Path) -> list[Path]:
    """Two folders as nnU-Net leaves them, and their labels, drawn from the true probabilities."""
    random = np.random.default_rng(0)
    for part in ("validation", "test"):
        predictions, labels = folder / part, folder / f"{part}_labels"
        predictions.mkdir()
        labels.mkdir()
        for case in range(4):
            scores = np.repeat(np.repeat(random.normal(0, 1.5, (3, 6, 8, 8)), 3, 2), 3, 3)  # [k z y x]
            true_p, told = (np.exp(t * scores) / np.exp(t * scores).sum(0) for t in (1, 3))
            truth = (random.random(true_p.shape[1:]) > true_p.cumsum(0)).sum(0).clip(0, 2)
            name = f"{part}_{case:03d}"
            np.savez_compressed(predictions / f"{name}.npz", probabilities=told.astype(np.float16))
            for where, array in ((predictions, told.argmax(0)), (labels, truth)):
                nib.save(nib.Nifti1Image(array.T.astype(np.uint8), np.eye(4)), where / f"{name}.nii.gz")  # x, y, z
    return [folder / name for name in ("validation", "validation_labels", "test", "test_labels", "calibrated")]


def main(validation: Path, validation_labels: Path, test: Path, test_labels: Path, output: Path) -> None:
    done = calibrate(
        predictions=validation,
        labels=validation_labels,
        methods=["temperature", "class_temperature"],
        apply=test,
        apply_labels=test_labels,
        output=output,
    )
    print(f"chosen: {done.chosen}, by the {done.by}")
    print("temperature:", round(load_calibrator(output / "temperature").state()[0]["temperature"], 3))
    for row in done.applied:
        print(row["method"], {name: round(value, 4) for name, value in row.items() if isinstance(value, float)})
    page = report(sorted(output.glob("*/scores.csv")), output / "report.html", "nnU-Net, calibrated")
    print(f"calibrated probabilities: {output}/METHOD/probabilities; report: {page.path}")


if len(sys.argv) == 6:
    main(*map(Path, sys.argv[1:]))
else:
    with tempfile.TemporaryDirectory() as made:
        main(*made_up(Path(made)))
