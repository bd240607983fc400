"""The command that walks a grid: benchmark. Heavy imports stay inside the functions."""

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.markup import escape

from calibseg.cli.parsing import Verbs, changes, expanded, literal, pairs, refuse_given, words
from calibseg.cli.screen import out, print_line
from calibseg.core.types import BadInput
from calibseg.stages.train.hardware import Hardware

if TYPE_CHECKING:
    from calibseg.benchmark import Finished
    from calibseg.benchmark.cell_stages import Bench

app = Verbs()
SHOWN = 20  # methods in the summary; all are in ranks.csv
SLURM = "With --on slurm"


@dataclass(frozen=True)
class GridOptions:
    """Which data, and which cells of the grid."""

    root: Annotated[list[str] | None, typer.Option(help="DATASET=FOLDER of raw data; repeatable")] = None
    change: Annotated[
        list[str] | None, typer.Option("--set", help="KEY=VALUE in every cell, or e.g. axes.seed=\\[0]; repeatable")
    ] = None
    only: Annotated[
        str | None, typer.Option(help="labels, datasets, networks, seeds: ce,nacl,s0 is seed 0 of both")
    ] = None
    plan: Annotated[bool, typer.Option("--plan", help="print what is left as shell commands, and stop")] = False
    collect: Annotated[bool, typer.Option("--collect", help="only put together what is finished")] = False
    kept: Annotated[
        Path | None,
        typer.Option(help="a folder of reduced score tables: cells that have one count as done, finished ones get one"),
    ] = None
    cell: Annotated[str | None, typer.Option(help="walk this one cell, here and now", hidden=True)] = None


@dataclass(frozen=True)
class JobOptions:
    """Where the cells are walked, and how many at once."""

    on: Annotated[Literal["local", "slurm"], typer.Option(help="this machine, or jobs of a cluster")] = "local"
    workers: Annotated[int | None, typer.Option(help="cells side by side; default: by cores and GPUs")] = None
    threads: Annotated[int | None, typer.Option(help="of each worker or job; default: the cores shared out")] = None
    gpus: Annotated[int, typer.Option(min=0, help="GPUs of a job, on each machine", rich_help_panel=SLURM)] = 0
    minutes: Annotated[int, typer.Option(min=1, help="time limit of a job", rich_help_panel=SLURM)] = 1440
    partition: Annotated[str, typer.Option(help="of the cluster", rich_help_panel=SLURM)] = ""
    account: Annotated[str, typer.Option(help="of the cluster", rich_help_panel=SLURM)] = ""
    slurm: Annotated[
        list[str] | None,
        typer.Option(help="KEY=VALUE for submitit, such as mem=16GB or qos=low; repeatable", rich_help_panel=SLURM),
    ] = None


@app.command(
    epilog="Examples:  calibseg benchmark cpu/phantom  ·  "
    "calibseg benchmark paper/nacl-table1 --root acdc=ACDC/database --root flare=FLARE21 -o results/nacl  ·  "
    "calibseg benchmark mine.toml --only ce,nacl --set train.epochs=2 --workers 2  ·  "
    "calibseg benchmark mine.toml --on slurm --gpus 1 --minutes 720 --partition gpu  ·  "
    "calibseg benchmark mine.toml --plan.  The same command again goes on where it stopped.  "
    "Exit code 0: all done, 1: something failed, 75: was asked to stop."
)
@expanded
def benchmark(
    grid: Annotated[
        str, typer.Argument(help="a TOML file with \\[axes], a packaged grid, a recipe, or an output folder")
    ],
    output: Annotated[Path | None, typer.Option("--output", "-o", help="default: results/GRID")] = None,
    which: GridOptions = GridOptions(),
    jobs: JobOptions = JobOptions(),
    hardware: Hardware = Hardware(),
) -> None:
    """Walk a grid of experiments from raw data to one table, ranks and a report; what exists is skipped."""
    from calibseg.benchmark import benchmark as run
    from calibseg.benchmark import chosen_by, grid_and_output, open_bench
    from calibseg.benchmark import plan as planned
    from calibseg.benchmark.cell import walk
    from calibseg.benchmark.grid import read_grid
    from calibseg.benchmark.workers import THREADS, Budget, budget, run_here, visible_gpus

    if which.plan and which.collect:
        raise BadInput("say --plan, which prints what is left, or --collect, which puts together what is finished")
    source, folder = grid_and_output(grid, output)
    roots = pairs(which.root, "--root")
    experiments = read_grid(source, changes(which.change))
    if which.only is not None and not words(which.only):
        raise BadInput("--only names no cell: say which, or leave it out")
    cells = chosen_by(experiments, list(words(which.only)))
    if here := jobs.on == "local":
        refuse_given(jobs, "is for --on slurm", ("gpus", "minutes", "partition", "account", "slurm"))
    cluster: Any = None if here else _cluster(jobs, hardware)
    share = Budget(1, 1)
    if here:
        share = budget(len(cells), jobs.workers, jobs.threads, gpus=visible_gpus(), devices=hardware.devices)
    bench = open_bench(experiments, folder, roots, hardware, which.kept)
    if which.cell is not None:
        raise typer.Exit(walk(bench, bench.cell(which.cell)).exit_code)
    if which.plan:
        limits = {name: str(jobs.threads) for name in THREADS} if jobs.threads else {}
        print("\n".join(planned(bench, cells, limits)))
        return
    if which.collect:
        _put_together(bench)
        return
    runner: Any = partial(run_here, share=share) if here else cluster
    finished = run(bench, cells, runner, out)
    _say(bench, finished)
    raise typer.Exit(finished.exit_code)


