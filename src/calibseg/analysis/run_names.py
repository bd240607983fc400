"""Which runs a path stands for, and what they are called: the same in every figure, table and report."""

import csv
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from calibseg.core.types import BadInput
from calibseg.runs.folders import BenchmarkFolder, RunFolder
from calibseg.runs.info import read_run

Runs = Sequence[Path] | Mapping[str, Path]  # run folders, or what to call them and where they are


def run_folders(path: Path) -> list[Path]:
    """The run folders that a path stands for: itself, or those of a benchmark or of a folder of runs."""
    if RunFolder(path).info.is_file():
        return [path]
    inside = [BenchmarkFolder(path).run("*").parent, path]
    runs = [sorted(record.parent for record in folder.glob(f"*/{RunFolder(path).info.name}")) for folder in inside]
    return next((folders for folders in runs if folders), [])


def need_runs(path: Path) -> list[Path]:
    """The same, where there must be one."""
    if runs := run_folders(path):
        return runs
    raise BadInput(f"{path}: holds no training run (run.json is missing); run calibseg train first")


def run_names(runs: Sequence[Path], seeds: Literal["apart", "together"] = "apart") -> list[str]:
    """What to call each run: its label in a benchmark or its loss, and in brackets what sets it apart from its like.

    seeds: together, where seeds, datasets and networks have columns of their own and are no part of the name
    """
    recipes = [_flat(read_run(run).recipe) for run in runs]
    bases = [_label(run) or _loss_name(recipe) for run, recipe in zip(runs, recipes, strict=True)]
    elsewhere = re.compile(r"data\.work" if seeds == "apart" else r"data\.|network\.|seed$")
    names = []
    for base, recipe in zip(bases, recipes, strict=True):
        alike = [other for name, other in zip(bases, recipes, strict=True) if name == base]
        apart = [key for key in recipe if any(other.get(key) != recipe[key] for other in alike)]
        options = ", ".join(f"{key.rpartition('.')[2]}={recipe[key]}" for key in apart if not elsewhere.match(key))
        names.append(f"{base} ({options})" if options else base)
    if seeds == "together":
        return names
    return [name if names.count(name) == 1 else run.resolve().name for run, name in zip(runs, names, strict=True)]


def _loss_name(recipe: Mapping[str, Any]) -> str:
    """The loss of a recipe; of a loss that is a file of the user's, the file's name."""
    name = str(recipe["loss.name"])
    return Path(name).stem if name.endswith(".py") else name


def _label(run: Path) -> str:
    """What its benchmark calls a run; blank where it belongs to none."""
    run = run.resolve()
    cell = read_cells(run.parent.parent).get(run.name)
    return cell["label"] if cell else ""


def named_runs(runs: Runs) -> dict[str, Path]:
    """Runs by what to call them: as given, or by `run_names`."""
    if isinstance(runs, Mapping):
        return {name: Path(run) for name, run in runs.items()}
    folders = [Path(run) for run in runs]
    return dict(zip(run_names(folders), folders, strict=True))


def _flat(recipe: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """{"loss": {"name": "ce"}} -> {"loss.name": "ce"}."""
    flat: dict[str, Any] = {}
    for key, value in recipe.items():
        flat |= _flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return flat


def read_cells(folder: Path) -> dict[str, dict[str, str]]:
    """What a benchmark's `cells.csv` calls its runs, by the name of their folders; nothing where there is none."""
    path = BenchmarkFolder(folder).cells
    if not path.is_file():
        return {}
    try:
        with path.open(encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file, restval=""))
    except (UnicodeDecodeError, csv.Error) as error:
        raise BadInput(f"{path} is not a CSV table: {error}") from error
    for column in ("cell", "dataset", "network", "label"):
        if rows and column not in rows[0]:
            raise BadInput(f"{path} has no column {column!r}: these are no cells of a benchmark")
    return {row["cell"]: row for row in rows}


def counted_cells(folder: Path) -> dict[str, dict[str, str]]:
    """The same without the candidates that were not chosen: what is left of an earlier choice does not count."""
    chosen = chosen_cells(folder)
    return {slug: row for slug, row in read_cells(folder).items() if not row.get("choice") or slug in chosen}


def chosen_cells(folder: Path) -> set[str]:
    """The cells that a benchmark's `selection.csv` chooses; none where nothing was chosen yet."""
    path = BenchmarkFolder(folder).selection
    if not path.is_file():
        return set()
    with path.open(newline="", encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["chosen"] == "true"]
    return {slug for row in rows for slug in row["cells"].split()}
