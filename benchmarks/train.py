"""What the training loop costs beside the network: against a bare loop, and against the habits of the released trainer.

    OMP_NUM_THREADS=1 python benchmarks/train.py

ours      calibseg.train: slices from disk, checks, the log, exact validation statistics, an atomic state per epoch
bare      the same network, loss and optimiser over tensors that lie in memory; validation runs the network and no more
released  what the papers' trainer does: the whole .h5 volume read for each slice, softmax and confusion counts in numpy
          after every step, the same for validation, two checkpoints with the optimiser per epoch

All three train on the same slices of the hippocampus set (phantoms where it is absent) and take turns epoch by epoch in
one run. Read the ratios; absolute times depend on what else the machine does. The share of a step that is not
network, loss, backward or optimiser is measured inside our own loop.
"""

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from calibseg import registry, store
from calibseg.prepare import prepare
from calibseg.progress import Watcher
from calibseg.recipe import Recipe, read_recipe
from calibseg.sources import open_sources, training_slices, validation_slices
from calibseg.train import train
from calibseg.types import Split

DATA = Path(os.environ.get("CALIBSEG_DATA", Path(__file__).parents[2] / "shared" / "data"))
LOOP: Any = sys.modules["calibseg.train"]._Run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--width", type=int, default=16, help="of the U-Net")
    parser.add_argument("--cases", type=int, default=16, help="training cases")
    parser.add_argument("--rounds", type=int, default=5, help="epochs of each, after one to warm up")
    parser.add_argument("--loss", default="nacl")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder) / "work"
        key = make_data(work, asked.cases)
        recipe = read_recipe(
            {
                "data": {"dataset": key, "work": str(work), "split": "benchmark"},
                "network": {"name": "unet", "width": asked.width},
                "loss": {"name": asked.loss},
                "train": {"epochs": asked.rounds + 1},
            }
        )
        compare(recipe, work, Path(folder))


def make_data(work: Path, cases: int) -> str:
    real = DATA / "Task04_Hippocampus"
    key = "hippocampus" if real.is_dir() else "phantom"
    options = {} if real.is_dir() else {"cases": cases + 4, "size": [35, 48, 40], "num_classes": 3}
    prepare(key, real if real.is_dir() else None, work, options=options)
    ids = [entry["id"] for entry in store.read_index(work)["cases"]]
    parts = ids[:cases], ids[cases : cases + cases // 4], ids[-1:]
    store.write_split(work, "benchmark", Split(*map(tuple, parts), 0))
    return key


def compare(recipe: Recipe, work: Path, folder: Path) -> None:
    sources = open_sources(recipe)
    slices = len(training_slices(recipe, sources).index)
    shape = training_slices(recipe, sources).batch(0, 0).image.shape[-2:]
    rivals = {"bare": Bare(recipe), "released": Released(recipe, work, folder)}
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in ("ours", *rivals)}
    inside: list[float] = []
    core = {"s": 0.0}

    class Turns(Watcher):
        """After each of our epochs the others have theirs."""

        def end_epoch(self, row: dict[str, Any]) -> None:
            times["ours"].append((row["train_s"], row["epoch_s"] + write_time()))
            inside.append(1 - core["s"] / row["train_s"])
            for name, rival in rivals.items():
                times[name].append(rival.epoch(row["epoch"] - 1))
            core["s"] = 0.0

    write_time = count_keeping()
    count_core(core)
    train(recipe, folder / "run", watcher=Turns())
    threads = torch.get_num_threads()
    print(
        f"U-Net width {recipe.network.options['width']}, {recipe.loss.name}, batch 16, slices to {shape[0]}x{shape[1]},"
    )
    print(f"{slices} slices an epoch, {recipe.train.epochs - 1} epochs each after one to warm up, {threads} thread(s)")
    medians = {name: np.median(np.array(found[1:]), 0) for name, found in times.items()}
    print(f"{'':10}{'train s':>9}{'slices/s':>10}{'of bare':>9}{'epoch s':>10}{'ours is faster by':>19}")
    for name, (trained, epoch) in medians.items():
        share, faster = medians["bare"][0] / trained, epoch / medians["ours"][1]
        print(f"{name:10}{trained:9.2f}{slices / trained:10.1f}{share:9.3f}{epoch:10.2f}{faster:18.2f}x")
    print(f"outside network, loss, backward and optimiser: {100 * np.median(inside[1:]):.2f} % of a step (bar: 5 %)")
    ratio = medians["bare"][0] / medians["ours"][0]
    print(f"slices/s against the bare loop: {ratio:.3f} (bar: 0.95)")


