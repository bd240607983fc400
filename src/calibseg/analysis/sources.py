"""What figures, tables and reports are made from: score tables and their reliability rows, wherever the user points.

A source is a score table (.csv, .csv.gz, .parquet), a run folder (its `scores-SUBSET.csv`, with and without
calibrator), a folder of runs or of score tables, or a benchmark's folder (its merged table, else its runs). A run is
called by its loss, or by its label in the benchmark's `cells.csv`; where several runs share that name, by what sets
them apart, too: `mbls (margin=5)`. So `plot`, `table` and `report` call the same run the same.

`read_source` merges the tables of one subset and refuses what does not fit; what a report makes of all subsets is in
evidence.py.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from calibseg.analysis import table
from calibseg.analysis.case_values import method_names
from calibseg.analysis.columns import EXPERIMENT, Frame
from calibseg.analysis.merge import merge, one_subset
from calibseg.analysis.run_names import counted_cells, run_folders, run_names
from calibseg.analysis.table import ScoreTable
from calibseg.core.types import BadInput
from calibseg.runs.folders import BenchmarkFolder, RunFolder

BIN_WORDS = (*EXPERIMENT, "patient", "case", "class", "voxels", "scope")
BIN_NUMBERS = ("bin", "low", "high", "count", "confidence", "accuracy")


@dataclass(frozen=True)
class TableFile:
    """A score table on disk, and what its method is called."""

    path: Path
    loss: str = ""  # takes the place of the table's own; blank: what the table says is final
    alone: bool = False  # the only table that the user gave this name: of one method, it is the whole name

    def read(self) -> ScoreTable:
        """The scores under that name; a calibrator and a variant are still told beside it, unless it stands alone."""
        scores = table.read(self.path)
        losses = scores.rows["loss"].unique()
        if self.loss and len(losses) > 1:
            raise BadInput(f"{scores.name} holds {len(losses)} losses and cannot be called {self.loss!r} as a whole")
        return replace(scores, rows=self._named(scores.rows))

    def _named(self, rows: Frame) -> Frame:
        if not self.loss:
            return rows
        one_method = len(rows[["loss", "calibrator", "variant"]].drop_duplicates()) == 1
        rest = {"calibrator": "", "variant": ""} if self.alone and one_method else {}
        return table.called(rows, loss=self.loss, **rest)

    def read_bins(self, scores: ScoreTable, **only: str) -> Frame | None:
        """The reliability rows: those beside the table, or those of the benchmark's runs that it was made of."""
        beside = table.bins_path(self.path)
        if beside.is_file():
            return self._named(read_bins(beside, **only))
        folder, parts = BenchmarkFolder(self.path.parent), []
        for slug, cell in counted_cells(folder.path).items():
            names = {"dataset": cell["dataset"], "network": cell["network"], "loss": cell["label"]}
            paths = RunFolder(folder.run(slug)).reliability_tables()
            parts += [table.called(read_bins(path, **only), **names) for path in paths]
        if not parts:
            return None
        rows, keys = table.concat(parts), list(EXPERIMENT)
        merged = set(scores.rows[keys].drop_duplicates().itertuples(index=False, name=None))
        experiment = rows.groupby(keys, sort=False).ngroup().to_numpy()
        in_table = [key in merged for key in rows[keys].drop_duplicates().itertuples(index=False, name=None)]
        return rows[np.array(in_table, dtype=bool)[experiment]]


@dataclass(frozen=True)
class Source:
    """Scores of one subset, and the files that they come from."""

    table: ScoreTable
    subset: str
    files: tuple[tuple[TableFile, ScoreTable], ...]

    @property
    def paths(self) -> list[Path]:
        """What was read, and must not be written over."""
        return [file.path for file, _ in self.files]

    def need_bins(self) -> Frame:
        """The rows of the reliability diagrams, or the sentence that says which file is missing."""
        parts = []
        for file, scores in self.files:
            rows = file.read_bins(scores)
            if rows is None:
                raise BadInput(
                    f"no reliability rows {table.bins_path(file.path)}: calibseg score writes them beside the table;"
                    " score it again, or keep the two files together"
                )
            parts.append(rows)
        return one_subset(table.concat(parts), self.subset, "the reliability rows")


