"""The tables of a report as plain rows: headline, voxel rules, paper values, what is undefined.

Nothing here knows HTML. A cell is a number with its interval; the page formats it, bolds the best and underlines the
second. Means, intervals and places come from figure_data/scores, so that table, figures and ranks agree.
"""

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from calibseg.analysis.case_values import evaluated_classes, method_names
from calibseg.analysis.columns import ALL, MEAN, Frame, rows_of_key, split_key
from calibseg.analysis.headline import EXPLAINED, headline, metric_name
from calibseg.analysis.paper_values import plain_method
from calibseg.analysis.table import ScoreTable
from calibseg.report.figure_data.scores import means
from calibseg.report.html.groups import ComparisonGroup, available


@dataclass(frozen=True)
class Cell:
    """A mean over cases with its 95 % interval, and its place among the methods of the same dataset and network."""

    mean: float
    low: float = math.nan
    high: float = math.nan
    place: int = 0  # 1: best; 0: has none
    cases: int = 0  # those in which some method has a value
    defined: int = 0  # of them, those in which this one has

    @property
    def undefined(self) -> str:
        """`12 of 18 defined` where a value is missing that others have."""
        return f"{self.defined} of {self.cases} defined" if self.defined < self.cases else ""

    @property
    def text(self) -> str:
        return number(self.mean)

    @property
    def interval(self) -> str:
        return f"{number(self.low)} – {number(self.high)}" if math.isfinite(self.low) else ""


@dataclass(frozen=True)
class Row:
    """A method in one group."""

    place: str
    method: str
    cells: tuple[Cell | None, ...]
    recommended: bool = False


@dataclass(frozen=True)
class Head:
    """What stands above a column: its name, below it of what, and which way is good."""

    name: str
    where: str
    unit: str = ""
    higher_is_better: bool = False
    key: str = ""  # of a metric under a voxel rule: ece@predicted


@dataclass(frozen=True)
class Section:
    """A table with a figure beside it; empty where nothing of it was measured."""

    figure: dict[str, Any] | None
    columns: tuple[Head, ...]
    rows: tuple[Row, ...]


def head_of(key: str, rows: Frame) -> Head | None:
    """Above a metric (`ece@predicted`), as its rows say it; None where there are none."""
    rows, (metric, voxels) = rows_of_key(rows, key), split_key(key)
    if not len(rows):
        return None
    return Head(metric_name(metric), where(voxels), rows["unit"].iloc[0], bool(rows["higher_is_better"].iloc[0]), key)


def label(key: str) -> str:
    """`ece@predicted` -> `ECE on predicted foreground`."""
    metric, voxels = split_key(key)
    return f"{metric_name(metric)} {where(voxels)}".rstrip()


def where(voxels: str) -> str:
    """The mask of a voxel rule in words."""
    words = {"": "", "all": "on all voxels", "truth": "on true foreground", "predicted": "on predicted foreground"}
    return words.get(voxels, f"on {voxels}")


def number(value: float) -> str:
    """Four significant digits at most, never an exponent that a reader must decode: 0.0123, 6.67, 1024."""
    if not math.isfinite(value):
        return "–"
    size = abs(value)
    digits = 4 if size < 0.1 else 3 if size < 10 else 1 if size < 1000 else 0
    return f"{value:.{digits}f}"


def columns(groups: Sequence[ComparisonGroup], keys: Iterable[str]) -> list[Head]:
    """The named metrics that any group has, with their units."""
    having = {key: next((group for group in groups if key in group.keys), None) for key in keys}
    heads = (head_of(key, group.core.rows) for key, group in having.items() if group is not None)
    return [head for head in heads if head is not None]


def compared(group: ComparisonGroup, keys: Sequence[str], recommended: Collection[tuple[str, str]] = ()) -> list[Row]:
    """One row for each method, in the order of the table, with a cell for each metric.

    Where methods were scored on different cases they do not compare: each has its own mean, and none has a place.
    """
    table, comparable = group.means, True
    if table is None:
        table, comparable = _apart(group), False
    if table is None:
        return []
    return rows_of(group.name, group.methods, table, keys, comparable, recommended)


