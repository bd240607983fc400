"""Scores and ranks as tables for a terminal, and the progress bar."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.measure import Measurement
from rich.progress import Progress
from rich.table import Column as RichColumn
from rich.table import Table

from calibseg.analysis.case_values import Scores
from calibseg.analysis.columns import ALL, Frame, rows_of_key
from calibseg.analysis.friedman import Friedman
from calibseg.analysis.headline import VOXEL_RULES, headline
from calibseg.analysis.ranking import Difference, Ranked
from calibseg.core import registry

SEVERAL = ("rater_overlap", "rater_calibration", "votes", "members")  # statistics of several raters or networks
PAIRS = 8  # pairs of methods that a test tells apart, before they are counted
CALIBRATION = {  # column -> how it is headed, and whether large is good
    "nll@all": ("NLL", False),
    "brier@all": ("Brier", False),
    "ece@truth": ("ECE truth", False),
    "ece@predicted": ("ECE predicted", False),
    "ece@all": ("ECE all", False),
    "cece@truth": ("CECE truth", False),
    "cece@all": ("CECE all", False),
    "dsc": ("DSC", True),
}


def summary_table(summary: Frame) -> Table:
    """The headline, the papers' rule beside it, and the shape metrics of every class and region."""
    table = Table("metric", "voxels", "class", "mean", "95 % interval", "defined", box=None, pad_edge=False)
    together = summary[summary["class"] == ALL]
    for key in headline():
        if "@" in key:
            _add(table, rows_of_key(together, key), "bold")
    for key in ("ece@truth", "cece@truth"):
        _add(table, rows_of_key(together, key), "dim")
    for key in ("dsc", "hd95", "assd"):
        _add(table, rows_of_key(summary, key), "")
    several = {key for key, member in registry.members("metrics").items() if member.facts.get("needs") in SEVERAL}
    _add(table, summary[summary["metric"].isin(several) & ~summary["voxels"].str.contains("predicted|truth")], "")
    return table


def _add(table: Table, rows: Frame, style: str) -> None:
    for row in rows.to_dict("records"):
        note = " (paper rule)" if row["voxels"] == "truth" else ""
        unit = f" {row['unit']}" if row["unit"] else ""
        table.add_row(
            row["metric"],
            row["voxels"] + note,
            escape(row["class"]),
            _number(row["mean"]) + unit,
            _interval(row),
            f"{row['defined']} of {row['cases']}",
            style=style,
        )


def _interval(row: Mapping[str, Any]) -> str:
    if math.isnan(row["low"]):
        return "undefined" if math.isnan(row["mean"]) else "needs two patients"
    return f"{_number(row['low'])} to {_number(row['high'])}"


def calibration_table(rows: Sequence[Mapping[str, Any]], chosen: str, title: str, moving: Iterable[str] = ()) -> Table:
    """Calibrators side by side, the network's own probabilities first; the best value of a column is bold.

    moving: those that may change the segmentation; they get a star.
    """
    moving = set(moving)
    columns = [column for column in CALIBRATION if any(column in row for row in rows)]
    table = _plain(title, "calibrator", *(CALIBRATION[column][0].replace(" ", "\n") for column in columns))
    best = {column: _best([row.get(column) for row in rows], CALIBRATION[column][1]) for column in columns}
    for row in rows:
        cells = ["undefined" if row.get(column) is None else f"{row[column]:.4f}" for column in columns]
        cells = [
            f"[bold]{cell}[/]" if row.get(column) == best[column] else cell
            for column, cell in zip(columns, cells, strict=True)
        ]
        moved = " *" if row["method"] in moving else ""
        note = "\n(chosen)" if row["method"] == chosen else ""
        table.add_row(escape(row["method"]) + moved + note, *cells)
    if any(row["method"] in moving for row in rows):
        table.caption, table.caption_justify = "* may change the segmentation", "left"
    return table


def _best(values: Sequence[float | None], largest: bool) -> float | None:
    defined = [value for value in values if value is not None]
    return (max if largest else min)(defined) if defined else None


@contextmanager
def bar() -> Iterator[Callable[[int, int, str], None]]:
    """A progress bar on stderr, which vanishes when all is done; none where stderr is not a terminal."""
    screen = Console(stderr=True)
    with Progress(console=screen, transient=True, disable=not screen.is_terminal) as progress:
        task = progress.add_task("cases")

        def show(done: int, total: int, case: str) -> None:
            progress.update(task, completed=done, total=total, description=escape(case) or "cases")

        yield show


def undefined_note(data: Scores, undefined: str) -> str:
    """How many values were undefined for some methods only, and what became of them."""
    fate = "took the worst value of their column" if undefined == "worst" else "were left out for every method"
    counts_of_methods = [
        f"{metric}: {number} of {method}"
        for metric, counts in zip(data.metrics, data.filled.tolist(), strict=True)
        for method, number in zip(data.methods, counts, strict=True)
        if number
    ]
    return f"undefined values that others have {fate}: {', '.join(counts_of_methods)}" if counts_of_methods else ""


def voxel_notes(used: Iterable[str]) -> str:
    """What each voxel rule means, one line each."""
    return "\n".join(f"{name}: {VOXEL_RULES[name]}" for name in used if name in VOXEL_RULES)


def show(screen: Console, table: Table) -> None:
    """Print a table; where it is wider than the screen, the terminal breaks lines, and no word is broken here."""
    size = Measurement.get(screen, screen.options.update(width=10_000), table)
    needed = size.maximum if all(column.no_wrap for column in table.columns) else size.minimum
    wide = Console(file=screen.file, width=needed, highlight=False) if needed > screen.width else screen
    wide.print(table)


