"""Cross-fitting: calibrators fitted on some patients and measured on the others, fold by fold.

Every case is measured once, by a calibrator that saw no case of its patient. With fewer patients than folds each is
left out in turn; a single patient cannot be held out and is measured in-sample, which is said in the record. The choice
among methods is by the NLL on all voxels, mean over cases: a proper score, of what was not fitted on.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from calibseg.analysis.columns import metric_key
from calibseg.calibrators import Calibrator, silent
from calibseg.calibrators.fitted.apply import Calibrated
from calibseg.core.arrays import mark_ignored
from calibseg.core.types import Prediction, Progress
from calibseg.io.class_names import ClassNames
from calibseg.io.predictions import PredictionFiles
from calibseg.metrics.statistics.curve import mean_of_defined
from calibseg.stages.calibrate.fold_files import FoldFile, Values
from calibseg.stages.score.case import ALL, CaseMeasurement, measure
from calibseg.stages.score.channels import channel_targets, check_labels, name_channels
from calibseg.stages.score.options import ScoringOptions

BY = "nll@all"
SHOWN = ("nll@all", "brier@all", "ece@truth", "ece@predicted", "ece@all", "cece@truth", "cece@all", "dsc")
METRICS = ("nll", "brier", "ece", "cece", "dsc")


class Steps:
    """Tells who wants to know which of so many steps is being taken, and how a long one goes on."""

    def __init__(self, progress: Progress, total: int):
        self.progress, self.total, self.done, self.text = progress, total, 0, ""

    def begin(self, text: str) -> None:
        self.text = text
        self.progress(self.done, self.total, text)
        self.done += 1

    def note(self, text: str) -> None:
        self.progress(self.done - 1, self.total, f"{self.text}, {text}")


@dataclass(frozen=True)
class Labelled:
    """Labelled cases as calibrators want them, opened one after the other, as often as they are asked for.

    An ignored voxel is labelled 255, and a sigmoid's channels have labels of their own.
    """

    pairs: Sequence[PredictionFiles]
    class_names: ClassNames

    def __len__(self) -> int:
        return len(self.pairs)

    def __iter__(self) -> Iterator[Prediction]:
        return (self._open(pair) for pair in self.pairs)

    def _open(self, pair: PredictionFiles) -> Prediction:
        prediction = pair.open()
        assert prediction.labels is not None
        channels = name_channels(pair, prediction.scores.shape[0], self.class_names)
        check_labels(pair, prediction, channels, self.class_names)
        ignore = self.class_names.ignore_label
        if pair.activation == "sigmoid":
            return replace(prediction, labels=channel_targets(prediction.labels, channels, ignore))
        return replace(prediction, labels=mark_ignored(prediction.labels, ignore))


def fold_numbers(patients: Sequence[str], folds: int) -> list[int]:
    """For each case the fold in which it is held out; cases of one patient are held out together."""
    names = sorted(set(patients))
    order = np.random.default_rng(0).permutation(len(names))
    number = {names[index]: position % folds for position, index in enumerate(order)}
    return [number[patient] for patient in patients]


def possible_folds(patients: Sequence[str], wanted: int) -> int:
    """As many folds as wanted, or as there are patients; 1 where nobody can be held out."""
    return min(wanted, len(set(patients)))


def fitted(make: Callable[[], Calibrator], cases: Labelled, steps: Steps) -> Calibrator:
    """A calibrator fitted on cases; a long fit tells how it goes on."""
    calibrator = make()
    calibrator.watch = steps.note
    try:
        return calibrator.fit_predictions(cases)
    finally:
        calibrator.watch = silent


def cross_fit(
    method: tuple[str, Callable[[], Calibrator]] | None, cases: Labelled, fold_file: FoldFile, steps: Steps
) -> None:
    """Measure every case by a method (its name, how it is made) that has not seen it, and keep fold after fold.

    method: None stands for the network's own probabilities
    """
    scoring = ScoringOptions(metrics=METRICS)
    pairs, folds = cases.pairs, fold_file.folds
    held_out = fold_numbers([pair.patient for pair in pairs], folds)
    for fold in sorted({*range(folds)} - {*fold_file.done()}):
        if method is not None:
            steps.begin(f"{method[0]}: fold {fold + 1} of {folds}")
        inside = [pair for pair, number in zip(pairs, held_out, strict=True) if number == fold]
        outside = [pair for pair, number in zip(pairs, held_out, strict=True) if number != fold or folds == 1]
        calibrator = fitted(method[1], Labelled(outside, cases.class_names), steps) if method else None
        tested = [Calibrated.of(pair, calibrator) if calibrator else pair for pair in inside]
        measured = {pair.case: measure(pair, cases.class_names, scoring) for pair in tested}
        fold_file.add(fold, {case: values_of(result, cases.class_names) for case, result in measured.items()})


def values_of(measured: CaseMeasurement, class_names: ClassNames) -> Values:
    """One value a metric: for all classes together, or else the mean over foreground classes, or regions."""
    background = measured.channels.names[:1] if (0,) in measured.channels.members else ()
    evaluated_classes = tuple(class_names.regions) or tuple(
        name for name in measured.channels.names if name not in background
    )
    together: Values = {}
    apart: dict[str, list[float]] = {}
    for row in measured.values:
        key = metric_key(row.metric, row.voxels)
        if row.name == ALL:
            together[key] = row.value
        elif row.name in evaluated_classes:
            apart.setdefault(key, []).append(row.value)
    return {key: mean_of_defined(values) for key, values in apart.items()} | together


def mean_values(by_case: Mapping[str, Values]) -> dict[str, Any]:
    """Mean over the cases in which a value is defined; None where it is in none."""
    keys = dict.fromkeys(key for values in by_case.values() for key in values)
    means = {key: mean_of_defined(values[key] for values in by_case.values()) for key in keys}
    return {key: None if math.isnan(value) else value for key, value in means.items()}
