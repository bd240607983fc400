"""The command `calibseg`: verbs only. Heavy imports stay inside the functions so that --help and list are instant."""

import json
import warnings
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from calibseg import __version__, registry
from calibseg.types import BadInput

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Segmentation networks that tell the truth about how sure they are.",
)
new = typer.Typer(no_args_is_help=True, help="Write a new member of a family, ready to run.")
app.add_typer(new, name="new")
out = Console(highlight=False)


def main() -> None:
    """Run a command; what the user can mend is one sentence on stderr and exit code 2."""
    try:
        app()
    except BadInput as error:
        Console(stderr=True, highlight=False, soft_wrap=True).print(f"[bold red]error:[/] {escape(str(error))}")
        raise SystemExit(2) from None


@app.callback(invoke_without_command=True)
def version(show: Annotated[bool, typer.Option("--version", help="Print the version and stop.")] = False) -> None:
    if show:
        out.print(f"calibseg {__version__}")
        raise typer.Exit


@app.command(
    name="list", epilog="Examples:  [bold]calibseg list[/]  ·  [bold]calibseg list losses[/]  ·  calibseg list priors"
)
def list_members(
    family: Annotated[str | None, typer.Argument(help="losses, priors, ...; all families when left out")] = None,
) -> None:
    """List what there is: every loss, prior, metric, ... with one line each."""
    for name in [family] if family else registry.families():
        found = registry.members(name)
        if not found:
            continue
        table = Table(title=name, title_justify="left", show_header=False, box=None, padding=(0, 2, 0, 0))
        for key, member in found.items():
            table.add_row(f"[bold]{key}[/]", escape(member.summary))
        out.print(table)
        out.print()


@app.command(epilog="Examples:  calibseg explain nacl  ·  calibseg explain prior:mean  ·  calibseg explain ./mine.py")
def explain(
    name: Annotated[str, typer.Argument(help="a key, `family:key` where a name is in two families, or a Python file")],
) -> None:
    """Explain one member: equation, paper, where code and paper differ, options, and how to use it."""
    member = _find_anywhere(name)
    out.print(f"[bold]{member.key}[/]  ({member.module}.{member.class_name})\n")
    out.print(escape(member.doc), soft_wrap=True)
    if member.options:
        table = Table(
            "option", "default", "type", "meaning and range", title="\nOptions", title_justify="left", box=None
        )
        for option in member.options:
            table.add_row(f"[bold]{option.name}[/]", *map(escape, (option.default, option.type, option.note)))
        out.print(table)
    if member.family == "datasets":
        for fact in (
            "licence",
            "how_to_get",
            "layout",
            "classes",
            "channels",
            "regions",
            "split",
            "protocol",
            "citation",
        ):
            if fact in member.facts:
                value = member.facts[fact]
                shown = ", ".join(value) if isinstance(value, tuple) else value
                out.print(f"\n[bold]{fact.replace('_', ' ')}[/]  {escape(str(shown))}", soft_wrap=True)
    if member.family == "losses":
        from calibseg.usage import usage

        kind, lines = usage(member)
        out.print(f"\n[bold]Use: {kind}[/]\n")
        out.print(escape("\n".join("    " + line for line in lines)), soft_wrap=True)


@new.command(name="loss", epilog="Example:  calibseg new loss toy   then   make test")
def new_loss(
    name: Annotated[str, typer.Argument(help="the key: lower-case letters, digits and underscores")],
    folder: Annotated[Path | None, typer.Option(help="where to write it; default: among the package's losses")] = None,
) -> None:
    """Write one file with a working loss. It is registered, listed, explained and tested by being there."""
    from calibseg.usage import write_loss

    path = write_loss(name, folder or registry.PACKAGE / "losses")
    key = name if folder is None else path
    out.print(f"wrote {path}\nnext: edit its equation, then   calibseg explain {key}   and   make test", soft_wrap=True)


@app.command(epilog="Examples:  calibseg doctor  ·  calibseg doctor --json > machine.json")
def doctor(as_json: Annotated[bool, typer.Option("--json", help="print JSON instead of a table")] = False) -> None:
    """Say what this machine and installation are: versions, device, threads, memory."""
    from calibseg.doctor import examine

    facts = examine()
    if as_json:
        print(json.dumps(facts, indent=2))
        return
    for section, rows in facts.items():
        table = Table(title=section, title_justify="left", show_header=False, box=None, padding=(0, 2, 0, 0))
        for key, value in rows.items():
            table.add_row(f"[bold]{key}[/]", escape(str(value)))
        out.print(table)
        out.print()


