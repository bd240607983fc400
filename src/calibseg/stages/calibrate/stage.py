"""The stage that calibrates: fit calibrators on validation cases, choose one, and apply them to somebody's predictions.

A run's calibrators are fitted on its stored logits and lie in RUN/calibrators (see `choosing`); `calibseg score RUN
--calibrator NAME` and `calibseg predict RUN --input` apply them. Predictions that anybody made come as two folders, one
to fit on and one to apply to:

    OUT/METHOD/calibrator.json            what was learnt, and from which cases
    OUT/METHOD/probabilities/CASE.nii.gz  calibrated, where the label or the prediction lies
    OUT/METHOD/scores.csv                 where labels are given; OUT/none/scores.csv: before
    OUT/choice.json                       which method to use, chosen on the folder it was fitted on

Nothing is fitted on what it is applied to: a common case, patient or file is refused.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from calibseg.calibrators.fitted.images import ImageFiles, PreparedImages, image_files, with_images
from calibseg.calibrators.fitted.selected import NONE
from calibseg.core import files
from calibseg.core.hashing import fingerprint
from calibseg.core.types import Activation, BadInput, ScoreKind
from calibseg.io import predictions
from calibseg.io.class_names import ClassNames, find_vocabulary
from calibseg.io.predictions import Format, PredictionFiles
from calibseg.io.stored_logits import read_about
from calibseg.runs import folders
from calibseg.runs.info import prepared_dir, read_run
from calibseg.runs.lock import locked
from calibseg.stages.calibrate.apply_folder import (
    ApplyTarget,
    FileConventions,
    cases_fingerprint,
    refuse_overlap,
    score_applied,
    write_calibrated,
)
from calibseg.stages.calibrate.cross_fitting import Labelled, Progress
from calibseg.stages.calibrate.fit_and_choose import CalibrationSet, Choose, Chosen, Method, fit_and_choose, methods_of

Options = Mapping[str, Mapping[str, Any]]  # method -> option -> value
Folder = str | Path


@dataclass(frozen=True)
class Calibration:
    """What was fitted, chosen and written where.

    rows: a candidate each, on the cases it was fitted on, cross-fitted
    applied: a candidate each, on the cases it was applied to, where labels are given
    """

    output: Path
    chosen: str
    by: str
    rows: list[dict[str, Any]]
    fitted: int
    cross_fitted: bool = True
    best: Mapping[Choose, str] = field(default_factory=dict)  # the best that keeps labels, and the best of any
    written: int = 0
    unchanged: int = 0
    applied: list[dict[str, Any]] = field(default_factory=list)


def calibrate_run(
    run: Folder,
    methods: Sequence[str],
    *,
    cases: Literal["validation", "calibration"] | None = None,
    voxels: Literal["all", "foreground"] = "all",
    sample: int = 0,
    seed: int = 0,
    options: Options | None = None,
    folds: int = 5,
    choose: Choose = "keeps-labels",
    work: Folder | None = None,
    progress: Progress = lambda done, total, text: None,
) -> Calibration:
    """Fit calibrators to a run's stored logits and name the best in RUN/calibrators/choice.json.

    cases: the part of the split to fit on; default: calibration where the split has one, else validation
    voxels, sample, seed: options that every calibrator takes
    options: of single methods, as {"local_temperature": {"epochs": 5}}
    choose: among methods that keep the label of every voxel, or among any
    work: the folder of prepared cases, for methods that look at images; default: as in training
    """
    run = Path(run)
    wanted = methods_of(methods, {"voxels": voxels, "sample": sample, "seed": seed}, options)
    calibration_set = _ground_of_run(run, cases, wanted, work)
    folder = folders.RunFolder(run)
    with locked(folder.lock):
        files.remove_temporary(folder.calibrators)
        found = fit_and_choose(calibration_set, wanted, folder.calibrators, folds, progress, choose)
    return Calibration(folder.calibrators, *_told(found))


def calibrate_folders(
    predictions_folder: Folder,
    labels: Folder,
    methods: Sequence[str],
    output: Folder,
    *,
    apply: Folder | None = None,
    images: Folder | None = None,
    apply_labels: Folder | None = None,
    apply_images: Folder | None = None,
    kind: ScoreKind = "probabilities",
    activation: Activation = "softmax",
    form: Format | None = None,
    vocabulary: ClassNames | None = None,
    patients: Folder | None = None,
    voxels: Literal["all", "foreground"] = "all",
    sample: int = 0,
    seed: int = 0,
    options: Options | None = None,
    folds: int = 5,
    choose: Choose = "keeps-labels",
    workers: int | None = None,
    progress: Progress = lambda done, total, text: None,
) -> Calibration:
    """Fit calibrators to a folder of anybody's predictions and apply them to another.

    kind, activation: what the numbers in the files are
    images, apply_images: NIfTI images named like the cases, for methods that look at them
    apply_labels: where given, scores before and after
    patients: CSV with the columns case and patient, of both folders
    """
    if apply is None and (apply_labels is not None or apply_images is not None):
        raise BadInput("labels or images of cases to apply to are given, but not their predictions: --apply DIR")
    given = FileConventions(kind, activation, form, Path(patients) if patients else None)
    wanted = methods_of(methods, {"voxels": voxels, "sample": sample, "seed": seed}, options)
    names = vocabulary or find_vocabulary(Path(predictions_folder), Path(labels))
    fit = _labelled_pairs(Path(predictions_folder), Path(labels), given)
    to = [] if apply is None else _pairs_to_apply(Path(apply), apply_labels, apply_images, given)
    refuse_overlap(fit, to, Path(predictions_folder), apply)
    looking = [method.name for method in wanted if method.uses_image]
    if looking:
        fit = _with_images(fit, images, "--images", looking[0])
        to = _with_images(to, apply_images, "--apply-images", looking[0]) if to else to
    told = {"folder": str(predictions_folder), "labels": str(labels), "kind": kind}
    calibration_set = CalibrationSet(Labelled(fit, names), activation, cases_fingerprint(fit), told)
    output = Path(output)
    with locked(output / ".lock"):
        files.remove_temporary(output)
        chosen = fit_and_choose(calibration_set, wanted, output, folds, progress, choose)
        written = sum(write_calibrated(method.name, to, output, progress) for method in wanted)
        applied = []
        if apply is not None and apply_labels is not None:
            where = ApplyTarget(Path(apply), Path(apply_labels), given, names, to, workers, progress)
            candidates = (NONE, *(method.name for method in wanted))
            applied = [score_applied(name, output, where, chosen.chosen) for name in candidates]
    unchanged = len(to) * len(wanted) - written
    return Calibration(output, *_told(chosen), written=written, unchanged=unchanged, applied=applied)


def _told(found: Chosen) -> tuple[Any, ...]:
    return found.chosen, found.by, found.rows, found.fitted, found.cross_fitted, found.best


def _ground_of_run(run: Path, part: str | None, methods: Sequence[Method], work: Folder | None) -> CalibrationSet:
    """The stored logits of a part of the split, all of them and by the run's present weights."""
    info = read_run(run)
    part = part or ("calibration" if info.split.calibration else "validation")
    if part not in ("validation", "calibration"):
        raise BadInput(f"nothing is fitted on {part} cases: fit on validation or calibration")
    ids = info.cases(part)
    if not ids:
        raise BadInput(f"the split of {info.slug} has no {part} cases to fit on")
    folder = folders.RunFolder(run).logits / part
    again = f"run   calibseg predict {run} --cases {part}"
    if not folder.is_dir() or not any(folder.glob("*.npz")):
        raise BadInput(f"{folder}: holds no logits; {again}")
    pairs, vocabulary = predictions.stored(folder)
    there = {pair.case for pair in pairs}
    missing, foreign = [id for id in ids if id not in there], sorted(there - set(ids))
    if missing:
        raise BadInput(f"{folder}: lacks case {missing[0]!r} of {part}; {again}")
    if foreign:
        raise BadInput(f"{folder}: holds case {foreign[0]!r}, which is none of the run's {part} cases; remove it")
    weights = folders.weights_fingerprint([run])
    keys = []
    for pair in pairs:
        told = read_about(pair.files[0])
        if told.get("weights") != weights:
            raise BadInput(f"{pair.files[0]}: was predicted by other weights than the run has now; {again}")
        keys.append((pair.case, told["key"]))
    if any(method.uses_image for method in methods):
        pairs = with_images(pairs, PreparedImages(prepared_dir(run, work)))
    facts = {"part": part, "run": info.slug, "weights": weights}
    return CalibrationSet(Labelled(pairs, vocabulary), "softmax", fingerprint(keys), facts)


def _labelled_pairs(folder: Path, labels: Path, stated: FileConventions) -> list[PredictionFiles]:
    found, unmatched = predictions.match_files(
        folder, labels, stated.kind, stated.activation, stated.form, stated.patients
    )
    if unmatched:
        more = f" ({len(unmatched) - 1} more like it)" if len(unmatched) > 1 else ""
        raise BadInput(f"{unmatched[0]}{more}")
    return found


def _pairs_to_apply(
    folder: Path, labels: Folder | None, images: Folder | None, stated: FileConventions
) -> list[PredictionFiles]:
    if labels is not None:
        return _labelled_pairs(folder, Path(labels), stated)
    seen = image_files(Path(images)) if images else None
    return predictions.unlabelled(folder, stated.kind, stated.activation, stated.form, stated.patients, seen)


def _with_images(
    pairs: Sequence[PredictionFiles], folder: Folder | None, option: str, method: str
) -> list[PredictionFiles]:
    if folder is None:
        raise BadInput(f"{method} looks at the images of the cases: say where they lie with {option} DIR")
    return with_images(pairs, ImageFiles(image_files(Path(folder))))
