"""What a report is made of: score tables, reliability rows, and the runs behind them, from whatever one points at.

A source is a score table (`scores.csv`), a run folder, a folder of runs, or a benchmark's folder, where cells.csv says
what its runs are called in its scores.csv. Tables that cannot stand beside the others (other rules) are left out and
named, so that one odd file does not cost the whole report. Two runs that the table's columns cannot tell apart take the
names of their folders.
"""

import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from calibseg.analysis import table
from calibseg.analysis.case_values import method_names
from calibseg.analysis.run_records import Run, read_run_folder
from calibseg.analysis.sources import read_bins
from calibseg.analysis.table import EXPERIMENT, Frame, ScoreTable
from calibseg.analysis.variants import shift_of
from calibseg.core.types import BadInput
from calibseg.runs import folders

SEED_ENDING = re.compile(r"-s(?:eed)?\d+$")
CELLS, GRID = "cells.csv", "grid.toml"  # of a benchmark


@dataclass(frozen=True)
class Evidence:
    """Everything a report can show, and what had to be left out of it."""

    test: ScoreTable
    shifted: Frame  # the same rows and those of images with noise added
    validation: ScoreTable | None
    bins: Frame | None
    runs: tuple[Run, ...]
    warnings: tuple[str, ...] = ()
    stated: Mapping[str, str] | None = None  # title and paper, where a benchmark's grid names them


@dataclass(frozen=True)
class _Found:
    """A score table, its reliability rows and the run it lies in."""

    scores: ScoreTable
    bins: Frame | None
    run: Path | None = None  # None: its columns are final


def gather(sources: Sequence[Path | str]) -> Evidence:
    """Read everything that the sources hold."""
    if not sources:
        raise BadInput("name at least one score table, run folder or benchmark folder to report on")
    found: list[_Found] = []
    runs: list[Run] = []
    stated: dict[str, str] = {}
    for source in map(Path, sources):
        tables, owners = _open(source)
        found += tables
        runs += owners
        stated = _stated(source / GRID) | stated
    if not found:
        raise BadInput(f"{', '.join(map(str, sources))}: no score table there yet; run calibseg score first")
    found, runs = _told_apart(found, runs)
    found, warnings = _compatible(found)
    warnings += [
        f"{run.path.name}: its training has the status {run.about.get('status', 'unknown')!r}, not 'finished'"
        for run in runs
        if run.about.get("status") != "finished"
    ]
    return replace(_parted(found, tuple(runs), warnings), stated=stated)


def notes(scores: ScoreTable) -> dict[str, dict[str, Any]]:
    """What each table says about where it comes from, by its name."""
    merged = scores.notes.get("merged")
    if not isinstance(merged, dict):
        return {scores.name: dict(scores.notes)}
    nested = (notes(ScoreTable(scores.rows, None, said, name)) for name, said in merged.items())
    return {name: said for one in nested for name, said in one.items()}


def _open(source: Path) -> tuple[list[_Found], list[Run]]:
    """The score tables of a source, and its runs."""
    if source.is_file():
        return [_read(source)], []
    if not source.is_dir():
        raise BadInput(f"no file or folder {source}")
    if (source / CELLS).is_file() and (source / "scores.csv").is_file():
        return _benchmark(source)
    inside = [*source.glob("*/run.json"), *source.glob("runs/*/run.json")]
    found = [source] if folders.RunFolder(source).about.is_file() else sorted(path.parent for path in inside)
    tables = [_read(path, folder) for folder in found for path in _tables(folder)]
    if not tables:  # a folder of tables
        tables = [_read(path) for path in _tables(source)]
    if not tables and not found:
        raise BadInput(f"{source}: holds neither a run (run.json), nor runs, nor a score table (scores.csv)")
    return tables, [read_run_folder(path) for path in found]


def _benchmark(source: Path) -> tuple[list[_Found], list[Run]]:
    """The merged tables, with the reliability rows and runs of the cells under the names that the tables use."""
    cells: Frame = pd.read_csv(source / CELLS, dtype=str, keep_default_na=False)
    lacking = {"cell", "dataset", "network", "label"} - set(cells.columns)
    if lacking:
        raise BadInput(f"{source / CELLS} has no column {min(lacking)!r}: it is no list of a benchmark's cells")
    runs, bins = [], []
    for cell in cells.to_dict("records"):
        folder = source / "runs" / cell["cell"]
        tables = [path for path in _tables(folder) if path.name.startswith("scores-test")]
        if not tables or not folders.RunFolder(folder).about.is_file():
            continue  # a candidate that was not chosen, or not there yet
        name = {"dataset": cell["dataset"], "network": cell["network"]}
        runs.append(replace(read_run_folder(folder), method=cell["label"], **name))
        rows = [read_bins(path) for path in map(table.bins_path, tables) if path.is_file()]
        bins += [part.assign(loss=cell["label"], **name) for part in rows]
    together = pd.concat(bins, ignore_index=True) if bins else None
    found = [_Found(table.read(source / "scores.csv"), together)]
    validation = source / "scores-validation.csv"
    return [*found, *([_Found(table.read(validation), None)] if validation.is_file() else [])], runs


