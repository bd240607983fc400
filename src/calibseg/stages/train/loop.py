r"""Train one network. The loop is the same for every loss: it never asks which one it has.

    for every batch      logits = network(image), of two views where the loss compares views (`views`)
                         loss.terms(logits, target): named parts, whose sum goes backward
                         loss.check(logits, target) on an epoch's first batch
    for every epoch      loss.observe(logits, target) on validation, loss.end_epoch(), one row of log.csv,
                         weights.safetensors if this epoch is the best so far, last/ for a resume

What a run does follows from its recipe, its data and the number of threads, bit for bit. A run that was killed at any
moment and resumed ends with the same weights as one that was not: a batch depends on (seed, epoch, number) only, and
the state on disk is whole, always. SIGTERM, SIGINT and SIGUSR2 end the step that is under way, save and stop.
"""

import contextlib
import math
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor

from calibseg.core import registry
from calibseg.core.distributed import reduce_sum
from calibseg.core.files import remove_temporary
from calibseg.core.types import BadInput
from calibseg.data.slices import Batch, Slices
from calibseg.data.views import Views
from calibseg.runs import folders
from calibseg.runs.checkpoint import build_network
from calibseg.runs.lock import Lock, locked
from calibseg.runs.recipe import Recipe
from calibseg.runs.signals import StopSignals
from calibseg.stages.train.data import Sources, open_sources, training_slices, validation_slices
from calibseg.stages.train.progress import Watcher
from calibseg.stages.train.recorder import RunRecorder, check_folder
from calibseg.stages.train.validation import Validation, hardly_learnt

POLL_EVERY = 16  # steps between host syncs with a GPU or other processes, which would stall the training


@dataclass(frozen=True)
class Trained:
    """How a run ended."""

    run: Path
    status: Literal["finished", "stopped"]
    epochs: int  # that are done
    best_epoch: int | None
    best: float | None
    log: list[dict[str, Any]]

    @property
    def hardly_learnt(self) -> list[str]:
        """A sentence for each class that the kept weights hardly find on validation."""
        return hardly_learnt(self.log[self.best_epoch - 1]) if self.best_epoch else []


def train(
    recipe: Recipe,
    run: str | Path | None = None,
    *,
    device: Literal["auto", "cpu", "cuda"] = "auto",
    devices: int = 1,
    nodes: int = 1,
    resume: bool = False,
    watcher: Watcher | None = None,
) -> Trained:
    """Train as the recipe says, into the folder `run` (runs/SLUG by default)."""
    folder = folders.RunFolder(Path(run or Path("runs") / recipe.slug))
    data = open_sources(recipe)
    world = devices * nodes
    if device == "cuda" and not torch.cuda.is_available():
        raise BadInput("device 'cuda' is not to be had: torch finds no GPU here; use 'auto' or 'cpu'")
    if recipe.train.batch_size % world:
        raise BadInput(f"train.batch_size = {recipe.train.batch_size} cannot be shared by {world} processes")
    model = _Model.of(recipe, data)
    with contextlib.ExitStack() as stack:
        lock = None
        if first_process():
            lock = stack.enter_context(locked(folder.lock))
            check_folder(folder, recipe, data, resume)
            remove_temporary(folder.path)
        stop = stack.enter_context(StopSignals())
        stack.enter_context(_reproducible())
        from lightning_fabric import Fabric  # seconds of import: only who trains pays

        fabric = Fabric(
            accelerator=("cuda" if torch.cuda.is_available() else "cpu") if device == "auto" else device,
            devices=devices,
            num_nodes=nodes,
            strategy="ddp" if world > 1 else "auto",
            precision=recipe.train.precision,
        )
        fabric.launch()
        watched = watcher if watcher is not None and fabric.global_rank == 0 else Watcher()
        return _Run(recipe, folder, data, model, fabric, (lock, stop, watched), resume).go()


class _Model(NamedTuple):
    """The network and the loss of a recipe: built before anything is written, so that a wrong option is found now."""

    network: torch.nn.Module
    loss: Any

    @classmethod
    def of(cls, recipe: Recipe, data: Sources) -> Self:
        loss = registry.build("losses", recipe.loss.name, dict(recipe.loss.options)).setup(len(data.classes))
        torch.manual_seed(recipe.seed)
        return cls(build_network(recipe.as_dict()["network"], list(data.channels), list(data.classes)), loss)


