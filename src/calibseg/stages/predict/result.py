"""What a prediction comes to."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Predicted:
    """What was written where."""

    output: Path
    written: int
    unchanged: int = 0  # cases that were there already, from the same weights and data
    structures: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # of a scan
    calibrator: str = "none"
    why: str = ""  # it is this calibrator
