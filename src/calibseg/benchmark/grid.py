r"""A grid of experiments: a recipe with an [axes] table. A plain recipe is a grid of one cell.

    title = "Two losses on two datasets"
    [train]                                       # the common part, exactly a recipe
    epochs = 30
    [axes]
    data = ["acdc", { dataset = "flare", train = { batch_size = 16 } }]
    loss = ["ce", { name = "focal", choices = { gamma = [2.0, 3.0] } }, { name = "mbls", margin = 5.0, label = "m5" }]
    seed = [0, 1, 2]
    calibrator = ["none", "temperature"]          # fitted in every cell
    noise = [0.0, 0.01]                           # every cell also predicts noisy test images
    "train.learning_rate" = [1e-3, 1e-4]          # any key of the recipe
    [select]                                      # of `choices` only the best on validation goes on
    by = "dsc"
    scope = "dataset"

A cell is one training run. An entry of `data`, `network`, `loss`, `train`, `augmentation` or `views` is a name or a
table, which extends the recipe's own table; a network or a loss of another name replaces it. Beside its options it may
hold `label`, what tables call it; `seeds`, its own; `choices`, lists of options to choose from; and tables of other
parts; an entry of `data` also `splits`, the folds that make up one result. An axis such as "loss.margin" multiplies the
cells whose loss has a margin and leaves the others alone. `extends = "paper/nacl-table1"` starts from another grid:
what a table says here stands in the place of what it says there, key by key; cells that both have are the same runs.

>>> grid = read_grid({"data": {"dataset": "phantom"}, "axes": {"loss": ["ce", "mbls"], "loss.margin": [5.0, 10.0]}})
>>> [(cell.label, dict(cell.recipe.loss.options)) for cell in grid.cells]
[('ce', {}), ('mbls margin=5', {'margin': 5.0}), ('mbls margin=10', {'margin': 10.0})]
>>> read_grid({"data": {"dataset": "phantom"}, "axes": {"los": ["ce"]}})
Traceback (most recent call last):
calibseg.core.types.BadInput: grid: no key named 'axes.los'. Did you mean 'axes.loss'? Known: ...
"""

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_origin, get_type_hints

from calibseg.benchmark.axes import METHOD, check_axis, drafts, extended, table_of, values_of
from calibseg.core import registry
from calibseg.core.coerce import coerce
from calibseg.core.files import read_toml, toml_text
from calibseg.core.types import BadInput
from calibseg.data.split_options import SplitOptions
from calibseg.runs.folders import BenchmarkFolder
from calibseg.runs.recipe import Recipe, change_table, read_recipe, read_table
from calibseg.runs.recipe_files import find_recipe
from calibseg.stages.calibrate.options import CalibrationOptions
from calibseg.stages.score.options import ScoringOptions


@dataclass(frozen=True)
class Cell:
    """One training run of a grid, and what is done with it afterwards.

    dataset, network, label: how tables call the data, the network and the method
    choice: where it is a candidate, the values that tell it from the others; the best of them goes on
    calibrators: "none" is the network's own confidence
    noises: sigma of noise on the test images; 0 is none
    """

    recipe: Recipe
    dataset: str
    network: str
    label: str
    choice: Mapping[str, Any] = field(default_factory=dict)
    calibrators: tuple[str, ...] = ("none",)
    noises: tuple[float, ...] = (0.0,)

    @property
    def slug(self) -> str:
        """The name of its folder: that of its recipe, so that a run made by hand counts and a label may change."""
        return self.recipe.slug

    @property
    def title(self) -> str:
        """For people: everything that tells cells apart."""
        parts = [self.dataset, self.network, self.label, f"s{self.recipe.seed}"]
        if self.recipe.data.split != "default":
            parts.append(self.recipe.data.split)
        return extended(" ".join(parts), self.choice)


def preparation(cell: Cell) -> tuple[Any, ...]:
    """What decides the prepared cases of a cell."""
    data = cell.recipe.data
    return data.dataset, data.options, data.protocol


