"""A finished cell in small: its reduced score table, which is kept beside the code and counts as the whole cell.

    KEPT/CELL.csv.gz       the values of every test and validation case that pages are made from, to six digits
    KEPT/CELL.meta.json    the rules they were scored by, and what they were made from

Weights and logits of a grid take gigabytes and are lost with the machine; a kept table takes some 20 kB, so that
nothing is trained twice. It counts only where it was made from the same recipe, the same training, validation and test
cases and the same calibrators, and was scored by the same rules. On validation a calibrator's rows are cross-fitted.
"""

import gzip
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypedDict

import pandas as pd

from calibseg.analysis import table
from calibseg.analysis.columns import ALL, Frame
from calibseg.analysis.headline import headline
from calibseg.analysis.table import ScoreTable
from calibseg.benchmark.grid import Cell, Grid
from calibseg.core import files
from calibseg.core.coerce import coerce
from calibseg.core.hashing import by_content, fingerprint
from calibseg.core.types import BadInput
from calibseg.data import prepared
from calibseg.runs import folders

DIGITS = 6
NOTES = ("voxels", "versions")  # that are kept of a score table's notes


class _Calibrator(TypedDict):
    keeps_argmax: bool


def kept_path(folder: Path, slug: str) -> Path:
    return folder / f"{slug}.csv.gz"


def made_from(grid: Grid, cell: Cell, work: Path) -> dict[str, Any]:
    """All that decides the numbers of a cell but the rules of scoring; the cases' part is None until they are there."""
    options = json.loads(json.dumps(asdict(grid.calibrate)))
    record: dict[str, Any] = {"recipe": cell.recipe.fingerprint, "cases": None, "calibrate": options}
    if cell.recipe.data.split in prepared.split_names(work):
        keys = {entry["id"]: entry["key"] for entry in prepared.read_index(work)["cases"]}
        split = prepared.read_split(work, cell.recipe.data.split)
        parts = split.train, split.validation, split.test
        record["cases"] = fingerprint([{id: keys.get(id) for id in ids} for ids in parts])
    programs = [by_content(name) for name in cell.calibrators if name.endswith(".py")]
    record |= {"programs": programs} if programs else {}
    return record | {"calibrators": list(cell.calibrators), "noises": list(cell.noises)}


def is_current(path: Path, expected: Mapping[str, Any]) -> bool:
    """Whether a kept table was made from this, of cases that are there; it may hold more calibrators and noises."""
    meta = table.meta_path(path)
    if not path.is_file() or not meta.is_file():
        return False
    record = coerce(f"{meta}: kept", files.read_json(meta, "scores", dict[str, Any]).get("kept", {}), dict[str, Any])
    lists = ("calibrators", "noises")
    same = expected["cases"] is not None and all(
        record.get(name) == value for name, value in expected.items() if name not in lists
    )
    return same and all(set(expected[name]) <= set(record.get(name, ())) for name in lists)


def write_kept(path: Path, run: Path, grid: Grid, record: Mapping[str, Any]) -> None:
    """Reduce the score tables of a finished run to one that is kept."""
    folder = folders.RunFolder(run)
    names = [folders.predicted_name("test", noise) for noise in record["noises"]]
    paths = [folder.scores(name, calibrator) for name in names for calibrator in record["calibrators"]]
    tables = [table.read(scores) for scores in (folder.scores("validation"), *paths) if scores.is_file()]
    metrics = _metrics_kept(grid)
    parts = [reduced(scores.rows, metrics) for scores in tables]
    parts += [part for name in record["calibrators"] if (part := _cross_fitted(folder, name, parts[0])) is not None]
    notes = {name: tables[0].notes[name] for name in NOTES}
    write_reduced(path, parts, {"rules": tables[0].rules, **notes, "kept": dict(record)})


def _metrics_kept(grid: Grid) -> set[str]:
    """What the grid reports and chooses by, or the headline; and what a recommendation and the pages need."""
    shown = (*grid.report.metrics, *grid.score.metrics) or headline()
    chosen_by = () if grid.select is None else (grid.select.by,)
    return {name.partition("@")[0] for name in (*shown, *chosen_by, "dsc", "nll", "signed_gap")}


def write_reduced(path: Path, parts: Sequence[Frame], meta: Mapping[str, Any]) -> None:
    """Reduced rows as one compressed score table of six digits, with its meta file."""
    rows = table.as_text(table.concat(parts)).assign(value=lambda all: [f"{float(v):.{DIGITS}g}" for v in all["value"]])
    path.parent.mkdir(parents=True, exist_ok=True)
    with files.atomic_write(path) as temporary:
        temporary.write_bytes(gzip.compress(rows.to_csv(index=False).encode(), mtime=0))
    files.write_json(table.meta_path(path), "scores", meta)  # last: it vouches for the rows


def kept_tables(path: Path, subset: str) -> Iterator[ScoreTable]:
    """The rows of a subset, as the run's own tables have them."""
    if path.is_file():
        scores = table.read(path)
        rows = scores.rows[scores.rows["subset"] == subset]
        if len(rows):
            yield ScoreTable(rows.reset_index(drop=True), scores.rules, scores.notes, scores.name)


def reduced(rows: Frame, metrics: set[str]) -> Frame:
    """One case's values of these metrics: of all classes together where a metric has that, else class by class."""
    rows = rows[(rows["scope"] == "case") & rows["metric"].isin(metrics)]
    with_all = rows.loc[rows["class"] == ALL, "metric"].unique()
    return rows[(rows["class"] == ALL) | ~rows["metric"].isin(with_all)].reset_index(drop=True)


def _cross_fitted(folder: folders.RunFolder, calibrator: str, rows: Frame) -> Frame | None:
    """The validation rows of a calibrator, by fits that had not seen the case; DSC where it keeps every label."""
    path = folder.calibrator(calibrator).cross_fitted
    if calibrator == "none" or not path.is_file():
        return None
    by_case = files.read_json(path, "cross-fitted", dict[str, Any])["cases"]
    rows = table.plain(rows[rows["subset"] == "validation"])
    keeps_labels = files.read_json(folder.calibrator(calibrator).info, "calibrator", _Calibrator)["keeps_argmax"]
    dsc = rows[(rows["metric"] == "dsc") & keeps_labels]
    rows = rows[rows["class"] == ALL]
    values = []
    for case, metric, voxels in zip(rows["case"], rows["metric"], rows["voxels"], strict=True):
        if case not in by_case:
            raise BadInput(f"{path}: says nothing of the validation case {case!r}; calibrate the run again")
        value = by_case[case].get(f"{metric}@{voxels}")
        values.append(math.nan if value is None else value)
    rows = rows.assign(value=values)
    result = pd.concat([dsc, rows[rows["value"].notna()]]).assign(calibrator=folders.method_name(calibrator))
    return table.categorical(result)
