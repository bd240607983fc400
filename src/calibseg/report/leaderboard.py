"""A leaderboard in words and numbers: one row for each method, for a terminal and for the site."""

from collections.abc import Sequence

from calibseg.analysis.leaderboard import Benchmark, Standing
from calibseg.report.html.tables import label, number


def head(to: Benchmark) -> list[str]:
    """The heads of the columns."""
    metrics = []
    for key, facts in to.metrics.items():
        unit = f" ({facts['unit']})" if facts["unit"] else ""
        metrics.append(f"{label(key)}{unit} {'↑' if facts['higher_is_better'] else '↓'}")
    return ["rank", "method", "seeds", *metrics]


def shown(row: Standing, to: Benchmark) -> list[str]:
    """The cells of a row: mean case-rank, name, seeds, and of every metric the mean with its interval."""
    cells = []
    for key, (mean, low, high) in row.means.items():
        lacking = row.undefined[key]
        gap = f"; {len(to.cases) - lacking} of {len(to.cases)} defined" if lacking else ""
        cells.append(f"{number(mean)} [{number(low)}, {number(high)}]{gap}")
    return [f"{row.rank:.2f}", row.entry.method, str(row.entry.seeds), *cells]


def markdown(rows: Sequence[Standing], to: Benchmark) -> str:
    """The table of a leaderboard as Markdown; names were checked to hold no markup."""
    lines = [head(to), ["---"] * len(head(to))]
    for row in rows:
        cells = shown(row, to)
        if row.entry.link:
            cells[1] = f"[{cells[1]}]({row.entry.link})"
        lines.append(cells)
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
