"""The commands that write pages: report and view. Heavy imports stay inside the functions."""

from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from calibseg.cli.parsing import Verbs
from calibseg.cli.screen import print_line

app = Verbs()


@app.command(
    epilog="Examples:  calibseg report runs/* -o report.html  ·  calibseg report nacl.csv ce.csv  ·  "
    "calibseg report out/ --paper nacl-table1"
)
def report(
    sources: Annotated[list[Path], typer.Argument(help="score tables, run folders, or a benchmark's folder")],
    output: Annotated[Path, typer.Option("--output", "-o", help="the page: one file that opens offline")] = Path(
        "report.html"
    ),
    title: Annotated[str | None, typer.Option(help="its headline; default: the datasets, or the grid's title")] = None,
    paper: Annotated[
        str | None, typer.Option(help="printed values to show beside ours, like nacl-table1; default: the grid's")
    ] = None,
) -> None:
    """Write one page that shows everything: tables, figures, worst cases, cost, and which method to use."""
    from calibseg.analysis.paper_values import paper_values
    from calibseg.report.html import report as write_report
    from calibseg.report.palette import shown_method

    written = write_report(sources, output, title, paper_values(paper) if paper else None)
    for choice in written.recommended:
        prefix = f"{choice.dataset}: " if choice.dataset else ""
        print_line(
            f"{escape(prefix)}recommended [bold]{escape(shown_method(choice.method))}[/]"
            f" (validation NLL {choice.nll:.4f}, DSC {choice.dsc:.4f})"
        )
        if not choice.keeps_labels and choice.keeping:
            print_line(
                f"it may change the segmentation; of those that do not: [bold]{escape(shown_method(choice.keeping))}[/]"
                f" (validation NLL {choice.keeping_nll:.4f})"
            )
    for reason in written.failed:
        print_line(f"[red]check failed:[/] {escape(reason)}")
    for warning in written.warnings:
        print_line(f"[yellow]note:[/] {escape(warning)}")
    pictures = f", pictures of {written.cases} cases" if written.cases else ""
    size = f"{written.bytes / 1e6:.1f} MB, {len(written.figures)} figures{pictures}"
    print_line(f"wrote {escape(str(written.path))}: {size}")


@app.command(
    epilog="Examples:  calibseg predict runs/a -i scan.nii.gz -o out   then   calibseg view out --image scan.nii.gz"
    "  ·  calibseg view out --scan patient_7 -o patient_7.html --no-open"
)
def view(
    folder: Annotated[Path, typer.Argument(help="what calibseg predict --input wrote")],
    scan: Annotated[str | None, typer.Option(help="which scan, where there are several")] = None,
    image: Annotated[Path | None, typer.Option(help="the scan itself, to lie below the maps")] = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="the page; default: OUT/SCAN.html")] = None,
    show: Annotated[bool, typer.Option("--open/--no-open", help="open it in the browser")] = True,
) -> None:
    """Show a predicted scan in three dimensions: image, mask and confidence on one page that opens offline."""
    import webbrowser

    from calibseg.report.viewer import view as write_view

    path = write_view(folder, output, scan, image)
    print_line(f"wrote {escape(str(path))}")
    if show:
        webbrowser.open(path.resolve().as_uri())
