"""How every figure is set: small sans-serif text that stays text, thin axes, no frame that says nothing; and its file.

A column of a journal is 3.5 inches wide, a page 7.2. The same figure always gives the same bytes: files carry no date
and no version, and SVG ids are hashed with a fixed salt.
"""

import functools
import io
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ParamSpec

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from calibseg.analysis.columns import Frame
from calibseg.core import registry
from calibseg.core.files import atomic_write
from calibseg.core.types import BadInput
from calibseg.report.palette import Style

COLUMN, PAGE = 3.5, 7.2  # inches
GREY, FAINT = "#595959", "#d9d9d9"
FORMATS = ("png", "svg", "pdf")
UNDATED: dict[str, dict[str, Any]] = {
    "png": {"Software": None},
    "svg": {"Date": None, "Creator": None},
    "pdf": {"CreationDate": None, "Producer": None, "Creator": None},
}
STYLE: dict[Any, Any] = {
    "font.family": "sans-serif",
    "font.sans-serif": ["Arial", "Helvetica", "Liberation Sans", "DejaVu Sans"],
    "font.size": 7,
    "axes.titlesize": 7.5,
    "axes.labelsize": 7,
    "xtick.labelsize": 6.5,
    "ytick.labelsize": 6.5,
    "legend.fontsize": 6.5,
    "axes.linewidth": 0.6,
    "axes.edgecolor": GREY,
    "axes.labelcolor": "#262626",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlepad": 4,
    "axes.labelpad": 2.5,
    "xtick.color": GREY,
    "ytick.color": GREY,
    "xtick.labelcolor": "#262626",
    "ytick.labelcolor": "#262626",
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "xtick.major.size": 2.5,
    "ytick.major.size": 2.5,
    "xtick.minor.size": 0,
    "ytick.minor.size": 0,
    "lines.linewidth": 1.2,
    "lines.markersize": 3.5,
    "legend.frameon": False,
    "legend.handlelength": 1.6,
    "legend.columnspacing": 1.2,
    "legend.handletextpad": 0.5,
    "figure.constrained_layout.h_pad": 0.03,
    "figure.constrained_layout.w_pad": 0.03,
    "savefig.dpi": 300,
    "pdf.fonttype": 42,  # text stays text
    "svg.fonttype": "none",
    "svg.hashsalt": "calibseg",
    "text.parse_math": False,  # a method may be called $\\frac{$
}

P = ParamSpec("P")


def styled(draw: Callable[P, Figure]) -> Callable[P, Figure]:
    """A function that draws, under this style and no other."""

    @functools.wraps(draw)
    def drawn(*args: P.args, **kwargs: P.kwargs) -> Figure:
        with matplotlib.rc_context():
            matplotlib.rcdefaults()
            matplotlib.rcParams.update(STYLE)
            return draw(*args, **kwargs)

    return drawn


def format_of(path: Path) -> str:
    """png, svg or pdf, by the ending of a figure's name."""
    ending = path.suffix.lower().removeprefix(".")
    if ending not in FORMATS:
        raise BadInput(f"{path}: {registry.unknown('figure format', ending, list(FORMATS))}")
    return ending


def save(figure: Figure, path: Path | str) -> Path:
    """Write a figure; the ending decides whether it is PNG (300 dpi), SVG or PDF."""
    path = Path(path)
    ending = format_of(path)
    written = io.BytesIO()
    with matplotlib.rc_context(STYLE):
        figure.savefig(written, format=ending, metadata=UNDATED[ending], bbox_inches="tight", pad_inches=0.02)
    with atomic_write(path) as temporary:
        temporary.write_bytes(written.getvalue())
    return path


def panels(number: int, columns: int, size: tuple[float, float], **options: Any) -> tuple[Figure, list[Axes]]:
    """A figure of `number` panels of `size` inches, `columns` beside each other; what a row lacks stays empty."""
    columns = max(1, min(number, columns))
    rows = -(-number // columns)
    figure = Figure(figsize=(size[0] * columns, size[1] * rows), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False, **options).ravel().tolist()
    for axis in axes[number:]:
        axis.set_visible(False)
    return figure, axes[:number]


def legend_below(figure: Figure, handles: list[Any], labels: list[str]) -> None:
    """One legend under all panels, read row by row, with as few rows as the width of the figure allows."""
    rows = next((rows for rows in range(1, len(labels)) if _wide(labels, rows) <= figure.get_figwidth()), len(labels))
    columns = -(-len(labels) // rows)
    # matplotlib fills column after column, the first ones longer: so does this order
    order = [place for column in range(columns) for place in range(column, len(labels), columns)]
    chosen = [handles[place] for place in order], [labels[place] for place in order]
    figure.legend(*chosen, loc="outside lower center", ncols=columns)
    figure.set_figheight(figure.get_figheight() + 0.14 * rows + 0.04)


def _wide(labels: list[str], rows: int) -> float:
    """About how many inches a legend takes with so many rows."""
    columns = -(-len(labels) // rows)
    widest = [max(len(label) for label in labels[column::columns]) for column in range(columns)]
    return sum(0.4 + 0.052 * letters for letters in widest)


def method_legend(figure: Figure, styles: Mapping[str, Style], markers: bool = True) -> None:
    """What every method's line and marker look like."""
    marks = [style.marker if markers else "" for style in styles.values()]
    handles = [
        Line2D([], [], **{**style.line, "marker": mark}) for style, mark in zip(styles.values(), marks, strict=True)
    ]
    legend_below(figure, handles, [style.label for style in styles.values()])


def places(rows: Frame) -> list[tuple[str, Frame]]:
    """The rows of each dataset and network under a title that says what sets it apart from the others, if anything."""
    columns = [column for column in ("dataset", "network") if rows[column].nunique() > 1]
    groups = rows.groupby(["dataset", "network"], sort=False, observed=True)
    return [(titled(*(str(part[column].iloc[0]) for column in columns)), part) for _, part in groups]


def titled(*words: str) -> str:
    """What a panel shows, where there is something to say."""
    return " · ".join(word for word in words if word)


def is_better(rows: Frame, metric: str) -> bool:
    """Whether more of a metric is better, as the table says."""
    return bool(rows.loc[rows["metric"] == metric, "higher_is_better"].iloc[0])


def even_columns(number: int, most: int) -> int:
    """As few rows as `most` columns allow, then as few columns as those rows need."""
    return -(-number // -(-number // most))
