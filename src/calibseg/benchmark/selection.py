"""Which of several candidates is taken: the one with the best mean on validation, as in the papers.

Candidates share dataset, network and method and differ in their choice (`margin` 5, 8 or 10). A candidate's value is
the mean over its seeds; with scope `all`, then over the datasets, each counting once, and one value is taken for all of
them. Each fold of a dataset chooses for itself, by its own validation cases: those of another fold hold the case that
this one tests, as in leave-one-out. A candidate that lacks a run is not taken; of equals the first in the grid is.
"""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import mean

import numpy as np

from calibseg.analysis.case_values import case_values, evaluated_classes
from calibseg.analysis.table import ScoreTable, called, concat, read
from calibseg.benchmark.cell_stages import Bench
from calibseg.benchmark.grid import Cell, Select
from calibseg.benchmark.kept import kept_tables
from calibseg.core import files
from calibseg.runs import folders

COLUMNS = ("dataset", "network", "label", "split", "choice", "by", "value", "runs", "chosen", "cells")


@dataclass(frozen=True)
class Candidate:
    """A choice in one group, and what it reached. `dataset` is blank where one choice is made for all datasets."""

    dataset: str
    network: str
    label: str
    split: str  # the fold that it is chosen for; `default` where there are none
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
    folds = [
        (group, split, candidates)
        for group, candidates in groups.items()
        for split in dict.fromkeys(cell.recipe.data.split for members in candidates.values() for cell in members)
    ]
    result = []
    for group, split, candidates in folds:
        reached = {choice: _mean(_voters(members, split), values) for choice, members in candidates.items()}
        defined = {choice: value for choice, value in reached.items() if not math.isnan(value)}
        best = (max if higher_is_better else min)(defined, key=lambda choice: defined[choice]) if defined else None
        for choice, members in candidates.items():
            slugs = tuple(cell.slug for cell in members if cell.recipe.data.split == split)
            result.append(Candidate(*group, split, choice, reached[choice], slugs, choice == best))
    return result


def _voters(members: Sequence[Cell], split: str) -> list[Cell]:
    """Whose validation counts: of a dataset that has this fold only the fold's runs, of another all of them."""
    folded = {cell.dataset for cell in members if cell.recipe.data.split == split}
    return [cell for cell in members if cell.recipe.data.split == split or cell.dataset not in folded]


def _mean(members: Iterable[Cell], values: Mapping[str, float]) -> float:
    """Over seeds, then over datasets; NaN where a run is missing."""
    by_dataset: dict[str, list[float]] = {}
    for cell in members:
        by_dataset.setdefault(cell.dataset, []).append(values.get(cell.slug, math.nan))
    return mean(mean(of_seeds) for of_seeds in by_dataset.values())


def _validation_scores(bench: Bench, cell: Cell) -> ScoreTable | None:
    """What a cell's network scored on validation: in its run folder, or in its kept table where that is lost."""
    own, kept = folders.RunFolder(bench.run(cell)).scores("validation"), bench.kept_table(cell)
    if own.is_file():
        return read(own)
    if kept is None or not bench.is_kept(cell):
        return None
    (table,) = kept_tables(kept, "validation")
    return replace(table, rows=table.rows[table.rows["calibrator"] == ""])


def _means_of_cases(tables: Mapping[str, ScoreTable], by: str) -> tuple[dict[str, float], bool]:
    """The mean over the same cases of each candidate's table, and whether more is better.

    They are judged side by side: an organ that only one of them misses must not make its mean a better one.
    """
    rows = [called(table.rows, loss=slug, calibrator="", variant="") for slug, table in tables.items()]
    rules = next(iter(tables.values())).rules
    scores = case_values(concat(rows), [by], classes=evaluated_classes(rules))
    defined = scores.values[0][~np.isnan(scores.values[0]).any(1)]
    means = defined.mean(0) if len(defined) else np.full(len(scores.methods), np.nan)
    return dict(zip(scores.methods, means.tolist(), strict=True)), bool(scores.higher_is_better[0])


def select_cells(bench: Bench) -> list[Candidate]:
    """Choose by the validation scores that there are, and write OUT/selection.csv."""
    select = bench.grid.select
    if select is None:
        return []
    rivals: dict[tuple[str | int, ...], dict[str, ScoreTable]] = {}
    for cell in bench.grid.cells:
        if cell.choice and (table := _validation_scores(bench, cell)) is not None:
            recipe = cell.recipe
            group = (cell.dataset, cell.network, cell.label, recipe.data.split, recipe.seed)
            rivals.setdefault(group, {})[cell.slug] = table
    values, higher = {}, True
    for tables in rivals.values():
        means, higher = _means_of_cases(tables, select.by)
        values |= means
    candidates = choose(bench.grid.cells, select, values, higher)
    rows = []
    for c in candidates:
        chosen = "true" if c.chosen else "false"
        names = [c.dataset, c.network, c.label, c.split, c.choice]
        rows.append([*names, select.by, repr(c.value), len(c.cells), chosen, " ".join(c.cells)])
    files.write_csv(bench.folder.selection, COLUMNS, rows)
    return candidates