def count_core(core: dict[str, float]) -> None:
    """Add up the time inside our loop's network, loss, backward and optimiser."""
    original = LOOP.__init__

    def timed(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            began = time.perf_counter()
            result = function(*arguments, **options)
            core["s"] += time.perf_counter() - began
            return result

        return call

    def init(self: Any, *arguments: Any, **options: Any) -> None:
        original(self, *arguments, **options)
        forward = timed(self.model.forward)
        self.model.forward = forward
        self.loss.terms = timed(self.loss.terms)
        self.fabric.backward = timed(self.fabric.backward)
        self.stepper.step = timed(self.stepper.step)

    LOOP.__init__ = init


def count_keeping() -> Callable[[], float]:
    """The time that the last epoch took to write its weights, log and state."""
    original, last = LOOP._keep, [0.0]

    def keep(self: Any, row: dict[str, Any]) -> None:
        began = time.perf_counter()
        original(self, row)
        last[0] = time.perf_counter() - began

    LOOP._keep = keep
    return lambda: last[0]


class Bare:
    """A loop that only trains: batches lie in memory in the right layout."""

    def __init__(self, recipe: Recipe):
        self.recipe, sources = recipe, open_sources(recipe)
        slices = training_slices(recipe, sources)
        self.batches = [[self.ready(b) for b in slices.epoch(e)] for e in range(recipe.train.epochs)]
        self.validation = [self.ready(batch) for batch in validation_slices(recipe, sources).epoch(0)]
        self.network, self.loss, self.adam = parts(recipe, len(sources.channels), len(sources.classes))

    def ready(self, batch: Any) -> tuple[Tensor, Tensor]:
        return batch.image.to(memory_format=torch.channels_last), batch.target

    def epoch(self, epoch: int) -> tuple[float, float]:
        began = time.perf_counter()
        self.network.train()
        for image, target in self.batches[epoch]:
            self.adam.zero_grad()
            self.loss(self.network(image), target).backward()
            self.adam.step()
        trained = time.perf_counter() - began
        self.network.eval()
        with torch.no_grad():
            for image, _ in self.validation:
                self.network(image)
        return trained, time.perf_counter() - began


class Released:
    """The released trainer's habits, with today's libraries and our network and loss."""

    def __init__(self, recipe: Recipe, work: Path, folder: Path):
        import h5py

        self.recipe, self.folder, sources = recipe, folder, open_sources(recipe)
        for case in (*sources.train, *sources.validation):
            with h5py.File(folder / f"{case.id}.h5", "w") as file:
                file["img"] = case.read("image")[:, 0]
                file["mask"] = case.read("labels")[:, 0]
        self.train = [(case.id, index) for case in sources.train for index in range(case.shape[0])]
        self.valid = [(case.id, index) for case in sources.validation for index in range(case.shape[0])]
        self.classes = len(sources.classes)
        self.network, self.loss, self.adam = parts(recipe, len(sources.channels), self.classes)

    def batch(self, chosen: list[tuple[str, int]]) -> tuple[Tensor, Tensor]:
        import h5py

        from calibseg.sampling import padded

        images, masks = [], []
        for id, index in chosen:
            with h5py.File(self.folder / f"{id}.h5", "r") as file:
                images.append(file["img"][:][index][None])  # type: ignore[index]
                masks.append(file["mask"][:][index])  # type: ignore[index]
        image = torch.from_numpy(padded(images, 1, 0, np.float32))
        return image, torch.from_numpy(padded(masks, 1, -100, np.int64))

    def metrics(self, logits: Tensor, target: Tensor, sums: np.ndarray) -> None:
        predicted = torch.softmax(logits.detach(), 1).argmax(1).cpu().numpy()
        labels = target.cpu().numpy()
        for one, truth in zip(predicted, labels, strict=True):
            common = one[one == truth]
            sums[0] += np.histogram(common, self.classes, (0, self.classes))[0]
            sums[1] += np.histogram(one, self.classes, (0, self.classes))[0]
            sums[2] += np.histogram(truth, self.classes, (0, self.classes))[0]

    def epoch(self, epoch: int) -> tuple[float, float]:
        began, size = time.perf_counter(), self.recipe.train.batch_size
        order = np.random.default_rng(epoch).permutation(len(self.train))
        self.network.train()
        sums = np.zeros((3, self.classes))
        for start in range(0, len(order), size):
            image, target = self.batch([self.train[index] for index in order[start : start + size]])
            logits = self.network(image)
            loss = self.loss(logits, target)
            self.adam.zero_grad()
            loss.backward()
            self.adam.step()
            loss.item()
            self.metrics(logits, target, sums)
        trained = time.perf_counter() - began
        self.network.eval()
        with torch.no_grad():
            for start in range(0, len(self.valid), size):
                image, target = self.batch(self.valid[start : start + size])
                self.metrics(self.network(image), target, sums)
        for name in ("last", "best"):
            state = {"model": self.network.state_dict(), "optimizer": self.adam.state_dict(), "epoch": epoch}
            torch.save(state, self.folder / f"{name}.pth")
        return trained, time.perf_counter() - began


def parts(recipe: Recipe, channels: int, classes: int) -> tuple[torch.nn.Module, Any, torch.optim.Optimizer]:
    torch.manual_seed(recipe.seed)
    options = {"in_channels": channels, "num_classes": classes, **recipe.network.options}
    network = registry.build("networks", recipe.network.name, options)
    network.to(memory_format=torch.channels_last)
    loss = registry.build("losses", recipe.loss.name, dict(recipe.loss.options)).setup(classes)
    return network, loss, torch.optim.Adam(network.parameters(), recipe.train.learning_rate)


if __name__ == "__main__":
    main()