@dataclass(frozen=True)
class Select:
    """How one of several candidates is chosen: by the best mean on validation.

    axis: axes whose values are candidates; the entries' own `choices` always are
    by: a metric, such as dsc, nll or ece@predicted
    scope: one choice for each dataset, or one for all of them
    """

    axis: list[str] | str = ""
    by: str = "dsc"
    scope: Literal["dataset", "all"] = "dataset"

    def __post_init__(self) -> None:
        metrics, metric = registry.members("metrics"), self.by.partition("@")[0]
        if metric not in metrics:
            raise BadInput(registry.unknown("metric", metric, list(metrics)))

    @property
    def axes(self) -> list[str]:
        return [self.axis] if isinstance(self.axis, str) and self.axis else list(self.axis)


@dataclass(frozen=True)
class Report:
    """What the report shows.

    paper: a packaged table of published values to stand beside ours
    metrics: to rank by; as `calibseg rank --metrics`
    """

    paper: str = ""
    metrics: tuple[str, ...] = ()


@dataclass(frozen=True)
class Grid:
    """All cells and what they have in common. `tables` is the file it came from, changes included."""

    title: str
    cells: tuple[Cell, ...]
    select: Select | None
    calibrate: CalibrationOptions
    score: ScoringOptions
    split: SplitOptions
    report: Report
    tables: Mapping[str, Any]

    def toml(self) -> str:
        """The grid as a file that `read_grid` reads back."""
        return toml_text(self.tables)


SETTINGS = {
    "select": Select,
    "calibrate": CalibrationOptions,
    "score": ScoringOptions,
    "split": SplitOptions,
    "report": Report,
}
DRAW = re.compile(r"train\d+-draw\d+")  # splits that differ in their training cases only, from `default` too
CHANGED = ("axes", *SETTINGS)  # what --set changes in the grid itself; all else it changes in every cell


def read_grid(source: str | Path | Mapping[str, Any], changes: Sequence[str] = ()) -> Grid:
    """A grid by name, path or content. Changes such as `train.epochs=3` come last, whatever an entry says."""
    name, tables = ("grid", source) if isinstance(source, Mapping) else _read(find_recipe(source))
    content = {key: dict(value) if isinstance(value, Mapping) else value for key, value in tables.items()}
    try:
        content = _extended(content)
        for change in changes:
            if change.split(".")[0] in CHANGED or change.startswith("title="):
                change_table(content, change)
            else:
                content["changes"] = [*content.get("changes", []), change]
        return _grid(content)
    except BadInput as error:
        raise BadInput(f"{name}: {error}") from None


def _read(path: Path) -> tuple[str, dict[str, Any]]:
    return str(path), read_toml(path)


def _extended(tables: dict[str, Any], seen: tuple[str, ...] = ()) -> dict[str, Any]:
    """The tables of the grid that this one extends, with its own keys in the place of theirs."""
    if "extends" not in tables:
        return tables
    where, base = _read(find_recipe(coerce("extends", tables.pop("extends"), str)))
    if where in seen:
        raise BadInput(f"extends goes round in a circle: {' -> '.join((*seen, where))}")
    merged = _extended(base, (*seen, where))
    for name, value in tables.items():
        both = isinstance(value, Mapping) and isinstance(merged.get(name), Mapping)
        merged[name] = {**merged[name], **value} if both else value
    return merged


def _grid(tables: Mapping[str, Any]) -> Grid:
    common = dict(tables)
    title = coerce("title", common.pop("title", ""), str)
    changes = coerce("changes", common.pop("changes", []), list[str])
    settings: dict[str, Any] = {name: _settings(name, common) for name in SETTINGS if name in common}
    common = {key: value for key, value in common.items() if key not in SETTINGS}
    axes = table_of("axes", common)
    common.pop("axes", None)
    for name in axes:
        check_axis(name)
    cells = _cells(common, axes, settings.get("select"), changes)
    _check_unlike(cells)
    return Grid(
        title,
        tuple(cells),
        settings.get("select"),
        settings.get("calibrate", CalibrationOptions()),
        settings.get("score", ScoringOptions()),
        settings.get("split", SplitOptions()),
        settings.get("report", Report()),
        tables,
    )


