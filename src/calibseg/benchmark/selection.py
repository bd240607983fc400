"""Which of several candidates is taken: the one with the best mean on validation, as in the papers.

Candidates share dataset, network and method and differ in their choice (`margin` 5, 8 or 10). A candidate's value is
the mean over its seeds (and folds); with scope `all`, then over the datasets, each counting once, and one value is
taken for all of them. A candidate that lacks a run is not taken. Of equals the first in the grid is taken.
"""

import csv
import io
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean

from calibseg.analysis.case_values import case_values, evaluated_classes
from calibseg.analysis.table import read
from calibseg.benchmark.cell_stages import Bench
from calibseg.benchmark.grid import Cell, Select
from calibseg.core import files
from calibseg.runs import folders

COLUMNS = ("dataset", "network", "label", "choice", "by", "value", "runs", "chosen", "cells")


@dataclass(frozen=True)
class Candidate:
    """A choice in one group, and what it reached. `dataset` is blank where one choice is made for all datasets."""

    dataset: str
    network: str
    label: str
    choice: str
    value: float  # NaN: a run is missing
    cells: tuple[str, ...]
    chosen: bool


def choose(
    cells: Sequence[Cell], select: Select, values: Mapping[str, float], higher_is_better: bool
) -> list[Candidate]:
    """All candidates with their means, the best of each group chosen. `values` are the runs' own, by slug."""
    groups: dict[tuple[str, str, str], dict[str, list[Cell]]] = {}
    for cell in cells:
        if cell.choice:
            group = (cell.dataset if select.scope == "dataset" else "", cell.network, cell.label)
            groups.setdefault(group, {}).setdefault(json.dumps(dict(cell.choice)), []).append(cell)
    found = []
    for group, candidates in groups.items():
        reached = {choice: _mean(members, values) for choice, members in candidates.items()}
        defined = {choice: value for choice, value in reached.items() if not math.isnan(value)}
        best = (max if higher_is_better else min)(defined, key=lambda choice: defined[choice]) if defined else None
        found += [
            Candidate(*group, choice, reached[choice], tuple(cell.slug for cell in members), choice == best)
            for choice, members in candidates.items()
        ]
    return found


def _mean(members: Iterable[Cell], values: Mapping[str, float]) -> float:
    """Over seeds, then over datasets; NaN where a run is missing."""
    by_dataset: dict[str, list[float]] = {}
    for cell in members:
        by_dataset.setdefault(cell.dataset, []).append(values.get(cell.slug, math.nan))
    return mean(mean(found) for found in by_dataset.values())


def validation_value(run: Path, by: str) -> tuple[float, bool]:
    """A run's mean over its validation cases, and whether more is better."""
    table = read(folders.RunFolder(run).scores("validation"))
    found = case_values(table.rows, [by], classes=evaluated_classes(table.rules))
    values = [float(value) for value in found.values[0, :, 0] if not math.isnan(value)]
    return (mean(values) if values else math.nan), bool(found.higher_is_better[0])


def select_cells(bench: Bench) -> list[Candidate]:
    """Choose by the validation scores that there are, and write OUT/selection.csv."""
    select = bench.grid.select
    if select is None:
        return []
    values, higher = {}, True
    for cell in bench.grid.cells:
        if cell.choice and folders.RunFolder(bench.run(cell)).scores("validation").is_file():
            values[cell.slug], higher = validation_value(bench.run(cell), select.by)
    found = choose(bench.grid.cells, select, values, higher)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    for one in found:
        told = (one.dataset, one.network, one.label, one.choice, select.by, repr(one.value), len(one.cells))
        writer.writerow([*told, "true" if one.chosen else "false", " ".join(one.cells)])
    files.write_text(bench.folder.selection, text.getvalue())
    return found


def chosen_cells(out: Path) -> set[str]:
    """The cells that OUT/selection.csv chooses; none where nothing was chosen yet."""
    path = folders.BenchmarkFolder(out).selection
    if not path.is_file():
        return set()
    with path.open(newline="", encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["chosen"] == "true"]
    return {slug for row in rows for slug in row["cells"].split()}
