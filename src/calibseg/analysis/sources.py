"""What figures are made from: score tables with their reliability rows, wherever the user points.

A source is a `scores.csv`, a run folder (its `scores-PART.csv`, with and without calibrator) or a benchmark folder
(its merged `scores.csv`, else its runs). Tables are merged by the rules of table.py; a table whose method has no name,
or the name of another, is given one. A benchmark's `cells.csv` says what its runs are called in its `scores.csv`, so
their reliability rows are found under the same names.
"""

import csv
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pandas as pd

from calibseg.analysis import table
from calibseg.analysis.case_values import method_names
from calibseg.analysis.table import Frame, ScoreTable
from calibseg.core import registry
from calibseg.core.types import BadInput
from calibseg.runs.folders import BenchmarkFolder, RunFolder, read_run

Runs = Sequence[Path] | Mapping[str, Path]  # run folders, or what to call them and where they are


@dataclass(frozen=True)
class Source:
    """Scores and, where every table has them, the rows of their reliability diagrams."""

    table: ScoreTable
    bins: Frame | None
    lacking: str = ""  # the first bins.csv that is not there

    def need_bins(self) -> Frame:
        """The reliability rows, or the sentence that says which file is missing."""
        if self.bins is None:
            raise BadInput(
                f"no reliability rows {self.lacking}: calibseg score writes them beside the table; score it again,"
                " or keep the two files together"
            )
        return self.bins


def read_source(
    paths: Sequence[Path | str] = (), named: Mapping[str, Path | str] | None = None, part: str = "test"
) -> Source:
    """Score tables, run folders and benchmark folders as one table; `named`: method -> a table of that one method."""
    files = _named_files([Path(path) for path in paths], part)
    files += [(file, name) for name, path in (named or {}).items() for file in score_files(Path(path), part)]
    if not files:
        raise BadInput("no score table is given: name a scores.csv, a run folder or a benchmark folder")
    tables, bins, lacking = [], [], ""
    for file, name in files:
        one = table.read(file)
        tables.append(_called(one, name))
        rows = _bins_of(file, one)
        if rows is not None:
            bins.append(rows.assign(loss=name) if name else rows)
        else:
            lacking = lacking or str(table.bins_path(file))
    merged = table.merge(tables)
    together = None if lacking else _one_part(pd.concat(bins, ignore_index=True), part)
    return Source(ScoreTable(_one_part(merged.rows, part), merged.rules, merged.notes, merged.name), together, lacking)


def _named_files(paths: Sequence[Path], part: str) -> list[tuple[Path, str]]:
    """The score tables of paths; those of runs under names that tell runs with the same loss apart."""
    runs = [run for path in paths if path.is_dir() and not _merged(path).is_file() for run in run_folders(path)]
    names = dict(zip(runs, run_names(runs, "together"), strict=True))
    return [(file, names.get(file.parent, "")) for path in paths for file in score_files(path, part)]


def _merged(folder: Path) -> Path:
    """A benchmark's own table of everything."""
    return BenchmarkFolder(folder).scores


def _bins_of(file: Path, scores: ScoreTable) -> Frame | None:
    """The reliability rows of a score table: those beside it, or those of the benchmark's runs that it was made of."""
    beside = table.bins_path(file)
    if beside.is_file():
        return read_bins(beside)
    cells = read_cells(file.parent)
    if not cells:
        return None
    found = []
    for slug, cell in cells.items():
        told = {"dataset": cell["dataset"], "network": cell["network"], "loss": cell["label"]}
        paths = sorted((file.parent / "runs" / slug).glob("scores-*.bins.csv"))
        found += [read_bins(path).assign(**told) for path in paths]
    if not found:
        return None
    rows: Frame = pd.concat(found, ignore_index=True)
    who = ["dataset", "network", "loss", "calibrator", "seed", "variant", "subset"]
    merged = set(scores.rows[who].drop_duplicates().itertuples(index=False, name=None))
    return rows[[key in merged for key in rows[who].itertuples(index=False, name=None)]]


def read_cells(folder: Path) -> dict[str, dict[str, str]]:
    """What a benchmark's `cells.csv` calls its runs, by the name of their folders; nothing where there is none."""
    path = BenchmarkFolder(folder).cells
    if not path.is_file():
        return {}
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    for column in ("cell", "dataset", "network", "label"):
        if rows and column not in rows[0]:
            raise BadInput(f"{path} has no column {column!r}: these are no cells of a benchmark")
    return {row["cell"]: row for row in rows}


def _called(one: ScoreTable, name: str) -> ScoreTable:
    """The same scores under a name in place of the loss; a calibrator and a variant are still told beside it."""
    if not name:
        return one
    losses = one.rows["loss"].unique()
    if len(losses) > 1:
        raise BadInput(f"{one.name} holds {len(losses)} losses and cannot be called {name!r} as a whole")
    return ScoreTable(one.rows.assign(loss=name), one.rules, one.notes, one.name)


def _one_part(rows: Frame, part: str) -> Frame:
    """Where a table holds several parts of the split, the one that is asked for."""
    return rows[rows["subset"].isin([part, ""])] if part in set(rows["subset"]) else rows


