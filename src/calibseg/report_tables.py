"""The tables of a report as plain rows: headline, voxel rules, paper values, cost, what was fitted on what.

Nothing here knows HTML. A cell is a number with its interval; the page formats it, bolds the best and underlines the
second. Means, intervals and places come from figure_scores.means, so that table, figures and ranks agree.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from calibseg.comparable import method_names
from calibseg.figure_scores import means
from calibseg.report_sources import Run
from calibseg.table import VOXELS, Frame, ScoreTable

HEADLINE = ("ece@predicted", "nll@all", "brier@all", "dsc", "hd95")
RULES = ("truth", "predicted", "all")
NAMES = {
    "dsc": "DSC",
    "iou": "IoU",
    "hd95": "HD95",
    "hd": "HD",
    "asd": "ASD",
    "assd": "ASSD",
    "nsd": "NSD",
    "ece": "ECE",
    "cece": "CECE",
    "tcece": "TCECE",
    "nll": "NLL",
    "brier": "Brier",
    "ace": "ACE",
    "aece": "AECE",
    "mce": "MCE",
    "tace": "TACE",
}
MEANS = {
    "truth": "The papers' rule: voxels whose true label is foreground. It looks where the organ is, which a user of the"
    " network cannot know; even a perfect predictor does not score 0 here, so small is not always honest.",
    "predicted": "Voxels that the network calls foreground: what it says where it speaks. A perfect predictor scores 0."
    " This is the headline.",
    "all": "Every voxel. A perfect predictor scores 0, but easy background dominates, so all values are small.",
}


@dataclass(frozen=True)
class Cell:
    """A mean over cases with its 95 % interval, and its place among the methods of the same dataset and network."""

    mean: float
    low: float = math.nan
    high: float = math.nan
    place: int = 0  # 1: best; 0: has none
    filled: int = 0  # undefined values that took the worst value of their column

    @property
    def text(self) -> str:
        return number(self.mean)

    @property
    def interval(self) -> str:
        return f"{number(self.low)} – {number(self.high)}" if math.isfinite(self.low) else ""


@dataclass(frozen=True)
class Row:
    """A method on one dataset with one network."""

    dataset: str
    network: str
    method: str
    cells: tuple[Cell | None, ...]
    recommended: bool = False


@dataclass(frozen=True)
class Column:
    """A metric under a voxel rule: how it is called and which way is good."""

    key: str  # ece@predicted
    unit: str
    higher_is_better: bool

    @property
    def name(self) -> str:
        metric = self.key.partition("@")[0]
        return NAMES.get(metric, metric)

    @property
    def where(self) -> str:
        voxels = self.key.partition("@")[2]
        return "" if not voxels else "all voxels" if voxels == "all" else f"on {voxels}"


def label(key: str) -> str:
    """`ece@predicted` -> `ECE on predicted`."""
    metric, _, voxels = key.partition("@")
    name = NAMES.get(metric, metric)
    return name if not voxels else f"{name} on {'all voxels' if voxels == 'all' else voxels}"


def number(value: float) -> str:
    """Four significant digits at most, never an exponent that a reader must decode: 0.0123, 6.67, 1024."""
    if not math.isfinite(value):
        return "–"
    size = abs(value)
    digits = 4 if size < 0.1 else 3 if size < 10 else 1 if size < 1000 else 0
    return f"{value:.{digits}f}"


def available(rows: Frame, wanted: Iterable[str]) -> list[str]:
    """Those of the wanted columns that a table has: shape metrics have no voxel rule."""
    have = set(zip(rows["metric"], rows["voxels"], strict=True))
    return [key for key in wanted if (key.partition("@")[0], key.partition("@")[2]) in have]


def columns(table: ScoreTable, keys: Sequence[str]) -> list[Column]:
    found = []
    for key in keys:
        metric, _, voxels = key.partition("@")
        first = table.rows[(table.rows["metric"] == metric) & (table.rows["voxels"] == voxels)].iloc[0]
        found.append(Column(key, first["unit"], bool(first["higher_is_better"])))
    return found


def compared(table: ScoreTable, keys: Sequence[str], recommended: Iterable[tuple[str, str, str]] = ()) -> list[Row]:
    """One row for each dataset, network and method, in the order of the table, with a cell for each metric."""
    chosen = set(recommended)
    found = means(table, keys) if keys else None
    if found is None or not len(found):
        return []
    cells = {
        (row["dataset"], row["network"], row["method"], row["metric"]): Cell(
            row["mean"],
            row["low"],
            row["high"],
            int(row["place"]) if math.isfinite(row["place"]) else 0,
            int(row["filled"]),
        )
        for row in found.to_dict("records")
    }
    order = found[["dataset", "network", "method"]].drop_duplicates().itertuples(index=False, name=None)
    return [Row(*who, tuple(cells.get((*who, key)) for key in keys), who in chosen) for who in order]


def voxel_rules(table: ScoreTable) -> list[tuple[str, str, str]]:
    """The rules that the table has ECE for: key, what it is, and what it means."""
    present = available(table.rows, [f"ece@{rule}" for rule in RULES])
    return [(key, VOXELS[rule], MEANS[rule]) for key in present for rule in [key.partition("@")[2]]]


@dataclass(frozen=True)
class PaperRow:
    """What a paper prints for a method, beside what was found here."""

    dataset: str
    method: str
    pairs: tuple[tuple[float, float], ...]  # theirs, ours; NaN where there is none


def beside_paper(table: ScoreTable, paper: Frame) -> tuple[list[str], list[PaperRow]]:
    """Metrics and rows of a paper's table (dataset, loss, calibrator, class, metric, value) that are here as well.

    Rows of the paper for single classes are left out: the tables of the papers' texts average the foreground classes.
    """
    theirs = paper[paper["class"].isin(["all", "(mean)", ""])]
    theirs = theirs.assign(variant="").assign(method=lambda rows: method_names(rows))
    here = set(zip(table.rows["dataset"], method_names(table.rows), strict=True))
    theirs = theirs[[who in here for who in zip(theirs["dataset"], theirs["method"], strict=True)]]
    keys = available(table.rows, dict.fromkeys(theirs["metric"]))
    if not keys:
        return [], []
    printed = {(r["dataset"], r["method"], r["metric"]): float(r["value"]) for r in theirs.to_dict("records")}
    ours = means(table, keys).groupby(["dataset", "method", "metric"], sort=False)["mean"].mean()
    rows = []
    for dataset, method in dict.fromkeys(zip(theirs["dataset"], theirs["method"], strict=True)):
        pairs = [
            (printed.get((dataset, method, key), math.nan), float(ours.get((dataset, method, key), math.nan)))
            for key in keys
        ]
        if any(math.isfinite(value) for value, _ in pairs):
            rows.append(PaperRow(dataset, method, tuple(pairs)))
    return keys, rows


def cost(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """Time, memory and size of every run."""
    found = []
    for run in runs:
        memory = run.about.get("peak_memory_mib") or {}
        done = run.about.get("epochs_done") or 0
        seconds = run.about.get("wall_time_s")
        found.append(
            {
                "run": run.path.name,
                "method": run.method,
                "dataset": run.dataset,
                "network": run.network,
                "seed": run.seed,
                "epochs": done,
                "best_epoch": run.about.get("best_epoch"),
                "minutes": seconds / 60 if seconds else math.nan,
                "seconds_an_epoch": seconds / done if seconds and done else math.nan,
                "memory_mib": memory.get("device") or memory.get("process") or math.nan,
                "parameters": run.parameters(),
                "device": run.about.get("device", ""),
                "processes": run.about.get("processes", 1),
            }
        )
    return found


def fitted(runs: Sequence[Run]) -> list[dict[str, str]]:
    """What every number that was learnt was learnt on."""
    found = []
    for run in runs:
        split = run.about["split"]
        who = {"run": run.path.name, "method": run.method}
        select = run.about["recipe"]["train"]["select"]
        epoch = run.about.get("best_epoch")
        found.append(who | {"what": "network", "on": f"train: {len(split['train'])} cases"})
        on = f"validation: {len(split['validation'])} cases, by {select}"
        found.append(who | {"what": f"checkpoint (epoch {epoch})", "on": on})
        for calibrator in run.calibrators():
            source = calibrator.get("fitted_on") or {}
            part = source.get("part") or source.get("folder") or "?"
            cases = source.get("cases")
            number_of = len(cases) if isinstance(cases, list) else cases
            learnt = {name: calibrator[name] for name in ("temperature",) if name in calibrator}
            facts = "".join(f", {name} {value:.4g}" for name, value in learnt.items() if isinstance(value, float))
            found.append(who | {"what": f"calibrator {calibrator.get('method', '?')}{facts}",
                                "on": f"{part}: {number_of} cases"})  # fmt: skip
    return found


def undefined(rows: Frame) -> list[str]:
    """Metrics that have no value in some cases, one sentence each."""
    cases = rows[(rows["scope"] == "case") & rows["metric"].isin([key.partition("@")[0] for key in HEADLINE])]
    cases = cases[cases["voxels"].isin(["", *RULES])]
    cases = cases.assign(method=method_names(cases))
    missing = cases[cases["value"].isna()]
    found = []
    for (dataset, metric, voxels, method), part in missing.groupby(
        ["dataset", "metric", "voxels", "method"], sort=False
    ):
        classes = ", ".join(f"{name} in {count}" for name, count in part["class"].value_counts(sort=False).items())
        where = f"{metric}@{voxels}" if voxels else metric
        found.append(f"{dataset or 'unnamed dataset'}, {method}: {where} is undefined ({classes} cases)")
    return found
