r"""Train one network. The loop is the same for every loss: it never asks which one it has.

    for every batch      logits = network(image), of two views where the loss compares views (`views`)
                         loss.terms(logits, target): named parts, whose sum goes backward; `check` on an epoch's first batch
    for every epoch      loss.observe(logits, target) on validation, loss.end_epoch(), one row of log.csv,
                         weights.safetensors if this epoch is the best so far, last/ for a resume

What a run does follows from its recipe, its data and the number of threads, bit for bit. A run that was killed at any
moment and resumed ends with the same weights as one that was not: a batch depends on (seed, epoch, number) only, and the
state on disk is whole, always. SIGTERM, SIGINT and SIGUSR2 end the step that is under way, save and stop.
"""

import contextlib
import csv
import hashlib
import io
import json
import math
import os
import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from calibseg import registry, store
from calibseg.augmentation import Augmentation, Views
from calibseg.checkpoint import (
    Position,
    build_network,
    load_state,
    random_state,
    save_state,
    save_weights,
    set_random_state,
)
from calibseg.lock import Lock, locked
from calibseg.provenance import peak_memory_mib, provenance
from calibseg.recipe import Recipe
from calibseg.sampling import Batch, Slices
from calibseg.splits import check_split, require_validation
from calibseg.types import BadInput, Split
from calibseg.validation import Validation

SIGNALS = ("SIGTERM", "SIGINT", "SIGUSR2")  # SLURM warns of the end with one of these
ASK_EVERY = 16  # steps between questions to a GPU or to other processes, which would stall for the answer
LARGER_IS_BETTER = {"miou": True, "dsc": True, "nll": False}


@dataclass(frozen=True)
class Trained:
    """How a run ended."""

    run: Path
    status: Literal["finished", "stopped"]
    epochs: int  # that are done
    best_epoch: int | None
    best: float | None
    log: list[dict[str, Any]]


class Watcher:
    """Is told what happens, and does nothing: the command line shows it, you may plot it."""

    def begin(self, epochs: int, batches: int, done: int) -> None:
        """So many epochs of so many batches, of which some are done."""

    def step(self) -> None:
        """A batch was trained on."""

    def end_epoch(self, row: dict[str, Any]) -> None:
        """An epoch's row of the log."""


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
    folder = store.RunFolder(Path(run or Path("runs") / recipe.slug))
    data = open_data(recipe)
    world = devices * nodes
    if recipe.train.batch_size % world:
        raise BadInput(f"train.batch_size = {recipe.train.batch_size} cannot be shared by {world} processes")
    with contextlib.ExitStack() as held:
        lock = None
        if _first_process():
            lock = held.enter_context(locked(folder.lock))
            _check_folder(folder, recipe, data, resume)
            folder.sweep()
        stop = held.enter_context(_Stop())
        held.enter_context(_reproducible())
        from lightning_fabric import Fabric  # seconds of import: only who trains pays

        fabric = Fabric(
            accelerator="cuda"
            if device != "cpu" and torch.cuda.is_available()
            else "cpu"
            if device == "auto"
            else device,
            devices=devices,
            num_nodes=nodes,
            strategy="ddp" if world > 1 else "auto",
            precision=recipe.train.precision,
        )
        fabric.launch()
        return _Run(recipe, folder, data, fabric, lock, stop, watcher or Watcher(), resume).go()


@dataclass(frozen=True)
class Sources:
    """The prepared cases that a run works with."""

    classes: tuple[str, ...]
    channels: tuple[str, ...]
    split: Split
    train: list[store.PreparedCase]
    validation: list[store.PreparedCase]
    hash: str  # of all that the training and validation cases were made from
    regions: dict[str, list[int]]
    protocol: dict[str, Any]  # what a scan goes through before the network sees it