def _cluster(jobs: JobOptions, hardware: Hardware) -> Any:
    """What walks cells as jobs of a cluster."""
    from calibseg.benchmark.cluster import Cluster, run_on_slurm

    more = {name: literal(value) for name, value in pairs(jobs.slurm, "--slurm").items()}
    at_once = {"at_once": jobs.workers} if jobs.workers else {}
    cluster = Cluster(
        jobs.minutes, jobs.gpus, hardware.nodes, hardware.devices, jobs.threads or 1, jobs.partition, jobs.account,
        more=more, **at_once,
    )  # fmt: skip
    return partial(run_on_slurm, cluster=cluster)


def _put_together(bench: "Bench") -> None:
    from calibseg.benchmark import Finished, unfinished
    from calibseg.benchmark.collect import collect_results
    from calibseg.benchmark.selection import select_cells

    candidates = select_cells(bench)
    waiting = len(unfinished(bench, bench.grid.cells))
    _say(bench, Finished(len(bench.grid.cells), {}, collect_results(bench), candidates, waiting))


def _say(bench: "Bench", finished: "Finished") -> None:
    """One summary at the end: what was chosen, what failed, how methods rank, where everything lies."""
    from calibseg.benchmark.progress import failure
    from calibseg.cli import console

    for candidate in finished.candidates:
        if candidate.chosen:
            names = " ".join(filter(None, (candidate.dataset, candidate.network, candidate.label)))
            print_line(f"chosen for {escape(names)}: {escape(candidate.choice)}, validation {candidate.value:.4f}")
    if finished.collected.ranked:
        for shown in console.rank_tables(finished.collected.ranked.ranks, SHOWN, out.width):
            console.show(out, shown)
            out.print()
        if len(finished.collected.ranked.data.methods) > SHOWN:
            print_line(f"the best {SHOWN} are shown; all: {escape(str(bench.folder.ranks))}")
    for note in finished.collected.notes:
        print_line(f"[yellow]note:[/] {escape(note)}")
    for slug in finished.those("failed"):
        log = escape(str(bench.folder.log(slug)))
        line = f"{escape(bench.cell(slug).title)}  {failure(finished.outcomes[slug])}"
        print_line(f"[red]failed:[/] {line}\n  log: {log}")
    failed, stopped, waiting = len(finished.those("failed")), len(finished.those("stopped")), finished.waiting
    print_line(
        f"{finished.cells} cells: {finished.cells - failed - stopped - waiting} done"
        f" ({len(finished.those('done'))} of them now), {failed} failed, {stopped} stopped, {waiting} waiting"
    )
    if stopped:
        out.print("the same command goes on where this one stopped")
    if finished.collected.scores:
        print_line(f"scores: {escape(str(finished.collected.scores))}")
    if finished.collected.report:
        print_line(f"report: {escape(str(finished.collected.report))}")
