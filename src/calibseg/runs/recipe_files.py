"""Which file a recipe's name stands for, and the recipes and grids that come with the package."""

import itertools
import re
from pathlib import Path
from typing import Literal

from calibseg.core import registry
from calibseg.core.types import BadInput
from calibseg.runs.folders import RunFolder

RECIPES = registry.PACKAGE / "runs" / "recipes"
GRID = ("[axes]", "extends = ")  # a line that begins so makes a recipe a grid


def _packaged() -> dict[str, list[str]]:
    """The lines of every packaged recipe and grid, by its name."""
    paths = {path.relative_to(RECIPES).with_suffix("").as_posix(): path for path in RECIPES.rglob("*.toml")}
    return {name: paths[name].read_text(encoding="utf-8").splitlines() for name in sorted(paths)}


def known_recipes(kind: Literal["recipe", "grid"] = "recipe") -> list[str]:
    """The names of the packaged recipes, or of the packaged grids, which have an [axes] table or extend a grid."""
    is_grid = {name: any(line.startswith(GRID) for line in lines) for name, lines in _packaged().items()}
    return [name for name in is_grid if is_grid[name] == (kind == "grid")]


def recipe_summaries() -> dict[str, str]:
    """Every packaged recipe and grid, and the first sentence of its comment."""
    summaries = {}
    for name, lines in _packaged().items():
        comment = " ".join(line[2:] for line in itertools.takewhile(lambda line: line.startswith("# "), lines))
        summaries[name] = re.split(r"(?<=\.)\s|\s{3}", comment, maxsplit=1)[0]
    return summaries


def find_recipe(name: str | Path) -> Path:
    """A TOML file, the recipe in a run folder, or a packaged recipe by its name."""
    path = Path(name)
    if RunFolder(path).recipe.is_file():
        return RunFolder(path).recipe
    if path.is_file():
        return path
    names = [*known_recipes(), *known_recipes("grid")]
    if path.suffix == ".toml":
        raise BadInput(f"no file {str(name)!r}: a recipe is a TOML file or one of {', '.join(names)}")
    if str(name) not in names:
        raise BadInput(registry.unknown("recipe", str(name), names))
    return RECIPES / f"{name}.toml"
