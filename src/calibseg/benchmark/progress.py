"""A benchmark on the screen: counts, the time left, and a line for each cell that is running or has failed."""

import time
from collections.abc import Sequence

from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from calibseg.benchmark.cell import Outcome
from calibseg.benchmark.cell_stages import Bench, stages
from calibseg.benchmark.grid import Cell
from calibseg.runs import folders
from calibseg.runs.info import read_run

TRAINING = 8.0  # how much longer it takes than another stage, until measured
LOOK_S = 1.0


class Board:
    """Is told what starts and ends, and shows it: a live table on a terminal, lines elsewhere."""

    def __init__(self, bench: Bench, cells: Sequence[Cell], console: Console):
        self.bench, self.cells, self.console = bench, {cell.slug: cell for cell in cells}, console
        self.running: dict[str, float] = {}
        self.ended: dict[str, Outcome] = {}
        self.parts = {slug: self._part(cell) for slug, cell in self.cells.items()}
        self.began, self.before, self.looked = time.monotonic(), sum(self.parts.values()), 0.0
        self.live = Live(console=console, auto_refresh=False, transient=True) if console.is_terminal else None

    def __enter__(self) -> "Board":
        if self.live:
            self.live.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self.live:
            self.live.stop()

    def start(self, slug: str) -> None:
        """Somebody works on a cell now."""
        self.running[slug] = time.monotonic()
        if not self.live:
            self.console.print(f"started  {escape(self.cells[slug].title)}", soft_wrap=True)
        self.look(now=True)

    def end(self, slug: str, outcome: Outcome) -> None:
        """An attempt at a cell ended."""
        seconds = time.monotonic() - self.running.pop(slug, time.monotonic())
        self.ended[slug] = outcome
        self.parts[slug] = 1.0
        line = f"{escape(self.cells[slug].title)}  {duration(seconds)}"
        if outcome.status == "failed":
            self.console.print(f"[red]failed[/]   {line}  {failure(outcome)}", soft_wrap=True)
        else:
            self.console.print(f"{outcome.status:<8} {line}", soft_wrap=True)
        self.look(now=True)

    def look(self, now: bool = False) -> None:
        """Show how things stand, about every second."""
        if self.live and (now or time.monotonic() - self.looked > LOOK_S):
            self.looked = time.monotonic()
            for slug in self.running:
                self.parts[slug] = self._part(self.cells[slug])
            self.live.update(self._shown(), refresh=True)

    def left_s(self) -> float | None:
        """Seconds until everything is done, if it goes on as until now; None until something is."""
        progress = sum(self.parts.values()) - self.before
        if progress <= 0:
            return None
        return (len(self.cells) - sum(self.parts.values())) * (time.monotonic() - self.began) / progress

    def _shown(self) -> Group:
        ended = [outcome.status for outcome in self.ended.values()]
        waiting = len(self.cells) - len(self.ended) - len(self.running)
        remaining_s = self.left_s()
        status = [f"{len(self.running)} running", f"{ended.count('done')} done", f"{ended.count('failed')} failed"]
        status += [f"{waiting} waiting", f"{duration(time.monotonic() - self.began)} so far"]
        status += [f"about {duration(remaining_s)} left"] if remaining_s is not None else []
        table = Table("dataset", "network", "method", "seed", "stage", "time", box=None, padding=(0, 2, 0, 0))
        for slug, since in self.running.items():
            table.add_row(*self._names(slug), self._stage(slug), duration(time.monotonic() - since))
        return Group(Text(", ".join(status), style="bold"), table)

    def _names(self, slug: str) -> tuple[str, str, str, str]:
        cell = self.cells[slug]
        extra = cell.title.removeprefix(f"{cell.dataset} {cell.network} {cell.label} s{cell.recipe.seed}")
        return escape(cell.dataset), escape(cell.network), escape(cell.label + extra), str(cell.recipe.seed)

    def _stage(self, slug: str) -> str:
        cell = self.cells[slug]
        name = next((stage.name for stage in stages(self.bench, cell, True) if not stage.done()), "the end")
        return f"train {self._epochs(cell)} of {cell.recipe.train.epochs} epochs" if name == "train" else name

    def _epochs(self, cell: Cell) -> int:
        run = self.bench.run(cell)
        return read_run(run).epochs_done if folders.RunFolder(run).info.is_file() else 0

    def _part(self, cell: Cell) -> float:
        """How much of a cell is done, from 0 to 1."""
        done = total = 0.0
        for stage in stages(self.bench, cell, True):
            weight = TRAINING if stage.name == "train" else 1.0
            total += weight
            if stage.done():
                done += weight
            elif stage.name == "train":
                done += weight * self._epochs(cell) / cell.recipe.train.epochs
        return done / total


def failure(outcome: Outcome) -> str:
    """What went wrong, and where."""
    where = f"{outcome.stage}: " if outcome.stage else ""
    return escape(f"{where}{outcome.error}")


def duration(seconds: float) -> str:
    """65 -> 1 min 5 s."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s" if minutes else f"{rest} s"
