"""The commands of the road: prepare, split, train, predict. Heavy imports stay inside the functions."""

import shlex
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from calibseg.cli.parsing import Verbs, assigned, changes, expanded, refuse_given
from calibseg.cli.screen import out, print_line
from calibseg.cli.shared_options import ChosenCalibrator, PreparedCases
from calibseg.core import plugins
from calibseg.data.split_options import SplitOptions
from calibseg.stages.predict.options import InferenceOptions, MapOptions
from calibseg.stages.train.hardware import Hardware

app = Verbs()


@app.command(
    epilog="Examples:  calibseg prepare --dataset acdc --root ACDC/database -o work/acdc  ·  "
    "calibseg prepare --dataset phantom --option cases=20 -o work/phantom  ·  "
    "calibseg prepare --dataset nnunet --root Dataset004_X --protocol slice_axis=sagittal -o work/x"
)
def prepare(
    dataset: Annotated[str, typer.Option(help="a dataset's key (calibseg list datasets) or a Python file")],
    output: Annotated[Path, typer.Option("--output", "-o", help="the folder for the prepared cases")],
    root: Annotated[Path | None, typer.Option(help="the raw study, as it was downloaded")] = None,
    workers: Annotated[int, typer.Option(min=1, help="processes that work side by side")] = 1,
    skip_bad: Annotated[bool, typer.Option("--skip-bad", help="leave broken cases out and name them")] = False,
    option: Annotated[list[str] | None, typer.Option(help="NAME=VALUE of the dataset; repeatable")] = None,
    protocol: Annotated[
        list[str] | None,
        typer.Option(help="NAME=VALUE of the protocol, e.g. crop=\\[null,192,192]; repeatable"),
    ] = None,
) -> None:
    """Read a raw study, check it, put it on the grid that the network sees, and store it case by case."""
    from calibseg.cli import console
    from calibseg.stages.prepare import prepare as run

    with console.bar() as progress:
        result = run(
            dataset,
            root,
            output,
            options=assigned(option, "--option"),
            protocol=assigned(protocol, "--protocol"),
            workers=workers,
            skip_bad=skip_bad,
            progress=progress,
        )
    print_line(escape(str(result)))


@app.command(
    epilog="Examples:  calibseg split work/acdc  ·  calibseg split work/x --sizes 60 20 20  ·  "
    "calibseg split work/x --folds 5 --validation 4  ·  calibseg split work/mrbrains18 --leave-one-out --validation 1"
)
@expanded
def split(
    work: Annotated[Path, typer.Argument(help="a folder of prepared cases")],
    how: SplitOptions = SplitOptions(),
    overwrite: Annotated[bool, typer.Option("--overwrite", help="replace a split that differs")] = False,
) -> None:
    """Split prepared cases into train, validation and test; a patient never crosses."""
    from calibseg.stages.prepare import make_splits

    splits = make_splits(work, overwrite=overwrite, **vars(how))
    for name, parts in splits.items():
        counts = f"{len(parts.train)} train, {len(parts.validation)} validation, {len(parts.test)} test cases"
        print_line(f"[bold]{escape(name)}[/]  {counts}")