def open_data(recipe: Recipe) -> Sources:
    """Find the prepared cases and the split that a recipe names, and check that they are what it asks for."""
    wanted = recipe.data
    if not store.has_index(wanted.folder):
        raise BadInput(f"{wanted.folder}: no prepared data; run   {_how_to_prepare(recipe)}")
    index = store.read_index(wanted.folder)
    if index["dataset"] != wanted.dataset:
        raise BadInput(
            f"{wanted.folder}: holds the dataset {index['dataset']!r}, the recipe asks for {wanted.dataset!r}"
        )
    for part in ("options", "protocol"):
        for name, value in getattr(wanted, part).items():
            found = index[part].get(name)
            if json.loads(json.dumps(value)) != found:
                raise BadInput(
                    f"{wanted.folder}: was prepared with {name} = {found!r}, the recipe's data.{part} has {value!r}; "
                    f"prepare it again:   {_how_to_prepare(recipe)}"
                )
    if wanted.split not in store.split_names(wanted.folder):
        known = ", ".join(store.split_names(wanted.folder)) or f"none; run   calibseg split {wanted.folder}"
        raise BadInput(f"{wanted.folder}: no split named {wanted.split!r}. Known: {known}")
    split = store.read_split(wanted.folder, wanted.split)
    check_split(split, {entry["id"]: entry["patient"] for entry in index["cases"]})
    if recipe.train.select != "last":
        require_validation(split, f"train.select = {recipe.train.select!r}")
    parts = [[store.open_case(wanted.folder, id) for id in ids] for ids in (split.train, split.validation)]
    told = json.dumps([[(case.id, case.key) for case in part] for part in parts])
    digest = hashlib.blake2b(told.encode(), digest_size=16).hexdigest()
    names = tuple(index["classes"]), tuple(index["channels"])
    return Sources(*names, split, *parts, digest, index["regions"], index["protocol"])


