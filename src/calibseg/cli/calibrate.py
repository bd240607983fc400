"""The command that calibrates. Heavy imports stay inside the functions."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.markup import escape

from calibseg.cli.parsing import Verbs, expanded, refuse_given, words
from calibseg.cli.screen import out, print_line
from calibseg.cli.shared_options import (
    ClassOptions,
    Images,
    ImagesToApply,
    LabelsToApply,
    Methods,
    Predictions,
    PreparedCases,
    Workers,
)
from calibseg.core.types import BadInput
from calibseg.io.conventions import FileConventions, PredictionFolder
from calibseg.stages.calibrate.options import CalibrationOptions

if TYPE_CHECKING:
    from calibseg.stages.calibrate.stage import CalibrationResult

app = Verbs()


@dataclass(frozen=True)
class FitFolders:
    """Folders that anybody made, to fit on and to apply to, in place of a run."""

    predictions: Predictions = None
    labels: Annotated[Path | None, typer.Option(help="their NIfTI label maps, named like them")] = None
    images: Images = None
    apply: Annotated[Path | None, typer.Option(help="predictions to calibrate: other cases of other patients")] = None
    apply_labels: LabelsToApply = None
    apply_images: ImagesToApply = None


@dataclass(frozen=True)
class FitRun:
    """What of a run is fitted on, and how many processes score."""

    subset: Annotated[
        Literal["validation", "calibration"] | None,
        typer.Option(
            "--subset", "--cases", help="with a run: the subset to fit on; default: calibration where the split has one"
        ),
    ] = None
    work: PreparedCases = None
    workers: Workers = None


@app.command(
    epilog="Examples:  calibseg calibrate runs/a --method temperature,local_temperature  ·  "
    "calibseg calibrate runs/a --method local_temperature --option local_temperature.epochs=5  ·  "
    "calibseg calibrate --predictions val_out --labels labelsVal --apply test_out -o calibrated --method temperature"
    "  ·  then   calibseg score runs/a --calibrator chosen   or   calibseg predict runs/a --input scan.nii.gz -o out"
)
@expanded
def calibrate(
    run: Annotated[Path | None, typer.Argument(help="a run folder with predicted validation cases; or folders")] = None,
    method: Methods = "temperature",
    folders: FitFolders = FitFolders(),
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="the folder for what is made of folders")
    ] = None,
    files: FileConventions = FileConventions(),
    names: ClassOptions = ClassOptions(),
    options: CalibrationOptions = CalibrationOptions(),
    of: FitRun = FitRun(),
) -> None:
    """Repair the confidence of a network, ours or anybody's: fit on validation, choose, apply; never fit on test."""
    from calibseg.cli import console
    from calibseg.stages.calibrate.stage import calibrate_folders, calibrate_run

    methods = words(method)
    if run is not None:
        if output or any(vars(folders).values()):
            raise BadInput("calibrate a run, or a folder of --predictions with its --labels: not both at once")
        for given in (files, names):
            refuse_given(given, "is for a folder of --predictions: a run says it itself")
        with console.bar() as progress:
            say(calibrate_run(run, methods, subset=of.subset, options=options, work=of.work, progress=progress))
        return
    if not folders.predictions or folders.labels is None or output is None:
        raise BadInput("say what to calibrate: a run folder, or --predictions DIR --labels DIR [--apply DIR] -o OUT")
    refuse_given(of, "is for a run, not for a folder of --predictions", ("subset", "work"))
    if folders.apply is None and (folders.apply_labels or folders.apply_images):
        raise BadInput("labels or images of cases to apply to are given, but not their predictions: --apply DIR")
    first, *more = folders.predictions
    classes = names.names(first, folders.labels)
    fit = PredictionFolder(first, folders.labels, folders.images, files, classes, tuple(more))
    to = PredictionFolder(folders.apply, folders.apply_labels, folders.apply_images, files) if folders.apply else None
    with console.bar() as progress:
        say(calibrate_folders(fit, methods, output, apply=to, options=options, workers=of.workers, progress=progress))


def say(result: "CalibrationResult") -> None:
    """The table of candidates, which was chosen and why, and what was written."""
    from calibseg.cli import console

    how = "cross-validated" if result.cross_fitted else "in-sample (a single patient cannot be held out)"
    moving = [row["method"] for row in result.rows if not row["keeps_argmax"]]
    console.show(out, console.calibration_table(result.rows, result.chosen, f"On the cases to fit on, {how}", moving))
    if result.applied:
        out.print()
        console.show(out, console.calibration_table(result.applied, result.chosen, "On the cases to apply to", moving))
    moves = "may change the segmentation" if result.chosen in moving else "does not change the segmentation"
    print_line(f"\nchosen: [bold]{escape(result.chosen)}[/], which {moves}, by the {escape(result.by)}")
    if result.best["any"] != result.chosen:
        best = escape(result.best["any"])
        print_line(f"{best} has the smaller NLL and may change the segmentation: --choose any takes it")
    for row in result.rows:
        for note in row["fallbacks"]:
            print_line(f"[yellow]{escape(row['method'])}:[/] {escape(str(note))}")
    for reason in result.left_out:
        print_line(f"[yellow]left out:[/] {escape(reason)}")
    if result.written or result.unchanged:
        print_line(f"{result.written} files of probabilities written, {result.unchanged} unchanged")
    print_line(f"wrote {escape(str(result.output))}")
