"""What cross-fitting found, on disk: whole, and fold by fold while it is under way.

    METHOD/cross-fitted.json          every case's values                                format calibseg-cross-fitted/1
    METHOD/cross-fitted.part.json     those of the folds that are done; gone when all are

Both carry a key, the hash of everything that the values were made from. What has another key is as if it were not
there, so that a call that was killed at any moment goes on with the next fold, and ends with the same values.
"""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict

from calibseg.core import files

KIND = "cross-fitted"
Values = dict[str, float]  # "ece@truth" -> value
ByCase = dict[str, Values]
Stored = dict[str, dict[str, float | None]]


class _Whole(TypedDict):
    key: str
    ground: str
    folds: int
    cases: Stored


class _Part(TypedDict):
    key: str
    folds: dict[str, Stored]


@dataclass(frozen=True)
class FoldFile:
    """The values of one method on one calibration set."""

    path: Path  # of the whole
    key: str

    @property
    def part(self) -> Path:
        return self.path.with_suffix(".part.json")

    def is_whole(self) -> bool:
        """Whether all is done already; then parts that a kill has left are removed."""
        whole = _content(self.path, _Whole).get("key") == self.key
        if whole:
            self.part.unlink(missing_ok=True)
        return whole

    def get(self, fold: int) -> ByCase | None:
        """A fold that was measured before."""
        found = self._folds().get(str(fold))
        return None if found is None else _values(found)

    def put(self, fold: int, found: ByCase) -> None:
        folds = self._folds() | {str(fold): _json(found)}
        files.write_json(self.part, KIND, {"key": self.key, "folds": folds})

    def close(self, calibration_set: str, folds: int, found: ByCase) -> None:
        """Keep all values; the parts have served."""
        told = {"key": self.key, "ground": calibration_set, "folds": folds, "cases": _json(found)}
        files.write_json(self.path, KIND, told)
        self.part.unlink(missing_ok=True)

    def _folds(self) -> dict[str, Any]:
        content = _content(self.part, _Part)
        return content["folds"] if content.get("key") == self.key else {}


def read_values(path: Path, calibration_set: str, folds: int) -> ByCase | None:
    """What a method was worth; None where it was measured on another set, by other folds or not at all."""
    told = _content(path, _Whole)
    return _values(told["cases"]) if (told.get("ground"), told.get("folds")) == (calibration_set, folds) else None


def _values(found: Stored) -> ByCase:
    return {
        case: {name: math.nan if value is None else value for name, value in values.items()}
        for case, values in found.items()
    }


def _json(found: ByCase) -> Stored:
    """NaN is no number there."""
    return {
        case: {name: None if math.isnan(value) else value for name, value in values.items()}
        for case, values in found.items()
    }


def _content(path: Path, shape: Any) -> dict[str, Any]:
    return files.read_json(path, KIND, shape) if path.is_file() else {}
