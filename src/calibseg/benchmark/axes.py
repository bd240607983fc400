"""The [axes] of a grid, multiplied out: every combination as the tables of one recipe, with names and choices."""

import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, get_origin

from calibseg.core import registry
from calibseg.core.coerce import coerce
from calibseg.core.types import BadInput
from calibseg.runs.recipe import FAMILIES, PARTS, Recipe

NAMED = {"data": "dataset", "network": "name", "loss": "name"}  # parts that an axis may give as a bare name
TABLES = ("data", "network", "loss", "train", "augmentation", "views")
LISTS = {"seed": int, "calibrator": str, "noise": float}
OWN = ("label", "seeds", "choices")  # keys of an entry that are no options
METHOD = ""  # what is added to the name of the method


@dataclass(frozen=True)
class Draft:
    """A cell to be.

    tables: its recipe
    names: of the data, the network, the loss, and what is added to the method's name
    choice: values that are to be chosen among, by key of the recipe
    seeds: its own; None: those of the grid
    """

    tables: Mapping[str, Any]
    names: Mapping[str, str] = field(default_factory=dict)
    choice: Mapping[str, Any] = field(default_factory=dict)
    seeds: tuple[int, ...] | None = None

    def name(self, part: str) -> str:
        """What the recipe names: the dataset, the network or the loss, a key or a file."""
        default = getattr(Recipe, part).name if part in FAMILIES else ""
        return str(table_of(part, self.tables).get(NAMED[part], default))

    def shown(self, part: str) -> str:
        """How tables call it."""
        return self.names.get(part) or Path(self.name(part)).stem

    def put(self, path: str, value: Any) -> "Draft":
        """The same with one value changed."""
        part, key = path.split(".", 1)
        return replace(self, tables={**self.tables, part: {**table_of(part, self.tables), key: value}})


def drafts(common: Mapping[str, Any], axes: Mapping[str, Any], candidates: Sequence[str] | None) -> list[Draft]:
    """All combinations of the axes but the seeds, calibrators and noises.

    candidates: axes of which one value is chosen later, as of every `choices`; None: nothing is chosen
    """
    result = [Draft(common)]
    for part in TABLES:
        if part in axes:
            entries = _entries(part, listed(part, axes), candidates is not None)
            result = [_applied(draft, part, entry, candidates is not None) for draft in result for entry in entries]
    for axis in axes:
        if "." in axis:
            result = _multiplied(result, axis, listed(axis, axes), axis in (candidates or ()))
    return result


def check_axis(name: str) -> None:
    """An axis is a part of the recipe, one of its keys, or a list of seeds, calibrators or noises."""
    parts = [*TABLES, *LISTS]
    part, dot, _ = name.partition(".")
    if name not in parts and not (dot and part in TABLES):
        keys = [f"{table}.{item.name}" for table, kind in PARTS.items() for item in fields(kind)]
        choices = [f"axes.{axis}" for axis in [*parts, "loss.OPTION", "network.OPTION", *keys]]
        raise BadInput(registry.unknown("key", f"axes.{name}", choices))


def table_of(name: str, tables: Mapping[str, Any]) -> Mapping[str, Any]:
    """A table among tables; none is an empty one."""
    value = tables.get(name, {})
    if not isinstance(value, Mapping):
        raise BadInput(f"{name} = {value!r} must be a table: [{name}]")
    return value


def listed(axis: str, axes: Mapping[str, Any]) -> list[Any]:
    """The entries of an axis."""
    value = axes[axis]
    if not isinstance(value, list) or not value:
        raise BadInput(f"axes.{axis} = {value!r} must be a list with at least one entry")
    return value


def values_of(axis: str, axes: Mapping[str, Any], default: list[Any]) -> tuple[Any, ...]:
    """The values of an axis that is a plain list, no two alike."""
    values = [coerce(f"axes.{axis}", value, LISTS[axis]) for value in listed(axis, {axis: default} | dict(axes))]
    for value in values:
        if values.count(value) > 1:
            raise BadInput(f"axes.{axis} names {value!r} twice")
    return tuple(values)


def text(value: Any) -> str:
    """A value in a name: 5.0 -> 5."""
    return f"{value:g}" if isinstance(value, float) else value if isinstance(value, str) else json.dumps(value)


def extended(label: str, values: Mapping[str, Any]) -> str:
    """`mbls` and loss.margin 5.0 -> `mbls margin=5`."""
    return " ".join([label, *(f"{key.split('.')[-1]}={text(value)}" for key, value in values.items())]).strip()