class _Run:
    """A training run under way."""

    def __init__(
        self,
        recipe: Recipe,
        folder: store.RunFolder,
        data: Sources,
        fabric: Any,
        lock: Lock | None,
        stop: "_Stop",
        watcher: Watcher,
        resume: bool,
    ):
        self.recipe, self.folder, self.data, self.fabric = recipe, folder, data, fabric
        self.lock, self.stop, self.watcher = lock, stop, watcher
        self.device, self.first = fabric.device, fabric.global_rank == 0
        self.format = getattr(torch, _MEMORY[recipe.train.memory_format])
        torch.manual_seed(recipe.seed)
        self.network = build_network(recipe.as_dict()["network"], list(data.channels), list(data.classes))
        self.network.to(memory_format=self.format)
        self.optimiser = _optimiser(recipe, self.network)
        self.loss = registry.build("losses", recipe.loss.name, dict(recipe.loss.options))
        self.loss.setup(len(data.classes)).to(self.device)
        module = torch.compile(self.network) if recipe.train.compile != "off" else self.network
        self.model, self.stepper = fabric.setup(module, self.optimiser)
        self.slices, self.validation = self._slices()
        self.at = Position(world=fabric.world_size)
        if resume and folder.state.is_file():
            self._resume()
        self.began = time.monotonic() - self.at.seconds
        self.saved = time.monotonic()
        self.about = {
            "slug": recipe.slug,
            "hash": recipe.hash,
            "recipe": recipe.resolved(),
            "classes": data.classes,
            "channels": data.channels,
            "regions": data.regions,
            "protocol": data.protocol,
            "data_hash": data.hash,
            "split": asdict(data.split),
            **provenance(self.device, fabric.world_size),
        }

    def go(self) -> Trained:
        """Epoch after epoch until all are done or somebody asks to stop."""
        recipe, at = self.recipe, self.at
        if self.first:
            store.write_text(self.folder.recipe, recipe.toml())
            self._tell("running")
        self.watcher.begin(recipe.train.epochs, len(self.slices), at.epoch * len(self.slices) + at.batch)
        while at.epoch < recipe.train.epochs:
            row = self._epoch()
            if row is None:
                self._save()
                return self._end("stopped")
            self.watcher.end_epoch(row)
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
            found = self._validate(self.validation)
            if found is None:
                self.loss.load_state_dict(state)  # a resume looks at validation from its beginning
                return None
            row |= {f"val_{name}": value for name, value in found.items()}
        row |= self.loss.end_epoch()
        row |= {"train_s": round(trained_s, 3), "epoch_s": round(time.monotonic() - began, 3)}
        self._keep(row)
        return row

    def _train(self, epoch: int) -> bool:
        """The batches of an epoch that are not done yet; False when asked to stop."""
        at = self.at
        if at.batch == 0:
            torch.manual_seed(_mixed(self.recipe.seed, epoch, self.fabric.global_rank))
        self.model.train()
        first, asks = True, self.device.type != "cpu" or self.fabric.world_size > 1
        with contextlib.closing(self.slices.epoch(epoch, start=at.batch)) as batches:
            for batch in batches:
                self._step(batch, epoch, first)
                first, at.batch = False, at.batch + 1
                self.watcher.step()
                if not asks or at.batch % ASK_EVERY == 0:
                    late = time.monotonic() - self.saved > 60 * self.recipe.train.save_minutes
                    stop, save = self._heed(late)
                    if stop:
                        return False
                    if save:
                        self._save()
        return not self._heed(False)[0]

    def _step(self, batch: Batch, epoch: int, check: bool) -> None:
        """One step of the optimiser."""
        image = batch.image.to(self.device, memory_format=self.format, non_blocking=True)
        target = batch.target.to(self.device, non_blocking=True)
        rng = np.random.default_rng([self.recipe.seed, epoch, self.at.batch, self.fabric.global_rank, 1])
        logits, seen = self._logits(image, rng)
        if check:
            with self._named():
                self.loss.check(logits[: len(target)], target)
        terms = self.loss.terms(logits, target, image, **seen)
        self.optimiser.zero_grad()
        self.fabric.backward(torch.stack(list(terms.values())).sum())
        if self.recipe.train.clip_norm:
            self.fabric.clip_gradients(self.model, self.stepper, max_norm=self.recipe.train.clip_norm)
        self.stepper.step()
        for name, term in terms.items():
            self.at.sums[name] = self.at.sums.get(name, 0.0) + term.detach().double() * len(target)
        self.at.slices += len(target)

    def _logits(self, image: Tensor, rng: np.random.Generator) -> tuple[Tensor, dict[str, Tensor]]:
        """The network's answer on the batch's own grid: to the batch, or to each of its views and what they showed."""
        if self.loss.views == 1:
            return self.model(image), {}
        views = Views(image, Augmentation(**asdict(self.recipe.views)), rng, self.loss.views)
        logits, valid = views.back(self.model(views.image.contiguous(memory_format=self.format)))
        return logits, {"valid": valid}

    @torch.no_grad()
    def _validate(self, slices: Slices) -> dict[str, float] | None:
        """Every validation slice once; each process takes every n-th batch. None when asked to stop."""
        statistics = Validation([case.id for case in self.data.validation], self.data.classes)
        rank, world = self.fabric.global_rank, self.fabric.world_size
        self.network.eval()
        with contextlib.closing(slices.epoch(0, start=rank, step=world)) as batches, self.fabric.autocast():
            for batch in batches:
                if world == 1 and self.stop.asked:
                    return None
                self._alive()
                logits = self.network(batch.image.to(self.device, memory_format=self.format)).float()
                target = batch.target.to(self.device)
                self.loss.observe(logits, target)
                statistics.update(logits, target, batch.case_ids)
        return statistics.summary()

    def _keep(self, row: dict[str, Any]) -> None:
        """Write what an epoch leaves: weights if they are the best, then the log, then the state that says so."""
        at, select = self.at, self.recipe.train.select
        value = row["epoch"] if select == "last" else row[f"val_{select}"]
        sign = 1 if LARGER_IS_BETTER.get(select, True) else -1
        better = at.best is None or math.isnan(at.best) or sign * value > sign * at.best
        if better:
            at.best, at.best_epoch = value, row["epoch"]
        row["best_epoch"] = at.best_epoch
        at.history.append(row)
        with self._named():
            if better and self.first:
                save_weights(self.folder.weights, self.network, {"epoch": row["epoch"], select: value})
            at.epoch, at.batch, at.slices, at.sums = at.epoch + 1, 0, 0, {}
            if self.first:
                store.write_text(self.folder.log, _csv(at.history))
        self._save()
        self._tell("running")

    def _save(self) -> None:
        """Write all that a resume needs."""
        at = self.at
        at.sums = {name: float(value) for name, value in at.sums.items()}
        at.seconds, self.saved = time.monotonic() - self.began, time.monotonic()
        at.precision = self.fabric.strategy.precision.state_dict()
        rng = random_state(self.device)
        rng = self.fabric.all_gather(rng).cpu() if at.world > 1 else rng[None]
        if self.first:
            with self._named():
                save_state(self.folder.state, self.network, self.optimiser, self.loss, rng, at)
        self.fabric.barrier()

    def _resume(self) -> None:
        rng, at = load_state(self.folder.state, self.network, self.optimiser, self.loss)
        if at.world != self.fabric.world_size:
            raise BadInput(
                f"{self.folder.path}: was trained by {at.world} processes, so it cannot go on with {self.fabric.world_size}"
            )
        set_random_state(rng[self.fabric.global_rank], self.device)
        self.fabric.strategy.precision.load_state_dict(at.precision)
        self.at = at

    def _heed(self, late: bool) -> tuple[bool, bool]:
        """Whether to stop and whether to save, agreed among all processes; a loss that is not finite is an error."""
        self._alive()
        finite = all(math.isfinite(value) for value in self.at.sums.values())
        flags = [self.stop.asked is not None, late, not finite]
        if self.fabric.world_size > 1:
            flags = self.fabric.all_reduce(torch.tensor(flags, dtype=torch.int64), reduce_op="sum").tolist()
        if flags[2]:
            terms = ", ".join(f"{name} {float(value):g}" for name, value in self.at.sums.items())
            with self._named():
                raise BadInput(
                    f"the loss is not finite any more (sums of the epoch: {terms}); try a smaller learning rate"
                )
        return bool(flags[0]), bool(flags[1])

    def _alive(self) -> None:
        if self.lock:
            self.lock.touch()

    def _mean_terms(self) -> dict[str, float]:
        """Mean of each term over the slices of the epoch, on all processes."""
        sums = torch.tensor([float(value) for value in self.at.sums.values()], dtype=torch.float64) / self.at.slices
        means = self.fabric.all_reduce(sums, reduce_op="mean") if self.fabric.world_size > 1 else sums
        return dict(zip(self.at.sums, means.tolist(), strict=True))

    def _slices(self) -> tuple[Slices, Slices | None]:
        recipe, rank, world = self.recipe, self.fabric.global_rank, self.fabric.world_size
        augmentation = Augmentation(**asdict(recipe.augmentation))
        common = {"seed": recipe.seed, "workers": recipe.train.workers}
        training = Slices(
            self.data.train,
            recipe.train.batch_size // world,
            keep=recipe.data.keep,
            target=recipe.data.target,
            augmentation=None if augmentation == Augmentation() else augmentation,
            rank=rank,
            world=world,
            **common,
        )
        if not self.data.validation:
            return training, None
        # A random rater is a moving target: what an epoch is worth is judged by all raters.
        target = "mean" if recipe.data.target == "random" else recipe.data.target
        return training, Slices(
            self.data.validation, recipe.train.batch_size, order="as given", target=target, **common
        )

    @contextlib.contextmanager
    def _named(self) -> Iterator[None]:
        """Say where it happened and what is left."""
        try:
            yield
        except BadInput as error:
            at = self.at
            kept = "the last good state is kept; mend the cause and add --resume" if self.folder.state.is_file() else ""
            where = f"epoch {at.epoch + 1}, batch {at.batch + 1} of {len(self.slices)}"
            raise BadInput("; ".join(filter(None, [f"{self.folder.path}, {where}: {error}", kept]))) from error

    def _tell(self, status: str) -> None:
        """Bring run.json up to date."""
        at = self.at
        if self.first:
            outcome = {
                "status": status,
                "epochs_done": at.epoch,
                "best_epoch": at.best_epoch,
                "best": at.best,
                "wall_time_s": round(time.monotonic() - self.began, 1),
                "peak_memory_mib": peak_memory_mib(self.device),
            }
            store.write_run(self.folder, self.about | outcome)

    def _end(self, status: Literal["finished", "stopped"]) -> Trained:
        self._tell(status)
        at = self.at
        return Trained(self.folder.path, status, at.epoch, at.best_epoch, at.best, at.history)


