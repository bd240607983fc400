"""Calibrators fitted on one set of cases, compared by cross-fitting, and the choice among them, in one folder.

    CALIBRATORS/METHOD/calibrator.json       fitted on all cases of the calibration set
    CALIBRATORS/METHOD/cross-fitted.json     each case measured by a fit that has not seen its patient
    CALIBRATORS/none/cross-fitted.json       the network's own probabilities, which are a candidate too
    CALIBRATORS/choice.json                  the table over all methods fitted on the same set, and the choice

The choice is what `predict --input` applies. Unless asked otherwise it is made among calibrators that keep the label of
every voxel: whoever has validated a segmentation gets it unchanged, with better confidence. The best of any is named
beside it.

What is there already and was made from the same predictions, labels, options and program is kept, so that an
interrupted call goes on where it stopped, fold by fold, and a later one adds a method to those before it. Both files of
a method tell by the fingerprint `made_from`: of the calibration set (`stage`), the options, and the program: the
method's own file, every file of ROOMS and the version (`_method`).
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from calibseg import __version__
from calibseg.calibrators import Calibrator
from calibseg.calibrators.fitted.files import KIND, read_calibrator, save_calibrator
from calibseg.calibrators.fitted.selected import NONE, fitted_methods
from calibseg.core import files, plugins, registry
from calibseg.core.hashing import file_fingerprint, fingerprint, program_fingerprint
from calibseg.core.types import BadInput
from calibseg.runs import folders
from calibseg.stages.calibrate.cross_fitting import (
    BY,
    Labelled,
    Progress,
    Steps,
    cross_fit,
    fitted,
    mean_values,
    possible_folds,
)
from calibseg.stages.calibrate.fold_files import ByCase, FoldFile, read_values
from calibseg.stages.calibrate.options import CalibrationOptions, ChoiceRule

ROOMS = ("calibrators", "core", "metrics")  # what decides how a calibrator is fitted; an edit there fits it anew


@dataclass(frozen=True)
class CalibrationSet:
    """The cases that calibrators are fitted on.

    fingerprint: of all predictions and labels
    record: the subset or the folder, and what else calibrator.json should say
    """

    cases: Labelled
    fingerprint: str
    record: Mapping[str, Any]

    @property
    def name(self) -> str:
        return str(self.record.get("subset") or self.record["folder"])

    @property
    def patients(self) -> list[str]:
        return [pair.patient for pair in self.cases.pairs]


@dataclass(frozen=True)
class Method:
    """A calibrator to fit: its name, how to make one, and the fingerprint of its program and options."""

    name: str
    make: Callable[[], Calibrator]
    uses_image: bool
    fingerprint: str
    found_as: str  # in the registry: its name, or its file


@dataclass(frozen=True)
class MethodChoice:
    """The outcome: the choice, the rule it was made by, and a row for each candidate."""

    chosen: str
    by: str
    rows: list[dict[str, Any]]
    fitted: int  # methods that were fitted now; the rest was there already
    cross_fitted: bool
    best: Mapping[ChoiceRule, str]  # by either rule

    @property
    def keeps_labels(self) -> bool:
        """Whether the chosen one leaves the label of every voxel as it is."""
        return next(row["keeps_argmax"] for row in self.rows if row["method"] == self.chosen)


def methods_of(names: Sequence[str], options: CalibrationOptions) -> list[Method]:
    """The calibrators by their names, with options that all of them take and options of single ones; all checked."""
    names = list(dict.fromkeys(name for name in names if name != NONE))
    if not names:
        raise BadInput(f"name at least one calibrator. Known: {', '.join(registry.members('calibrators'))}")
    by_method: dict[str, dict[str, Any]] = {}
    for path, value in options.options.items():
        owner, _, option = path.rpartition(".")
        if owner not in names:
            raise BadInput(f"an option is given for {owner!r}, which is none of the methods {', '.join(names)}")
        by_method.setdefault(owner, {})[option] = value
    common = {"fit_on": options.fit_on, "sample": options.sample, "seed": options.seed}
    return [_method(name, {**common, **by_method.get(name, {})}) for name in names]


def fit_and_choose(
    calibration_set: CalibrationSet,
    methods: Sequence[Method],
    calibrators_dir: Path,
    options: CalibrationOptions = CalibrationOptions(),
    progress: Progress = lambda done, total, text: None,
) -> MethodChoice:
    """Fit every method on all cases, cross-fit it, and write the choice among all methods of the folder.

    options.choose: among those that keep the label of every voxel, which the network itself does too; or among any
    """
    number = possible_folds(calibration_set.patients, options.folds)
    steps = Steps(progress, len(methods) * (number + 1) + 1)
    fitted_now = 0
    for index, method in enumerate(methods, 1):
        steps.begin(f"{method.name}: all cases")
        fold_file = _fold_file(method.name, method.fingerprint, calibration_set, calibrators_dir, number)
        fitted_now += _fit(method, calibration_set, calibrators_dir, fold_file, steps)
        cross_fit((method.name, method.make), calibration_set.cases, fold_file, steps)
        steps.done = index * (number + 1)  # also where folds were there already
    steps.begin("uncalibrated")
    program = fingerprint([NONE, program_fingerprint(Path(__file__), ROOMS), __version__])
    of_network = _fold_file(NONE, program, calibration_set, calibrators_dir, number)
    cross_fit(None, calibration_set.cases, of_network, steps)
    progress(steps.total, steps.total, "")
    return _choose(calibration_set, calibrators_dir, number, fitted_now, options)


def _method(name: str, options: Mapping[str, Any]) -> Method:
    member = registry.find("calibrators", name)
    plugins.allow(name)

    def make() -> Calibrator:
        return registry.build("calibrators", name, dict(options))

    first = make()
    found_as = str(member.path) if name.endswith(".py") else name
    program = fingerprint([found_as, first.options, program_fingerprint(member.path, ROOMS), __version__])
    return Method(member.key, make, first.uses_image, program, found_as)


def _fit(
    method: Method, calibration_set: CalibrationSet, calibrators_dir: Path, fold_file: FoldFile, steps: Steps
) -> bool:
    """Fit on all cases and save; False where that was done before."""
    made_from = fingerprint([method.fingerprint, calibration_set.fingerprint])
    folder = calibrators_dir / method.name
    if _known(folder).get("made_from") == made_from:
        return False
    began = time.monotonic()
    calibrator = fitted(method.make, calibration_set.cases, steps)
    seconds = round(time.monotonic() - began, 3)
    record = {
        "fitted_on": {
            **calibration_set.record,
            "files": [file_fingerprint(pair.files[0]) for pair in calibration_set.cases.pairs],
        },
        "seconds": seconds,
        "made_from": made_from,
        "calibseg": __version__,
        "method": method.found_as,
    }
    if not fold_file.done():
        fold_file.path.unlink(missing_ok=True)  # values of another fit, which would pass for those of this one
    save_calibrator(folder, calibrator, record)
    return True


def _fold_file(name: str, program: str, calibration_set: CalibrationSet, calibrators_dir: Path, folds: int) -> FoldFile:
    """Where the values of a method, or of the network itself, are kept fold by fold."""
    made_from = fingerprint([program, calibration_set.fingerprint, folds])
    path = folders.CalibratorFolder(calibrators_dir / name).cross_fitted
    return FoldFile(path, made_from, calibration_set.fingerprint, folds)


def _choose(
    calibration_set: CalibrationSet, calibrators_dir: Path, folds: int, fitted_now: int, options: CalibrationOptions
) -> MethodChoice:
    """The smallest cross-fitted NLL; among equals the one that does less, which is listed first."""
    choose = options.choose
    rows = []
    for name in (NONE, *fitted_methods(calibrators_dir)):
        by_case = _measured(calibrators_dir, name, calibration_set, folds)
        if by_case is not None:
            info = _known(calibrators_dir / name)
            record = {"seconds": info.get("seconds", 0.0), "keeps_argmax": info.get("keeps_argmax", True)}
            rows.append({"method": name, **mean_values(by_case), **record, "fallbacks": info.get("fallbacks", [])})
    best: dict[ChoiceRule, str] = {
        "keeps-labels": min((row for row in rows if row["keeps_argmax"]), key=lambda row: row[BY])["method"],
        "any": min(rows, key=lambda row: row[BY])["method"],
    }
    patients = len(set(calibration_set.patients))
    how = (
        f"cross-fitted over {folds} folds of {patients} patients"
        if folds > 1
        else "in-sample, because a single patient cannot be held out"
    )
    among = ", among those that keep every label" if choose == "keeps-labels" else ""
    by = f"NLL on all voxels, mean over {len(calibration_set.cases)} cases of {calibration_set.name}, {how}{among}"
    chosen = MethodChoice(best[choose], by, rows, fitted_now, folds > 1, best)
    files.write_json(
        folders.choice_path(calibrators_dir),
        "choice",
        {
            "chosen": chosen.chosen,
            "keeps_labels": chosen.keeps_labels,
            "by": by,
            "choose": choose,
            "options": asdict(options),
            "best": best,
            "fitted_on": calibration_set.name,
            "cross_fitted": folds > 1,
            "folds": folds,
            "cases": len(calibration_set.cases),
            "patients": patients,
            "table": rows,
        },
    )
    return chosen


def _measured(calibrators_dir: Path, name: str, calibration_set: CalibrationSet, folds: int) -> ByCase | None:
    """What a method was worth on this calibration set; None where it was fitted on another.

    Its values are always those of the fit beside them: they are removed before another fit is saved.
    """
    if name != NONE and not _known(calibrators_dir / name):
        return None
    path = folders.CalibratorFolder(calibrators_dir / name).cross_fitted
    by_case = read_values(path, calibration_set.fingerprint, folds)
    return None if by_case is None else {pair.case: by_case[pair.case] for pair in calibration_set.cases.pairs}


def _known(folder: Path) -> dict[str, Any]:
    """What an earlier call said of its fit; nothing where there is none, or one that is older than `parameters`."""
    path = folders.CalibratorFolder(folder).info
    known = path.is_file() and "parameters" in files.read_json(path, KIND)
    return read_calibrator(folder) if known else {}
