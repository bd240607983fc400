"""Values of cross-fitting on disk, fold by fold: METHOD/cross-fitted.json          format calibseg-cross-fitted/1

The file carries two fingerprints. `made_from` is of everything that its values were made from: what has another one is
as if it were not there, so that a call that was killed at any moment goes on with the next fold, and ends with the same
values. `calibration_set` is of the cases alone: it tells which methods of earlier calls can be compared.
"""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NotRequired, TypedDict

from calibseg.core import files

KIND = "cross-fitted"
Values = dict[str, float]  # "ece@truth" -> value
ByCase = dict[str, Values]


class _Content(TypedDict):
    made_from: NotRequired[str]  # not said by an old version, whose values are measured again
    calibration_set: NotRequired[str]
    folds: int
    cases: dict[str, dict[str, float | None]]
    done: NotRequired[list[int]]  # the folds whose cases these are; not said: all


@dataclass(frozen=True)
class FoldFile:
    """The values of one method on one calibration set in so many folds."""

    path: Path
    made_from: str
    calibration_set: str
    folds: int

    def done(self) -> list[int]:
        """The folds that were measured before."""
        content = self._own()
        return content.get("done", list(range(self.folds))) if content else []

    def add(self, fold: int, by_case: ByCase) -> None:
        """Keep the values of a fold; NaN is no number in JSON."""
        new = {
            case: {name: None if math.isnan(value) else value for name, value in values.items()}
            for case, values in by_case.items()
        }
        cases, done = self._own().get("cases", {}) | new, sorted({*self.done(), fold})
        whose = {"made_from": self.made_from, "calibration_set": self.calibration_set, "folds": self.folds}
        files.write_json(self.path, KIND, {**whose, "cases": cases, "done": done})

    def _own(self) -> dict[str, Any]:
        content = _content(self.path)
        return content if content.get("made_from") == self.made_from else {}


def read_values(path: Path, calibration_set: str, folds: int) -> ByCase | None:
    """What a method was worth; None where it was measured on another set, by other folds or not wholly."""
    content = _content(path)
    if (content.get("calibration_set"), content.get("folds")) != (calibration_set, folds):
        return None
    if len(content.get("done", range(folds))) < folds:
        return None
    return {
        case: {name: math.nan if value is None else value for name, value in values.items()}
        for case, values in content["cases"].items()
    }


def _content(path: Path) -> dict[str, Any]:
    return files.read_json(path, KIND, _Content) if path.is_file() else {}