_MEMORY = {"channels_last": "channels_last", "contiguous": "contiguous_format"}


def _optimiser(recipe: Recipe, network: torch.nn.Module) -> torch.optim.Optimizer:
    options = {"lr": recipe.train.learning_rate, "weight_decay": recipe.train.weight_decay}
    if recipe.train.optimiser == "sgd":
        return torch.optim.SGD(network.parameters(), momentum=0.99, nesterov=True, **options)
    kinds = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}
    return kinds[recipe.train.optimiser](network.parameters(), **options)


def _check_folder(folder: store.RunFolder, recipe: Recipe, data: Sources, resume: bool) -> None:
    """A folder is new, or the same run goes on in it."""
    if not folder.about.is_file():
        return
    if not resume:
        raise BadInput(f"{folder.path}: holds a run already; add --resume to go on with it, or choose another folder")
    there = store.read_run(folder.path)
    if there["hash"] != recipe.hash:
        raise BadInput(f"{folder.path}: its recipe is another one ({there['slug']} there, {recipe.slug} here)")
    if there["data_hash"] != data.hash:
        raise BadInput(f"{folder.path}: its training or validation cases have changed since; start a new run")


def _how_to_prepare(recipe: Recipe) -> str:
    data = recipe.data
    needs_root = registry.find("datasets", data.dataset).facts.get("needs_root", True)
    words = [f"calibseg prepare --dataset {data.dataset}", "--root RAW_FOLDER" if needs_root else ""]
    words += [f"--option '{name}={json.dumps(value)}'" for name, value in data.options.items()]
    words += [f"--protocol '{name}={json.dumps(value)}'" for name, value in data.protocol.items()]
    return " ".join(filter(None, [*words, f"-o {data.folder} && calibseg split {data.folder}"]))


def _first_process() -> bool:
    """Whether this is the process that writes, before processes know each other: launchers set one of these."""
    known = [os.environ[name] for name in ("RANK", "SLURM_PROCID", "LOCAL_RANK") if name in os.environ]
    return not known or known[0] == "0"


def _mixed(*numbers: int) -> int:
    """One seed from several numbers."""
    return int(np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0] >> np.uint64(1))


def _csv(rows: list[dict[str, Any]]) -> str:
    columns = list(dict.fromkeys(name for row in rows for name in row))
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


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


class _Stop:
    """Remembers that somebody asked to stop; who asks twice with Ctrl-C is obeyed at once."""

    def __init__(self) -> None:
        self.asked: str | None = None
        self.before: dict[int, Any] = {}

    def __enter__(self) -> "_Stop":
        if threading.current_thread() is threading.main_thread():  # Python allows handlers nowhere else
            for name in SIGNALS:
                number = getattr(signal, name, None)
                if number is not None:
                    self.before[number] = signal.signal(number, self._ask)
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self.before.items():
            signal.signal(number, handler)

    def _ask(self, number: int, frame: object) -> None:
        if self.asked and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.asked = signal.Signals(number).name
