"""What the scripts of this folder share: from kept score tables to the tables of a Markdown page.

A page keeps its words; a table stands between `<!-- NAME: begin ... -->` and `<!-- NAME: end -->` and is written again.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import pandas as pd

from calibseg.analysis import table
from calibseg.analysis.paired import Difference, difference
from calibseg.benchmark.grid import Cell, read_grid
from calibseg.benchmark.kept import kept_path, reduced, write_reduced
from calibseg.report import palette

MARKERS = ("o", "s", "D")  # of the calibrators of one loss; the first, without one, is filled


def write_tables(page: Path, tables: Mapping[str, str], check: bool = False) -> int:
    """Put the tables into the page; with `check` only say whether they are up to date. Returns the exit code."""
    before = page.read_text(encoding="utf-8")
    after = before
    for name, lines in tables.items():
        between = re.compile(
            rf"(<!-- {re.escape(name)}: begin [^\n]*-->\n).*?(?=<!-- {re.escape(name)}: end -->)", re.S
        )
        after, times = between.subn(lambda place, lines=lines: f"{place[1]}{lines}\n", after)
        if times != 1:
            raise ValueError(f"{page}: the table {name!r} has {times} places, must have one")
    if check:
        return int(before != after)
    page.write_text(after, encoding="utf-8")
    return 0


def markdown(rows: Sequence[Sequence[str]]) -> str:
    """Rows of cells, the head first, as a Markdown table."""
    return "\n".join(f"| {' | '.join(row)} |" for row in (rows[0], ["---"] * len(rows[0]), *rows[1:]))


def interval(one: Difference, sign: bool = False, digits: int = 3) -> str:
    """A mean or a difference (sign) with its interval; a difference in round brackets where the interval holds 0."""
    form = f"{'+' if sign else ''}.{digits}f"
    text = f"{one.mean:{form}} [{one.low:{form}}, {one.high:{form}}]"
    return text if one.is_clear or not sign else f"({text})"


def comparison(
    values: pd.DataFrame, methods: Mapping[str, Sequence[str]], columns: Sequence[str], against: str | None = None
) -> list[list[str]]:
    """A row for each method (method -> its first cells): trainings and means, or differences from `against`."""
    rows = []
    for method, titles in methods.items():
        gaps = difference(values, method, against, columns)
        trainings = str(gaps[columns[0]].trainings)
        rows.append([*titles, trainings, *(interval(gaps[name], sign=against is not None) for name in columns)])
    return rows


def by_case(rows: pd.DataFrame, keys: Sequence[str]) -> pd.DataFrame:
    """Long rows made wide: one row for each of the keys, one column for each metric (`ece@truth`)."""
    return with_names(rows).groupby([*keys, "name"], sort=False)["value"].mean().unstack("name").reset_index()


def with_names(rows: pd.DataFrame) -> pd.DataFrame:
    """Score rows with the name of their column (`dsc`, `ece@truth`); without a calibrator it is `none`."""
    rows = table.plain(rows)
    names = rows["metric"] + ("@" + rows["voxels"]).where(rows["voxels"] != "", "")
    return rows.assign(name=names, calibrator=rows["calibrator"].replace("", "none"))


def with_worst_class(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows of one training and, as `worst class`, the DSC of the class with the smallest mean."""
    dsc = rows[rows["metric"] == "dsc"]
    worst = dsc.groupby("class", observed=True)["value"].mean().idxmin()
    return pd.concat([rows, dsc[dsc["class"] == worst].assign(name="worst class", metric="worst class")])


def kept_cells(grid: str, folder: Path) -> Iterator[tuple[Cell, pd.DataFrame]]:
    """The cells of a grid that are kept in a folder, in its order, with their test rows."""
    for cell in read_grid(grid).cells:
        path = kept_path(folder, cell.slug)
        if path.is_file():
            rows = table.read(path).rows
            yield cell, with_names(rows[rows["subset"] == "test"])


def keep_scores(path: Path, paths: Iterable[Path], metrics: set[str]) -> None:
    """Reduce score tables to one small file beside the page."""
    tables = [table.read(one) for one in paths]
    write_reduced(path, [reduced(one.rows, metrics) for one in tables], {"rules": tables[0].rules})


def draw_means(path: Path, values: pd.DataFrame, groups: Mapping[str, Sequence[str]], columns: Sequence[str]) -> None:
    """Means with their intervals, a panel for each column: a row for each group, its methods below one another."""
    from matplotlib.figure import Figure

    styles = palette.method_styles(dict.fromkeys(groups))
    figure = Figure(figsize=(3.2 * len(columns), 0.8 + 0.42 * len(groups)), layout="constrained")
    axes = figure.subplots(1, len(columns), sharey=True)
    for row, (group, methods) in enumerate(groups.items()):
        for place, method in enumerate(methods):
            colour = styles[group].colour
            drawn = {"color": colour, "markerfacecolor": "white" if place else colour, "marker": MARKERS[place]}
            for axis, one in zip(axes, difference(values, method, None, columns).values(), strict=True):
                ends = [[one.mean - one.low], [one.high - one.mean]]
                axis.errorbar(one.mean, row + 0.24 * (place - (len(methods) - 1) / 2), xerr=ends, capsize=2, **drawn)
    for axis, name in zip(axes, columns, strict=True):
        axis.set_title(palette.shown_metric(name), fontsize=10)
        axis.grid(axis="x", alpha=0.3)
        if name.startswith("signed_gap"):
            axis.axvline(0, color="gray", linestyle=":")
    axes[0].set_yticks(range(len(groups)), list(groups))
    axes[0].invert_yaxis()
    shown = [method.rpartition("+")[2] for method in max(groups.values(), key=len)]
    marks = [axes[0].plot([], [], MARKERS[i], color="gray", mfc="white" if i else "gray")[0] for i in range(len(shown))]
    names = ["uncalibrated" if name == "none" else name for name in shown]
    figure.legend(marks, names, loc="outside lower center", ncols=len(shown), fontsize=9)
    figure.savefig(path, dpi=110, metadata={"Software": None})
