"""What the training loop costs beside the network: against a bare loop, and against the habits of the released trainer.

    OMP_NUM_THREADS=1 python benchmarks/train.py

ours      stages.train: slices from disk, checks, the log, exact validation statistics, an atomic state per epoch
bare      the same network, loss and optimiser over tensors that lie in memory; validation runs the network and no more
released  what the papers' trainer does: the whole .h5 volume read for every slice, softmax and confusion counts in
          numpy after every step, the same for validation, two checkpoints with the optimiser per epoch

All three train on the same slices of the hippocampus set (phantoms where it is absent) and take turns step by step in
one run; we read without a thread that reads ahead, which could otherwise work in the others' turns. Read the ratios:
absolute times depend on what else the machine does. The share of a step that is not network, loss, backward or
optimiser is measured inside our own loop. With --knobs instead: the same bare steps with the recipe's options
train.memory_format and train.compile.
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

from calibseg.core import registry
from calibseg.core.types import Split
from calibseg.data import prepared
from calibseg.runs.recipe import Recipe, read_recipe
from calibseg.stages.prepare import prepare
from calibseg.stages.train.data import open_sources, training_slices, validation_slices
from calibseg.stages.train.loop import train
from calibseg.stages.train.progress import Watcher

DATA = Path(os.environ.get("CALIBSEG_DATA", Path(__file__).parents[2] / "shared" / "data"))
LOOP: Any = sys.modules["calibseg.stages.train.loop"]._Run


def main() -> None:
    parser = argparse.ArgumentParser(description="What the training loop costs beside the network.")
    parser.add_argument("--width", type=int, default=16, help="of the U-Net")
    parser.add_argument("--cases", type=int, default=16, help="training cases")
    parser.add_argument("--rounds", type=int, default=5, help="epochs of each, after one to warm up")
    parser.add_argument("--loss", default="nacl")
    parser.add_argument("--knobs", action="store_true", help="measure memory_format and compile")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder) / "work"
        key = make_data(work, asked.cases)
        recipe = read_recipe(
            {
                "data": {"dataset": key, "work": str(work), "split": "benchmark"},
                "network": {"name": "unet", "width": asked.width},
                "loss": {"name": asked.loss},
                "train": {"epochs": asked.rounds + 1, "workers": 0},
            }
        )
        compare_knobs(recipe) if asked.knobs else compare(recipe, Path(folder))


def make_data(work: Path, cases: int) -> str:
    real = DATA / "Task04_Hippocampus"
    key = "hippocampus" if real.is_dir() else "phantom"
    options = {} if real.is_dir() else {"cases": cases + 4, "size": [35, 48, 40], "num_classes": 3}
    prepare(key, real if real.is_dir() else None, work, options=options)
    ids = [entry["id"] for entry in prepared.read_index(work)["cases"]]
    train_ids, validation_ids = tuple(ids[:cases]), tuple(ids[cases : cases + cases // 4])
    prepared.write_split(work, "benchmark", Split(train_ids, validation_ids, tuple(ids[-1:]), 0))
    return key


def compare(recipe: Recipe, folder: Path) -> None:
    slices = training_slices(recipe, open_sources(recipe))
    shape = slices.batch(0, 0).image.shape[-2:]
    turns = Turns({"bare": Bare(recipe), "released": Released(recipe, folder)})
    core = count_core()
    train(recipe, folder / "run", watcher=turns)
    width, rounds = recipe.network.options["width"], recipe.train.epochs - 1
    print(
        f"U-Net width {width}, {recipe.loss.name}, batch 16, slices up to {shape[0]}x{shape[1]}, {len(slices)} steps an"
    )
    print(f"epoch, {rounds} epochs after one to warm up, {torch.get_num_threads()} thread(s)")
    steps = {name: np.array(found[len(slices) :]) for name, found in turns.steps.items()}  # [steps 2]: wall, CPU
    ends = {name: np.median(np.array(found[1:]), 0) for name, found in turns.ends.items()}
    step = {name: np.median(found, 0) for name, found in steps.items()}
    epoch = {name: step[name] * len(slices) + ends[name] for name in steps}
    heads = {"": 10, "step, ms": 10, "CPU ms": 9, "slices/s of bare": 18, "by CPU ": 8, "epoch, s": 10, "of ours": 9}
    print("".join(f"{head:>{size}}" for head, size in heads.items()) + f"{'by CPU':>8}")
    for name in steps:
        share, slower = step["bare"] / step[name], epoch[name] / epoch["ours"]
        times = f"{1e3 * step[name][0]:10.1f}{1e3 * step[name][1]:9.1f}{share[0]:18.3f}{share[1]:8.3f}"
        print(f"{name:10}{times}{epoch[name][0]:10.2f}{slower[0]:9.2f}{slower[1]:8.2f}")
    outside = 1 - np.array(core[len(slices) :]) / steps["ours"][:, 0]
    print(f"outside network, loss, backward and optimiser: {100 * np.median(outside):.2f} % of a step (bar: 5 %)")
    ratio = step["bare"] / step["ours"]
    print(f"slices/s against the bare loop: {ratio[0]:.3f}, by CPU time {ratio[1]:.3f} (bar: 0.95)")


def compare_knobs(recipe: Recipe) -> None:
    """Steps with each memory format, and compiled, in turns."""
    rivals = {"contiguous": Bare(recipe, torch.contiguous_format), "channels_last": Bare(recipe)}
    rivals["channels_last, compiled"] = compiled = Bare(recipe)
    began = time.perf_counter()
    compiled.network = torch.compile(compiled.network)  # pyright: ignore[reportAttributeAccessIssue]
    compiled.step(0, 0)
    print(f"compiling: {time.perf_counter() - began:.0f} s")
    times: dict[str, list[float]] = {name: [] for name in rivals}
    for epoch in range(recipe.train.epochs):
        for number in range(len(compiled.batches[epoch])):
            for name, rival in rivals.items():
                began = time.perf_counter()
                rival.step(epoch, number)
                times[name].append(time.perf_counter() - began)
    steps = {name: np.median(found[len(compiled.batches[0]) :]) for name, found in times.items()}
    for name, step in steps.items():
        print(f"{name:26}{1e3 * step:8.1f} ms a step, {steps['contiguous'] / step:.2f} x the speed of contiguous")


class Turns(Watcher):
    """After each of our steps the others have theirs; the same at the end of an epoch."""

    def __init__(self, rivals: dict[str, Any]):
        self.rivals, self.epoch, self.number = rivals, 0, 0
        self.steps: dict[str, list[np.ndarray]] = {name: [] for name in ("ours", *rivals)}
        self.ends: dict[str, list[np.ndarray]] = {name: [] for name in ("ours", *rivals)}

    def begin(self, epochs: int, batches: int, done: int) -> None:
        self.last = clock()

    def step(self) -> None:
        self.steps["ours"].append(clock() - self.last)
        for name, rival in self.rivals.items():
            began = clock()
            rival.step(self.epoch, self.number)
            self.steps[name].append(clock() - began)
        self.number += 1
        self.last = clock()

    def end_epoch(self, row: dict[str, Any]) -> None:
        self.ends["ours"].append(clock() - self.last)
        for name, rival in self.rivals.items():
            began = clock()
            rival.end(self.epoch)
            self.ends[name].append(clock() - began)
        self.epoch, self.number = self.epoch + 1, 0
        self.last = clock()


def clock() -> np.ndarray:
    """Wall and CPU seconds: where others use the machine, wall time measures them too."""
    return np.array([time.perf_counter(), time.process_time()])


def count_core() -> list[float]:
    """The time inside our loop's network, loss, backward and optimiser, one sum per step."""
    sums: list[float] = []
    original, step = LOOP.__init__, LOOP._step

    def timed(function: Callable[..., Any], counts: Callable[[], bool] = lambda: True) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            began = time.perf_counter()
            result = function(*arguments, **options)
            if counts():
                sums[-1] += time.perf_counter() - began
            return result

        return call

    def init(self: Any, *arguments: Any, **options: Any) -> None:
        original(self, *arguments, **options)
        self.network.forward = timed(self.network.forward, lambda: self.network.training)
        self.loss.terms = timed(self.loss.terms)
        self.fabric.backward = timed(self.fabric.backward)
        self.stepper.step = timed(self.stepper.step)

    def counted(self: Any, *arguments: Any) -> None:
        sums.append(0.0)
        step(self, *arguments)

    LOOP.__init__, LOOP._step = init, counted
    return sums


