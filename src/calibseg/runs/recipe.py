r"""The experiment as a short strict TOML file; what it leaves out is the papers' protocol.

    seed = 0
    [data]
    dataset = "hippocampus"           # a key of `calibseg list datasets`, prepared in work/hippocampus
    [network]
    name = "unet"                     # and its own options, e.g. width = 16
    [loss]
    name = "nacl"                     # and its own options
    weight = 0.1
    [train]
    epochs = 30

A key that does not exist or a value of the wrong type is an error that names the place. `--set loss.weight=0.3` changes
one value. A recipe is a path, or the name of one that is packaged: `cpu/hippocampus-nacl`.

>>> recipe = read_recipe({"data": {"dataset": "phantom"}, "loss": {"name": "nacl"}}, ["loss.weight=0.3", "seed=1"])
>>> recipe.slug, recipe.loss.options, recipe.train.epochs
('phantom-unet-nacl-s1-...', {'weight': 0.3}, 100)
>>> read_recipe({"data": {"dataset": "phantom"}, "train": {"epoch": 5}})
Traceback (most recent call last):
calibseg.core.types.BadInput: recipe: no key named 'train.epoch'. Did you mean 'train.epochs'? Known: ...
"""

import ast
import contextlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal, get_type_hints

from calibseg.core import plugins, registry
from calibseg.core.coerce import coerce, type_named
from calibseg.core.files import parse_toml, read_toml, toml_text
from calibseg.core.hashing import by_content, file_fingerprint, fingerprint
from calibseg.core.options import at_least, seed_number, whole_number
from calibseg.core.types import BadInput
from calibseg.data.augmentation import OFF, VIEWS, Augmentation
from calibseg.runs.folders import RunFolder
from calibseg.runs.recipe_files import find_recipe


@dataclass(frozen=True)
class Data:
    """What is learnt from.

    dataset: a dataset's key
    work: the folder of its prepared cases; work/DATASET by default
    split: which of its splits
    target: the first rater, a random one each time, the raters' mean, or the phantom's true probabilities
    keep: train on all slices, or only on those in which something is labelled
    options: options of the dataset that it must have been prepared with
    protocol: fields of the protocol that it must have been prepared with
    """

    dataset: str
    work: str = ""
    split: str = "default"
    target: Literal["first", "random", "mean", "truth"] = "first"
    keep: Literal["all", "foreground"] = "all"
    options: dict[str, Any] = field(default_factory=dict)
    protocol: dict[str, Any] = field(default_factory=dict)

    @property
    def folder(self) -> Path:
        return Path(self.work or f"work/{self.dataset}")


@dataclass(frozen=True)
class ComponentSpec:
    """A member of a family by name, and its own options."""

    name: str
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Train:
    """How it is trained.

    epochs: passes over the training slices, or of `steps_per_epoch` steps each
    batch_size: slices in a step, over all processes together
    steps_per_epoch: steps until validation is looked at, however many slices there are; 0: one pass over them
    optimiser: Adam as in the papers, AdamW, or SGD with Nesterov momentum 0.99 as in nnU-Net
    learning_rate: until `drop_at`
    drop_at: share of the epochs after which the learning rate is multiplied by `drop_by`
    weight_decay: of the optimiser
    clip_norm: largest norm of the gradient; 0 leaves it alone
    select: keep the epoch of the best pooled foreground mIoU, mean DSC of cases, or NLL on validation; or the last one
    precision: of the network's arithmetic
    memory_format: of images and weights; channels_last is the faster one for convolutions
    compile: whether torch.compile makes kernels for the network
    workers: threads that read ahead; they change nothing but the time
    save_minutes: within a long epoch the state is saved this often
    """

    epochs: int = 100
    batch_size: int = 16
    steps_per_epoch: int = 0
    optimiser: Literal["adam", "adamw", "sgd"] = "adam"
    learning_rate: float = 1e-3
    drop_at: float = 0.5
    drop_by: float = 0.1
    weight_decay: float = 0.0
    clip_norm: float = 0.0
    select: Literal["miou", "dsc", "nll", "last"] = "miou"
    precision: Literal["32", "bf16-mixed", "16-mixed"] = "32"
    memory_format: Literal["channels_last", "contiguous"] = "channels_last"
    compile: Literal["off", "default"] = "off"
    workers: int = 1
    save_minutes: float = 10.0

    def __post_init__(self) -> None:
        for name, low in (("epochs", 1), ("batch_size", 1), ("steps_per_epoch", 0), ("workers", 0)):
            whole_number(f"train.{name}", getattr(self, name), low)
        for name in ("learning_rate", "drop_by", "weight_decay", "clip_norm", "save_minutes", "drop_at"):
            at_least(f"train.{name}", getattr(self, name), 0)

    def rate(self, epoch: int) -> float:
        """The learning rate of an epoch, counted from 0: all that a scheduler would have to remember."""
        return self.learning_rate * (1 if epoch < math.ceil(round(self.drop_at * self.epochs, 9)) else self.drop_by)


