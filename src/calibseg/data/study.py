"""The files of one case as a layout of folders names them, before any of them is read."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class Study:
    """The files of one case, and what their values mean."""

    id: str
    patient: str
    images: tuple[Path, ...]
    labels: tuple[Path, ...]  # one file per rater
    channels: tuple[str, ...]
    classes: tuple[str, ...]
    regions: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    label_map: Mapping[int, int] = field(default_factory=dict)
    ignore_label: int | None = None
    select: tuple[int, ...] | None = None  # which channels of the files to take
    item: int = 0  # which part of a file that holds many cases