class Bare:
    """A loop that only trains: batches lie in memory in the right layout."""

    def __init__(self, recipe: Recipe, layout: torch.memory_format = torch.channels_last):
        self.recipe, self.layout, sources = recipe, layout, open_sources(recipe)
        slices = training_slices(recipe, sources)
        self.batches = [[self.ready(b) for b in slices.epoch(e)] for e in range(recipe.train.epochs)]
        self.validation = [self.ready(batch) for batch in validation_slices(recipe, sources).epoch(0)]
        self.network, self.loss, self.adam = parts(recipe, len(sources.channels), len(sources.classes))
        self.network.to(memory_format=layout)  # pyright: ignore[reportCallIssue]  # torch's stub wants it last

    def ready(self, batch: Any) -> tuple[Tensor, Tensor]:
        return batch.image.to(memory_format=self.layout), batch.target

    def step(self, epoch: int, number: int) -> None:
        self.network.train()
        image, target = self.batches[epoch][number]
        self.adam.zero_grad()
        self.loss(self.network(image), target).backward()
        self.adam.step()

    def end(self, epoch: int) -> None:
        self.network.eval()
        with torch.no_grad():
            for image, _ in self.validation:
                self.network(image)


class Released:
    """The released trainer's habits, with today's libraries and our network and loss."""

    def __init__(self, recipe: Recipe, folder: Path):
        import h5py

        self.recipe, self.folder, sources = recipe, folder, open_sources(recipe)
        for case in (*sources.train, *sources.validation):
            with h5py.File(folder / f"{case.id}.h5", "w") as file:
                file["img"] = case.read("image")[:, 0]
                file["mask"] = case.read("labels")[:, 0]
        self.train = [(case.id, index) for case in sources.train for index in range(case.shape[0])]
        self.valid = [(case.id, index) for case in sources.validation for index in range(case.shape[0])]
        self.classes, self.frame = len(sources.classes), sources.frame
        self.sums = np.zeros((3, self.classes))
        self.network, self.loss, self.adam = parts(recipe, len(sources.channels), self.classes)

    def batch(self, chosen: list[tuple[str, int]]) -> tuple[Tensor, Tensor]:
        import h5py

        from calibseg.data.slices import padded

        images, masks = [], []
        for id, index in chosen:
            with h5py.File(self.folder / f"{id}.h5", "r") as file:
                images.append(file["img"][:][index][None])  # type: ignore[index]
                masks.append(file["mask"][:][index])  # type: ignore[index]
        image = torch.from_numpy(padded(images, 1, self.frame, 0, np.float32))
        return image, torch.from_numpy(padded(masks, 1, self.frame, -100, np.int64))

    def metrics(self, logits: Tensor, target: Tensor) -> None:
        predicted = torch.softmax(logits.detach(), 1).argmax(1).cpu().numpy()
        labels = target.cpu().numpy()
        for one, truth in zip(predicted, labels, strict=True):
            common = one[one == truth]
            self.sums[0] += np.histogram(common, self.classes, (0, self.classes))[0]
            self.sums[1] += np.histogram(one, self.classes, (0, self.classes))[0]
            self.sums[2] += np.histogram(truth, self.classes, (0, self.classes))[0]

    def step(self, epoch: int, number: int) -> None:
        size = self.recipe.train.batch_size
        order = np.random.default_rng(epoch).permutation(len(self.train))[number * size : (number + 1) * size]
        self.network.train()
        image, target = self.batch([self.train[index] for index in order])
        logits = self.network(image)
        loss = self.loss(logits, target)
        self.adam.zero_grad()
        loss.backward()
        self.adam.step()
        loss.item()
        self.metrics(logits, target)

    def end(self, epoch: int) -> None:
        size = self.recipe.train.batch_size
        self.network.eval()
        with torch.no_grad():
            for start in range(0, len(self.valid), size):
                image, target = self.batch(self.valid[start : start + size])
                self.metrics(self.network(image), target)
        for name in ("last", "best"):
            state = {"model": self.network.state_dict(), "optimizer": self.adam.state_dict(), "epoch": epoch}
            torch.save(state, self.folder / f"{name}.pth")


def parts(recipe: Recipe, channels: int, classes: int) -> tuple[torch.nn.Module, Any, torch.optim.Optimizer]:
    torch.manual_seed(recipe.seed)
    options = {"in_channels": channels, "num_classes": classes, **recipe.network.options}
    network = registry.build("networks", recipe.network.name, options)
    network.to(memory_format=torch.channels_last)
    loss = registry.build("losses", recipe.loss.name, dict(recipe.loss.options)).setup(classes)
    return network, loss, torch.optim.Adam(network.parameters(), recipe.train.learning_rate)


if __name__ == "__main__":
    main()