class _Run:
    """A training run under way."""

    def __init__(
        self,
        recipe: Recipe,
        folder: folders.RunFolder,
        data: Sources,
        model: _Model,
        fabric: Any,
        around: tuple[Lock | None, StopSignals, Watcher],
        resume: bool,
    ):
        self.recipe, self.folder, self.data, self.fabric = recipe, folder, data, fabric
        self.lock, self.stop, self.watcher = around
        self.device = fabric.device
        self.format = _MEMORY[recipe.train.memory_format]
        self.network, self.loss = model
        self.network.to(memory_format=self.format)  # pyright: ignore[reportCallIssue]  # torch's stub wants it last
        self.optimiser = _optimiser(recipe, self.network)
        self.loss.to(self.device)
        module = torch.compile(self.network) if recipe.train.compile != "off" else self.network
        self.model, self.stepper = fabric.setup(module, self.optimiser)
        self.slices = training_slices(recipe, data, fabric.global_rank, fabric.world_size)
        self.validation = validation_slices(recipe, data) if data.validation else None
        self.recorder = RunRecorder(
            folder, recipe, data, fabric, self.network, self.optimiser, self.loss, len(self.slices)
        )
        if resume and folder.state.is_file():
            self.recorder.resume()
        self.at = self.recorder.at

    def go(self) -> Trained:
        """Epoch after epoch until all are done or somebody asks to stop."""
        recipe, at = self.recipe, self.at
        self.recorder.begin()
        self.watcher.begin(recipe.train.epochs, len(self.slices), at.epoch * len(self.slices) + at.batch)
        try:
            while at.epoch < recipe.train.epochs:
                row = self._epoch()
                if row is None:
                    self.recorder.save()
                    return self._end("stopped")
                self.watcher.end_epoch(row)
        except BadInput:
            with contextlib.suppress(BadInput):  # the disk may be full; the first error is the one to tell
                self.recorder.write_status("failed")
            raise
        return self._end("finished")

    def _epoch(self) -> dict[str, Any] | None:
        """Train on all slices, look at validation, keep the row and the weights; None when asked to stop."""
        at, rate, began = self.at, self.recipe.train.rate(self.at.epoch), time.monotonic()
        for group in self.optimiser.param_groups:
            group["lr"] = rate
        if not self._train(at.epoch):
            return None
        row: dict[str, Any] = {"epoch": at.epoch + 1, "learning_rate": rate}
        row |= {f"train_{name}": value for name, value in self._mean_terms().items()}
        trained_s = time.monotonic() - began
        if self.validation is not None:
            state = {name: value.clone() for name, value in self.loss.state_dict().items()}
            metrics = self._validate(self.validation)
            if metrics is None:
                self.loss.load_state_dict(state)  # a resume looks at validation from its beginning
                return None
            row |= {f"val_{name}": value for name, value in metrics.items()}
        row |= self.loss.end_epoch()
        row |= {"train_s": round(trained_s, 3), "epoch_s": round(time.monotonic() - began, 3)}
        self.recorder.keep(row)
        return row

    def _train(self, epoch: int) -> bool:
        """The batches of an epoch that are not done yet; False when asked to stop."""
        at = self.at
        if at.batch == 0:
            torch.manual_seed(_mixed(self.recipe.seed, epoch, self.fabric.global_rank))
        self.model.train()
        first, syncs = True, self.device.type != "cpu" or self.fabric.world_size > 1
        with contextlib.closing(self.slices.epoch(epoch, start=at.batch)) as batches:
            for batch in batches:
                self._step(batch, epoch, first)
                first, at.batch = False, at.batch + 1
                self.watcher.step()
                if not syncs or at.batch % POLL_EVERY == 0:
                    late = time.monotonic() - self.recorder.saved > 60 * self.recipe.train.save_minutes
                    stop, save = self._poll_stop_and_save(late)
                    if stop:
                        return False
                    if save:
                        self.recorder.save()
        return not self._poll_stop_and_save(False)[0]

    def _step(self, batch: Batch, epoch: int, check: bool) -> None:
        """One step of the optimiser."""
        image = batch.image.to(self.device, memory_format=self.format, non_blocking=True)
        target = batch.target.to(self.device, non_blocking=True)
        logits, valid = self._logits(image, epoch)
        if check:
            with self.recorder.error_context():
                self.loss.check(logits, target)
        terms = self.loss.terms(logits, target, image, **valid)
        self.optimiser.zero_grad()
        self.fabric.backward(torch.stack(list(terms.values())).sum())
        if self.recipe.train.clip_norm:
            self.fabric.clip_gradients(self.model, self.stepper, max_norm=self.recipe.train.clip_norm)
        self.stepper.step()
        for name, term in terms.items():
            self.at.sums[name] = self.at.sums.get(name, 0.0) + term.detach().double() * len(target)
        self.at.slices += len(target)

    def _logits(self, image: Tensor, epoch: int) -> tuple[Tensor, dict[str, Tensor]]:
        """The network's answer on the batch's own grid: to the batch, or to each of its views and what they showed."""
        if self.loss.views == 1:
            return self.model(image), {}
        rng = np.random.default_rng([self.recipe.seed, epoch, self.at.batch, self.fabric.global_rank, 1])
        views = Views(image, self.recipe.views, rng, self.loss.views)
        logits, valid = views.back(self.model(views.image.contiguous(memory_format=self.format)))
        return logits, {"valid": valid}

    @torch.no_grad()
    def _validate(self, slices: Slices) -> dict[str, float] | None:
        """Every validation slice once; each process takes every n-th batch. None when asked to stop."""
        statistics = Validation([case.id for case in self.data.validation], self.data.classes)
        rank, world = self.fabric.global_rank, self.fabric.world_size
        self.network.eval()
        if world > 1:  # running means of batch normalisation are each process's own; what is saved is the first one's
            for buffer in self.network.buffers():
                torch.distributed.broadcast(buffer, 0)
        with contextlib.closing(slices.epoch(0, start=rank, step=world)) as batches, self.fabric.autocast():
            for batch in batches:
                if world == 1 and self.stop.received:
                    return None
                self._heartbeat()
                logits = self.network(batch.image.to(self.device, memory_format=self.format)).float()
                target = batch.target.to(self.device)
                self.loss.observe(logits, target)
                statistics.update(logits, target, batch.case_ids)
        return statistics.summary()

    def _poll_stop_and_save(self, late: bool) -> tuple[bool, bool]:
        """Whether to stop and whether to save, agreed among all processes; a loss that is not finite is an error."""
        self._heartbeat()
        finite = all(math.isfinite(value) for value in self.at.sums.values())
        flags = [self.stop.received is not None, late, not finite]
        if self.fabric.world_size > 1:
            votes = torch.tensor(flags, dtype=torch.int64, device=self.device)
            reduce_sum(votes)
            flags = votes.tolist()
        if flags[2]:
            terms = ", ".join(f"{name} {float(value):g}" for name, value in self.at.sums.items())
            with self.recorder.error_context():
                raise BadInput(f"the loss is not finite any more (sums of the epoch: {terms}); lower the learning rate")
        return bool(flags[0]), bool(flags[1])

    def _heartbeat(self) -> None:
        if self.lock:
            self.lock.touch()

    def _mean_terms(self) -> dict[str, float]:
        """Mean of each term over the slices of the epoch, on all processes."""
        sums = torch.tensor([float(value) for value in self.at.sums.values()], dtype=torch.float64) / self.at.slices
        means = self.fabric.all_reduce(sums, reduce_op="mean") if self.fabric.world_size > 1 else sums
        return dict(zip(self.at.sums, means.tolist(), strict=True))

    def _end(self, status: Literal["finished", "stopped"]) -> Trained:
        self.recorder.write_status(status)
        at = self.at
        return Trained(self.folder.path, status, at.epoch, at.best_epoch, at.best, at.history)


