"""The commands that compare: score and rank. Heavy imports stay inside the functions."""

import json
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.console import Console
from rich.markup import escape

from calibseg.cli.parsing import pair
from calibseg.core.types import BadInput

app = typer.Typer()
out = Console(highlight=False)


@app.command(
    epilog="Examples:  calibseg score --predictions nnunet_out --labels labelsTs -o scores.csv  ·  "
    "calibseg score --predictions p --labels l --voxels predicted,all --patients who.csv --tag loss=nacl -o a.csv  ·  "
    "calibseg score runs/a --calibrator chosen  ·  "
    "calibseg score --predictions p --labels l --regions WT=1+2+3,TC=1+3 --units voxel --empty released -o paper.csv"
)
def score(
    run: Annotated[
        Path | None, typer.Argument(help="a run folder whose cases were predicted; or give two folders")
    ] = None,
    predictions: Annotated[
        Path | None, typer.Option(help="folder: nnU-Net .npz, 4-D NIfTI, NIfTI per class, or .npz")
    ] = None,
    labels: Annotated[Path | None, typer.Option(help="folder of NIfTI label maps, named like the predictions")] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="the table; bins and rules are written beside it")
    ] = None,
    cases: Annotated[str, typer.Option(help="with a run: which of its predicted parts")] = "test",
    calibrator: Annotated[
        str, typer.Option(help="of a run: a name, chosen or none; with folders: the folder of a fitted calibrator")
    ] = "none",
    images: Annotated[
        Path | None, typer.Option(help="with folders: images, for a calibrator that looks at them")
    ] = None,
    work: Annotated[
        Path | None, typer.Option(help="with a run: its prepared cases, for a calibrator that looks at images")
    ] = None,
    form: Annotated[
        Literal["nnunet", "nifti", "npz"] | None, typer.Option("--format", help="default: by what the folder holds")
    ] = None,
    kind: Annotated[Literal["probabilities", "logits"], typer.Option(help="what the numbers are")] = "probabilities",
    activation: Annotated[
        Literal["softmax", "sigmoid"], typer.Option(help="sigmoid: every channel is its own yes-or-no question")
    ] = "softmax",
    voxels: Annotated[
        str,
        typer.Option(help="which voxels count for calibration: truth (paper rule), predicted, union, all, boundary"),
    ] = "truth,predicted,all",
    boundary_mm: Annotated[float, typer.Option(help="how near the true surface `boundary` reaches")] = 5.0,
    metrics: Annotated[str | None, typer.Option(help="comma-separated keys; default: all, see calibseg list")] = None,
    option: Annotated[
        list[str] | None, typer.Option(help="a metric's own option, like hd95.definition=max_directed; repeatable")
    ] = None,
    bins: Annotated[int, typer.Option(help="bins of the reliability curves")] = 15,
    cece: Annotated[Literal["all", "released"], typer.Option(help="classes that CECE averages")] = "all",
    empty: Annotated[
        Literal["nan", "worst", "released"], typer.Option(help="what a missed organ scores; nan: undefined, counted")
    ] = "nan",
    units: Annotated[Literal["mm", "voxel"], typer.Option(help="of surface distances")] = "mm",
    classes: Annotated[
        str | None, typer.Option(help="background,lv,rv; default: the dataset.json's, or numbers")
    ] = None,
    regions: Annotated[str | None, typer.Option(help="objects made of classes, like WT=1+2+3,TC=1+3")] = None,
    ignore_label: Annotated[int | None, typer.Option(help="a label value that counts for nobody")] = None,
    patients: Annotated[Path | None, typer.Option(help="CSV with the columns case, patient; default: one each")] = None,
    tag: Annotated[
        list[str] | None,
        typer.Option(help="dataset=, network=, loss=, calibrator=, seed=, variant=, subset=; repeatable"),
    ] = None,
    workers: Annotated[int | None, typer.Option(help="processes; default: by the size of the folder")] = None,
    skip_bad: Annotated[bool, typer.Option("--skip-bad", help="leave out what cannot be used, and list it")] = False,
) -> None:
    """Score a folder of predictions, whoever made them: calibration and shape, per case, class and region."""
    from calibseg.cli import console
    from calibseg.io.class_names import find_vocabulary, with_overrides
    from calibseg.stages.score.case import ScoringOptions
    from calibseg.stages.score.stage import score as score_folder
    from calibseg.stages.score.stage import score_run

    rules = ScoringOptions(
        _words(voxels), _words(metrics), bins, cece, empty, units, activation, boundary_mm, _options(option or [])
    )  # fmt: skip
    if run is not None:
        if predictions or labels:
            raise BadInput("score a run, or a folder of --predictions with its --labels: not both at once")
        with console.bar() as progress:
            found = score_run(
                run,
                output,
                cases=cases,
                calibrator=calibrator,
                work=work,
                rules=rules,
                workers=workers,
                skip_bad=skip_bad,
                progress=progress,
            )
    elif predictions is None or labels is None or output is None:
        raise BadInput("say what to score: a run folder, or --predictions DIR --labels DIR -o scores.csv")
    else:
        with console.bar() as progress:
            found = score_folder(
                predictions,
                labels,
                output,
                rules=rules,
                kind=kind,
                form=form,
                vocabulary=with_overrides(find_vocabulary(predictions, labels), classes, regions, ignore_label),
                patients=patients,
                experiment=dict(pair(text, "--tag") for text in tag or []),
                workers=workers,
                skip_bad=skip_bad,
                calibrator=None if calibrator == "none" else Path(calibrator),
                images=images,
                progress=progress,
            )
    if found.resumed:
        out.print(f"{found.resumed} cases were already measured by an interrupted run\n")
    out.print(console.summary_table(found.summary))
    out.print(f"\n{escape(console.voxel_notes(rules.voxels))}", style="dim", soft_wrap=True)
    for reason in found.bad:
        out.print(f"[yellow]left out:[/] {escape(reason)}", soft_wrap=True)
    out.print(f"\nwrote {escape(found.table.name)}: {len(found.table.rows)} rows", soft_wrap=True)