def _stated(grid: Path) -> dict[str, str]:
    """The title, and the paper to compare with, that a benchmark's grid names."""
    if not grid.is_file():
        return {}
    try:
        told = tomllib.loads(grid.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadInput(f"{grid} is not TOML: {error}") from error
    named = {"title": told.get("title"), "paper": (told.get("report") or {}).get("paper")}
    return {key: value for key, value in named.items() if isinstance(value, str) and value}


def _tables(folder: Path) -> list[Path]:
    """Its score tables, a calibrated one after the one it repairs."""
    found = [path for path in folder.glob("scores*.csv") if not path.name.endswith(".bins.csv")]
    return sorted(found, key=lambda path: path.stem)


def _read(path: Path, run: Path | None = None) -> _Found:
    bins = table.bins_path(path)
    return _Found(table.read(path), read_bins(bins) if bins.is_file() else None, run)


def _told_apart(found: Sequence[_Found], runs: Sequence[Run]) -> tuple[list[_Found], list[Run]]:
    """Rename methods that several runs share: `mbls` with margin 5 and 10 become mbls5 and mbls10, as their folders."""
    owners: dict[tuple[str, ...], set[Path]] = {}
    for one in found:
        if one.run is not None:
            for key in _experiments(one.scores.rows):
                owners.setdefault(key, set()).add(one.run)
    loss = EXPERIMENT.index("loss")
    shared = {key[loss] for key, paths in owners.items() if len(paths) > 1}
    renamed = []
    for one in found:
        if one.run is not None and set(one.scores.rows["loss"]) & shared:
            name = SEED_ENDING.sub("", one.run.resolve().name)
            scores = replace(one.scores, rows=one.scores.rows.assign(loss=name))
            one = _Found(scores, None if one.bins is None else one.bins.assign(loss=name), one.run)
        renamed.append(one)
    called = {one.run: _base_name(one.scores.rows) for one in reversed(renamed) if one.run is not None}
    return renamed, [replace(run, method=called.get(run.path, run.method)) for run in runs]


def _experiments(rows: Frame) -> list[tuple[str, ...]]:
    return list(rows[list(EXPERIMENT)].drop_duplicates().itertuples(index=False, name=None))


def _base_name(rows: Frame) -> str:
    """What a run's method is called without a calibrator."""
    first = rows.iloc[:1]
    _, variant = shift_of(first["variant"].iloc[0])
    return str(method_names(first.assign(calibrator="", variant=variant)).iloc[0])


def _compatible(found: Sequence[_Found]) -> tuple[list[_Found], list[str]]:
    """The tables that obey the rules of those before them, and a sentence about each of the others."""
    kept: list[_Found] = []
    warnings: list[str] = []
    so_far: ScoreTable | None = None
    for one in found:
        rules_only = replace(one.scores, rows=one.scores.rows[:0])
        try:
            merged = table.merge([rules_only] if so_far is None else [so_far, rules_only])
        except BadInput as error:
            warnings.append(f"left out: {error}")
        else:
            so_far = replace(merged, name=kept[0].scores.name if kept else one.scores.name)
            kept.append(one)
    return kept, warnings


def _parted(found: Sequence[_Found], runs: tuple[Run, ...], warnings: Iterable[str]) -> Evidence:
    """Test and validation apart, images with noise apart from those without."""
    merged = table.merge([one.scores for one in found])
    merged = replace(merged, rows=_in_order(merged.rows))
    bins = [one.bins for one in found if one.bins is not None]
    rows, warnings = merged.rows, list(warnings)
    chosen = rows["subset"].str.startswith("validation")
    if chosen.all():
        warnings.append("these are scores of validation cases, on which networks were selected: there are none of test")
        chosen[:] = False
    noisy = _noisy(rows)
    test = rows[~chosen & ~noisy]
    if not len(test):
        raise BadInput(f"{merged.name}: holds only images with noise added; the report needs those without it too")
    diagrams: Frame = _in_order(pd.concat(bins, ignore_index=True)) if bins else None
    if bins:
        diagrams = diagrams[~_noisy(diagrams) & diagrams["subset"].isin(test["subset"].unique())]
    return Evidence(
        replace(merged, rows=test),
        rows[~chosen],
        replace(merged, rows=rows[chosen & ~noisy]) if (chosen & ~noisy).any() else None,
        diagrams,
        runs,
        tuple(warnings),
    )


def _in_order(rows: Frame) -> Frame:
    """What is said of a network before what is said of its calibrators, otherwise as it comes."""
    network = rows.groupby(["dataset", "network", "loss", "variant"], sort=False).ngroup().to_numpy()
    return rows.iloc[np.lexsort((~rows["calibrator"].isin(["", "none"]), network))]


def _noisy(rows: Frame) -> Any:
    """Which rows are of images with noise added: the variant says so."""
    return rows["variant"].map({name: shift_of(name)[0] > 0 for name in rows["variant"].unique()}).astype(bool)
