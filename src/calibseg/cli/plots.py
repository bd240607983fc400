"""The commands that show: plot and table. Heavy imports stay inside the functions."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.markup import escape

from calibseg.cli.parsing import Verbs, expanded, pairs
from calibseg.cli.screen import out, print_line
from calibseg.cli.shared_options import TABLED, NamedSources, Sources, SubsetOfScores
from calibseg.core.registry import unknown
from calibseg.core.types import BadInput
from calibseg.report.figure_options import FigureOptions

app = Verbs()

KINDS = """reliability, signed (over- and under-confidence), distance (ECE to the boundary), means, ranks,
critical-difference, radar, compromise (MbLS Fig. 2), networks (MbLS Fig. 7), stacked, noise, risk-coverage,
sensitivity, training, multipliers, interior, logits, slices, penalties, lagrangians;
`calibseg plot list` says what each shows and needs"""


@app.command(
    epilog="Examples:  calibseg plot list  ·  calibseg plot reliability runs/ce-s0 runs/nacl-s0 -o reliability.pdf  ·  "
    "calibseg plot ranks bench --metrics dsc,hd95,ece@truth,cece@truth -o ranks.svg  ·  "
    "calibseg plot slices runs/ce-s0 runs/nacl-s0 --case hippocampus_050 -o case.png  ·  "
    "calibseg plot sensitivity runs/mbls-* --option loss.margin -o margin.pdf"
)
@expanded
def plot(
    kind: Annotated[str, typer.Argument(help=KINDS)],
    sources: Sources = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="figure.pdf, .svg or .png (300 dpi)")] = None,
    method: NamedSources = None,
    asked: FigureOptions = FigureOptions(),
) -> None:
    """Draw a figure at publication quality."""
    from calibseg.report.matplotlib import KINDS as KNOWN
    from calibseg.report.matplotlib import Request, format_of, save
    from calibseg.report.matplotlib import plot as draw

    if kind == "list":
        from rich.table import Table

        shown = Table("kind", "shows", "needs", box=None, pad_edge=False)
        for name, figure in KNOWN.items():
            shown.add_row(f"[bold]{name}[/]", figure.summary, figure.needs)
        out.print(shown)
        return
    if kind not in KNOWN:
        raise BadInput(unknown("figure", kind, list(KNOWN)))
    if output is None:
        raise BadInput(f"say where to write the figure, as in -o {kind}.pdf")
    format_of(output)  # before anything is read
    request = Request(tuple(sources or ()), pairs(method, "--method"), **vars(asked))
    print_line(f"wrote {escape(str(save(draw(kind, request), output)))}")


@dataclass(frozen=True)
class TableOptions:
    """What a table shows, and in which form."""

    metrics: Annotated[
        tuple[str, ...], typer.Option(help="like dsc,ece,ece@truth; bare: on predicted voxels", show_default=TABLED)
    ] = ()
    form: Annotated[
        Literal["md", "latex", "csv"] | None, typer.Option("--format", help="default: by the output's ending, else md")
    ] = None
    interval: Annotated[
        Literal["none", "beside"], typer.Option(help="the 95 % patient-bootstrap interval after each mean")
    ] = "beside"
    subset: SubsetOfScores = ""
    paper: Annotated[
        str | None,
        typer.Option(help="its values beside ours: nacl-table1, ..., or a CSV with dataset, method, metric, value"),
    ] = None


@app.command(
    epilog="Examples:  calibseg table scores.csv  ·  calibseg table runs/* --metrics dsc,hd95,ece@truth --format latex "
    "-o table.tex  ·  calibseg table bench --format csv --interval none -o table.csv  ·  "
    "calibseg table bench --export scores.csv"
)
@expanded
def table(
    sources: Sources = None,
    method: NamedSources = None,
    how: TableOptions = TableOptions(),
    output: Annotated[Path | None, typer.Option("--output", "-o", help=".md, .tex or .csv; default: print it")] = None,
    export: Annotated[
        Path | None, typer.Option(help="in place of means: every row of all sources in one file, .csv or .parquet")
    ] = None,
) -> None:
    """Set methods side by side as Markdown, LaTeX or CSV: best in bold, second best underlined."""
    from calibseg.analysis import table as score_table
    from calibseg.analysis.headline import default_metrics
    from calibseg.analysis.sources import read_source
    from calibseg.core.files import check_output, write_text
    from calibseg.report.figure_data.scores import unshifted
    from calibseg.report.text_tables import comparison, read_paper, typeset

    source = read_source(sources or (), pairs(method, "--method"), how.subset)
    if export is not None:
        score_table.check_output(export, source.paths)
        score_table.write(source.table, export)
        print_line(f"wrote {escape(str(export))}: {len(source.table.rows)} rows")
        return
    if output is not None:
        check_output(output, (".md", ".tex", ".csv", ".txt"), source.paths)
    values = read_paper(how.paper) if how.paper else None
    metrics = how.metrics or default_metrics(source.table.rows)
    rows = comparison(unshifted(source.table), metrics, paper=values)
    endings: dict[str, Literal["md", "latex", "csv"]] = {".md": "md", ".tex": "latex", ".csv": "csv"}
    text = typeset(rows, how.form or endings.get(output.suffix.lower() if output else "", "md"), how.interval)
    if output is None:
        print(text, end="")
        return
    write_text(output, text)
    print_line(f"wrote {escape(str(output))}")
