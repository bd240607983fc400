"""Your own files, paired by a table: `cases.toml` or `cases.csv`.

cases.toml says everything; paths are relative to it:

    classes = ["background", "liver"]
    channels = ["CT"]
    ignore_label = 9                     # optional
    regions = { all = [1] }              # optional
    [[case]]
    id = "a"
    patient = "p1"
    images = ["a_ct.nii.gz"]             # one file per channel, or one file with all of them
    labels = ["a_rater1.nii.gz"]         # one file per rater

cases.csv has the columns id, patient, image (or image_CHANNEL, one per channel) and label (or label_1, label_2, ... one
per rater); classes are then an option.
"""

import csv
import io
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from calibseg.core.coerce import coerce
from calibseg.core.files import read_text, read_toml
from calibseg.core.types import BadInput
from calibseg.data.datasets import Dataset
from calibseg.data.study import Study


class Folder(Dataset):
    """Files paired by a table.

    names: the classes for a CSV, background first, separated by commas
    """

    title = "any files, paired by a TOML or CSV"
    layout = "DIR/cases.toml or DIR/cases.csv, or the path of such a table"

    def __init__(self, names: str = "background,foreground", **common: Any):
        super().__init__(**common)
        self.names = tuple(name.strip() for name in names.split(","))

    def find(self, root: Path) -> list[Study]:
        table = _table(root)
        metadata, rows = _read_toml(table) if table.suffix == ".toml" else _read_csv(table, self.names)
        return [
            self.study(
                str(row["id"]),
                str(row["patient"]),
                [table.parent / path for path in _listed(row["images"])],
                [table.parent / path for path in _listed(row["labels"])],
                classes=tuple(metadata["classes"]),
                channels=tuple(metadata["channels"]),
                regions={name: tuple(ids) for name, ids in metadata.get("regions", {}).items()},
                ignore_label=metadata.get("ignore_label"),
            )
            for row in rows
        ]


@dataclass(frozen=True)
class _Row:
    id: str | int
    patient: str | int
    images: str | list[str]
    labels: str | list[str]


@dataclass(frozen=True)
class _Table:
    """cases.toml."""

    classes: list[str]
    channels: list[str]
    case: list[_Row]
    regions: dict[str, list[int]] = field(default_factory=dict)
    ignore_label: int | None = None


def _table(root: Path) -> Path:
    if root.is_file():
        return root
    tables = [path for name in ("cases.toml", "cases.csv") if (path := root / name).is_file()]
    if len(tables) != 1:
        contents = "both cases.toml and cases.csv" if tables else "neither cases.toml nor cases.csv"
        raise BadInput(f"{root}: holds {contents}; give the path of the table")
    return tables[0]


def _read_toml(table: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    content = coerce(f"{table}: ", read_toml(table), _Table)
    return asdict(content), [asdict(row) for row in content.case]


def _listed(files: str | list[str]) -> list[str]:
    return [files] if isinstance(files, str) else list(files)


def _read_csv(table: Path, classes: tuple[str, ...]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    try:
        reader = csv.DictReader(io.StringIO(read_text(table), newline=""), strict=True)
        columns, rows = list(reader.fieldnames or ()), list(reader)
    except csv.Error as error:
        raise BadInput(f"{table}: not CSV: {error}") from error
    images = [column for column in columns if column == "image" or column.startswith("image_")]
    labels = [column for column in columns if column == "label" or column.startswith("label_")]
    missing = [name for name in ("id", "patient") if name not in columns]
    missing += [] if images else ["image"]
    missing += [] if labels else ["label"]
    if missing:
        raise BadInput(f"{table}: lacks the column {missing[0]!r}, it has {', '.join(columns) or 'none'}")
    for number, row in enumerate(rows, 2):
        empty = [column for column in ("id", "patient", *images, *labels) if not (row[column] or "").strip()]
        if empty:
            raise BadInput(f"{table}: line {number} has nothing in the column {empty[0]!r}")
        row["images"], row["labels"] = [row[column] for column in images], [row[column] for column in labels]
    return {"classes": classes, "channels": [column.removeprefix("image_") for column in images]}, rows
