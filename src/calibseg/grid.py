r"""A grid of experiments: a recipe with an [axes] table. A plain recipe is a grid of one cell.

    title = "Two losses on two datasets"
    [train]                                       # the common part, exactly a recipe
    epochs = 30
    [axes]
    data = ["acdc", { dataset = "flare", train = { batch_size = 16 } }]
    loss = ["ce", { name = "fl", choices = { gamma = [1.0, 2.0, 3.0] } }, { name = "mbls", margin = 5.0, label = "m5" }]
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
parts. An axis such as "loss.margin" multiplies the cells whose loss has a margin and leaves the others alone.

>>> grid = read_grid({"data": {"dataset": "phantom"}, "axes": {"loss": ["ce", "mbls"], "loss.margin": [5.0, 10.0]}})
>>> [(cell.label, dict(cell.recipe.loss.options)) for cell in grid.cells]
[('ce', {}), ('mbls margin=5', {'margin': 5.0}), ('mbls margin=10', {'margin': 10.0})]
>>> read_grid({"data": {"dataset": "phantom"}, "axes": {"los": ["ce"]}})
Traceback (most recent call last):
calibseg.types.BadInput: grid: no key named 'axes.los'. Did you mean 'axes.loss'? Known: ...
"""

import itertools
import json
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal, get_type_hints

from calibseg import registry
from calibseg.recipe import FAMILIES, PARTS, Recipe, change_table, find_recipe, read_recipe
from calibseg.strict import fitting, toml_key, toml_value
from calibseg.types import BadInput

NAMED = {"data": "dataset", "network": "name", "loss": "name"}  # parts that an axis may give as a bare name
TABLES = ("data", "network", "loss", "train", "augmentation", "views")
OWN = ("label", "seeds", "choices")  # keys of an entry that are no options
UNNAMED = ("data.split",)  # axes under which results are put together: folds of one dataset


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
        return " ".join([*parts, *(f"{key.split('.')[-1]}={_text(value)}" for key, value in self.choice.items())])


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

    @property
    def axes(self) -> list[str]:
        return [self.axis] if isinstance(self.axis, str) and self.axis else list(self.axis)


@dataclass(frozen=True)
class Scoring:
    """How results are scored: the options of `calibseg score`."""

    voxels: str = "truth,predicted,all"
    metrics: str = ""
    bins: int = 15
    cece: Literal["all", "released"] = "all"
    empty: Literal["nan", "worst", "released"] = "nan"
    units: Literal["mm", "voxel"] = "mm"
    boundary_mm: float = 5.0


@dataclass(frozen=True)
class Splitting:
    """How prepared cases are split: the options of `calibseg split`; without any, the dataset's own rule."""

    sizes: tuple[float, float, float] | None = None
    folds: int = 0
    leave_one_out: bool = False
    validation: int = 0
    split_seed: int = 0


@dataclass(frozen=True)
class Report:
    """What the report shows.

    paper: a packaged table of published values to stand beside ours
    metrics: to rank by; as `calibseg rank --metrics`
    """

    paper: str = ""
    metrics: str = ""


@dataclass(frozen=True)
class Grid:
    """All cells and what they have in common. `tables` is the file it came from, changes included."""

    title: str
    cells: tuple[Cell, ...]
    select: Select | None
    score: Scoring
    split: Splitting
    report: Report
    tables: Mapping[str, Any]

    def toml(self) -> str:
        """The grid as a file that `read_grid` reads back."""
        plain = {key: value for key, value in self.tables.items() if not isinstance(value, Mapping)}
        lines = [f"{toml_key(key)} = {toml_value(value)}" for key, value in plain.items()]
        for name, table in self.tables.items():
            if name not in plain:
                lines += ["", f"[{name}]", *(f"{toml_key(key)} = {toml_value(item)}" for key, item in table.items())]
        return "\n".join(lines).lstrip() + "\n"


SETTINGS = {"select": Select, "score": Scoring, "split": Splitting, "report": Report}
CHANGED = ("axes", *SETTINGS)  # what --set changes in the grid itself; all else it changes in every cell