def rows_of(
    place: str,
    methods: Sequence[str],
    table: Frame,
    keys: Sequence[str],
    comparable: bool = True,
    recommended: Collection[tuple[str, str]] = (),
) -> list[Row]:
    """One row for each method from its means (`figure_data.scores.means`)."""
    cells = {
        (row["method"], row["metric"]): Cell(
            row["mean"],
            row["low"],
            row["high"],
            int(row["place"]) if comparable and math.isfinite(row["place"]) else 0,
            int(row["cases"]),
            int(row["defined"]),
        )
        for row in table[table["metric"].isin(list(keys))].to_dict("records")
    }
    return [
        Row(place, method, tuple(cells.get((method, key)) for key in keys), (place, method) in recommended)
        for method in methods
    ]


def _apart(group: ComparisonGroup) -> Frame | None:
    names = method_names(group.core.rows)
    parts = []
    for method in group.methods if group.keys else []:
        own = replace(group.core, rows=group.core.rows[names == method])
        parts.append(means(own, available(own.rows, group.keys)))
    return pd.concat(parts, ignore_index=True) if parts else None


def voxel_rules(keys: Iterable[str]) -> list[tuple[str, str]]:
    """What ECE means under each of the voxel rules: key and sentence."""
    return [(key, EXPLAINED[split_key(key)[1]]) for key in keys]


@dataclass(frozen=True)
class PaperRow:
    """What a paper prints for a method, beside what was found here."""

    place: str
    method: str
    pairs: tuple[tuple[float, float], ...]  # theirs, ours; NaN where there is none


def beside_paper(groups: Iterable[ComparisonGroup], paper: Frame) -> tuple[list[str], list[PaperRow]]:
    """Metrics and rows of a paper's table (dataset, loss, calibrator, class, metric, value) that are here as well.

    Rows of the paper for single classes are left out: the tables of the papers' texts average the foreground classes.
    """
    theirs = paper[paper["class"].isin([ALL, MEAN, ""])]
    theirs = theirs.assign(method=method_names(theirs.assign(variant="")))
    said = {(r["dataset"], r["method"], r["metric"]): float(r["value"]) for r in theirs.to_dict("records")}

    def printed(dataset: str, method: str, key: str) -> float:
        """What stands in the paper for this method, or for the one that it is a variation of: mbls-m5, mbls."""
        return said.get((dataset, method, key), said.get((dataset, plain_method(method), key), math.nan))

    keys: dict[str, None] = {}
    compared_methods: list[tuple[ComparisonGroup, str, dict[str, tuple[float, float]]]] = []
    for group in groups:
        have = available(group.table.rows, dict.fromkeys(theirs["metric"]))
        known = [key for key in have if any(printed(group.dataset, m, key) >= 0 for m in group.methods)]
        if not known or group.means is None:  # nothing to compare, or methods that do not compare
            continue
        keys |= dict.fromkeys(known)
        ours = means(group.table, known).set_index(["method", "metric"])["mean"]
        for method in group.methods:
            pairs = {key: (printed(group.dataset, method, key), float(ours[method, key])) for key in known}
            if any(math.isfinite(value) for value, _ in pairs.values()):
                compared_methods.append((group, method, pairs))
    nothing = (math.nan, math.nan)
    rows = [
        PaperRow(group.name, method, tuple(pairs.get(key, nothing) for key in keys))
        for group, method, pairs in compared_methods
    ]
    return list(keys), rows


def undefined(table: ScoreTable) -> list[str]:
    """Headline values that do not exist in some cases, one sentence for each metric, dataset and class."""
    classes = evaluated_classes(table.rules)
    keys = set(map(split_key, headline()))
    rows = table.rows[(table.rows["scope"] == "case") & table.rows["value"].isna()]
    who = zip(rows["metric"], rows["voxels"], rows["dataset"], rows["class"], strict=True)
    counts = [
        (metric, voxels) in keys and (name == ALL or (not voxels and name in classes.get(dataset, (name,))))
        for metric, voxels, dataset, name in who
    ]
    rows = rows[np.array(counts, dtype=bool)]
    rows = rows.assign(method=method_names(rows))
    sentences = []
    for (dataset, metric, name), part in rows.groupby(["dataset", "metric", "class"], sort=False):
        who = ", ".join(f"{method} {count}" for method, count in part["method"].value_counts(sort=False).items())
        what = f" of {name}" if name != ALL else ""
        where = f" in {dataset}" if dataset else ""
        sentences.append(f"{metric_name(metric)}{what}{where} is undefined in some cases (how many: {who})")
    return sentences
