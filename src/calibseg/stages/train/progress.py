"""A training run on the screen: one bar with the time left, one line per epoch; and in TensorBoard where asked."""

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from calibseg.core.types import BadInput

SHOWN = {"val_miou": "mIoU", "val_dsc": "DSC", "val_nll": "NLL", "val_ece_predicted": "ECE"}


class Watcher:
    """Is told what happens in a training run, and does nothing."""

    def begin(self, epochs: int, batches: int, done: int) -> None:
        """So many epochs of so many batches; of all these batches some are done."""

    def step(self) -> None:
        """A batch was trained on."""

    def end_epoch(self, row: dict[str, Any]) -> None:
        """An epoch's row of the log."""


class Bar(Watcher):
    """Shows what it is told; without a console it is silent."""

    def __init__(self, console: Console | None, tensorboard: Path | None = None):
        self.console, self.progress, self.show = console, None, warnings.showwarning
        self.write = _writer(tensorboard) if tensorboard else None
        if console:
            columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("batches"))
            times = (TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn(elapsed_when_finished=True))
            self.progress = Progress(*columns, *times, console=console, transient=True, refresh_per_second=2)

    def __enter__(self) -> "Bar":
        warnings.showwarning = self._note
        return self

    def __exit__(self, *error: object) -> None:
        warnings.showwarning = self.show
        if self.progress:
            self.progress.stop()

    def begin(self, epochs: int, batches: int, done: int) -> None:
        self.epochs = epochs
        if self.progress:
            self.progress.start()
            self.task = self.progress.add_task("training", total=epochs * batches, completed=done)

    def step(self) -> None:
        if self.progress:
            self.progress.advance(self.task)

    def end_epoch(self, row: dict[str, Any]) -> None:
        if self.write:
            self.write(row)
        if self.progress and self.console:
            losses = "  ".join(f"{n.removeprefix('train_')} {v:.4f}" for n, v in row.items() if _is_term(n))
            values = "  ".join(f"{shown} {row[name]:.4f}" for name, shown in SHOWN.items() if name in row)
            star = "  best" if row["best_epoch"] == row["epoch"] else ""
            self.console.print(
                f"epoch {row['epoch']:>3}/{self.epochs}  {losses}  {values}{star}", highlight=False, soft_wrap=True
            )

    def _note(self, message: Warning | str, *where: Any) -> None:
        """A warning as one sentence: its line of source helps nobody here."""
        console = self.console or Console(stderr=True)
        console.print(f"[yellow]note:[/] {escape(str(message))}", highlight=False, soft_wrap=True)


def _is_term(name: str) -> bool:
    return name.startswith("train_") and name != "train_s"


def _writer(folder: Path) -> Callable[[dict[str, Any]], None]:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise BadInput("--tensorboard needs TensorBoard: pip install calibseg[track]") from error
    writer = SummaryWriter(str(folder))

    def write(row: dict[str, Any]) -> None:
        for name, value in row.items():
            if name != "epoch" and isinstance(value, int | float):
                writer.add_scalar(name.replace("_", "/", 1), value, row["epoch"])
        writer.flush()

    return write