@app.command(
    epilog="Examples:  calibseg train cpu/phantom-nacl  ·  "
    "calibseg train mine.toml -o runs/a --set loss.weight=0.3  ·  "
    "calibseg train runs/a --resume.  Exit code 75: was asked to stop, has saved, can be resumed."
)
@expanded
def train(
    recipe: Annotated[str, typer.Argument(help="a TOML file, the name of a packaged recipe, or a run folder")],
    output: Annotated[Path | None, typer.Option("--output", "-o", help="the run folder; default: runs/SLUG")] = None,
    change: Annotated[
        list[str] | None, typer.Option("--set", help="KEY=VALUE, e.g. loss.weight=0.3; repeatable")
    ] = None,
    hardware: Hardware = Hardware(),
    resume: Annotated[bool, typer.Option("--resume", help="go on where a run stopped or was killed")] = False,
    tensorboard: Annotated[
        bool, typer.Option("--tensorboard", help="write RUN/tensorboard too (extra: track)")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="no progress bar")] = False,
) -> None:
    """Train a network as a recipe says; every loss through the same loop."""
    from calibseg.runs.recipe import read_recipe
    from calibseg.stages.train.progress import Bar

    training = read_recipe(recipe, changes(change))
    folder = output or (Path(recipe) if Path(recipe).is_dir() else Path("runs") / training.slug)
    with Bar(None if quiet else Console(stderr=True), folder / "tensorboard" if tensorboard else None) as bar:
        from calibseg.stages.train.loop import first_process
        from calibseg.stages.train.loop import train as run

        if not first_process():
            warnings.simplefilter("ignore")  # the first process says it
        end = run(training, folder, **vars(hardware), resume=resume, watcher=bar)
    if not first_process():
        raise typer.Exit(75 if end.status == "stopped" else 0)
    best = "" if end.best is None else f", best {training.train.select} {end.best:.4f} in epoch {end.best_epoch}"
    print_line(f"{end.status} after {end.epochs} epochs{best}: {escape(str(end.run))}")
    for sentence in end.hardly_learnt if end.status == "finished" else ():
        print_line(f"note: {escape(sentence)}")
    if end.status == "stopped":
        line = ["calibseg", *plugins.plugin_arguments(), "train", str(end.run), "--resume"]
        print_line(f"go on with   {escape(shlex.join(line))}")
        raise typer.Exit(75)


@dataclass(frozen=True)
class PredictOptions:
    """Where the prepared cases are, and on what a network runs."""

    work: PreparedCases = None
    batch_size: Annotated[int, typer.Option(min=1, help="slices at a time")] = 16
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1, ...")] = "auto"


@app.command(
    epilog="Examples:  calibseg predict runs/a --subset test  ·  "
    "calibseg predict runs/a --subset test --noise 0.03 --seed 1  ·  "
    "calibseg predict runs/a --input scan.nii.gz -o out  ·  "
    "calibseg predict runs/a runs/b --input FLAIR=a.nii.gz --input T1=b.nii.gz -o out --flips both"
)
@expanded
def predict(
    runs: Annotated[list[Path], typer.Argument(help="run folders; several are averaged")],
    subset: Annotated[
        Literal["test", "validation", "calibration"] | None,
        typer.Option("--subset", "--cases", help="logits of this subset of the split"),
    ] = None,
    input: Annotated[
        list[str] | None, typer.Option("--input", "-i", help="a raw scan, or CHANNEL=FILE for each channel; repeatable")
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="where to write; default: RUN/logits/SUBSET, of a scan RUN/scans"),
    ] = None,
    calibrator: ChosenCalibrator = None,
    inference: InferenceOptions = InferenceOptions(),
    also: MapOptions = MapOptions(),
    where: PredictOptions = PredictOptions(),
) -> None:
    """Predict cases of the split (logits to score and calibrate), or a raw scan (NIfTI maps on its own grid)."""
    from calibseg.cli import console
    from calibseg.stages.predict.stage import predict as run

    if input:
        refuse_given(where, "is for cases of the split: a scan is read from its file", ("work",))
    with console.bar() as progress:
        result = run(
            runs,
            subset=subset,
            input=input or None,
            output=output,
            calibrator=calibrator,
            inference=inference,
            also=also,
            **vars(where),
            progress=progress,
        )
    if result.structures:
        columns = ("volume_ml", "expected_volume_ml", "mean_confidence", "soft_dice_confidence")
        table = Table("structure", *(name.replace("_", " ") for name in columns), box=None, padding=(0, 2, 0, 0))
        for name, values in result.structures.items():
            shown = ("undefined" if values[column] is None else f"{values[column]:.4f}" for column in columns)
            table.add_row(f"[bold]{escape(name)}[/]", *shown)
        out.print(table)
        print_line(f"\ncalibrator: {escape(result.calibrator)} ({escape(result.why)})")
        print_line(f"wrote the maps to {escape(str(result.output))}")
    else:
        line = f"{result.written} cases written, {result.unchanged} unchanged: {result.output}"
        print_line(escape(line))