def read_grid(source: str | Path | Mapping[str, Any], changes: Sequence[str] = ()) -> Grid:
    """A grid by name, path or content. Changes such as `train.epochs=3` come last, whatever an entry says."""
    where, tables = "grid", source
    if not isinstance(source, Mapping):
        path = find_recipe(source)
        where = str(path)
        try:
            tables = tomllib.loads(path.read_text(encoding="utf-8"))
        except ValueError as error:
            raise BadInput(f"{path}: not TOML: {error}") from error
    assert isinstance(tables, Mapping)
    told = {key: dict(value) if isinstance(value, Mapping) else value for key, value in tables.items()}
    try:
        for change in changes:
            if change.split(".")[0] in CHANGED or change.startswith("title="):
                change_table(told, change)
            else:
                told["changes"] = [*told.get("changes", []), change]
        return _grid(told)
    except BadInput as error:
        raise BadInput(f"{where}: {error}") from None


def _grid(tables: Mapping[str, Any]) -> Grid:
    common = dict(tables)
    title = fitting("title", common.pop("title", ""), str)
    changes = fitting("changes", common.pop("changes", []), list[str])
    given = {name: _settings(name, common.pop(name)) for name in SETTINGS if name in common}
    axes = _table("axes", common.pop("axes", {}))
    select = given.get("select")
    for name in axes:
        _check_axis(name)
    calibrators = tuple(_list("calibrator", axes, ["none"], str))
    for name in calibrators:
        if name != "none" and not name.endswith(".py"):
            known = registry.members("calibrators") if "calibrators" in registry.families() else {}
            if name not in known:
                raise BadInput(registry.unknown("calibrator", name, ["none", *known]))
    noises = tuple(_list("noise", axes, [0.0], float))
    if min(noises) < 0:
        raise BadInput(f"axes.noise = {list(noises)} must be numbers of at least 0")
    cells = [
        replace(cell, calibrators=calibrators, noises=noises) for cell in _cells(common, axes, select, list(changes))
    ]
    _check_unlike(cells)
    return Grid(
        title,
        tuple(cells),
        select,
        given.get("score", Scoring()),
        given.get("split", Splitting()),
        given.get("report", Report()),
        tables,
    )


@dataclass(frozen=True)
class _Draft:
    """A cell to be: the recipe's tables, names, what was added to them, and values that are to be chosen among."""

    tables: Mapping[str, Any]
    names: Mapping[str, str]
    choice: Mapping[str, Any] = field(default_factory=dict)
    seeds: tuple[int, ...] | None = None


def _cells(
    common: Mapping[str, Any], axes: Mapping[str, Any], select: Select | None, changes: Sequence[str]
) -> list[Cell]:
    """All combinations; the first seed of every method comes before the second of any."""
    drafts = [_Draft(common, {})]
    for part in TABLES:
        if part in axes:
            entries = _entries(part, _listed(part, axes[part]), select is not None)
            drafts = [after for draft in drafts for _, entry in entries for after in _applied(draft, part, entry)]
    chosen = set(select.axes if select else ())
    for name in axes:
        if "." in name:
            drafts = _multiplied(drafts, name, _listed(name, axes[name]), name in chosen)
    seeds = _list("seed", axes, [common.get("seed", 0)], int)
    found = []
    for draft in drafts:
        for place, seed in enumerate(draft.seeds or seeds):
            found.append((place, _cell(draft, seed, changes)))
    for name in chosen:
        if not any(name in cell.choice for _, cell in found):
            raise BadInput(f"select.axis = {name!r} is neither an axis nor among the choices of an entry")
    return [cell for _, cell in sorted(found, key=lambda pair: pair[0])]


def _cell(draft: _Draft, seed: int, changes: Sequence[str]) -> Cell:
    try:
        recipe = read_recipe({**draft.tables, "seed": seed}, changes)
    except BadInput as error:
        raise BadInput(str(error).removeprefix("recipe: ")) from None
    names = {"data": recipe.data.dataset, "network": recipe.network.name, "loss": recipe.loss.name}
    names = {part: draft.names.get(part, Path(name).stem) for part, name in names.items()}
    added = draft.names.get("")
    method = names["loss"] + (f" {added}" if added else "")
    return Cell(recipe, names["data"], names["network"], method, draft.choice)