@app.command(
    epilog="Examples:  calibseg rank scores.csv  ·  calibseg rank runs/*.csv --metrics dsc,hd95,ece@truth,tcece@truth"
    "  ·  "
    "calibseg rank --method nacl=a.csv --method theirs=b.csv --compare nacl,theirs -o ranks.csv"
)
def rank(
    tables: Annotated[list[Path] | None, typer.Argument(help="score tables; they are merged")] = None,
    method: Annotated[
        list[str] | None, typer.Option(help="NAME=scores.csv, for a table whose method has no name; repeatable")
    ] = None,
    metrics: Annotated[
        str, typer.Option(help="like dsc,ece,ece@truth; bare: on predicted voxels, NLL and Brier on all")
    ] = ("dsc,hd95,ece,cece"),
    ties: Annotated[
        Literal["min", "average"], typer.Option(help="the rank of equals; min: as in the CRaC paper")
    ] = "min",
    undefined: Annotated[
        Literal["worst", "drop"],
        typer.Option(help="a value that only some methods have: the worst, or left out for all"),
    ] = "worst",
    by: Annotated[
        Literal["dataset", "network", "seed", "subset"] | None, typer.Option(help="rank each of them apart")
    ] = None,
    compare: Annotated[
        list[str] | None, typer.Option(help="A,B: paired patient-bootstrap of two methods; repeatable")
    ] = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="write ranks.csv and ranks.meta.json")] = None,
) -> None:
    """Rank methods: sum-rank, mean case-rank, Friedman mean rank, tests and paired comparisons."""
    from calibseg.analysis import ranking
    from calibseg.analysis.table import merge, named, read
    from calibseg.cli import console

    given = [read(path) for path in tables or []]
    given += [named(read(path), name) for name, path in (pair(text, "--method") for text in method or [])]
    pairs = [_two(text) for text in compare or []]
    for ranked in (all_ranked := ranking.rank(merge(given), _words(metrics), ties, undefined, by, pairs)):
        if ranked.part:
            out.print(f"[bold]{by} {escape(ranked.part)}[/]\n")
        for shown in console.ranked_tables(ranked):
            out.print(shown)
            out.print()
        out.print(escape(console.undefined_note(ranked.data, undefined)), style="dim", soft_wrap=True)
    if output:
        ranking.write(all_ranked, output, ties, undefined)
        out.print(f"wrote {escape(str(output))}", soft_wrap=True)


def _words(text: str | None) -> tuple[Any, ...]:
    return tuple(word.strip() for word in text.split(",") if word.strip()) if text else ()


def _two(text: str) -> tuple[str, str]:
    first, comma, second = text.partition(",")
    if not (first and comma and second):
        raise BadInput(f"--compare {text!r} is not of the form METHOD,METHOD")
    return first, second


def _options(texts: list[str]) -> tuple[tuple[str, str, Any], ...]:
    """`hd95.definition=max_directed` -> (hd95, definition, max_directed); numbers are numbers."""
    found = []
    for text in texts:
        path, value = pair(text, "--option")
        metric, dot, name = path.partition(".")
        if not (metric and dot and name):
            raise BadInput(f"--option {text!r} is not of the form METRIC.OPTION=VALUE")
        try:
            found.append((metric, name, json.loads(value)))
        except json.JSONDecodeError:
            found.append((metric, name, value))
    return tuple(found)
