"""The cases that rules are fitted on or applied to: of a run, of a folder of predictions, or of a folder of masks."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from calibseg.calibrators.fitted.files import read_calibrator
from calibseg.calibrators.fitted.images import ImageFiles, image_files
from calibseg.core.ids import check_id, check_patient
from calibseg.core.types import Array, BadInput, Prediction
from calibseg.data.prepared import open_case
from calibseg.decisions.fitted.rules import Source
from calibseg.decisions.maths.findings import Structure
from calibseg.io.class_names import ClassNames, find_class_names
from calibseg.io.conventions import PredictionFolder
from calibseg.io.file_matching import nifti_by_case, read_patients
from calibseg.io.nifti import Grid
from calibseg.io.predictions import PredictionFiles, read_labels
from calibseg.io.stored_logits import read_about
from calibseg.runs.info import prepared_dir, read_run
from calibseg.stages.calibrate.stage import pairs_to_apply
from calibseg.stages.score.channels import agreed, check_labels, name_channels, plain_names
from calibseg.stages.score.stage import fitted_folder, refuse_fitted, run_cases, with_calibrator


@dataclass(frozen=True)
class CaseSource:
    """Where cases come from.

    folder: predictions, or with masks=True label maps, beside labels where there are any
    run: in place of a folder: what `calibseg predict RUN --subset ...` stored
    calibrator: of a run: a name, chosen or none; with folders: the folder of a fitted calibrator
    """

    folder: PredictionFolder | None = None
    masks: bool = False
    run: Path | None = None
    subset: str | None = None
    calibrator: str = "none"
    work: Path | None = None

    def __post_init__(self) -> None:
        if (self.folder is None) == (self.run is None):
            raise BadInput("say which cases: a run folder, --predictions DIR or --masks DIR, and one of them only")
        if self.masks and self.calibrator != "none":
            raise BadInput("masks have no probabilities to calibrate: leave --calibrator out")


@dataclass(frozen=True)
class DecideCase:
    """One case, not opened yet: probabilities (`pair`) or a mask."""

    case: str
    patient: str
    files: tuple[Path, ...]
    pair: PredictionFiles | None = None
    label: Path | None = None  # of a mask
    work: Path | None = None  # prepared cases, which place a run's

    @property
    def stated(self) -> tuple[Any, ...]:
        return self.pair.stated if self.pair is not None else ("mask",)

    def open(self) -> Prediction:
        """The prediction with one label map; of a mask, `scores` is the label map [z y x] itself."""
        if self.pair is not None:
            prediction = self.pair.open()
            labels = prediction.labels
            return prediction if labels is None else replace(prediction, labels=agreed(labels))
        mask, grid = read_labels(self.files[0])
        labels = None
        if self.label is not None:
            labels, own = read_labels(self.label)
            grid.refuse_other(own, self.label, self.files[0])
        return Prediction(self.case, self.patient, mask, "probabilities", grid.spacing_mm, labels=labels)

    @property
    def place(self) -> Path | Array:
        """The NIfTI file that lies where the case lies, or the affine of a run's prepared case."""
        if self.pair is None:
            return self.files[0]
        if self.work is None:
            return self.pair.label
        import numpy as np

        return np.array(open_case(self.work, self.case).about["affine"], float)


@dataclass(frozen=True)
class Cases:
    """The cases, the names of their classes, and what is to be remembered of where they come from."""

    cases: Sequence[DecideCase]
    names: ClassNames
    source: Source
    facts: dict[str, Any]

    def structures(self, first: Prediction) -> list[Structure]:
        """What is decided about: foreground classes and regions, or sigmoid channels."""
        one = self.cases[0]
        if one.pair is not None:
            channels = name_channels(one.pair, first.scores.shape[0], self.names)
            if channels.activation == "sigmoid":
                told = zip(channels.names, channels.members, strict=True)
                return [Structure(name, (k,), ids) for k, (name, ids) in enumerate(told)]
            names = channels.names
        else:
            names = self.names.classes or plain_names(self._highest() + 1)
        found = [Structure(name, (k,), (k,)) for k, name in enumerate(names) if k]
        found += [Structure(name, tuple(ids), tuple(ids)) for name, ids in self.names.regions.items()]
        for structure in found:
            check_id(structure.name, "name of a structure")
            if 0 in structure.labels or max(structure.labels) >= len(names):
                raise BadInput(f"the region {structure.name!r} holds a label that is no foreground class")
        return found

    def _highest(self) -> int:
        """The highest label of masks whose classes have no names."""
        highest = 1
        for one in self.cases:
            for path in one.files:
                labels, _ = read_labels(path)
                highest = max(highest, int(labels[labels != (self.names.ignore_label or -1)].max(initial=0)))
        return highest

    def check(self, one: DecideCase, prediction: Prediction, structures: Sequence[Structure]) -> None:
        """Refuse labels that stand for no class."""
        if one.pair is not None and prediction.labels is not None:
            channels = name_channels(one.pair, prediction.scores.shape[0], self.names)
            check_labels(one.pair, prediction, channels, self.names)
        elif one.pair is None:
            from calibseg.metrics.statistics.label_maps import refuse_unknown_labels

            known = 1 + max(label for structure in structures for label in structure.labels)
            refuse_unknown_labels(one.files[0], prediction.scores, known, None)
            if prediction.labels is not None:
                refuse_unknown_labels(one.label, prediction.labels, known, self.names.ignore_label)