@dataclass(frozen=True)
class Recipe:
    """One training run.

    seed: initialisation, order and augmentation; never the split
    augmentation: of every training slice
    views: how the views differ that a loss such as bwcr compares; other losses do not look at it
    """

    data: Data
    network: ComponentSpec = ComponentSpec("unet")
    loss: ComponentSpec = ComponentSpec("ce")
    train: Train = Train()
    augmentation: Augmentation = OFF
    views: Augmentation = VIEWS
    seed: int = 0

    def __post_init__(self) -> None:
        seed_number("seed", self.seed)
        if self.loss.options.get("activation") == "sigmoid":
            raise BadInput("loss.activation = 'sigmoid' is for channels that overlap; a softmax is trained here")

    @property
    def fingerprint(self) -> str:
        """Of everything that decides the result: where files lie and how fast they are read does not."""
        tables = self.as_dict()
        for part, name in (("data", "work"), ("train", "workers"), ("train", "save_minutes")):
            del tables[part][name]
        if not self.train.steps_per_epoch:  # runs that were made before it could be said are the same runs
            del tables["train"]["steps_per_epoch"]
        for part, family in FAMILIES.items():
            weights = registry.find(family, tables[part]["name"]).facts.get("only_to_start", ())
            for key, value in tables[part].items():
                if key in weights and value is not None and Path(value).is_file():
                    tables[part][key] = file_fingerprint(Path(value))
                else:
                    tables[part][key] = by_content(value)
        return fingerprint(tables, size=4)

    @property
    def slug(self) -> str:
        """A name for a folder: what was trained on what, which seed, and the hash."""
        names = (self.data.dataset, self.network.name, self.loss.name)
        return "-".join([*(Path(name).stem for name in names), f"s{self.seed}", self.fingerprint])

    def as_dict(self) -> dict[str, Any]:
        """Tables as TOML has them: [network] and [loss] hold the name and the options side by side."""
        tables = asdict(self)
        for part in FAMILIES:
            tables[part] = {"name": tables[part]["name"], **tables[part]["options"]}
        return tables

    def resolved(self) -> dict[str, Any]:
        """The same with every option of the network and the loss, as their sources state the defaults."""
        tables = self.as_dict()
        for part, family in FAMILIES.items():
            for option in registry.find(family, tables[part]["name"]).options:
                if option.name not in GIVEN:
                    with contextlib.suppress(ValueError):  # required, or an expression: known only by running it
                        tables[part].setdefault(option.name, ast.literal_eval(option.default))
        return tables

    def toml(self) -> str:
        """The recipe as a file that `read_recipe` reads back."""
        return toml_text(self.as_dict())


FAMILIES = {"network": "networks", "loss": "losses"}
PARTS = {"data": Data, "train": Train, "augmentation": Augmentation, "views": Augmentation}


