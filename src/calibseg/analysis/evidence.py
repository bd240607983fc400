"""Everything a report can show: the scores of all subsets, the reliability rows and the runs of its sources.

`gather` leaves out and names what cannot stand beside the others (other rules, another subset), so that one odd file
does not cost a whole report.
"""

from collections import ChainMap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from calibseg.analysis import table
from calibseg.analysis.case_values import method_names
from calibseg.analysis.columns import Frame
from calibseg.analysis.merge import Agreement, merge, one_subset
from calibseg.analysis.run_names import counted_cells, run_folders
from calibseg.analysis.run_records import Run, read_run_folder
from calibseg.analysis.sources import merged_table, table_files
from calibseg.analysis.table import ScoreTable
from calibseg.analysis.variants import noisy, shift_of
from calibseg.core.files import read_toml
from calibseg.core.types import BadInput
from calibseg.runs.folders import BenchmarkFolder, RunFolder


@dataclass(frozen=True)
class Evidence:
    """Everything a report can show, and what had to be left out of it."""

    test: ScoreTable
    shifted: Frame  # the same rows and those of images with noise added
    validation: ScoreTable | None
    bins: Frame | None
    runs: tuple[Run, ...]
    warnings: tuple[str, ...] = ()
    stated: Mapping[str, str] | None = None  # title, paper and metrics, where a benchmark's grid names them


def gather(sources: Sequence[Path | str], **bins: str) -> Evidence:
    """Everything that the sources hold; bins: which reliability rows are wanted, such as voxels="predicted"."""
    if not sources:
        raise BadInput("name at least one score table, run folder or benchmark folder to report on")
    paths = [Path(source) for source in sources]
    files = table_files(paths)
    if not files:
        raise BadInput(f"{', '.join(map(str, sources))}: no score table there yet; run calibseg score first")
    tables = [file.read() for file in files]
    names = {file.path.parent: _base_name(scores.rows) for file, scores in zip(files, tables, strict=True)}
    runs = [run for path in paths for run in _runs(path, names)]
    stated = ChainMap(*(_stated(BenchmarkFolder(path).grid) for path in paths))
    kept, warnings = _compatible(tables)
    rows = [files[number].read_bins(tables[number], **bins) for number in kept]
    warnings += [
        f"{run.path.name}: its training has the status {run.info.status!r}, not 'finished'"
        for run in runs
        if run.info.status != "finished"
    ]
    merged = merge([tables[number] for number in kept])
    found = _by_subset(merged, [part for part in rows if part is not None], warnings)
    return replace(found, runs=tuple(runs), stated=stated)


def _runs(path: Path, names: Mapping[Path, str]) -> list[Run]:
    """The runs of a source under the names of their tables; of a benchmark those that were tested."""
    if not path.is_dir():
        return []
    cells = counted_cells(path) if merged_table(path) else {}
    if not cells:
        runs = [read_run_folder(folder) for folder in run_folders(path)]
        return [replace(run, method=names.get(run.path, run.method)) for run in runs]
    tested = [(BenchmarkFolder(path).run(slug), cell) for slug, cell in cells.items()]
    return [
        replace(read_run_folder(folder), method=cell["label"], dataset=cell["dataset"], network=cell["network"])
        for folder, cell in tested
        if RunFolder(folder).info.is_file() and RunFolder(folder).score_tables("test")
    ]


def _stated(grid: Path) -> dict[str, str]:
    """The title, the paper to compare with and the metrics to rank by that a benchmark's grid names."""
    if not grid.is_file():
        return {}
    content = read_toml(grid)
    report = content.get("report")
    texts = {**(report if isinstance(report, dict) else {}), "title": content.get("title")}
    texts = {key: ",".join(map(str, value)) if isinstance(value, list) else value for key, value in texts.items()}
    return {key: value for key, value in texts.items() if isinstance(value, str) and value}


def _base_name(rows: Frame) -> str:
    """What a run's method is called without a calibrator."""
    first = table.plain(rows.iloc[:1])
    _, variant = shift_of(first["variant"].iloc[0])
    return str(method_names(first.assign(calibrator="", variant=variant)).iloc[0])


def _compatible(tables: Sequence[ScoreTable]) -> tuple[list[int], list[str]]:
    """Which tables obey the rules of those before them (unknown ones come last), and a sentence about each other."""
    compatible: list[int] = []
    warnings: list[str] = []
    agreement = Agreement()
    for number, scores in sorted(enumerate(tables), key=lambda one: one[1].rules is None):
        try:
            agreement.add(scores)
        except BadInput as error:
            warnings.append(f"left out: {error}")
        else:
            compatible.append(number)
    return compatible, warnings


def _by_subset(merged: ScoreTable, bins: Sequence[Frame], warnings: Iterable[str]) -> Evidence:
    """Test and validation apart, images with noise apart from those without."""
    rows, warnings = _in_order(merged.rows), list(warnings)
    merged = replace(merged, rows=rows)
    validation = rows["subset"].astype(str).str.startswith("validation").to_numpy()
    if validation.all():
        warnings.append("these are scores of validation cases, on which networks were selected: there are none of test")
        validation = ~validation
    compared = one_subset(rows[~validation], "", merged.name)
    others = [word for word in rows["subset"][~validation].unique() if word not in set(compared["subset"].unique())]
    warnings += [f"left out: the rows of the subset {word!r}, as those of test are compared" for word in others]
    test = compared[~noisy(compared)]
    if not len(test):
        raise BadInput(f"{merged.name}: holds only images with noise added; the report needs those without it too")
    diagrams = None
    if bins:
        ordered: Frame = _in_order(table.concat(bins))
        diagrams = ordered[~noisy(ordered) & ordered["subset"].isin(test["subset"].unique())]
    selected = rows[validation & ~noisy(rows)]
    return Evidence(
        replace(merged, rows=test),
        compared,
        replace(merged, rows=selected) if len(selected) else None,
        diagrams,
        runs=(),
        warnings=tuple(warnings),
    )


def _in_order(rows: Frame) -> Frame:
    """What is said of a network before what is said of its calibrators, otherwise as it comes."""
    network = rows.groupby(["dataset", "network", "loss", "variant"], sort=False).ngroup().to_numpy()
    return rows.iloc[np.lexsort((~rows["calibrator"].isin(["", "none"]), network))]


def notes(scores: ScoreTable) -> dict[str, dict[str, Any]]:
    """What each table says about where it comes from, by its name."""
    merged = scores.notes.get("merged")
    if not isinstance(merged, dict):
        return {scores.name: dict(scores.notes)}
    nested = (notes(ScoreTable(scores.rows, None, note, name)) for name, note in merged.items())
    return {name: note for part in nested for name, note in part.items()}
