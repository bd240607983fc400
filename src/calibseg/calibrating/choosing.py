"""Calibrators fitted on one ground, compared by cross-fitting, and the choice among them: a shelf that says it all.

    SHELF/METHOD/calibrator.json       fitted on all cases of the ground
    SHELF/METHOD/cross-fitted.json     each case measured by a fit that has not seen its patient
    SHELF/none/cross-fitted.json       the network's own probabilities, which are a candidate too
    SHELF/choice.json                  the table over all methods of the shelf that share the ground, and the choice

What is there already and was made from the same predictions, labels, options and program is kept, so that an
interrupted call goes on where it stopped and a later one adds a method to those before it.
"""

import hashlib
import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from calibseg import __version__, registry, store
from calibseg.calibrating.calibrator_files import read_calibrator, save_calibrator
from calibseg.calibrating.choice import NONE, methods_on
from calibseg.calibrating.cross_fitting import BY, Labelled, Values, cross_fitted, mean_values, possible_folds
from calibseg.calibrators import Calibrator
from calibseg.strict import fitting, type_named
from calibseg.types import Activation, BadInput

Progress = Callable[[int, int, str], None]  # done, total, what is being done


@dataclass(frozen=True)
class Ground:
    """What calibrators are fitted on.

    key: hash of all predictions and labels
    told: the part of a split or the folder, and what else the record should say
    """

    cases: Labelled
    activation: Activation
    key: str
    told: Mapping[str, Any]

    @property
    def name(self) -> str:
        return str(self.told.get("part") or self.told["folder"])

    @property
    def patients(self) -> list[str]:
        return [pair.patient for pair in self.cases.pairs]


@dataclass(frozen=True)
class Method:
    """A calibrator to fit: its name, how to make one, and a hash of its program and options."""

    name: str
    make: Callable[[], Calibrator]
    uses_image: bool
    key: str
    found_as: str  # in the registry: its name, or its file


@dataclass(frozen=True)
class Chosen:
    """The outcome: the choice, the rule it was made by, and a row for each candidate."""

    chosen: str
    by: str
    rows: list[dict[str, Any]]
    fitted: int  # methods that were fitted now; the rest was there already
    cross_fitted: bool


def methods_of(
    names: Sequence[str], common: Mapping[str, Any], options: Mapping[str, Mapping[str, Any]] | None = None
) -> list[Method]:
    """The calibrators by their names, with options that all of them take and options of single ones; all checked."""
    names = list(dict.fromkeys(name for name in names if name != NONE))
    if not names:
        raise BadInput(f"name at least one calibrator. Known: {', '.join(registry.members('calibrators'))}")
    for owner in options or {}:
        if owner not in names:
            raise BadInput(f"an option is given for {owner!r}, which is none of the methods {', '.join(names)}")
    return [_method(name, {**common, **(options or {}).get(name, {})}) for name in names]


def fit_and_choose(
    ground: Ground,
    methods: Sequence[Method],
    shelf: Path,
    folds: int,
    progress: Progress = lambda done, total, text: None,
) -> Chosen:
    """Fit every method on all cases, cross-fit it, and write the choice among all methods of the shelf."""
    number = possible_folds(ground.patients, folds)
    total, done = len(methods) * (number + 1) + 1, 0

    def step(text: str) -> None:
        nonlocal done
        progress(done, total, text)
        done += 1

    fitted = 0
    for method in methods:
        step(f"{method.name}: all cases")
        fitted += _fit(method, ground, shelf)
        path = store.cross_fitted_path(shelf, method.name)
        _cross_fit(
            path, method.make, _key(method.key, ground.key, number), ground, number, _prefixed(method.name, step)
        )
        done = (methods.index(method) + 1) * (number + 1)
    step("uncalibrated")
    _cross_fit(store.cross_fitted_path(shelf, NONE), None, _key(NONE, ground.key, number), ground, number, step)
    progress(total, total, "")
    return _choose(ground, shelf, number, fitted)


