"""The commands of leaderboards: add a row, show the table. Heavy imports stay inside the functions."""

from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from calibseg.cli.parsing import Verbs
from calibseg.cli.screen import out, print_line

app = Verbs()
group = Verbs(no_args_is_help=True, help="Leaderboards: one file for each row, checked against the benchmark.")
app.add_typer(group, name="leaderboard")
Benchmark = Annotated[str, typer.Option(help="which leaderboard: hippocampus or acdc")]
Folder = Annotated[
    Path | None, typer.Option(help="where the rows lie; default: docs/leaderboard in a checkout, else leaderboard")
]


@group.command(
    epilog="Examples:  calibseg score --predictions out --labels labelsTs --classes background,anterior,posterior"
    " -o scores.csv   then   calibseg leaderboard add scores.csv --method 'nnU-Net + temperature'"
    " --benchmark hippocampus --link https://example.org/paper"
)
def add(
    scores: Annotated[Path, typer.Argument(help="a score table of one method on the benchmark's test cases")],
    method: Annotated[str, typer.Option(help="what the row is called")],
    benchmark: Benchmark,
    link: Annotated[str, typer.Option(help="a page about it: https://...")] = "",
    folder: Folder = None,
    replace: Annotated[bool, typer.Option("--replace", help="write over a row of this name")] = False,
) -> None:
    """Check that a table was made by the benchmark's rules, on its cases and labels, and add it as one file."""
    from calibseg.analysis import leaderboard, table

    to = leaderboard.benchmark(benchmark)
    made = leaderboard.entry(table.read(scores), method, to, link)
    path = leaderboard.add(made, to, folder or _home(), replace)
    print_line(f"wrote {escape(str(path))}: {len(to.cases)} cases, {len(to.metrics)} metrics")
    out.print("rules, cases and labels are those of the benchmark; commit the file and open a pull request")


@group.command(epilog="Example:  calibseg leaderboard show --benchmark hippocampus")
def show(benchmark: Benchmark, folder: Folder = None) -> None:
    """Print a leaderboard: means with 95 % intervals over patients, best mean case-rank first."""
    from rich.table import Table

    from calibseg.analysis import leaderboard
    from calibseg.report.leaderboard import head, shown

    to = leaderboard.benchmark(benchmark)
    rows = leaderboard.standings(leaderboard.entries(folder or _home(), to), to)
    printed = Table(*map(escape, head(to)), title=escape(to.title), title_justify="left", box=None, pad_edge=False)
    for row in rows:
        printed.add_row(*map(escape, shown(row, to)))
    out.print(printed if rows else f"{escape(to.title)}: nobody has added a row yet")


def _home() -> Path:
    """docs/leaderboard of the checkout that this folder lies in, else ./leaderboard."""
    from calibseg.core.registry import PACKAGE

    here = Path.cwd()
    for parent in (here, *here.parents):
        if (parent / "src" / "calibseg").resolve() == PACKAGE and (parent / "docs").is_dir():
            return parent / "docs" / "leaderboard"
    return Path("leaderboard")
