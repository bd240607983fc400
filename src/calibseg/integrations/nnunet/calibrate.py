"""Calibrate what a model of nnU-Net predicts, fitted on the out-of-fold predictions of its own training.

Fit, choice and NIfTI files are `stages/calibrate`'s; here are the folders. For every method OUT/METHOD/nnunet holds the
calibrated probabilities as nnU-Net's .npz beside copies of all other files of the predictions, so that
nnUNetv2_ensemble and nnUNetv2_evaluate_folder take it. Nothing is unpickled: the .pkl files are copied unopened.
"""

import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict

import numpy as np
from numpy import ndarray as Array

from calibseg.calibrators.fitted.files import load_calibrator
from calibseg.core import files
from calibseg.core.hashing import file_fingerprint
from calibseg.core.labels import likeliest_class
from calibseg.core.types import BadInput
from calibseg.integrations.nnunet.model_folder import ModelFolder
from calibseg.io.conventions import FileConventions, PredictionFolder
from calibseg.io.nifti import ENDINGS, read_nifti
from calibseg.io.nifti_writer import compressed, mapped_nifti, place_of
from calibseg.io.predictions import PredictionFiles, unlabelled
from calibseg.runs.folders import CalibratorFolder
from calibseg.runs.lock import locked
from calibseg.stages.calibrate.cross_fitting import Progress
from calibseg.stages.calibrate.fit_and_choose import methods_of
from calibseg.stages.calibrate.options import CalibrationOptions
from calibseg.stages.calibrate.stage import CalibrationResult, calibrate_folders


@dataclass(frozen=True)
class ModelFiles:
    """What is fitted on and what is calibrated.

    predictions: labelled cases to fit on that were predicted like `apply`; default: the out-of-fold predictions
    labels: of the cases to fit on; default: those of the training
    apply: what nnUNetv2_predict --save_probabilities wrote, of other cases
    apply_labels: theirs, for scores before and after
    images, apply_images: for methods that look at them
    """

    predictions: tuple[Path, ...] = ()
    labels: Path | None = None
    apply: Path | None = None
    apply_labels: Path | None = None
    images: Path | None = None
    apply_images: Path | None = None


class _Written(TypedDict):
    """nnunet.json: from which probabilities the files of a case were made."""

    cases: dict[str, str]


def calibrate_model(
    model: Path,
    methods: Sequence[str],
    output: Path,
    given: ModelFiles = ModelFiles(),
    *,
    options: CalibrationOptions = CalibrationOptions(),
    workers: int | None = None,
    progress: Progress = lambda done, total, text: None,
) -> tuple[CalibrationResult, list[str]]:
    """Fit calibrators, apply them, write all as nnU-Net's commands read it; the result, and what should be said."""
    about = ModelFolder(model)
    conventions = FileConventions(activation=about.activation, file_format="nnunet")
    names = about.class_names
    first, *more = given.predictions or about.out_of_fold()
    if given.predictions and given.labels is None:
        raise BadInput("predictions to fit on are given without their labels: --labels DIR")
    labels = given.labels or about.labels()
    fit = PredictionFolder(first, labels, given.images, conventions, names, tuple(more))
    to, notes, pairs = None, [], []
    if given.apply is not None:
        to = PredictionFolder(given.apply, given.apply_labels, given.apply_images, conventions, names)
        pairs = unlabelled(given.apply, conventions)
        if not pairs:
            raise BadInput(f"{given.apply} holds no probabilities (.npz): nnUNetv2_predict writes --save_probabilities")
        notes = [] if given.predictions or not (note := about.ensemble_note(given.apply)) else [note]
    done = calibrate_folders(fit, methods, output, apply=to, options=options, workers=workers, progress=progress)
    if given.apply is not None:
        with locked(output / ".lock"):
            for method in methods_of(methods, options):
                _write(given.apply, pairs, CalibratorFolder(output / method.name), about, progress)
    return done, notes


def _write(
    source: Path, pairs: Sequence[PredictionFiles], method: CalibratorFolder, about: ModelFolder, progress: Progress
) -> None:
    """nnU-Net's files of every case; those that were made of the same probabilities are left alone."""
    known = {pair.case: pair for pair in pairs}
    keeps = load_calibrator(method.path).keeps_argmax
    made = {f"{case}{end}" for case in known for end in (".npz", *(() if keeps else ENDINGS))}
    with files.write_errors(method.nnunet):
        method.nnunet.mkdir(parents=True, exist_ok=True)
        for path in sorted(source.iterdir()):
            if path.is_file() and not path.name.startswith(".") and path.name not in made:
                shutil.copyfile(path, method.nnunet / path.name)
    record = method.nnunet_written
    done = files.read_json(record, "nnunet", _Written)["cases"] if record.is_file() else {}
    for number, (case, pair) in enumerate(known.items()):
        progress(number, len(known), f"{method.path.name}: {case}.npz")
        calibrated, target = method.probabilities / f"{case}.nii.gz", method.nnunet / f"{case}.npz"
        key = file_fingerprint(calibrated)
        if done.get(case) == key and target.is_file():
            continue
        array, grid = read_nifti(calibrated)
        p = np.moveaxis(grid.reoriented(array), -1, 0) if pair.reoriented else array.T
        with files.atomic_write(target) as temporary, temporary.open("wb") as file:
            np.savez_compressed(file, probabilities=p)
        if not keeps and pair.segmentation is not None:
            _segmentation(array, pair.segmentation, method.nnunet, about)
        done[case] = key
        files.write_json(record, "nnunet", {"cases": done})


def _segmentation(p: Array, own: Path, folder: Path, about: ModelFolder) -> None:
    """What nnU-Net makes of probabilities [i j k c]: the likeliest class, or the last region above one half."""
    channels = np.moveaxis(p, -1, 0)
    if about.activation == "softmax":
        labels = likeliest_class(channels)
    else:
        labels = np.zeros(p.shape[:-1], np.uint8)
        for channel, label in zip(channels, about.region_labels, strict=True):
            labels[channel > 0.5] = label
    before, grid = read_nifti(own)
    with files.write_errors(folder), files.temporary_folder(folder / own.name) as scratch:
        file: Any = mapped_nifti(scratch / "s.nii", before.shape, np.uint8, place_of(own, grid.file_affine))
        file[:] = labels.reshape(before.shape)
        del file
        whole = compressed(scratch / "s.nii") if own.name.endswith(".gz") else scratch / "s.nii"
        os.replace(whole, folder / own.name)