def ranked_tables(ranked: Ranked, most: int | None = None, width: int = 80) -> list[Table]:
    """The rankings side by side, best first; the mean and rank of every method in every column; tests; comparisons.

    most: show no more methods than these, the best
    width: of the screen; more columns than fit follow in a further table
    """
    tables = rank_tables(ranked.ranks, most, width)
    if ranked.tests:
        tables += friedman_tables(ranked.data, ranked.tests)
    return [*tables, *(difference_table(pair) for pair in ranked.differences if pair)]


def rank_tables(ranks: Frame, most: int | None, width: int) -> list[Table]:
    """The rankings side by side, and the mean and rank of every method in every column."""
    kinds = ("sum-rank", "friedman mean rank", "final rank", "mean case-rank")
    overall = ranks[ranks["metric"] == ""].pivot(index="method", columns="ranking", values="rank")[list(kinds)]
    overall = overall.sort_values(["friedman mean rank", "mean case-rank"])[:most]
    first = _plain("Rankings (small is good)", "method", *(kind.replace(" ", "\n") for kind in kinds))
    for method, row in overall.iterrows():
        first.add_row(f"[bold]{escape(str(method))}[/]", *(f"{value:.2f}" for value in row))
    columns = ranks[ranks["ranking"] == "column"]
    group = [name for name in ("dataset", "network") if (columns[name] != "").any()]
    texts = {
        (*(row[name] for name in group), row["method"], row["metric"]): f"{_number(row['mean'])} ({row['rank']:g})"
        for row in columns.to_dict("records")
    }
    used_width = sum(1 + max(len(name), *map(len, columns[name].unique())) for name in group)
    used_width += max(len(str(method)) for method in overall.index)
    tables = [first]
    for metrics in _chunks(list(dict.fromkeys(columns["metric"])), texts.values(), width - used_width):
        title = "Mean over cases, and rank in brackets"
        table = _plain(title, *group, "method", *(escape(metric).replace("@", "\n@") for metric in metrics))
        for names in dict.fromkeys(key[:-2] for key in texts):
            for method in overall.index:
                cells = [texts.get((*names, method, metric), "") for metric in metrics]
                table.add_row(*map(escape, names), f"[bold]{escape(str(method))}[/]", *cells)
        tables.append(table)
    return tables


def _plain(title: str, *heads: str) -> Table:
    """A table whose cells are never broken; a head may have several lines."""
    table = Table(*(RichColumn(head, no_wrap=True) for head in heads), title=escape(title), title_justify="left")
    table.box, table.pad_edge, table.padding = None, False, (0, 1, 0, 0)
    return table


def _chunks(metrics: list[str], cells: Iterable[str], width: int) -> list[list[str]]:
    """As many metrics side by side as fit, at least one."""
    cell_width = 1 + max((len(cell) for cell in cells), default=0)
    number = max(1, width // max(cell_width, 1 + max(len(part) for metric in metrics for part in metric.split("@"))))
    return [metrics[begin : begin + number] for begin in range(0, len(metrics), number)]


def friedman_tables(data: Scores, tests: dict[str, Friedman]) -> list[Table]:
    """Friedman's test of every metric, and which pairs of methods differ."""
    heads = ("metric", "patients", "chi-square", "p", "critical\ndifference")
    table = _plain("Friedman's test over patients", *heads)
    pairs = Table("metric", "Nemenyi p < 0.05", "Holm p < 0.05", box=None, pad_edge=False, padding=(0, 1, 0, 0))
    pairs.title, pairs.title_justify = "Pairs that differ, the better first", "left"
    for metric, test in tests.items():
        numbers = (_number(value) for value in (test.statistic, test.p, test.critical_difference))
        table.add_row(metric, str(test.blocks), *numbers)
        pairs.add_row(metric, *(_pairs(data.methods, test, p) for p in (test.nemenyi, test.holm)))
    return [table, pairs]


def _pairs(methods: Sequence[str], test: Friedman, p: Iterable[Sequence[float]]) -> str:
    """`a < b`: a has the better mean rank, and the difference is not luck; of many pairs the first."""
    order = sorted(range(len(methods)), key=lambda index: test.mean_ranks[index])
    rows = [list(row) for row in p]
    pairs = [
        f"{methods[better]} < {methods[worse]}"
        for position, better in enumerate(order)
        for worse in order[position + 1 :]
        if rows[better][worse] < 0.05
    ]
    more = f"\nand {len(pairs) - PAIRS} more" if len(pairs) > PAIRS else ""
    return escape("\n".join(pairs[:PAIRS]) + more) or "none"


def difference_table(differences: Sequence[Difference]) -> Table:
    """Two methods on the same patients."""
    one, two = differences[0].first, differences[0].second
    table = Table("metric", "difference", "95 % interval", "p", "patients", "cases", box=None, pad_edge=False)
    table.title, table.title_justify = f"{escape(one)} minus {escape(two)}, resampling patients", "left"
    for row in differences:
        table.add_row(
            row.metric,
            _number(row.mean),
            f"{_number(row.low)} to {_number(row.high)}",
            _number(row.p),
            str(row.patients),
            str(row.cases),
        )
    return table


def _number(value: float) -> str:
    return "undefined" if math.isnan(value) else f"{value:.4g}"
