"""The command that calibrates. Heavy imports stay inside the functions."""

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
    epilog="Examples:  calibseg calibrate runs/a --method temperature,local_temperature  ·  "
    "calibseg calibrate runs/a --method local_temperature --option local_temperature.epochs=5  ·  "
    "calibseg calibrate --predictions val_out --labels labelsVal --apply test_out -o calibrated --method temperature"
    "  ·  then   calibseg score runs/a --calibrator chosen   or   calibseg predict runs/a --input scan.nii.gz -o out"
)
def calibrate(
    run: Annotated[Path | None, typer.Argument(help="a run folder with predicted validation cases; or folders")] = None,
    method: Annotated[
        str, typer.Option(help="comma-separated calibrators, see calibseg list calibrators")
    ] = "temperature",
    cases: Annotated[
        Literal["validation", "calibration"] | None,
        typer.Option(help="with a run: the part to fit on; default: calibration where the split has one"),
    ] = None,
    predictions: Annotated[
        Path | None, typer.Option(help="to fit on: nnU-Net .npz, 4-D NIfTI, NIfTI per class, or .npz")
    ] = None,
    labels: Annotated[Path | None, typer.Option(help="their NIfTI label maps, named like them")] = None,
    images: Annotated[Path | None, typer.Option(help="their NIfTI images, for methods that look at them")] = None,
    apply: Annotated[Path | None, typer.Option(help="predictions to calibrate: other cases of other patients")] = None,
    apply_labels: Annotated[Path | None, typer.Option(help="their labels: scores before and after")] = None,
    apply_images: Annotated[Path | None, typer.Option(help="their images, for methods that look at them")] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="the folder for what is made of folders")
    ] = None,
    kind: Annotated[Literal["probabilities", "logits"], typer.Option(help="what the numbers are")] = "probabilities",
    activation: Annotated[
        Literal["softmax", "sigmoid"], typer.Option(help="sigmoid: every channel is its own yes-or-no question")
    ] = "softmax",
    form: Annotated[
        Literal["nnunet", "nifti", "npz"] | None, typer.Option("--format", help="default: by what the folder holds")
    ] = None,
    patients: Annotated[Path | None, typer.Option(help="CSV with the columns case, patient; default: one each")] = None,
    classes: Annotated[
        str | None, typer.Option(help="background,lv,rv; default: the dataset.json's, or numbers")
    ] = None,
    regions: Annotated[str | None, typer.Option(help="objects made of classes, like WT=1+2+3,TC=1+3")] = None,
    ignore_label: Annotated[int | None, typer.Option(help="a label value that counts for nobody")] = None,
    voxels: Annotated[Literal["all", "foreground"], typer.Option(help="which voxels are learnt from")] = "all",
    sample: Annotated[int, typer.Option(min=0, help="at most so many voxels per class and case; 0: all")] = 0,
    seed: Annotated[int, typer.Option(min=0, help="of what is drawn at random")] = 0,
    option: Annotated[
        list[str] | None, typer.Option(help="a method's own option, like local_temperature.epochs=5; repeatable")
    ] = None,
    folds: Annotated[int, typer.Option(min=2, help="of patients, for the choice by cross-fitting")] = 5,
    choose: Annotated[
        Literal["keeps-labels", "any"],
        typer.Option(
            help="what predict --input will apply: the best that keeps the label of every voxel, so that a segmentation"
            " somebody has validated stays as it is; or the best of any, which may change labels"
        ),
    ] = "keeps-labels",
    work: Annotated[Path | None, typer.Option(help="with a run: its prepared cases; default: as in training")] = None,
    workers: Annotated[
        int | None, typer.Option(help="processes that score; default: by the size of the folder")
    ] = None,
) -> None:
    """Repair the confidence of a network, ours or anybody's: fit on validation, choose, apply; never fit on test."""
    from calibseg.cli import console
    from calibseg.io.class_names import find_vocabulary, with_overrides
    from calibseg.stages.calibrate.stage import calibrate_folders, calibrate_run

    names = [word.strip() for word in method.split(",") if word.strip()]
    common: dict[str, Any] = {"voxels": voxels, "sample": sample, "seed": seed, "folds": folds, "choose": choose}
    common["options"] = _options(option or [])
    if run is not None:
        if any((predictions, labels, images, apply, apply_labels, apply_images, output)):
            raise BadInput("calibrate a run, or a folder of --predictions with its --labels: not both at once")
        with console.bar() as progress:
            done = calibrate_run(run, names, cases=cases, work=work, progress=progress, **common)
    elif predictions is None or labels is None or output is None:
        raise BadInput("say what to calibrate: a run folder, or --predictions DIR --labels DIR [--apply DIR] -o OUT")
    else:
        with console.bar() as progress:
            done = calibrate_folders(
                predictions,
                labels,
                names,
                output,
                apply=apply,
                images=images,
                apply_labels=apply_labels,
                apply_images=apply_images,
                kind=kind,
                activation=activation,
                form=form,
                vocabulary=with_overrides(find_vocabulary(predictions, labels), classes, regions, ignore_label),
                patients=patients,
                workers=workers,
                progress=progress,
                **common,
            )
    how = "cross-fitted" if done.cross_fitted else "in-sample (a single patient cannot be held out)"
    moving = [row["method"] for row in done.rows if not row["keeps_argmax"]]
    out.print(console.calibration_table(done.rows, done.chosen, f"On the cases to fit on, {how}", moving))
    if done.applied:
        out.print()
        out.print(console.calibration_table(done.applied, done.chosen, "On the cases to apply to", moving))
    moves = "may change labels" if done.chosen in moving else "keeps every label"
    out.print(f"\nchosen: [bold]{escape(done.chosen)}[/], which {moves}, by the {escape(done.by)}", soft_wrap=True)
    if done.best["any"] != done.chosen:
        other = escape(done.best["any"])
        out.print(f"{other} has the smaller NLL and may change labels: --choose any takes it", soft_wrap=True)
    for row in done.rows:
        for note in row["fallbacks"]:
            out.print(f"[yellow]{escape(row['method'])}:[/] {escape(str(note))}", soft_wrap=True)
    if done.written or done.unchanged:
        out.print(f"{done.written} files of probabilities written, {done.unchanged} unchanged", soft_wrap=True)
    out.print(f"wrote {escape(str(done.output))}", soft_wrap=True)


def _options(texts: list[str]) -> dict[str, dict[str, Any]]:
    """`local_temperature.epochs=5` -> {local_temperature: {epochs: 5}}; numbers are numbers."""
    found: dict[str, dict[str, Any]] = {}
    for text in texts:
        path, value = pair(text, "--option")
        owner, dot, name = path.rpartition(".")
        if not (owner and dot and name):
            raise BadInput(f"--option {text!r} is not of the form METHOD.OPTION=VALUE")
        try:
            found.setdefault(owner, {})[name] = json.loads(value)
        except json.JSONDecodeError:
            found.setdefault(owner, {})[name] = value
    return found
