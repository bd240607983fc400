"""A whole grid: every cell from raw data to scores, then one table, ranks and a report; resumable at every stage.

    calibseg benchmark paper/nacl-table1 --root acdc=ACDC/database --root flare=FLARE21 -o results/nacl

What exists and is current is skipped, so the same command goes on where an earlier one stopped, adds cells that were
added to the grid, and otherwise does nothing. Cells run side by side on this machine (`workers`) or as jobs of a
cluster (`cluster`); a cell that fails is told with its error, and the rest goes on. Candidates of a [select] are
trained and scored on validation first; those that are chosen then go on to the test cases.
"""

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from calibseg.analysis.run_names import chosen_cells
from calibseg.benchmark.cell import Outcome, keep_scores, pending, planned
from calibseg.benchmark.cell_stages import Bench, data_stages
from calibseg.benchmark.collect import Collected, collect_results, write_cells
from calibseg.benchmark.grid import Cell, Grid
from calibseg.benchmark.selection import Candidate, select_cells
from calibseg.core import plugins, registry
from calibseg.core.types import BadInput
from calibseg.data import prepared
from calibseg.data.split_options import SplitOptions
from calibseg.runs import folders
from calibseg.stages.prepare import planned_splits
from calibseg.stages.score.chosen_metrics import check_scoring
from calibseg.stages.train.hardware import Hardware

if TYPE_CHECKING:
    from rich.console import Console

    from calibseg.benchmark.progress import Board

Command = Callable[[str], Sequence[str]]  # a cell's name -> the command that walks it
Runner = Callable[[Sequence[str], Command, folders.BenchmarkFolder, "Board"], dict[str, Outcome]]


@dataclass(frozen=True)
class Finished:
    """What became of a benchmark."""

    cells: int
    outcomes: dict[str, Outcome]  # of the cells that had something left to do
    collected: Collected
    candidates: list[Candidate] = field(default_factory=list)
    waiting: int = 0  # cells that have something left to do and that nobody has begun now

    def those(self, status: str) -> list[str]:
        return [slug for slug, outcome in self.outcomes.items() if outcome.status == status]

    @property
    def exit_code(self) -> int:
        """0: all is done; 1: something failed; 75: was asked to stop and can go on."""
        return 1 if self.those("failed") else 75 if self.those("stopped") else 0


def grid_and_output(grid: str | Path, output: str | Path | None) -> tuple[str, Path]:
    """Where a grid is read from, and the output folder; an output folder stands for its own grid."""
    path = Path(grid)
    if folders.BenchmarkFolder(path).grid.is_file():
        return str(folders.BenchmarkFolder(path).grid), Path(output or path)
    return str(grid), Path(output or Path("results") / (path.stem if path.exists() else path))


def open_bench(
    grid: Grid, out: Path, roots: Mapping[str, str], hardware: Hardware = Hardware(), kept: Path | None = None
) -> Bench:
    """Check what can be checked before anything runs, and write the grid, its cells and their recipes to `out`."""
    datasets = list(dict.fromkeys(name for cell in grid.cells for name in (cell.dataset, cell.recipe.data.dataset)))
    for name, root in roots.items():
        if name not in datasets:
            raise BadInput(registry.unknown("dataset of the grid", name, datasets))
        if not Path(root).exists():
            raise BadInput(f"--root {name}={root}: there is no such folder")
    if folders.RunFolder(out).info.is_file():
        raise BadInput(f"{out}: is the folder of a single run; give the benchmark one of its own")
    if kept is not None and kept.exists() and not kept.is_dir():
        raise BadInput(f"--kept {kept}: is a file, expected a folder of score tables")
    check_scoring(grid.score)  # an unknown metric or option: said now, not after hours
    bench = Bench(grid, folders.BenchmarkFolder(out), roots, hardware, kept)
    _refuse_two_roots(bench)
    for cell in grid.cells:
        needs_root = registry.find("datasets", cell.recipe.data.dataset).facts.get("needs_root", True)
        prepare = data_stages(bench, cell)[0]
        if needs_root and prepare.command.arguments["root"] is None and not prepare.done():
            raise BadInput(f"say where the raw data of {cell.dataset} lie: --root {cell.dataset}=FOLDER")
        if prepare.done():
            _refuse_other_splits(bench, cell)
    write_cells(bench)
    return bench


def _refuse_two_roots(bench: Bench) -> None:
    """Stop where labels that share one folder of prepared cases are given different raw data."""
    first: dict[Path, tuple[str, str]] = {}
    for cell in bench.grid.cells:
        work, root = bench.work(cell), bench.root(cell)
        if root is None:
            continue
        label, other = first.setdefault(work, (cell.dataset, root))
        if Path(other).resolve() != Path(root).resolve():
            raise BadInput(
                f"{label} and {cell.dataset} are prepared alike and share {work}, but their raw data are {other} and "
                f"{root}: give each a `work` of its own"
            )