@app.command(epilog="Examples:  calibseg demo  ·  calibseg demo --loss nacl --loss ./mine.py")
def demo(
    output: Annotated[Path, typer.Option("--output", "-o", help="folder for the picture and the numbers")] = Path(
        "demo-out"
    ),
    loss: Annotated[list[str] | None, typer.Option(help="a loss's key or a Python file; repeatable")] = None,
    steps: Annotated[int, typer.Option(min=1, help="training steps per loss")] = 400,
    seed: Annotated[int, typer.Option(help="seed of the image, the labels and the network")] = 0,
) -> None:
    """Fit a small network to an image whose true probabilities are known, once per loss, and compare confidence."""
    from calibseg.demo import run

    run(output, loss or ["ce", "nacl"], steps, seed, out)


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
    from rich.progress import Progress

    from calibseg.prepare import prepare as run

    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(dataset, total=None)
        done = run(
            dataset,
            root,
            output,
            options=_assigned(option),
            protocol=_assigned(protocol),
            workers=workers,
            skip_bad=skip_bad,
            progress=lambda number, total, id: progress.update(task, completed=number, total=total, description=id),
        )
    out.print(escape(str(done)), soft_wrap=True)


@app.command(
    epilog="Examples:  calibseg split work/acdc  ·  calibseg split work/x --sizes 60 20 20  ·  "
    "calibseg split work/x --folds 5 --validation 4  ·  calibseg split work/mrbrains18 --leave-one-out --validation 1"
)
def split(
    work: Annotated[Path, typer.Argument(help="a folder of prepared cases")],
    sizes: Annotated[
        tuple[float, float, float] | None,
        typer.Option(help="train, validation and test; default: as in the papers, or 70 10 20"),
    ] = None,
    folds: Annotated[int | None, typer.Option(min=2, help="k-fold cross-validation instead")] = None,
    leave_one_out: Annotated[bool, typer.Option("--leave-one-out", help="one split per patient instead")] = False,
    validation: Annotated[int, typer.Option(min=0, help="patients that select, in folds and leave-one-out")] = 0,
    split_seed: Annotated[int, typer.Option(help="which split; a training seed never changes it")] = 0,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="replace a split that differs")] = False,
) -> None:
    """Split prepared cases into train, validation and test; a patient never crosses."""
    from calibseg.prepare import make_splits

    found = make_splits(
        work,
        sizes=sizes,
        folds=folds,
        leave_out=leave_one_out,
        validation=validation,
        split_seed=split_seed,
        overwrite=overwrite,
    )
    for name, parts in found.items():
        counts = f"{len(parts.train)} train, {len(parts.validation)} validation, {len(parts.test)} test cases"
        out.print(f"[bold]{escape(name)}[/]  {counts}", soft_wrap=True)


@app.command(
    epilog="Examples:  calibseg train cpu/phantom-nacl  ·  "
    "calibseg train mine.toml -o runs/a --set loss.weight=0.3  ·  "
    "calibseg train runs/a --resume.  Exit code 75: was asked to stop, has saved, can be resumed."
)
def train(
    recipe: Annotated[str, typer.Argument(help="a TOML file, the name of a packaged recipe, or a run folder")],
    output: Annotated[Path | None, typer.Option("--output", "-o", help="the run folder; default: runs/SLUG")] = None,
    change: Annotated[
        list[str] | None, typer.Option("--set", help="KEY=VALUE, e.g. loss.weight=0.3; repeatable")
    ] = None,
    device: Annotated[Literal["auto", "cpu", "cuda"], typer.Option(help="auto: a GPU where there is one")] = "auto",
    devices: Annotated[int, typer.Option(min=1, help="processes on each machine: GPUs, or CPU processes")] = 1,
    nodes: Annotated[int, typer.Option(min=1, help="machines")] = 1,
    resume: Annotated[bool, typer.Option("--resume", help="go on where a run stopped or was killed")] = False,
    tensorboard: Annotated[
        bool, typer.Option("--tensorboard", help="write RUN/tensorboard too (extra: track)")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="no progress bar")] = False,
) -> None:
    """Train a network as a recipe says; every loss through the same loop."""
    from calibseg.progress import Bar
    from calibseg.recipe import read_recipe

    wanted = read_recipe(recipe, change or [])
    folder = output or (Path(recipe) if Path(recipe).is_dir() else Path("runs") / wanted.slug)
    with Bar(None if quiet else Console(stderr=True), folder / "tensorboard" if tensorboard else None) as bar:
        from calibseg.train import first_process
        from calibseg.train import train as run

        if not first_process():
            warnings.simplefilter("ignore")  # the first process says it
        done = run(wanted, folder, device=device, devices=devices, nodes=nodes, resume=resume, watcher=bar)
    if not first_process():
        raise typer.Exit(75 if done.status == "stopped" else 0)
    best = "" if done.best is None else f", best {wanted.train.select} {done.best:.4f} in epoch {done.best_epoch}"
    out.print(f"{done.status} after {done.epochs} epochs{best}: {escape(str(done.run))}", soft_wrap=True)
    if done.status == "stopped":
        out.print(f"go on with   calibseg train {escape(str(done.run))} --resume", soft_wrap=True)
        raise typer.Exit(75)


def _assigned(pairs: list[str] | None) -> dict[str, Any]:
    """NAME=VALUE; a value is JSON, or else the text itself."""
    found: dict[str, Any] = {}
    for pair in pairs or []:
        name, equals, text = pair.partition("=")
        if not equals:
            raise BadInput(f"{pair!r} is not NAME=VALUE")
        try:
            found[name] = json.loads(text)
        except json.JSONDecodeError:
            found[name] = text
    return found


