"""The cases that rules are fitted on or applied to: of a run, of a folder of predictions, or of a folder of masks."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from calibseg.calibrators.fitted.cases import calibrated_by_folder
from calibseg.calibrators.fitted.selected import find_calibrator
from calibseg.core.ids import check_id
from calibseg.core.types import Array, BadInput, Prediction
from calibseg.data.prepared import open_case
from calibseg.decisions.fitted.rules import Source
from calibseg.decisions.maths.findings import Structure
from calibseg.io.class_names import ClassNames
from calibseg.io.conventions import PredictionFolder
from calibseg.io.file_matching import nifti_by_case, read_patients
from calibseg.io.nifti import Grid
from calibseg.io.predictions import PredictionFiles, read_labels
from calibseg.io.stored_logits import read_about
from calibseg.metrics.statistics.label_maps import refuse_unknown_labels
from calibseg.runs.folders import RunFolder
from calibseg.runs.info import prepared_dir, read_run
from calibseg.stages.calibrate.stage import pairs_to_apply
from calibseg.stages.score.channels import agreed, check_labels, name_channels, plain_names
from calibseg.stages.score.stage import run_cases


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


class MaskFiles(PredictionFiles):
    """A label map without probabilities, and the true one; `label` is the mask itself where nobody has drawn that."""

    @property
    def stated(self) -> tuple[Any, ...]:
        return ("mask",)

    def open(self) -> Prediction:
        """A prediction whose `scores` are the label map [z y x] itself."""
        mask, grid = read_labels(self.files[0])
        labels = None
        if self.label != self.files[0]:
            labels, own = read_labels(self.label)
            grid.refuse_other(own, self.label, self.files[0])
        known = {"labels": labels, "voxel_name": grid.voxel_name}
        return Prediction(self.case, self.patient, mask, self.kind, grid.spacing_mm, **known)


@dataclass(frozen=True)
class Cases:
    """The cases, the names of their classes, and what is to be remembered of where they come from."""

    cases: Sequence[PredictionFiles]
    names: ClassNames
    source: Source
    facts: dict[str, Any]
    work: Path | None = None  # prepared cases, which place a run's

    def open(self, one: PredictionFiles) -> Prediction:
        """The prediction with one label map: of several raters, what most of them say."""
        prediction = one.open()
        if prediction.labels is None:
            return prediction
        return replace(prediction, labels=agreed(prediction.labels, self.names.ignore_label))

    def place(self, one: PredictionFiles) -> Path | Array:
        """The NIfTI file that lies where the case lies, or the affine of a run's prepared case."""
        if self.work is not None:
            return np.array(open_case(self.work, one.case).about["affine"], float)
        return one.files[0] if self.source == "masks" else one.label

    def structures(self, first: Prediction) -> list[Structure]:
        """What is decided about: foreground classes and regions, or sigmoid channels."""
        if self.source == "masks":
            names = self.names.classes or plain_names(self._highest() + 1)
        else:
            channels = name_channels(self.cases[0], first.scores.shape[0], self.names)
            if channels.activation == "sigmoid":
                pairs = zip(channels.names, channels.members, strict=True)
                return [Structure(name, (k,), ids) for k, (name, ids) in enumerate(pairs)]
            names = channels.names
        structures = [Structure(name, (k,), (k,)) for k, name in enumerate(names) if k]
        structures += [Structure(name, tuple(ids), tuple(ids)) for name, ids in self.names.regions.items()]
        for structure in structures:
            check_id(structure.name, "name of a structure")
            if 0 in structure.labels or max(structure.labels) >= len(names):
                raise BadInput(f"the region {structure.name!r} holds a label that is no foreground class")
        return structures

    def _highest(self) -> int:
        """The highest label of masks whose classes have no names."""
        highest = 1
        for one in self.cases:
            for path in {*one.files, one.label}:
                labels, _ = read_labels(path)
                highest = max(highest, int(labels[labels != (self.names.ignore_label or -1)].max(initial=0)))
        return highest

    def check(self, one: PredictionFiles, prediction: Prediction, structures: Sequence[Structure]) -> None:
        """Refuse labels that stand for no class."""
        if self.source == "masks":
            known = 1 + max(label for structure in structures for label in structure.labels)
            refuse_unknown_labels(one.files[0], prediction.scores, known, None, prediction.voxel_name)
            if prediction.labels is not None:
                ignored, voxel = self.names.ignore_label, prediction.voxel_name
                refuse_unknown_labels(one.label, prediction.labels, known, ignored, voxel)
        elif prediction.labels is not None:
            channels = name_channels(one, prediction.scores.shape[0], self.names)
            check_labels(one, prediction, channels, self.names)


def open_cases(source: CaseSource, to_fit: bool) -> Cases:
    """The cases of a source, sorted by patient. to_fit: labels are needed."""
    if source.run is not None:
        cases = _of_run(source, source.run, to_fit)
    else:
        assert source.folder is not None
        if to_fit and source.folder.labels is None:
            folder = source.folder.predictions
            raise BadInput(f"{folder} has no folder of labels beside it: rules are fitted on both")
        cases = _of_masks(source.folder) if source.masks else _of_folder(source.folder, source.calibrator)
    return replace(cases, cases=sorted(cases.cases, key=lambda one: (one.patient, one.case)))


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
    selected = find_calibrator(RunFolder(run).calibrators, source.calibrator)
    facts = {
        "run": info.slug,
        "subset": subset,
        "weights": read_about(made.matched[0].files[0]).get("weights"),
        "calibrator": _identity(selected.about) if selected.folder else "none",
    }
    work = None if to_fit else prepared_dir(run, source.work)  # where masks will lie
    return Cases(made.matched, made.class_names, "probabilities", facts, work)


def _of_folder(folder: PredictionFolder, calibrator: str) -> Cases:
    pairs, left_out = pairs_to_apply(folder)
    fitted = None if calibrator == "none" else Path(calibrator)
    pairs, fitted, record = calibrated_by_folder(pairs, fitted, folder.images)
    identity = _identity(record) if fitted else "none"
    facts = {"folder": str(folder.predictions), "calibrator": identity, "left_out": left_out}
    return Cases(pairs, folder.names(), "probabilities", facts)


def _identity(record: Mapping[str, Any]) -> str:
    """A calibrator by its method and what it learnt: one that was fitted again is another."""
    return f"{record['method']} {record['mark']}"


def _of_masks(folder: PredictionFolder) -> Cases:
    """Label maps in NIfTI files, and the true ones named like them."""
    for path in (folder.predictions, *((folder.labels,) if folder.labels else ())):
        if not path.is_dir():
            raise BadInput(f"no folder {path}")
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
        Grid.of(path)
        patient = known[case] if known else case
        cases.append(MaskFiles(case, patient, (path,), labels.get(case, path), "probabilities", "softmax"))
    return Cases(cases, folder.names(), "masks", {"folder": str(folder.predictions), "calibrator": "none"})