_MEMORY = {"channels_last": torch.channels_last, "contiguous": torch.contiguous_format}


def _optimiser(recipe: Recipe, network: torch.nn.Module) -> torch.optim.Optimizer:
    kinds: dict[str, Any] = {
        "adam": torch.optim.Adam,
        "adamw": torch.optim.AdamW,
        "sgd": partial(torch.optim.SGD, momentum=0.99, nesterov=True),
    }
    how = recipe.train
    return kinds[how.optimiser](network.parameters(), lr=how.learning_rate, weight_decay=how.weight_decay)


def first_process() -> bool:
    """Whether this is the process that writes, before processes know each other: launchers set some of these.

    In a job script SLURM_PROCID is 0, and processes that Fabric starts there inherit it beside their LOCAL_RANK.
    """
    names = ("RANK",) if "RANK" in os.environ else ("SLURM_PROCID", "NODE_RANK", "LOCAL_RANK")
    return all(os.environ.get(name, "0") == "0" for name in names)


def _mixed(*numbers: int) -> int:
    """One seed from several numbers."""
    return int(np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0] >> np.uint64(1))


@contextlib.contextmanager
def _reproducible() -> Iterator[None]:
    """On a GPU, take the algorithms that give the same bits every time; on a CPU they do so by themselves."""
    before = torch.backends.cudnn.benchmark, torch.are_deterministic_algorithms_enabled()
    if torch.cuda.is_available():
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.backends.cudnn.benchmark = False
        torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = before[0]
        torch.use_deterministic_algorithms(before[1])