def _method(name: str, options: Mapping[str, Any]) -> Method:
    member = registry.find("calibrators", name)
    hints = {option.name: type_named(option.type) for option in member.options}
    for option in options:
        if hints and option not in hints:
            raise BadInput(registry.unknown(f"option of calibrator {member.key!r}", option, list(hints)))
    given = {
        option: fitting(f"{member.key}.{option}", value, hints.get(option, Any)) for option, value in options.items()
    }

    def make() -> Calibrator:
        return registry.build("calibrators", name, given)

    first = make()
    found_as = str(member.path) if name.endswith(".py") else name
    key = _key(found_as, first.options, _program(member.path), __version__)
    return Method(member.key, make, first.uses_image, key, found_as)


def _program(path: Path) -> str:
    """A hash of the source of a calibrator and of what calibrators share."""
    digest = hashlib.blake2b(digest_size=16)
    for source in (path, *sorted((registry.PACKAGE / "calibrators").glob("_*.py"))):
        digest.update(source.read_bytes())
    return digest.hexdigest()


def _fit(method: Method, ground: Ground, shelf: Path) -> bool:
    """Fit on all cases and save; False where that was done before."""
    key = _key(method.key, ground.key)
    if method.name in methods_on(shelf) and read_calibrator(shelf / method.name).get("key") == key:
        return False
    began = time.monotonic()
    calibrator = method.make().fit(ground.cases)
    seconds = round(time.monotonic() - began, 3)
    told = {
        "fitted_on": dict(ground.told),
        "seconds": seconds,
        "ground": ground.key,
        "key": key,
        "calibseg": __version__,
        "method": method.found_as,
    }
    save_calibrator(shelf / method.name, calibrator, told)
    return True


def _cross_fit(
    path: Path, make: Callable[[], Calibrator] | None, key: str, ground: Ground, folds: int, step: Callable[[str], None]
) -> None:
    if path.is_file() and store.read_json(path, "cross-fitted").get("key") == key:
        return
    found = cross_fitted(make, ground.cases, ground.activation, folds, step)
    cases = {case: {name: _plain(value) for name, value in values.items()} for case, values in found.items()}
    store.write_json(path, "cross-fitted", {"key": key, "ground": ground.key, "folds": folds, "cases": cases})


def _choose(ground: Ground, shelf: Path, folds: int, fitted: int) -> Chosen:
    """The smallest cross-fitted NLL; among equals the one that does less, which is listed first."""
    rows = []
    for name in (NONE, *methods_on(shelf)):
        found = _measured(shelf, name, ground, folds)
        if found is not None:
            about = {} if name == NONE else read_calibrator(shelf / name)
            told = {"seconds": about.get("seconds", 0.0), "keeps_argmax": about.get("keeps_argmax", True)}
            rows.append({"method": name, **mean_values(found), **told, "fallbacks": about.get("fallbacks", [])})
    best = min(rows, key=lambda row: row[BY])
    patients = len(set(ground.patients))
    how = (
        f"cross-fitted over {folds} folds of {patients} patients"
        if folds > 1
        else "in-sample, because a single patient cannot be held out"
    )
    by = f"NLL on all voxels, mean over {len(ground.cases)} cases of {ground.name}, {how}"
    store.write_json(
        store.choice_path(shelf),
        "choice",
        {
            "chosen": best["method"],
            "by": by,
            "fitted_on": ground.name,
            "cross_fitted": folds > 1,
            "folds": folds,
            "cases": len(ground.cases),
            "patients": patients,
            "ground": ground.key,
            "table": rows,
        },
    )
    return Chosen(best["method"], by, rows, fitted, folds > 1)


def _measured(shelf: Path, name: str, ground: Ground, folds: int) -> dict[str, Values] | None:
    """What a method was worth on this ground; None where it was fitted on another."""
    path = store.cross_fitted_path(shelf, name)
    if not path.is_file():
        return None
    told = store.read_json(path, "cross-fitted")
    if (told.get("ground"), told.get("folds")) != (ground.key, folds):
        return None
    if name != NONE and read_calibrator(shelf / name).get("ground") != ground.key:
        return None
    return {
        case: {key: math.nan if value is None else value for key, value in values.items()}
        for case, values in told["cases"].items()
    }


def _prefixed(name: str, step: Callable[[str], None]) -> Callable[[str], None]:
    return lambda text: step(f"{name}: {text}")


def _plain(value: float) -> float | None:
    """As JSON has it: NaN is no number there."""
    return None if math.isnan(value) else value


def _key(*told: Any) -> str:
    return hashlib.blake2b(json.dumps(told, sort_keys=True, default=str).encode(), digest_size=16).hexdigest()