def open_cases(source: CaseSource, to_fit: bool) -> Cases:
    """The cases of a source, sorted by patient. to_fit: labels are needed."""
    if source.run is not None:
        found = _of_run(source, source.run, to_fit)
    elif source.folder is not None and source.masks:
        found = _of_masks(source.folder, to_fit)
    else:
        assert source.folder is not None
        found = _of_folder(source.folder, source.calibrator, to_fit)
    return replace(found, cases=sorted(found.cases, key=lambda one: (one.patient, one.case)))


def _of_run(source: CaseSource, run: Path, to_fit: bool) -> Cases:
    info = read_run(run)
    subset = source.subset or (("calibration" if info.split.calibration else "validation") if to_fit else "test")
    if to_fit and subset == "train":
        raise BadInput("rules are not fitted on the cases that a network was trained on: fit on validation or test")
    made = run_cases(run, subset, source.calibrator, source.work)
    if to_fit and made.source.get("in_sample"):
        raise BadInput(
            f"the calibrator {source.calibrator!r} was fitted on the {subset} cases, so rules fitted on them would"
            " promise too much: fit the rules on another subset, or without it"
        )
    weights = read_about(made.matched[0].files[0]).get("weights")
    facts = {
        "run": info.slug,
        "subset": subset,
        "weights": weights,
        "calibrator": made.source.get("calibrator", "none"),
    }
    work = None if to_fit else prepared_dir(run, source.work)  # where masks will lie
    cases = [DecideCase(pair.case, pair.patient, pair.files, pair, work=work) for pair in made.matched]
    return Cases(cases, made.class_names, "probabilities", facts)


def _of_folder(folder: PredictionFolder, calibrator: str, to_fit: bool) -> Cases:
    if to_fit and folder.labels is None:
        raise BadInput(f"{folder.predictions} has no folder of labels beside it: rules are fitted on both")
    pairs, left_out = pairs_to_apply(folder)
    fitted, mark = fitted_folder(None if calibrator == "none" else Path(calibrator)), "none"
    if fitted is not None:
        record = read_calibrator(fitted)
        refuse_fitted(pairs, record, fitted)
        images = ImageFiles(image_files(folder.images)) if folder.images else None
        pairs, mark = with_calibrator(pairs, fitted, record, images), f"{record['method']} {record['mark']}"
    names = folder.class_names or find_class_names(folder.predictions, folder.labels or folder.predictions)
    facts = {"folder": str(folder.predictions), "calibrator": mark, "left_out": left_out}
    cases = [DecideCase(pair.case, pair.patient, (*pair.files, pair.label), pair) for pair in pairs]
    return Cases(cases, names, "probabilities", facts)


def _of_masks(folder: PredictionFolder, to_fit: bool) -> Cases:
    """Label maps in NIfTI files, and the true ones named like them."""
    for path in (folder.predictions, *((folder.labels,) if folder.labels else ())):
        if not path.is_dir():
            raise BadInput(f"no folder {path}")
    if to_fit and folder.labels is None:
        raise BadInput(f"{folder.predictions} has no folder of labels beside it: rules are fitted on both")
    masks = nifti_by_case(folder.predictions)
    if not masks:
        raise BadInput(f"{folder.predictions} holds no mask: no NIfTI file")
    labels = nifti_by_case(folder.labels) if folder.labels else {}
    if folder.labels is not None and set(masks) != set(labels):
        case = min(set(masks) ^ set(labels))
        here, there = (folder.predictions, folder.labels) if case in masks else (folder.labels, folder.predictions)
        raise BadInput(f"the case {case!r} is in {here}, but not in {there}")
    known = read_patients(folder.files.patients) if folder.files.patients else None
    cases = []
    for case, path in masks.items():
        if known is not None and case not in known:
            raise BadInput(f"{folder.files.patients} does not say which patient case {case!r} belongs to")
        patient = check_patient(known[case] if known else case, check_id(case))
        Grid.of(path)
        label = labels.get(case)
        cases.append(DecideCase(case, patient, (path, *((label,) if label else ())), label=label))
    names = folder.class_names or find_class_names(folder.predictions, folder.labels or folder.predictions)
    return Cases(cases, names, "masks", {"folder": str(folder.predictions), "calibrator": "none"})