def score_files(path: Path, part: str = "test") -> list[Path]:
    """The score tables that a path stands for."""
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise BadInput(f"no score table, run folder or benchmark folder {path}")
    if _merged(path).is_file():
        return [_merged(path)]
    found = [file for run in run_folders(path) for file in _tables_of_run(run, part)]
    if not found:
        raise BadInput(f"{path}: holds no score table of the part {part!r}; run calibseg score first")
    return found


def _tables_of_run(run: Path, part: str) -> list[Path]:
    """scores-test.csv, and its variants: scores-test+temperature.csv, scores-test-noise0.05-seed0.csv."""
    found = [file for file in sorted(run.glob(f"scores-{part}*.csv")) if not file.name.endswith(".bins.csv")]
    return [file for file in found if file.stem.removeprefix(f"scores-{part}")[:1] in ("", "+", "-")]


def run_folders(path: Path) -> list[Path]:
    """The run folders that a path stands for: itself, or those of a benchmark."""
    if RunFolder(path).about.is_file():
        return [path]
    inside = [path / "runs", path]
    found = [sorted(about.parent for about in folder.glob(f"*/{RunFolder(path).about.name}")) for folder in inside]
    runs = next((runs for runs in found if runs), [])
    if not runs:
        raise BadInput(f"{path}: holds no training run (run.json is missing); run calibseg train first")
    return runs


def run_names(runs: Sequence[Path], seeds: Literal["apart", "together"] = "apart") -> list[str]:
    """What to call each run: its label in a benchmark or its loss, and in brackets what sets it apart from its like.

    seeds: together, where seeds, datasets and networks have columns of their own and are no part of the name
    """
    recipes = [_flat(read_run(run)["recipe"]) for run in runs]
    bases = [_label(run) or Path(str(recipe["loss.name"])).stem for run, recipe in zip(runs, recipes, strict=True)]
    elsewhere = re.compile(r"data\.work" if seeds == "apart" else r"data\.|network\.|seed$")
    found = []
    for base, recipe in zip(bases, recipes, strict=True):
        alike = [other for name, other in zip(bases, recipes, strict=True) if name == base]
        apart = [key for key in recipe if any(other.get(key) != recipe[key] for other in alike)]
        told = ", ".join(f"{key.rpartition('.')[2]}={recipe[key]}" for key in apart if not elsewhere.match(key))
        found.append(f"{base} ({told})" if told else base)
    if seeds == "together":
        return found
    return [name if found.count(name) == 1 else run.resolve().name for run, name in zip(runs, found, strict=True)]


def _label(run: Path) -> str:
    """What its benchmark calls a run; blank where it belongs to none."""
    run = run.resolve()
    cell = read_cells(run.parent.parent).get(run.name)
    return cell["label"] if cell else ""


def named_runs(runs: Runs) -> dict[str, Path]:
    """Runs by what to call them: as given, or by `run_names`."""
    if isinstance(runs, Mapping):
        return {name: Path(run) for name, run in runs.items()}
    folders = [Path(run) for run in runs]
    return dict(zip(run_names(folders), folders, strict=True))


def _flat(recipe: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """{"loss": {"name": "ce"}} -> {"loss.name": "ce"}."""
    found: dict[str, Any] = {}
    for key, value in recipe.items():
        found |= _flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return found


def read_bins(path: Path | str) -> Frame:
    """A `bins.csv`: names as text, numbers as numbers; `nan` where a bin is empty."""
    path = Path(path)
    if not path.is_file():
        raise BadInput(f"no reliability rows {path}: calibseg score writes them beside the table")
    names = [*table.EXPERIMENT, "patient", "case", "class", "voxels", "scope"]
    numbers = ["bin", "low", "high", "count", "confidence", "accuracy"]
    rows: Frame
    try:
        rows = pd.read_csv(path, dtype=str, keep_default_na=False, encoding="utf-8")
    except (pd.errors.ParserError, pd.errors.EmptyDataError, UnicodeDecodeError) as error:
        raise BadInput(f"{path} is not a CSV table: {str(error).strip()}") from error
    lacking = [column for column in (*names, *numbers) if column not in rows.columns]
    if lacking:
        raise BadInput(f"{path} has no column {lacking[0]!r}: these are no reliability rows")
    try:
        return rows.astype(dict.fromkeys(numbers, float) | {"bin": int})
    except ValueError as error:
        raise BadInput(f"{path} holds what is no number: {error}") from error


def methods(rows: Frame) -> list[str]:
    """The methods of a table in their order."""
    return list(dict.fromkeys(method_names(rows)))


def one_voxel_rule(rows: Frame, voxels: str) -> Frame:
    """The rows on these voxels; a rule that the table does not have is named, with those that it has."""
    present = [name for name in dict.fromkeys(rows["voxels"]) if name]
    if voxels not in present:
        raise BadInput(registry.unknown("voxel rule", voxels, present).replace("Known:", "In the table:"))
    return rows[rows["voxels"] == voxels]
