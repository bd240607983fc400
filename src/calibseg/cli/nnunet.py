"""The commands for people who live in nnU-Net. Heavy imports stay inside the functions."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from calibseg.cli.parsing import Verbs, expanded, words
from calibseg.cli.screen import print_line
from calibseg.cli.shared_options import Images, ImagesToApply, LabelsToApply, Methods, Workers
from calibseg.core.types import BadInput
from calibseg.stages.calibrate.options import CalibrationOptions

app = Verbs()
group = Verbs(no_args_is_help=True, help="For nnU-Net: trainers for every loss, calibration of its models.")
app.add_typer(group, name="nnunet")
Model = Annotated[Path, typer.Argument(help="nnU-Net's results: .../TRAINER__PLANS__CONFIGURATION")]


@group.command(epilog="Example:  export nnUNet_extTrainer=$(calibseg nnunet path)")
def path() -> None:
    """Print the folder in which nnU-Net finds our trainers: nnUNetTrainerNACL, nnUNetTrainerCRaC, ..."""
    from calibseg.integrations.nnunet.trainers import FOLDER

    print(FOLDER)


@dataclass(frozen=True)
class FitModel:
    """The folders, where they are not the model's own."""

    predictions: Annotated[
        list[Path] | None,
        typer.Option(help="labelled cases to fit on, predicted like --apply; default: every fold's validation"),
    ] = None
    labels: Annotated[
        Path | None, typer.Option(help="of the cases to fit on; default: gt_segmentations in $nnUNet_preprocessed")
    ] = None
    apply: Annotated[
        Path | None, typer.Option(help="to calibrate: what nnUNetv2_predict --save_probabilities wrote")
    ] = None
    apply_labels: LabelsToApply = None
    images: Images = None
    apply_images: ImagesToApply = None


@group.command(
    epilog="Examples:  calibseg nnunet calibrate MODEL --apply test_out -o calibrated  ·  "
    "calibseg nnunet calibrate MODEL --predictions val_out --labels labelsVal --apply test_out -o calibrated"
)
@expanded
def calibrate(
    model: Model,
    output: Annotated[Path, typer.Option("--output", "-o", help="the folder for calibrators and what they make")],
    method: Methods = "temperature",
    folders: FitModel = FitModel(),
    options: CalibrationOptions = CalibrationOptions(),
    workers: Workers = None,
) -> None:
    """Calibrate a model of nnU-Net on the out-of-fold predictions of its own training (`--npz`)."""
    from calibseg.cli import console
    from calibseg.cli.calibrate import say
    from calibseg.integrations.nnunet.calibrate import ModelFiles, calibrate_model
    from calibseg.runs.folders import CalibratorFolder

    given = ModelFiles(**{**vars(folders), "predictions": tuple(folders.predictions or ())})
    if given.apply is None and (given.apply_labels or given.apply_images):
        raise BadInput("labels or images of cases to apply to are given, but not their predictions: --apply DIR")
    with console.bar() as progress:
        done, notes = calibrate_model(
            model, words(method), output, given, options=options, workers=workers, progress=progress
        )
    say(done)
    if given.apply is not None:
        folder = CalibratorFolder(done.output / done.chosen).nnunet
        chosen = folder if folder.is_dir() else given.apply
        print_line(f"for nnU-Net's own commands: {escape(str(chosen))}")
    for note in notes:
        print_line(f"[yellow]note:[/] {escape(note)}")


@group.command(epilog="Example:  calibseg nnunet release MODEL -o public_model")
def release(
    model: Model,
    output: Annotated[Path, typer.Option("--output", "-o", help="a new folder for the model")],
) -> None:
    """Rewrite a model so that whoever uses it needs nothing of calibseg: the trainer is nnU-Net's own."""
    from calibseg.integrations.nnunet.release import release as write_released

    for written in write_released(model, output):
        print_line(f"wrote {escape(str(written))}")