def read_source(
    paths: Sequence[Path | str] = (),
    named: Mapping[str, Path | str] | None = None,
    subset: str = "",
    every_subset: bool = False,
) -> Source:
    """Score tables, run folders and benchmark folders as one table; `named`: method -> a table of that one method.

    subset: blank: test, or the only one that there is
    """
    given = ([Path(path) for path in paths], named or {})
    try:
        files = table_files(*given, "" if every_subset else subset or "test")
    except BadInput:
        if subset or every_subset or not (files := table_files(*given)):  # there may be another one
            raise
    if not files:
        raise BadInput("no score table is given: name a scores.csv, a run folder or a benchmark folder")
    tables = [file.read() for file in files]
    merged = merge(tables)
    scores = merged if every_subset else replace(merged, rows=one_subset(merged.rows, subset, merged.name))
    _refuse_lost(merged, scores.rows)
    return Source(scores, subset, tuple(zip(files, tables, strict=True)))


def _refuse_lost(merged: ScoreTable, chosen: Frame) -> None:
    """A method that has scores of other subsets only would vanish from a comparison without a word."""
    known, kept = (
        list(rows.assign(method=method_names(rows))[["dataset", "network", "method"]].drop_duplicates().to_numpy())
        for rows in (merged.rows[merged.rows["scope"] == "case"], chosen)
    )
    lost = sorted(set(map(tuple, known)) - set(map(tuple, kept)))
    if lost:
        *place, method = lost[0]
        where = " on ".join(filter(None, (method, " ".join(filter(None, place)))))
        subsets = ", ".join(filter(None, chosen["subset"].unique()))
        raise BadInput(
            f"{merged.name}: {where} has no scores of the subset {subsets}, on"
            " which methods are compared: score it, leave it out, or choose another with --subset"
        )


def table_files(
    paths: Sequence[Path], named: Mapping[str, Path | str] | None = None, subset: str = ""
) -> list[TableFile]:
    """The score tables of paths; those of runs under names that tell runs with the same loss apart.

    subset: of a run the tables of this subset only; blank: of every subset
    """
    runs = [run for path in paths if path.is_dir() and not merged_table(path) for run in run_folders(path)]
    names = dict(zip(runs, run_names(runs, "together"), strict=True))
    files = [TableFile(file, names.get(file.parent, "")) for path in paths for file in score_files(path, subset)]
    for name, path in (named or {}).items():
        own = score_files(Path(path), subset)
        files += [TableFile(file, name, alone=len(own) == 1) for file in own]
    return files


def score_files(path: Path, subset: str = "") -> list[Path]:
    """The score tables that a path stands for."""
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise BadInput(f"no score table, run folder or benchmark folder {path}")
    if merged := merged_table(path):
        validation = BenchmarkFolder(path).validation_scores
        tables = [merged, *([validation] if validation.is_file() else [])]
        return tables[-1:] if subset == "validation" else tables if not subset else [merged]
    runs = run_folders(path)
    files = [file for folder in runs or [path] for file in RunFolder(folder).score_tables(subset)]
    if not files and not runs:
        raise BadInput(f"{path}: holds no training run (run.json), no runs and no score table (scores.csv)")
    if not files and subset:
        raise BadInput(f"{path}: holds no score table of the subset {subset!r}; run calibseg score first")
    return files


def merged_table(folder: Path) -> Path | None:
    """A benchmark's own table of everything."""
    scores = BenchmarkFolder(folder).scores
    return next((path for path in (scores, scores.with_suffix(".csv")) if path.is_file()), None)


def read_bins(path: Path | str, **only: str) -> Frame:
    """A `bins.csv`: `nan` where a bin is empty; only: the rows in which a column holds this word."""
    path = Path(path)
    if not path.is_file():
        raise BadInput(f"no reliability rows {path}: calibseg score writes them beside the table")
    rows = table.read_csv(path, BIN_WORDS, BIN_NUMBERS)
    lacking = [column for column in (*BIN_WORDS, *BIN_NUMBERS) if column not in rows.column_names]
    if lacking:
        raise BadInput(f"{path} has no column {lacking[0]!r}: these are no reliability rows")
    for column, word in only.items():
        rows = rows.filter(pc.field(column).cast(pa.string()) == word)
    try:
        numbers = {name: rows[name].cast(pa.float64()).to_numpy() for name in BIN_NUMBERS}
    except pa.ArrowInvalid as error:
        raise BadInput(f"{path} holds what is no number: {error}") from error
    words = table.from_arrow(rows, BIN_WORDS)
    return pd.DataFrame({**words, **numbers, "bin": numbers["bin"].astype(int)}, copy=False)
