"""The command `calibseg`: verbs only. Heavy imports stay inside the functions so that --help and list are instant."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from calibseg import __version__
from calibseg.cli import benchmark, calibrate, decide, export, leaderboard, nnunet, plots, report, road, scores
from calibseg.cli.parsing import Verbs
from calibseg.cli.screen import out, print_line
from calibseg.core import plugins, registry
from calibseg.core.types import BadInput

FACTS = ("licence", "how_to_get", "layout", "classes", "channels", "regions", "split", "protocol", "citation")

app = Verbs(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Segmentation networks that tell the truth about how sure they are.",
)
for verbs in (road, calibrate, decide, nnunet, scores, benchmark, plots, report, leaderboard, export):
    app.add_typer(verbs.app)


def main() -> None:
    """Run a command; what the user can mend is one sentence on stderr and exit code 2."""
    try:
        app()
    except BadInput as error:
        Console(stderr=True, highlight=False, soft_wrap=True).print(f"[bold red]error:[/] {escape(_printable(error))}")
        raise SystemExit(2) from None


def _printable(error: BadInput) -> str:
    """A file name that is not UTF-8 holds half characters, which no terminal takes."""
    return str(error).encode("utf-8", "backslashreplace").decode()


@app.callback(invoke_without_command=True)
def version(
    show: Annotated[bool, typer.Option("--version", help="Print the version and stop.")] = False,
    plugin: Annotated[
        list[str] | None, typer.Option(help="a Python file that may be run where a run or calibrator names it")
    ] = None,
) -> None:
    for path in plugin or ():
        if not (path.endswith(".py") and Path(path).is_file()):
            raise BadInput(f"--plugin {path}: there is no such Python file")
    plugins.allow(*(plugin or ()))
    if show:
        out.print(f"calibseg {__version__}")
        raise typer.Exit


@app.command(
    name="list", epilog="Examples:  [bold]calibseg list[/]  ·  [bold]calibseg list losses[/]  ·  calibseg list recipes"
)
def list_members(
    family: Annotated[str | None, typer.Argument(help="losses, priors, ..., recipes; all when left out")] = None,
) -> None:
    """List what there is: every loss, prior, metric, ... with one line each."""
    for name in [family] if family else registry.families():
        if name == "recipes":
            from calibseg.runs.recipe_files import recipe_summaries

            summaries = recipe_summaries()
        else:
            summaries = registry.summaries(name)
        if summaries:
            _print_listing(name, summaries)
    if not family:
        out.print("The papers' tables and figures, and other packaged recipes:  [bold]calibseg list recipes[/]")


@app.command(epilog="Examples:  calibseg explain nacl  ·  calibseg explain prior:mean  ·  calibseg explain ./mine.py")
def explain(
    name: Annotated[str, typer.Argument(help="a key, `family:key` where a name is in two families, or a Python file")],
) -> None:
    """Explain a member: equation, paper, where code and paper differ, options, how to use it; or show a recipe."""
    recipe = registry.PACKAGE / "runs" / "recipes" / f"{name}.toml"
    if recipe.is_file():
        print_line(escape(recipe.read_text(encoding="utf-8")))
        return
    member = _find_anywhere(name)
    out.print(f"[bold]{member.key}[/]  ({member.module}.{member.class_name})\n")
    print_line(escape(member.doc))
    if member.options:
        table = Table(
            "option", "default", "type", "meaning and range", title="\nOptions", title_justify="left", box=None
        )
        for option in member.options:
            table.add_row(f"[bold]{option.name}[/]", *map(escape, (option.default, option.type, option.note)))
        out.print(table)
    if member.family == "datasets":
        for fact in FACTS:
            if fact in member.facts:
                value = member.facts[fact]
                shown = ", ".join(value) if isinstance(value, tuple) else value
                print_line(f"\n[bold]{fact.replace('_', ' ')}[/]  {escape(str(shown))}")
    if member.family == "losses":
        from calibseg.cli.usage import usage

        kind, lines = usage(member)
        out.print(f"\n[bold]Use: {kind}[/]\n")
        print_line(escape("\n".join("    " + line for line in lines)))


@app.command(epilog="Examples:  calibseg new loss toy  ·  calibseg new metric my_error --folder plug_ins")
def new(
    family: Annotated[str, typer.Argument(help="loss, prior, metric, calibrator, decision, network or dataset")],
    name: Annotated[str, typer.Argument(help="the key: lower-case letters, digits and underscores")],
    folder: Annotated[
        Path | None, typer.Option(help="where to write it; default: here, or the family's folder in a checkout")
    ] = None,
) -> None:
    """Write one file with a working member of a family, ready to run and to edit."""
    from calibseg.cli.usage import default_folder, write_member

    plural = registry.PLURAL.get(family, family)
    if plural not in registry.families():
        raise BadInput(registry.unknown("family", family, [registry.SINGULAR[name] for name in registry.families()]))
    home, checkout = (folder, False) if folder else default_folder(plural, Path.cwd())
    path = write_member(plural, name, home)
    key = f"{registry.SINGULAR[plural]}:{name}" if checkout else f"{registry.SINGULAR[plural]}:{path}"
    test = "   and   make stubs test" if checkout else ""
    print_line(f"wrote {path}\nnext: edit it, then   calibseg explain {key}{test}")


@app.command(
    epilog="Examples:  calibseg doctor  ·  calibseg doctor --json > machine.json  ·  "
    "calibseg doctor --self-test   (exit code 1: some wrong input was not refused)"
)
def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="print JSON instead of a table")] = False,
    test: Annotated[
        bool, typer.Option("--self-test", help="give wrong inputs of every kind to every command; about a minute")
    ] = False,
) -> None:
    """Say what this machine and installation are: versions, device, threads, memory; or test how it refuses."""
    if test:
        raise typer.Exit(_self_test())
    from calibseg.runs.doctor import examine

    sections = examine()
    if as_json:
        print(json.dumps(sections, indent=2))
        return
    for section, rows in sections.items():
        _print_listing(section, rows)


@app.command(epilog="Examples:  calibseg demo  ·  calibseg demo --loss nacl --loss ./mine.py")
def demo(
    output: Annotated[Path, typer.Option("--output", "-o", help="folder for runs, scores, report and picture")] = Path(
        "demo-out"
    ),
    loss: Annotated[list[str] | None, typer.Option(help="a loss's key or a Python file; repeatable")] = None,
    epochs: Annotated[int | None, typer.Option(min=1, help="of every training; default: as in cpu/phantom")] = None,
    seed: Annotated[int, typer.Option(help="of the networks")] = 0,
) -> None:
    """Walk a benchmark on the phantom, whose true probabilities are known: losses, calibration, ranks, report."""
    from calibseg.cli.demo_benchmark import run

    raise typer.Exit(run(output, loss or [], epochs, seed, out).exit_code)


def _print_listing(title: str, rows: Mapping[str, object]) -> None:
    table = Table(title=title, title_justify="left", show_header=False, box=None, padding=(0, 2, 0, 0))
    for key, value in rows.items():
        table.add_row(f"[bold]{key}[/]", escape(str(value)))
    out.print(table)
    out.print()


def _self_test() -> int:
    from calibseg.cli import console
    from calibseg.cli.self_test import self_test

    with console.bar() as progress:
        result = self_test(progress=progress)
    table = Table("command", "wrong inputs", "refused", title="Self-test", title_justify="left", box=None)
    for command, tried in sorted(result.tried.items()):
        table.add_row(command, str(tried), str(result.refused[command]))
    out.print(table)
    for fault in result.faults:
        print_line(f"[red]fault:[/] {escape(fault)}")
    tried, refused = result.tried.total(), result.refused.total()
    out.print(f"{refused} of {tried} wrong inputs refused in one sentence, {result.seconds:.0f} s")
    return 1 if result.faults else 0


def _find_anywhere(name: str) -> registry.Member:
    family, colon, key = name.partition(":")
    if colon and family in (*registry.SINGULAR, *registry.SINGULAR.values()):
        return registry.find(registry.PLURAL.get(family, family), key)
    if name.endswith(".py"):
        return registry.find("losses", name)
    by_family = {f: registry.members(f) for f in registry.families()}
    hits = [f for f, names in by_family.items() if name in names]
    if len(hits) > 1:
        choices = " or ".join(f"{registry.SINGULAR[f]}:{name}" for f in hits)
        raise BadInput(f"{name!r} is in {len(hits)} families: say {choices}")
    if not hits:
        everything = [key for names in by_family.values() for key in names]
        raise BadInput(registry.unknown("member", name, everything))
    return by_family[hits[0]][name]
