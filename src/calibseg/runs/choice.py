"""choice.json: which calibrator was chosen on validation, and between which. (A benchmark reads it without torch.)"""

from pathlib import Path
from typing import Any, NotRequired, TypedDict

from calibseg.core import files
from calibseg.runs import folders


class _Row(TypedDict):
    method: str


class _Choice(TypedDict):
    """What a reader needs of choice.json."""

    chosen: str
    fitted_on: NotRequired[str]
    by: NotRequired[str]
    options: NotRequired[dict[str, Any]]
    table: NotRequired[list[_Row]]


def read_choice(calibrators_dir: Path) -> dict[str, Any] | None:
    """What choice.json says; None where nothing was chosen yet."""
    path = folders.choice_path(calibrators_dir)
    if not path.is_file():
        return None
    return files.read_json(path, "choice", _Choice)