def _refuse_other_splits(bench: Bench, cell: Cell) -> None:
    """Stop where prepared cases are split otherwise than the grid says; in a folder of the user's, if it says so."""
    work, how = bench.work(cell), bench.grid.split
    if how == SplitOptions() and cell.recipe.data.work:
        return
    for name, split in planned_splits(work, how).items():
        if name in prepared.split_names(work) and prepared.read_split(work, name) != split:
            raise BadInput(
                f"{prepared.split_path(work, name)}: is not what the grid's [split] asks for; put [split] back, take "
                "another output folder, or remove the file to split and train anew"
            )


def chosen_by(grid: Grid, only: Sequence[str]) -> list[Cell]:
    """The cells that `only` names; all where it names nothing.

    Names of one kind (labels, datasets, networks, seeds) widen the choice, those of several kinds narrow it:
    `ce,nacl,s0` is seed 0 of both. A folder's name is its cell, whatever else is named.
    """
    if not only:
        return list(grid.cells)
    kinds = {cell.slug: (cell.label, cell.dataset, cell.network, f"s{cell.recipe.seed}") for cell in grid.cells}
    listed = [*dict.fromkeys(name for names in zip(*kinds.values(), strict=True) for name in names)]
    for name in only:
        if name not in kinds and name not in listed:
            raise BadInput(registry.unknown("cell", name, listed))
    wanted = [set(only) & set(names) for names in zip(*kinds.values(), strict=True)]

    def fits(cell: Cell) -> bool:
        return any(wanted) and all(
            not named or name in named for name, named in zip(kinds[cell.slug], wanted, strict=True)
        )

    cells = [cell for cell in grid.cells if fits(cell) or cell.slug in only]
    if not cells:
        raise BadInput(f"no cell of the grid is all of {', '.join(only)}")
    return cells


def benchmark(bench: Bench, cells: Sequence[Cell], run: Runner, console: "Console") -> Finished:
    """Walk all cells, choose among candidates, walk the chosen ones to their end, and put everything together.

    run: walks cells side by side, each by its command, and tells a board
    """
    outcomes = _walked(bench, cells, run, console)
    candidates: list[Candidate] = []
    stopped = any(outcome.status == "stopped" for outcome in outcomes.values())
    if bench.grid.select is not None and not stopped:
        candidates = select_cells(bench)
        chosen = [cell for cell in cells if cell.choice and outcomes.get(cell.slug, Outcome("done")).status == "done"]
        outcomes |= _walked(bench, chosen, run, console)
    left = {cell.slug for cell in unfinished(bench, cells)}
    selected = chosen_cells(bench.folder.path)
    for cell in cells:
        if cell.slug not in left | outcomes.keys():  # it was finished before, perhaps without being kept
            keep_scores(bench, cell, cell.slug in selected)
    waiting = left - outcomes.keys()
    return Finished(len(cells), outcomes, collect_results(bench), candidates, len(waiting))


def unfinished(bench: Bench, cells: Sequence[Cell]) -> list[Cell]:
    """The cells in which something is left to do."""
    chosen = chosen_cells(bench.folder.path)
    return [cell for cell in cells if pending(bench, cell, cell.slug in chosen)]


def _walked(bench: Bench, cells: Sequence[Cell], run: Runner, console: "Console") -> dict[str, Outcome]:
    from calibseg.benchmark.progress import Board

    remaining = unfinished(bench, cells)
    if not remaining:
        return {}
    with Board(bench, remaining, console) as board:
        return run([cell.slug for cell in remaining], bench.command, bench.folder, board)


def plan(bench: Bench, cells: Sequence[Cell], environment: Mapping[str, str]) -> list[str]:
    """What is left as lines for a shell, in order; comments say what may run side by side."""
    chosen = chosen_cells(bench.folder.path)
    files = plugins.plugin_arguments()
    prefix = "".join(f"{name}={shlex.quote(value)} " for name, value in environment.items())

    def line(command: Sequence[str]) -> str:
        return f"{prefix}{shlex.join(['calibseg', *files, *command])}"

    data: dict[str, list[str]] = {}
    blocks, waiting = [], 0
    for cell in cells:
        remaining = planned(bench, cell, cell.slug in chosen)
        ours = [line(stage.command.words) for stage in remaining if stage.name in ("prepare", "split")]
        theirs = [line(stage.command.words) for stage in remaining if stage.name not in ("prepare", "split")]
        if ours:
            data.setdefault(str(bench.work(cell)), ours)
        if theirs:
            after = " after the data," if ours else ""
            blocks += ["", f"# {cell.title}:{after} one after the other; blocks may run side by side", *theirs]
        waiting += bool(cell.choice) and cell.slug not in chosen
    lines = ["# data", *(command_line for ours in data.values() for command_line in ours)] if data else []
    lines += blocks
    lines += ["", "# when all of the above is done", line([*bench.words, "--collect"])]
    if waiting:
        lines += [f"# {waiting} candidates end with validation: now --plan prints what is left for the chosen ones"]
    return lines
