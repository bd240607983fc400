"""The stage that calibrates: fit calibrators on validation cases, choose one, and apply them to other predictions.

A run's calibrators are fitted on its stored logits and lie in RUN/calibrators (see `fit_and_choose`);
`calibseg score RUN --calibrator NAME` and `calibseg predict RUN --input` apply them. Predictions of any origin come as
two folders, one to fit on and one to apply to:

    OUT/METHOD/calibrator.json            what was learnt, and from which cases
    OUT/METHOD/probabilities/CASE.nii.gz  calibrated, where the label or the prediction lies
    OUT/METHOD/scores.csv                 where labels are given; OUT/none/scores.csv: before
    OUT/choice.json                       which method to use, chosen on the folder it was fitted on

Nothing is fitted on what it is applied to: a common case, patient or file is refused.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from calibseg.calibrators.fitted.images import ImageFiles, PreparedImages, image_files, with_images
from calibseg.calibrators.fitted.selected import NONE
from calibseg.core import files
from calibseg.core.hashing import fingerprint
from calibseg.core.types import BadInput, Progress
from calibseg.data import prepared
from calibseg.io import predictions
from calibseg.io.conventions import PredictionFolder
from calibseg.io.labelled_folder import match_folder
from calibseg.io.predictions import PredictionFiles
from calibseg.runs import folders
from calibseg.runs.info import prepared_dir, read_run
from calibseg.runs.lock import locked
from calibseg.stages.calibrate.apply_folder import (
    ApplyTarget,
    cases_fingerprint,
    refuse_overlap,
    score_applied,
    write_calibrated,
)
from calibseg.stages.calibrate.cross_fitting import Labelled
from calibseg.stages.calibrate.fit_and_choose import CalibrationSet, Method, MethodChoice, fit_and_choose, methods_of
from calibseg.stages.calibrate.options import CalibrationOptions
from calibseg.stages.score.stage import run_predictions

Folder = str | Path


@dataclass(frozen=True, kw_only=True)
class CalibrationResult(MethodChoice):
    """What was fitted and chosen, and what was written where.

    applied: a row for each candidate, on the cases it was applied to, where labels are given
    left_out: how many labels have no prediction
    """

    output: Path
    written: int = 0
    unchanged: int = 0
    applied: list[dict[str, Any]] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)


def calibrate_run(
    run: Folder,
    methods: Sequence[str],
    *,
    subset: Literal["validation", "calibration"] | None = None,
    options: CalibrationOptions = CalibrationOptions(),
    work: Folder | None = None,
    progress: Progress = lambda done, total, text: None,
) -> CalibrationResult:
    """Fit calibrators to a run's stored logits and name the best in RUN/calibrators/choice.json.

    subset: the one to fit on; default: calibration where the split has one, else validation
    work: the folder of prepared cases, for methods that look at images; default: as in training
    """
    run = Path(run)
    to_fit = methods_of(methods, options)
    if work is not None:
        prepared.read_index(work)
    calibration_set = _calibration_set_of_run(run, subset, to_fit, work)
    folder = folders.RunFolder(run)
    with locked(folder.lock):
        files.remove_temporary(folder.calibrators)
        choice = fit_and_choose(calibration_set, to_fit, folder.calibrators, options, progress)
    return CalibrationResult(**vars(choice), output=folder.calibrators)


def calibrate_folders(
    fit: PredictionFolder,
    methods: Sequence[str],
    output: Folder,
    *,
    apply: PredictionFolder | None = None,
    options: CalibrationOptions = CalibrationOptions(),
    workers: int | None = None,
    progress: Progress = lambda done, total, text: None,
) -> CalibrationResult:
    """Fit calibrators to a folder of anybody's predictions and apply them to another.

    apply: the cases to calibrate, of other patients; with labels: scores before and after
    workers: processes that score
    """
    to_fit = methods_of(methods, options)
    class_names = fit.names()
    fit_files, left_out = _labelled_pairs(fit)
    apply_files, of_apply = ([], []) if apply is None else pairs_to_apply(apply)
    refuse_overlap(fit_files, apply_files, fit.predictions, apply.predictions if apply else None)
    made_from = fingerprint([cases_fingerprint(fit_files), asdict(class_names)])
    looking = [method.name for method in to_fit if method.uses_image]
    if looking:
        fit_files = _with_images(fit_files, fit.images, "--images", looking[0])
        to_fit = _looking_at(to_fit, cases_fingerprint(fit_files))
        if apply is not None:
            apply_files = _with_images(apply_files, apply.images, "--apply-images", looking[0])
    record = {"folder": ", ".join(map(str, fit.all_predictions)), "labels": str(fit.labels), "kind": fit.files.kind}
    calibration_set = CalibrationSet(Labelled(fit_files, class_names), made_from, record)
    output = Path(output)
    with locked(output / ".lock"):
        files.remove_temporary(output)
        choice = fit_and_choose(calibration_set, to_fit, output, options, progress)
        written = sum(write_calibrated(method.name, apply_files, output, progress) for method in to_fit)
        applied = []
        if apply is not None and apply.labels is not None:
            target = ApplyTarget(replace(apply, class_names=class_names), apply_files, of_apply, workers, progress)
            candidates = (NONE, *(method.name for method in to_fit))
            applied = [score_applied(name, output, target) for name in candidates]
    unchanged = len(apply_files) * len(to_fit) - written
    outcome = {"written": written, "unchanged": unchanged, "applied": applied, "left_out": left_out + of_apply}
    return CalibrationResult(**vars(choice), output=output, **outcome)


def _calibration_set_of_run(
    run: Path, subset: str | None, methods: Sequence[Method], work: Folder | None
) -> CalibrationSet:
    """The stored logits of a subset, all of them and by the run's present weights."""
    info = read_run(run)
    subset = subset or ("calibration" if info.split.calibration else "validation")
    if subset not in ("validation", "calibration"):
        raise BadInput(f"nothing is fitted on {subset} cases: fit on validation or calibration")
    if not info.cases(subset):
        raise BadInput(f"the split of {info.slug} has no {subset} cases to fit on")
    folder = folders.RunFolder(run).logits / subset
    again = f"run   calibseg predict {run} --subset {subset}"
    if not folder.is_dir() or not any(folder.glob("*.npz")):
        raise BadInput(f"{folder}: holds no logits; {again}")
    pairs, class_names, abouts = run_predictions(run, subset)
    made_from = [(pair.case, about.get("key")) for pair, about in zip(pairs, abouts, strict=True)]
    if any(method.uses_image for method in methods):
        pairs = with_images(pairs, PreparedImages(prepared_dir(run, work)))
    source = {"subset": subset, "run": info.slug, "weights": abouts[0].get("weights")}
    return CalibrationSet(Labelled(pairs, class_names), fingerprint(made_from), source)


