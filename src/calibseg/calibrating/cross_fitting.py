"""What a calibrator is worth on cases it has not seen: fitted on some patients, measured on the others, fold by fold.

Every case is measured once, by a calibrator that saw no case of its patient. With fewer patients than folds each is
left out in turn; a single patient cannot be held out and is measured in-sample, which is said in the record. The choice
among methods is by the NLL on all voxels, mean over cases: a proper score, of what was not fitted on.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy import ndarray as Array

from calibseg.calibrating.calibrated import Calibrated
from calibseg.calibrators import Calibrator
from calibseg.measure import ALL, IGNORE, Measured, Rules, channel_targets, check_labels, measure, name_channels
from calibseg.predictions import Pair
from calibseg.types import Activation, BadInput, Prediction
from calibseg.vocabulary import Vocabulary

BY = "nll@all"
SHOWN = ("nll@all", "brier@all", "ece@truth", "ece@predicted", "ece@all", "cece@truth", "cece@all", "dsc")
METRICS = ("nll", "brier", "ece", "cece", "dsc")

Values = dict[str, float]  # "ece@truth" -> value
Step = Callable[[str], None]  # what is about to be done


@dataclass(frozen=True)
class Labelled:
    """Labelled cases as calibrators want them, opened one after the other, as often as they are asked for.

    A voxel that counts for nobody is labelled 255, and a sigmoid's channels have labels of their own.
    """

    pairs: Sequence[Pair]
    vocabulary: Vocabulary

    def __len__(self) -> int:
        return len(self.pairs)

    def __iter__(self) -> Iterator[Prediction]:
        return (self._open(pair) for pair in self.pairs)

    def _open(self, pair: Pair) -> Prediction:
        prediction = pair.open()
        assert prediction.labels is not None
        channels = name_channels(pair, prediction.scores.shape[0], self.vocabulary)
        check_labels(pair, prediction.labels, channels, self.vocabulary)
        ignore = self.vocabulary.ignore_label
        if pair.activation == "sigmoid":
            return replace(prediction, labels=channel_targets(prediction.labels, channels, ignore))
        return replace(prediction, labels=_ignoring(prediction.labels, ignore))


def fold_numbers(patients: Sequence[str], folds: int) -> list[int]:
    """For each case the fold in which it is held out; cases of one patient are held out together."""
    names = sorted(set(patients))
    order = np.random.default_rng(0).permutation(len(names))
    number = {names[index]: place % folds for place, index in enumerate(order)}
    return [number[patient] for patient in patients]


def possible_folds(patients: Sequence[str], wanted: int) -> int:
    """As many folds as wanted, or as there are patients; 1 where nobody can be held out."""
    if wanted < 2:
        raise BadInput(f"folds = {wanted} must be at least 2: each fold is measured by what was fitted on the others")
    return min(wanted, len(set(patients)))


def cross_fitted(
    make: Callable[[], Calibrator] | None, cases: Labelled, activation: Activation, folds: int, step: Step
) -> dict[str, Values]:
    """By case, what a method that has not seen it makes of it; `make` None: the network's own probabilities."""
    rules = Rules(metrics=METRICS, activation=activation)
    pairs = cases.pairs
    held = fold_numbers([pair.patient for pair in pairs], folds)
    found: dict[str, Values] = {}
    for fold in range(folds):
        inside = [pair for pair, number in zip(pairs, held, strict=True) if number == fold]
        outside = [pair for pair, number in zip(pairs, held, strict=True) if number != fold or folds == 1]
        calibrator = None
        if make is not None:
            step(f"fold {fold + 1} of {folds}")
            calibrator = make().fit(Labelled(outside, cases.vocabulary))
        for pair in inside:
            measured = measure(Calibrated.of(pair, calibrator) if calibrator else pair, cases.vocabulary, rules)
            found[pair.case] = values_of(measured, cases.vocabulary)
    return {pair.case: found[pair.case] for pair in pairs}


def values_of(measured: Measured, vocabulary: Vocabulary) -> Values:
    """One value a metric: for all classes together, or else the mean over foreground classes, or regions."""
    background = measured.channels.names[:1] if (0,) in measured.channels.members else ()
    judged = tuple(vocabulary.regions) or tuple(name for name in measured.channels.names if name not in background)
    together: Values = {}
    apart: dict[str, list[float]] = {}
    for row in measured.values:
        key = f"{row.metric}@{row.voxels}" if row.voxels else row.metric
        if row.name == ALL:
            together[key] = row.value
        elif row.name in judged:
            apart.setdefault(key, []).append(row.value)
    return {key: _mean(values) for key, values in apart.items()} | together


def mean_values(by_case: Mapping[str, Values]) -> dict[str, Any]:
    """Mean over the cases in which a value is defined; None where it is in none."""
    keys = dict.fromkeys(key for values in by_case.values() for key in values)
    means = {key: _mean([values[key] for values in by_case.values()]) for key in keys}
    return {key: None if math.isnan(value) else value for key, value in means.items()}


def _mean(values: Sequence[float]) -> float:
    defined = [value for value in values if not math.isnan(value)]
    return sum(defined) / len(defined) if defined else math.nan


def _ignoring(labels: Array, ignore_label: int | None) -> Array:
    """Labels with 255 where nothing counts."""
    if ignore_label is None or ignore_label == IGNORE:
        return labels
    wide = labels.astype(np.int32) if labels.dtype.itemsize < 2 and labels.dtype.kind == "i" else labels
    return np.where(wide == ignore_label, wide.dtype.type(IGNORE), wide)