def _entries(part: str, entries: list[Any], selecting: bool) -> list[tuple[str, dict[str, Any]]]:
    """Every entry as a table with a label of its own, `choices` spread out unless one of them is selected later."""
    found: list[tuple[str, dict[str, Any]]] = []
    tables = [_entry(part, entry, place) for place, entry in enumerate(entries)]
    names = [_name(part, table) for table in tables]
    for table, name in zip(tables, names, strict=True):
        label = table.get("label") or name
        if "label" not in table and (names.count(name) > 1 or part not in NAMED):
            label = _with(label, {key: value for key, value in table.items() if key not in (*OWN, NAMED.get(part))})
        for values in _combinations(part, table.get("choices", {})):
            one = {**table, "label": label if selecting else _with(label, values), "choices": values}
            found.append((one["label"], one))
    return found


def _entry(part: str, entry: Any, place: int) -> dict[str, Any]:
    where = f"axes.{part}[{place}]"
    if isinstance(entry, str) and part in NAMED:
        entry = {NAMED[part]: entry}
    if not isinstance(entry, Mapping):
        raise BadInput(f"{where} = {entry!r} must be {'a name or ' if part in NAMED else ''}a table")
    table = dict(entry)
    if "label" in table:
        fitting(f"{where}.label", table["label"], str)
    if "seeds" in table:
        fitting(f"{where}.seeds", table["seeds"], list[int])
    for key, value in _table(f"{where}.choices", table.get("choices", {})).items():
        if not isinstance(value, list) or not value:
            raise BadInput(f"{where}.choices.{key} = {value!r} must be a list of values to choose from")
    return table


def _name(part: str, table: Mapping[str, Any]) -> str:
    return Path(str(table.get(NAMED.get(part, ""), ""))).stem


def _combinations(part: str, choices: Mapping[str, list[Any]]) -> Iterator[dict[str, Any]]:
    """{"gamma": [1, 2]} -> {"loss.gamma": 1}, {"loss.gamma": 2}; {} -> {}."""
    keys = [key if "." in key else f"{part}.{key}" for key in choices]
    for values in itertools.product(*choices.values()):
        yield dict(zip(keys, values, strict=True))


def _applied(draft: _Draft, part: str, entry: Mapping[str, Any]) -> Iterator[_Draft]:
    """The draft with an entry of an axis in it."""
    tables = dict(draft.tables)
    options = {key: value for key, value in entry.items() if key not in OWN}
    others = {key: options.pop(key) for key in TABLES if key != part and key in options}
    before = _table(part, tables.get(part, {}))
    same = options.get("name", before.get("name")) == before.get("name", _default_name(part))
    tables[part] = {**before, **options} if part not in FAMILIES or same else options
    for name, table in others.items():
        tables[name] = {**_table(name, tables.get(name, {})), **_table(f"axes.{part}.{name}", table)}
    for path, value in entry["choices"].items():
        _put(tables, path, value)
    names = _named(draft.names, part if part in NAMED else "", entry["label"], part not in NAMED)
    seeds = tuple(entry["seeds"]) if "seeds" in entry else draft.seeds
    yield _Draft(tables, names, {**draft.choice, **entry["choices"]}, seeds)


def _multiplied(drafts: list[_Draft], axis: str, values: list[Any], chosen: bool) -> list[_Draft]:
    """Every draft that has this key, once for each value; the others as they are."""
    part, key = axis.split(".", 1)
    found: list[_Draft] = []
    having = [draft for draft in drafts if _has(draft, part, key)]
    for draft in drafts:
        if having and draft not in having:
            found.append(draft)
            continue
        for value in values:
            tables = dict(draft.tables)
            _put(tables, axis, value)
            if chosen:
                found.append(replace(draft, tables=tables, choice={**draft.choice, axis: value}))
                continue
            names = draft.names
            if axis not in UNNAMED:
                column = part if part == "network" or axis in ("data.options", "data.protocol") else ""
                first = names.get(column) or (_own_name(draft, column) if column else "")
                names = {**names, column: _with(first, {key: value}).strip()}
            found.append(replace(draft, tables=tables, names=names))
    return found