def _labelled_pairs(folder: PredictionFolder) -> tuple[list[PredictionFiles], list[str]]:
    """The cases of a folder with labels, and how many labels are left out."""
    matched, unmatched, left_out = match_folder(folder)
    if unmatched:
        more = f" ({len(unmatched) - 1} more like it)" if len(unmatched) > 1 else ""
        raise BadInput(f"{unmatched[0]}{more}")
    return matched, left_out


def pairs_to_apply(folder: PredictionFolder) -> tuple[list[PredictionFiles], list[str]]:
    if folder.labels is not None:
        return _labelled_pairs(folder)
    images = image_files(folder.images) if folder.images else None
    return predictions.unlabelled(folder.predictions, folder.files, images), []


def _with_images(
    pairs: Sequence[PredictionFiles], folder: Path | None, option: str, method: str
) -> list[PredictionFiles]:
    if folder is None:
        raise BadInput(f"{method} looks at the images of the cases: say where they lie with {option} DIR")
    return with_images(pairs, ImageFiles(image_files(folder)))


def _looking_at(methods: Sequence[Method], images: str) -> list[Method]:
    """The same methods; those that look at images are known by these, too."""
    return [
        replace(method, fingerprint=fingerprint([method.fingerprint, images])) if method.uses_image else method
        for method in methods
    ]