@app.command(
    epilog="Examples:  calibseg score --predictions nnunet_out --labels labelsTs -o scores.csv  ·  "
    "calibseg score --predictions p --labels l --voxels predicted,all --patients who.csv --tag loss=nacl -o a.csv  ·  "
    "calibseg score --predictions p --labels l --regions WT=1+2+3,TC=1+3 --units voxel --empty released -o paper.csv"
)
def score(
    predictions: Annotated[Path, typer.Option(help="folder: nnU-Net .npz, 4-D NIfTI, NIfTI per class, or .npz")],
    labels: Annotated[Path, typer.Option(help="folder of NIfTI label maps, named like the predictions")],
    output: Annotated[Path, typer.Option("--output", "-o", help="the table; bins and rules are written beside it")],
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
        typer.Option(help="dataset=, network=, loss=, calibrator=, seed=, variant=, split=; repeatable"),
    ] = None,
    workers: Annotated[int | None, typer.Option(help="processes; default: by the size of the folder")] = None,
    skip_bad: Annotated[bool, typer.Option("--skip-bad", help="leave out what cannot be used, and list it")] = False,
) -> None:
    """Score a folder of predictions, whoever made them: calibration and shape, per case, class and region."""
    from calibseg import console
    from calibseg.measure import Rules
    from calibseg.score import score as run
    from calibseg.vocabulary import find_vocabulary, stated

    rules = Rules(
        _words(voxels), _words(metrics), bins, cece, empty, units, activation, boundary_mm, _options(option or [])
    )  # fmt: skip
    vocabulary = stated(find_vocabulary(predictions, labels), classes, regions, ignore_label)
    with console.bar() as progress:
        found = run(
            predictions,
            labels,
            output,
            rules=rules,
            kind=kind,
            form=form,
            vocabulary=vocabulary,
            patients=patients,
            experiment=dict(_pair(text, "--tag") for text in tag or []),
            workers=workers,
            skip_bad=skip_bad,
            progress=progress,
        )
    if found.resumed:
        out.print(f"{found.resumed} cases were already measured by an interrupted run\n")
    out.print(console.summary_table(found.summary))
    out.print(f"\n{escape(console.voxel_notes(rules.voxels))}", style="dim", soft_wrap=True)
    for reason in found.bad:
        out.print(f"[yellow]left out:[/] {escape(reason)}", soft_wrap=True)
    out.print(f"\nwrote {escape(str(output))}: {len(found.table.rows)} rows", soft_wrap=True)


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
        Literal["dataset", "network", "seed", "split"] | None, typer.Option(help="rank each of them apart")
    ] = None,
    compare: Annotated[
        list[str] | None, typer.Option(help="A,B: paired patient-bootstrap of two methods; repeatable")
    ] = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="write ranks.csv and ranks.meta.json")] = None,
) -> None:
    """Rank methods: sum-rank, mean case-rank, Friedman mean rank, tests and paired comparisons."""
    from calibseg import console, ranking
    from calibseg.table import merge, named, read

    given = [read(path) for path in tables or []]
    given += [named(read(path), name) for name, path in (_pair(text, "--method") for text in method or [])]
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


def _pair(text: str, option: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not (name and equals and value):
        raise BadInput(f"{option} {text!r} is not of the form NAME=VALUE")
    return name, value


def _two(text: str) -> tuple[str, str]:
    first, comma, second = text.partition(",")
    if not (first and comma and second):
        raise BadInput(f"--compare {text!r} is not of the form METHOD,METHOD")
    return first, second


def _options(texts: list[str]) -> tuple[tuple[str, str, Any], ...]:
    """`hd95.definition=max_directed` -> (hd95, definition, max_directed); numbers are numbers."""
    found = []
    for text in texts:
        path, value = _pair(text, "--option")
        metric, dot, name = path.partition(".")
        if not (metric and dot and name):
            raise BadInput(f"--option {text!r} is not of the form METRIC.OPTION=VALUE")
        try:
            found.append((metric, name, json.loads(value)))
        except json.JSONDecodeError:
            found.append((metric, name, value))
    return tuple(found)


def _find_anywhere(name: str) -> registry.Member:
    family, colon, key = name.partition(":")
    if colon and not name.endswith(".py"):
        plural = {single: many for many, single in registry.SINGULAR.items()}.get(family, family)
        return registry.find(plural, key)
    if name.endswith(".py"):
        return registry.find("losses", name)
    known = {f: registry.members(f) for f in registry.families()}
    hits = [f for f, found in known.items() if name in found]
    if len(hits) > 1:
        choices = " or ".join(f"{registry.SINGULAR[f]}:{name}" for f in hits)
        raise BadInput(f"{name!r} is in {len(hits)} families: say {choices}")
    if not hits:
        everything = [key for found in known.values() for key in found]
        raise BadInput(registry.unknown("member", name, everything))
    return known[hits[0]][name]
