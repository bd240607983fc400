"""The commands that compare: score and rank. Heavy imports stay inside the functions."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.markup import escape

from calibseg.cli.parsing import Verbs, expanded, pairs, refuse_given, words
from calibseg.cli.screen import out, print_line
from calibseg.cli.shared_options import (
    TABLED,
    ClassOptions,
    FittedCalibrator,
    Images,
    NamedSources,
    Predictions,
    PreparedCases,
    Sources,
    SubsetOfScores,
)
from calibseg.core.types import BadInput
from calibseg.io.conventions import FileConventions, PredictionFolder
from calibseg.stages.score.options import ScoringOptions, WorkerOptions

app = Verbs()


@dataclass(frozen=True)
class FolderOptions:
    """A folder of predictions that anybody made, in place of a run."""

    predictions: Predictions = None
    labels: Annotated[Path | None, typer.Option(help="folder of NIfTI label maps, named like the predictions")] = None
    raters: Annotated[
        list[Path] | None,
        typer.Option(help="folder of label maps by one more rater; repeatable, with or without --labels"),
    ] = None
    members: Annotated[
        list[Path] | None,
        typer.Option(help="predictions by a member of an ensemble (with a run: its run folder); repeatable"),
    ] = None
    images: Images = None


@dataclass(frozen=True)
class RunOptions:
    """What of a run is scored, and what the rows say about it."""

    subset: Annotated[str, typer.Option("--subset", "--cases", help="with a run: which of its predicted subsets")] = (
        "test"
    )
    calibrator: FittedCalibrator = "none"
    work: PreparedCases = None
    tag: Annotated[
        list[str] | None,
        typer.Option(help="dataset=, network=, loss=, calibrator=, seed=, variant=, subset=; repeatable"),
    ] = None


@app.command(
    epilog="Examples:  calibseg score --predictions nnunet_out --labels labelsTs -o scores.csv  ·  "
    "calibseg score --predictions p --labels l --voxels predicted,all --patients who.csv --tag loss=nacl -o a.csv  ·  "
    "calibseg score runs/a --calibrator chosen  ·  "
    "calibseg score --predictions p --raters r1 --raters r2 --raters r3 -o raters.csv  ·  "
    "calibseg score --predictions p --labels l --regions WT=1+2+3,TC=1+3 --units voxel --empty released -o paper.csv"
)
@expanded
def score(
    run: Annotated[
        Path | None, typer.Argument(help="a run folder whose cases were predicted; or give two folders")
    ] = None,
    folders: FolderOptions = FolderOptions(),
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="the table; bins and rules are written beside it")
    ] = None,
    of: RunOptions = RunOptions(),
    files: FileConventions = FileConventions(),
    scoring: ScoringOptions = ScoringOptions(),
    names: ClassOptions = ClassOptions(),
    workers: WorkerOptions = WorkerOptions(),
) -> None:
    """Score a folder of predictions, whoever made them: calibration and shape, per case, class and region."""
    from calibseg.cli import console
    from calibseg.io.labelled_folder import several_raters
    from calibseg.stages.score.stage import score_folder, score_run

    predictions, members = folders.predictions, tuple(folders.members or ())
    labels, raters = several_raters(folders.labels, folders.raters or ())
    if run is not None and (predictions or labels):
        raise BadInput("score a run, or a folder of --predictions with its --labels: not both at once")
    if run is not None:
        why = "is for a folder of --predictions: a run says it itself"
        refuse_given(folders, why, ("images",))
        refuse_given(of, why, ("tag",))
        refuse_given(files, why)
        refuse_given(names, why)
    else:
        refuse_given(of, "is for a run, not for a folder of --predictions", ("subset", "work"))
    with console.bar() as progress:
        common: Any = {"scoring": scoring, "workers": workers, "progress": progress}
        if run is not None:
            scored = score_run(
                run, output, subset=of.subset, calibrator=of.calibrator, work=of.work, members=members, **common
            )
        elif not predictions or labels is None or output is None:
            raise BadInput("say what to score: a run folder, or --predictions DIR --labels DIR -o scores.csv")
        else:
            first, *more = predictions
            classes = names.names(first, labels)
            folder = PredictionFolder(first, labels, folders.images, files, classes, tuple(more), raters, members)
            fitted = None if of.calibrator == "none" else Path(of.calibrator)
            scored = score_folder(folder, output, calibrator=fitted, experiment=pairs(of.tag, "--tag"), **common)
    if scored.resumed:
        out.print(f"{scored.resumed} cases were already measured by an interrupted run\n")
    out.print(console.summary_table(scored.summary))
    print_line(f"\n{escape(console.voxel_notes(scoring.voxels))}", style="dim")
    for reason in scored.bad:
        print_line(f"[yellow]left out:[/] {escape(reason)}")
    print_line(f"\nwrote {escape(scored.table.name)}: {len(scored.table.rows)} rows")


@dataclass(frozen=True)
class RankOptions:
    """What is ranked, and how equal and undefined values count."""

    metrics: Annotated[
        tuple[str, ...],
        typer.Option(
            help="like dsc,ece,ece@truth; bare: on predicted voxels, NLL and Brier on all", show_default=TABLED
        ),
    ] = ()
    ties: Annotated[Literal["min", "average"], typer.Option(help="the rank of equals; min: as in the CRaC paper")] = (
        "min"
    )
    undefined: Annotated[
        Literal["worst", "drop"],
        typer.Option(help="a value that only some methods have: the worst, or left out for all"),
    ] = "worst"
    by: Annotated[
        Literal["dataset", "network", "seed", "subset"] | None, typer.Option(help="rank each of them apart")
    ] = None
    subset: SubsetOfScores = ""
    only: Annotated[
        tuple[str, ...], typer.Option(help="rank these alone: methods or losses, like nacl,ce+temperature")
    ] = ()
    calibrator: Annotated[tuple[str, ...], typer.Option(help="rank these alone: none,temperature, ...")] = ()
    top: Annotated[int, typer.Option(min=1, help="how many methods to print, the best; -o writes all")] = 20


@app.command(
    epilog="Examples:  calibseg rank scores.csv  ·  calibseg rank runs/*.csv --metrics dsc,hd95,ece@truth,tcece@truth"
    "  ·  calibseg rank bench/scores.parquet --calibrator none --top 5  ·  "
    "calibseg rank --method nacl=a.csv --method theirs=b.csv --compare nacl,theirs -o ranks.csv"
)
@expanded
def rank(
    tables: Sources = None,
    method: NamedSources = None,
    how: RankOptions = RankOptions(),
    compare: Annotated[
        list[str] | None, typer.Option(help="A,B: paired patient-bootstrap of two methods; repeatable")
    ] = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="write ranks.csv and ranks.meta.json")] = None,
) -> None:
    """Rank methods: sum-rank, mean case-rank, Friedman mean rank, tests and paired comparisons."""
    from calibseg.analysis import ranking
    from calibseg.analysis.sources import read_source
    from calibseg.cli import console
    from calibseg.core.files import check_output

    paths = [path for path in tables or [] if not path.name.endswith(".bins.csv")]  # they lie beside the scores
    compared = [_two(text) for text in compare or []]
    named = pairs(method, "--method")
    source = read_source(paths or tables or (), named, how.subset, every_subset=how.by == "subset")
    if output:
        check_output(output, (".csv",), source.paths)
    merged = ranking.selected(source.table, how.only, how.calibrator)
    for ranked in (all_ranked := ranking.rank(merged, how.metrics or None, how.ties, how.undefined, how.by, compared)):
        if ranked.part:
            out.print(f"[bold]{how.by} {escape(ranked.part)}[/]\n")
        for shown in console.ranked_tables(ranked, how.top, out.width):
            console.show(out, shown)
            out.print()
        if len(ranked.data.methods) > how.top:
            hint = f": {escape(str(output))}" if output else ", with -o ranks.csv"
            print_line(f"the best {how.top} of {len(ranked.data.methods)} are shown; all{hint}")
        print_line(escape(console.undefined_note(ranked.data, how.undefined)), style="dim")
    if output:
        ranking.write(all_ranked, output, how.ties, how.undefined)
        print_line(f"wrote {escape(str(output))}")


def _two(text: str) -> tuple[str, str]:
    if len(methods := words(text)) != 2:
        raise BadInput(f"--compare {text!r} is not of the form METHOD,METHOD")
    first, second = methods
    if first == second:
        raise BadInput(f"--compare {text!r} names one method twice: a method has no difference from itself")
    return first, second
