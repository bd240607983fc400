"""The prepared cases that a recipe names, checked, and the batches that a run takes from them."""

import json
from dataclasses import dataclass
from typing import Any

from calibseg.core import registry
from calibseg.core.types import BadInput, Split
from calibseg.data import prepared
from calibseg.data.preprocessing import protocol_field
from calibseg.data.slices import Size, Slices, largest
from calibseg.data.splits import check_split, require_validation
from calibseg.runs.recipe import Recipe


@dataclass(frozen=True)
class Sources:
    """What a run works with."""

    classes: tuple[str, ...]
    channels: tuple[str, ...]
    split: Split
    train: tuple[prepared.PreparedCase, ...]
    validation: tuple[prepared.PreparedCase, ...]
    regions: dict[str, list[int]]
    protocol: dict[str, Any]  # what a scan goes through before the network sees it
    select: list[int] | None = None  # which channels of a file that holds more of them

    @property
    def frame(self) -> Size:
        """The size that every batch is padded to, in training and after."""
        return largest(self.train)

    @property
    def fingerprint(self) -> str:
        """Of all that the training and validation cases were made from."""
        train, validation = ({case.id: case.fingerprint for case in cases} for cases in (self.train, self.validation))
        return prepared.training_fingerprint(train, validation)


def open_sources(recipe: Recipe) -> Sources:
    """Find the prepared cases and the split that a recipe names, and check that they are what it asks for."""
    data, folder = recipe.data, recipe.data.folder
    if not prepared.has_index(folder):
        raise BadInput(f"{folder}: no prepared data; run   {how_to_prepare(recipe)}")
    index = prepared.read_index(folder)
    if index["dataset"] != registry.find("datasets", data.dataset).key:
        raise BadInput(f"{folder}: holds the dataset {index['dataset']!r}, the recipe asks for {data.dataset!r}")
    for part in ("options", "protocol"):
        for name, value in getattr(data, part).items():
            prepared_with = index[part].get(name)
            expected = protocol_field(name, value) if part == "protocol" else value
            if json.loads(json.dumps(expected)) != prepared_with:
                raise BadInput(
                    f"{folder}: was prepared with {name} = {prepared_with!r}, the recipe's data.{part} has {value!r}; "
                    f"prepare it again:   {how_to_prepare(recipe)}"
                )
    names = prepared.split_names(folder)
    if data.split not in names:
        choices = ", ".join(names) or f"none; run   calibseg split {folder}"
        raise BadInput(f"{folder}: no split named {data.split!r}. Known: {choices}")
    split = prepared.read_split(folder, data.split)
    check_split(split, {entry["id"]: entry["patient"] for entry in index["cases"]})
    if recipe.train.select != "last":
        require_validation(split, f"train.select = {recipe.train.select!r}")
    if "observe" in registry.find("losses", recipe.loss.name).facts["methods"]:
        require_validation(split, f"the loss {recipe.loss.name!r}, which learns from them,")
    train, validation = (prepared.open_cases(folder, ids) for ids in (split.train, split.validation))
    names = tuple(index["classes"]), tuple(index["channels"])
    return Sources(*names, split, train, validation, index["regions"], index["protocol"], index.get("select"))


def training_slices(recipe: Recipe, sources: Sources, rank: int = 0, world: int = 1) -> Slices:
    """The training batches of one of `world` processes; together they see `train.batch_size` slices in a step."""
    return Slices(
        sources.train,
        recipe.train.batch_size // world,
        steps=recipe.train.steps_per_epoch,
        seed=recipe.seed,
        keep=recipe.data.keep,
        target=recipe.data.target,
        at_least=sources.frame,
        augmentation=recipe.augmentation,
        workers=recipe.train.workers,
        rank=rank,
        world=world,
    )


def validation_slices(recipe: Recipe, sources: Sources) -> Slices:
    """Every validation slice once, in order.

    A random rater is a moving target: where one trains with it, what an epoch is worth is judged by all raters.
    """
    target = "mean" if recipe.data.target == "random" else recipe.data.target
    return Slices(
        sources.validation,
        recipe.train.batch_size,
        seed=recipe.seed,
        order="as given",
        target=target,
        at_least=sources.frame,
        workers=recipe.train.workers,
    )


def how_to_prepare(recipe: Recipe) -> str:
    """The commands that make what a recipe needs."""
    data = recipe.data
    needs_root = registry.find("datasets", data.dataset).facts.get("needs_root", True)
    arguments = [f"calibseg prepare --dataset {data.dataset}", "--root RAW_FOLDER" if needs_root else ""]
    arguments += [f"--option '{name}={json.dumps(value)}'" for name, value in data.options.items()]
    arguments += [f"--protocol '{name}={json.dumps(value)}'" for name, value in data.protocol.items()]
    return " ".join(filter(None, [*arguments, f"-o {data.folder} && calibseg split {data.folder}"]))
