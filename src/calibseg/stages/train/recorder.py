"""Checkpoints, log and run.json of a training run, written in an order that a kill cannot disturb.

At the end of an epoch come the weights if they are the best, then the log, then the state that says that the epoch is
done, then run.json. Whoever dies in between repeats the epoch from the state before and writes the same again.
"""

import contextlib
import math
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from calibseg.core import files
from calibseg.core.types import BadInput
from calibseg.runs import folders
from calibseg.runs.checkpoint import Position, load_state, random_state, save_state, save_weights, set_random_state
from calibseg.runs.info import RunInfo, read_run, write_run
from calibseg.runs.provenance import peak_memory_mib, provenance
from calibseg.runs.recipe import Recipe
from calibseg.stages.train.data import Sources

LARGER_IS_BETTER = {"miou": True, "dsc": True, "nll": False}


class RunRecorder:
    """Writes a run's folder; only the first of several processes touches the disk."""

    def __init__(
        self,
        folder: folders.RunFolder,
        recipe: Recipe,
        data: Sources,
        fabric: Any,
        network: nn.Module,
        optimiser: Optimizer,
        loss: nn.Module,
        batches: int,
    ):
        self.folder, self.recipe, self.fabric, self.batches = folder, recipe, fabric, batches
        self.network, self.optimiser, self.loss = network, optimiser, loss
        self.first, self.at = fabric.global_rank == 0, Position(world=fabric.world_size)
        self.began = self.saved = time.monotonic()
        self.info = RunInfo(
            slug=recipe.slug,
            recipe=recipe.resolved(),
            classes=data.classes,
            channels=data.channels,
            split=data.split,
            regions=data.regions,
            protocol=data.protocol,
            select=data.select,
            frame=data.frame,
            fingerprint=recipe.fingerprint,
            data_fingerprint=data.fingerprint,
            provenance=provenance(fabric.device, fabric.world_size),
        )

    def begin(self) -> None:
        """Say that a run is under way here."""
        if self.first:
            files.write_text(self.folder.recipe, self.recipe.toml())
        self.write_status("running")

    def keep(self, row: dict[str, Any]) -> None:
        """Write what an epoch leaves: weights if they are the best, then the log, then the state that says so."""
        at, select = self.at, self.recipe.train.select
        value = row["epoch"] if select == "last" else row[f"val_{select}"]
        sign = 1 if LARGER_IS_BETTER.get(select, True) else -1
        better = at.best is None or math.isnan(at.best) or sign * value > sign * at.best
        if better:
            at.best, at.best_epoch = value, row["epoch"]
        row["best_epoch"] = at.best_epoch
        at.history.append(row)
        with self.named():
            if better and self.first:
                save_weights(self.folder.weights, self.network, {"epoch": row["epoch"], select: value})
            at.epoch, at.batch, at.slices, at.sums = at.epoch + 1, 0, 0, {}
            if self.first:
                columns = list(dict.fromkeys(name for row in at.history for name in row))
                rows = ([row.get(name) for name in columns] for row in at.history)
                files.write_csv(self.folder.log, columns, rows)
        self.save()
        self.write_status("running")

    def save(self) -> None:
        """Write all that a resume needs."""
        at = self.at
        at.sums = {name: float(value) for name, value in at.sums.items()}
        sums = self._of_all(torch.tensor(list(at.sums.values()), dtype=torch.float64, device=self.fabric.device))
        at.seconds, self.saved = time.monotonic() - self.began, time.monotonic()
        at.precision = self.fabric.strategy.precision.state_dict()
        rng = self._of_all(random_state(self.fabric.device).to(self.fabric.device))
        if self.first:
            with self.named():
                save_state(self.folder.state, self.network, self.optimiser, self.loss, {"rng": rng, "sums": sums}, at)
        self.fabric.barrier()

    def resume(self) -> None:
        """Go on from the state on disk."""
        per_process, at = load_state(self.folder.state, self.network, self.optimiser, self.loss)
        if at.world != self.fabric.world_size:
            here = self.fabric.world_size
            raise BadInput(f"{self.folder.path}: was trained by {at.world} processes, so it cannot go on with {here}")
        rank = self.fabric.global_rank
        set_random_state(per_process["rng"][rank], self.fabric.device)
        at.sums = dict(zip(at.sums, per_process["sums"][rank].tolist(), strict=True))
        self.fabric.strategy.precision.load_state_dict(at.precision)
        self.at, self.began = at, time.monotonic() - at.seconds

    def _of_all(self, value: Tensor) -> Tensor:
        """A tensor that each process has its own of, [processes ...], on the CPU."""
        parts = [torch.empty_like(value) for _ in range(self.at.world)]
        if self.at.world > 1:
            torch.distributed.all_gather(parts, value)
        return torch.stack(parts if self.at.world > 1 else [value]).cpu()

    @contextlib.contextmanager
    def named(self) -> Iterator[None]:
        """Say where it happened and what is left."""
        try:
            yield
        except BadInput as error:
            at = self.at
            hint = "the last good state is kept; mend the cause and add --resume" if self.folder.state.is_file() else ""
            where = f"epoch {at.epoch + 1}, batch {at.batch + 1} of {self.batches}"
            raise BadInput("; ".join(filter(None, [f"{self.folder.path}, {where}: {error}", hint]))) from error

    def write_status(self, status: str) -> None:
        """Bring run.json up to date."""
        at = self.at
        if self.first:
            self.info = replace(
                self.info,
                status=status,
                epochs_done=at.epoch,
                best_epoch=at.best_epoch,
                best=None if at.best is None or math.isnan(at.best) else at.best,
                wall_time_s=round(time.monotonic() - self.began, 1),
                peak_memory_mib=peak_memory_mib(self.fabric.device),
            )
            write_run(self.folder, self.info)


def check_folder(folder: folders.RunFolder, recipe: Recipe, data: Sources, resume: bool) -> None:
    """A folder is new, or the same run goes on in it."""
    if not folder.info.is_file():
        return
    if not resume:
        raise BadInput(f"{folder.path}: holds a run already; add --resume to go on with it, or choose another folder")
    existing = read_run(folder.path)
    if existing.fingerprint != recipe.fingerprint:
        raise BadInput(f"{folder.path}: its recipe is another one ({existing.slug} there, {recipe.slug} here)")
    if existing.data_fingerprint != data.fingerprint:
        raise BadInput(f"{folder.path}: its training or validation cases have changed since; start a new run")