def _has(draft: _Draft, part: str, key: str) -> bool:
    if part not in FAMILIES:
        return True
    return key in {option.name for option in registry.find(FAMILIES[part], _own_name(draft, part, stem=False)).options}


def _own_name(draft: _Draft, part: str, stem: bool = True) -> str:
    name = str(_table(part, draft.tables.get(part, {})).get(NAMED[part], _default_name(part)))
    return Path(name).stem if stem else name


def _default_name(part: str) -> str:
    return getattr(Recipe, part).name if part in FAMILIES else ""


def _named(names: Mapping[str, str], column: str, label: str, add: bool) -> dict[str, str]:
    before = names.get(column, "")
    return {**names, column: f"{before} {label}".strip() if add else label}


def _put(tables: dict[str, Any], path: str, value: Any) -> None:
    part, key = path.split(".", 1)
    tables[part] = {**_table(part, tables.get(part, {})), key: value}


def _with(label: str, values: Mapping[str, Any]) -> str:
    """`mbls` and margin 5.0 -> `mbls margin=5`."""
    return " ".join([label, *(f"{key.split('.')[-1]}={_text(value)}" for key, value in values.items())])


def _text(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else value if isinstance(value, str) else json.dumps(value)


def _check_axis(name: str) -> None:
    known = [*TABLES, "seed", "calibrator", "noise"]
    part, dot, _ = name.partition(".")
    if name not in known and not (dot and part in TABLES):
        keys = [f"{table}.{item.name}" for table, kind in PARTS.items() for item in fields(kind)]
        listed = [f"axes.{one}" for one in [*known, "loss.OPTION", "network.OPTION", *keys]]
        raise BadInput(registry.unknown("key", f"axes.{name}", listed))


def _check_unlike(cells: Sequence[Cell]) -> None:
    """No run twice, no two results under one name, no two preparations in one folder."""
    runs: dict[str, Cell] = {}
    names: dict[tuple[Any, ...], Cell] = {}
    data: dict[str, tuple[Any, Cell]] = {}
    for cell in cells:
        other = runs.setdefault(cell.slug, cell)
        if other is not cell:
            raise BadInput(f"two cells are the same run: {other.title!r} and {cell.title!r}")
        shown = (cell.dataset, cell.network, cell.label, cell.recipe.seed, cell.recipe.data.split)
        other = names.setdefault((*shown, json.dumps(dict(cell.choice))), cell)
        if other is not cell:
            raise BadInput(f"two different cells are called {cell.title!r}: give their entries a `label`")
        made = (cell.recipe.data.dataset, cell.recipe.data.options, cell.recipe.data.protocol, cell.recipe.data.work)
        before, _ = data.setdefault(cell.dataset, (made, cell))
        if before != made:
            raise BadInput(f"two different preparations are called {cell.dataset!r}: give their entries a `label`")


def _settings(name: str, table: Any) -> Any:
    kind = SETTINGS[name]
    hints = get_type_hints(kind)
    table = _table(name, table)
    for key in table:
        if key not in hints:
            raise BadInput(registry.unknown("key", f"{name}.{key}", [f"{name}.{known}" for known in hints]))
    return kind(**{key: fitting(f"{name}.{key}", value, hints[key]) for key, value in table.items()})


def _table(name: str, value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise BadInput(f"{name} = {value!r} must be a table: [{name}]")
    return value


def _listed(axis: str, value: Any) -> list[Any]:
    if not isinstance(value, list) or not value:
        raise BadInput(f"axes.{axis} = {value!r} must be a list with at least one entry")
    return value


def _list(axis: str, axes: Mapping[str, Any], default: list[Any], kind: Any) -> list[Any]:
    values = [fitting(f"axes.{axis}", value, kind) for value in _listed(axis, axes.get(axis, default))]
    for value in values:
        if values.count(value) > 1:
            raise BadInput(f"axes.{axis} names {value!r} twice")
    return values