def read_recipe(source: str | Path | Mapping[str, Any], changes: Sequence[str] = ()) -> Recipe:
    """A recipe by name, path or content, with single values changed: `train.epochs=3`."""
    where, tables = "recipe", source
    if not isinstance(source, Mapping):
        path = find_recipe(source)
        where, tables = str(path), read_toml(path)
    assert isinstance(tables, Mapping)
    recipe = {key: dict(value) if isinstance(value, Mapping) else value for key, value in tables.items()}
    texts = [change_table(recipe, change) for change in changes]
    plugins.allow(*(text for _, text in texts))
    values = [option for part in recipe.values() if isinstance(part, dict) for option in part.values()]
    if not isinstance(source, Mapping) and RunFolder(Path(where).parent).info.is_file():
        plugins.refuse_code(where, *values)
    else:
        plugins.allow(*values)  # the user's own recipe
    try:
        return _recipe(recipe, dict(texts))
    except BadInput as error:
        raise BadInput(f"{where}: {error}") from None


def change_table(tables: dict[str, Any], change: str) -> tuple[str, str]:
    """Put one `table.key=value` into the tables; return its path and its text."""
    path, equals, text = change.partition("=")
    *parts, key = path.strip().split(".")
    if not equals or not key or len(parts) > 1:
        raise BadInput(f"--set {change!r} is not KEY=VALUE such as loss.weight=0.3 or seed=1")
    table = tables
    for part in parts:
        table = table.setdefault(part, {})
        if not isinstance(table, dict):
            raise BadInput(f"--set {change!r}: {part!r} is no table")
    try:
        read = parse_toml(f"value = {text}")
        table[key] = read["value"] if len(read) == 1 else text  # a line break may begin another key
    except (ValueError, RecursionError):
        table[key] = text
    return path.strip(), text


def read_table(
    name: str, table: Mapping[str, Any], hints: Mapping[str, Any], texts: Mapping[str, str] = {}, kind: str = "key"
) -> dict[str, Any]:
    """The values of a table, each as the type of its key wants it; a key that is not among `hints` is refused.

    texts: how values were typed that come from --set, by `table.key`
    """
    for key in table:
        if key not in hints:
            raise BadInput(registry.unknown(kind, f"{name}.{key}", [f"{name}.{known}" for known in hints]))
    return {key: coerce(f"{name}.{key}", value, hints[key], texts.get(f"{name}.{key}")) for key, value in table.items()}


def _recipe(tables: dict[str, Any], texts: Mapping[str, str]) -> Recipe:
    for key, reason in (("axes", "has [axes]"), ("extends", "extends a grid")):
        if key in tables:
            raise BadInput(f"{reason}, so it is a grid of several runs: give it to   calibseg benchmark")
    keys = [item.name for item in fields(Recipe)]
    built: dict[str, Any] = {}
    for name, value in {"data": {}, **tables}.items():
        if name not in keys:
            raise BadInput(registry.unknown("key", name, keys))
        if name == "seed":
            built[name] = coerce("seed", value, int, texts.get("seed"))
        elif not isinstance(value, Mapping):
            raise BadInput(f"{name} = {value!r} must be a table: [{name}]")
        else:
            built[name] = (_component if name in FAMILIES else _part)(name, value, texts)
    return Recipe(**built)


def _part(name: str, table: Mapping[str, Any], texts: Mapping[str, str]) -> Any:
    kind = PARTS[name]
    values = read_table(name, table, get_type_hints(kind), texts)
    if kind is Data:
        if "dataset" not in values:
            raise BadInput("data.dataset is missing: say which dataset to train on")
        registry.find("datasets", values["dataset"])
    # [views] says what differs from its own defaults, not from "nothing"
    return replace(Recipe.views, **values) if name == "views" else kind(**values)


def _component(part: str, table: Mapping[str, Any], texts: Mapping[str, str]) -> ComponentSpec:
    default: ComponentSpec = getattr(Recipe, part)
    name = coerce(f"{part}.name", table.get("name", default.name), str, texts.get(f"{part}.name"))
    member = registry.find(FAMILIES[part], name)
    known = {option.name: type_named(option.type) for option in member.options if option.name not in GIVEN}
    hints = {"name": str, **known} if known else dict.fromkeys(table, Any)  # none known: a member without a source
    values = read_table(part, table, hints, texts, f"key of the {part} {member.key!r}")
    return ComponentSpec(name, {key: value for key, value in values.items() if key != "name"})


GIVEN = ("in_channels", "num_classes", "ignore_index")  # the data decide these, not the recipe