def _cells(
    common: Mapping[str, Any], axes: Mapping[str, Any], select: Select | None, changes: Sequence[str]
) -> list[Cell]:
    """All combinations; the first seed of every method comes before the second of any."""
    calibrators = values_of("calibrator", axes, ["none"])
    _check_calibrators(calibrators)
    noises = values_of("noise", axes, [0.0])
    if not all(0 <= noise < math.inf for noise in noises):
        raise BadInput(f"axes.noise = {list(noises)} must be numbers of at least 0")
    seeds = values_of("seed", axes, [common.get("seed", 0)])
    numbered: list[tuple[int, Cell]] = []
    for draft in drafts(common, axes, select.axes if select else None):
        for index, seed in enumerate(draft.seeds or seeds):
            try:
                recipe = read_recipe({**draft.tables, "seed": seed}, changes)
            except BadInput as error:
                raise BadInput(str(error).removeprefix("recipe: ")) from None
            method = f"{draft.shown('loss')} {draft.names.get(METHOD, '')}".strip()
            names = draft.shown("data"), draft.shown("network"), method
            numbered.append((index, Cell(recipe, *names, draft.choice, calibrators, noises)))
    for name in select.axes if select else ():
        if not any(name in cell.choice for _, cell in numbered):
            raise BadInput(f"select.axis = {name!r} is neither an axis nor among the choices of an entry")
    return [cell for _, cell in sorted(numbered, key=lambda pair: pair[0])]


def _check_calibrators(names: Sequence[str]) -> None:
    choices = ["none", *registry.members("calibrators")]
    for name in names:
        if name == "chosen":
            raise BadInput(
                "calibrator = 'chosen': a grid compares the calibrators it names, each under its own name; calibseg "
                f"score RUN --calibrator chosen takes the one that validation prefers. Known: {', '.join(choices)}"
            )
        if name not in choices and not name.endswith(".py"):
            raise BadInput(registry.unknown("calibrator", name, choices))


def _check_unlike(cells: Sequence[Cell]) -> None:
    """No run twice, no two results under one name, no two preparations in one folder."""
    runs: dict[str, Cell] = {}
    names: dict[tuple[Any, ...], Cell] = {}
    data: dict[str, tuple[Any, Cell]] = {}
    folders: dict[str, Cell] = {}
    for cell in cells:
        earlier = runs.setdefault(cell.slug, cell)
        if earlier is not cell:
            raise BadInput(f"two cells are the same run: {earlier.title!r} and {cell.title!r}")
        split = cell.recipe.data.split
        tested = "default" if DRAW.fullmatch(split) else split
        shown = (cell.dataset, cell.network, cell.label, cell.recipe.seed, tested)
        earlier = names.setdefault((*shown, json.dumps(dict(cell.choice))), cell)
        if earlier.recipe.data.split != split:
            raise BadInput(
                f"{earlier.title!r} and {cell.title!r} test the same cases under one name and seed: give the entry of"
                " each draw `seeds` of its own, or a `label`"
            )
        if earlier is not cell:
            raise BadInput(f"two different cells are called {cell.title!r}: give their entries a `label`")
        source = (*preparation(cell), cell.recipe.data.work)
        before, _ = data.setdefault(cell.dataset, (source, cell))
        if before != source:
            raise BadInput(f"two different preparations are called {cell.dataset!r}: give their entries a `label`")
        if not cell.recipe.data.work:
            _check_folder(cell, folders.setdefault(BenchmarkFolder(Path()).work(cell.dataset).name, cell))


def _check_folder(cell: Cell, earlier: Cell) -> None:
    """Two labels may differ only in signs that the name of a folder cannot have."""
    if preparation(earlier) != preparation(cell):
        raise BadInput(
            f"{earlier.dataset!r} and {cell.dataset!r} would be prepared in one folder, since names of folders have"
            " plain letters and digits: give one of them another `label`"
        )


def _settings(name: str, tables: Mapping[str, Any]) -> Any:
    """One of the tables beside the recipe. A list of names may be one text, comma-separated as on the command line."""
    hints = get_type_hints(SETTINGS[name])
    table = {
        key: [word.strip() for word in value.split(",") if word.strip()]
        if isinstance(value, str) and get_origin(hints.get(key)) is tuple
        else value
        for key, value in table_of(name, tables).items()
    }
    return SETTINGS[name](**read_table(name, table, hints))