def _entries(part: str, entries: list[Any], choosing: bool) -> list[dict[str, Any]]:
    """Every entry as a table with a label, once for each combination of its choices."""
    checked = [_entry(part, entry, f"axes.{part}[{index}]") for index, entry in enumerate(entries)]
    tables = [fold for entry in checked for fold in (_folds(entry) if part == "data" else [entry])]
    names = [Path(str(table.get(NAMED.get(part, ""), ""))).stem for table in tables]
    result = []
    for table, name in zip(tables, names, strict=True):
        label = table.get("label", name)
        if "label" not in table and (names.count(name) > 1 or part not in NAMED):
            label = extended(label, {key: value for key, value in table.items() if key not in (*OWN, NAMED.get(part))})
        result += [
            {**table, "label": label if choosing else extended(label, values), "choices": values}
            for values in _combinations(part, table.get("choices", {}))
        ]
    return result


def _entry(part: str, entry: Any, where: str) -> dict[str, Any]:
    if isinstance(entry, str) and part in NAMED:
        entry = {NAMED[part]: entry}
    if not isinstance(entry, Mapping):
        raise BadInput(f"{where} = {entry!r} must be {'a name or ' if part in NAMED else ''}a table")
    for key, kind in (("label", str), ("seeds", list[int]), ("splits", list[str]), ("choices", dict)):
        if key in entry and not coerce(f"{where}.{key}", entry[key], kind) and get_origin(kind) is list:
            raise BadInput(f"{where}.{key} = [] must be a list with at least one entry")
    for key, value in entry.get("choices", {}).items():
        if not isinstance(value, list) or not value:
            raise BadInput(f"{where}.choices.{key} = {value!r} must be a list of values to choose from")
    return dict(entry)


def _folds(entry: dict[str, Any]) -> list[dict[str, Any]]:
    """An entry of `data` once for each of its `splits`: folds of one name, whose results are put together."""
    label = entry.get("label", entry.get("dataset", ""))
    splits = entry.pop("splits", None)
    return [entry] if splits is None else [{**entry, "split": split, "label": label} for split in splits]


def _combinations(part: str, choices: Mapping[str, list[Any]]) -> Iterator[dict[str, Any]]:
    """{"gamma": [1, 2]} -> {"loss.gamma": 1}, {"loss.gamma": 2}; {} -> {}."""
    keys = [key if "." in key else f"{part}.{key}" for key in choices]
    for values in itertools.product(*choices.values()):
        yield dict(zip(keys, values, strict=True))


def _applied(draft: Draft, part: str, entry: Mapping[str, Any], choosing: bool) -> Draft:
    """The draft with an entry of an axis in it."""
    options = {key: value for key, value in entry.items() if key not in OWN}
    others = {key: options.pop(key) for key in TABLES if key != part and key in options}
    another = part in FAMILIES and options.get("name", draft.name(part)) != draft.name(part)
    tables = {**draft.tables, part: options if another else {**table_of(part, draft.tables), **options}}
    for name in others:
        tables[name] = {**table_of(name, tables), **table_of(name, others)}
    column = part if part in NAMED else METHOD
    label = entry["label"] if part in NAMED else f"{draft.names.get(METHOD, '')} {entry['label']}".strip()
    names = {**draft.names, **({column: label} if label else {})}
    choice = {**draft.choice, **(entry["choices"] if choosing else {})}
    result = Draft(tables, names, choice, tuple(entry["seeds"]) if "seeds" in entry else draft.seeds)
    for path, value in entry["choices"].items():
        result = result.put(path, value)
    return result


def _multiplied(existing: list[Draft], axis: str, values: list[Any], choosing: bool) -> list[Draft]:
    """Every draft that has this key, once for each value; the others as they are."""
    part, key = axis.split(".", 1)
    having = [draft for draft in existing if part not in FAMILIES or _has_option(draft, part, key)]
    result: list[Draft] = []
    for draft in existing:
        if having and draft not in having:
            result.append(draft)
            continue
        for value in values:
            after = draft.put(axis, value)
            if choosing:
                after = replace(after, choice={**draft.choice, axis: value})
            elif axis != "data.split":  # results of several folds are put together under one name
                column = part if part == "network" or axis in ("data.options", "data.protocol") else METHOD
                before = draft.names.get(METHOD, "") if column == METHOD else draft.shown(column)
                after = replace(after, names={**draft.names, column: extended(before, {key: value})})
            result.append(after)
    return result


def _has_option(draft: Draft, part: str, key: str) -> bool:
    return key in {option.name for option in registry.find(FAMILIES[part], draft.name(part)).options}
