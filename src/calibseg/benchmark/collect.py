"""A benchmark's results put together: one score table of all cells, ranks, the report.

In OUT/scores.parquet the column `loss` holds the method's label, `network` and `dataset` theirs, `variant` the noise.
What was scored on validation lies in OUT/scores-validation.parquet. What is scored counts, unless its cases were
prepared anew since; of candidates the chosen ones. The tables of the cells stay as they are; `calibseg table OUT
--export scores.csv` writes the merged rows as CSV.
"""

import json
import traceback
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from calibseg.analysis import ranking, table
from calibseg.analysis.case_values import method_names
from calibseg.analysis.merge import merge
from calibseg.analysis.ranking import Ranked
from calibseg.analysis.run_names import chosen_cells
from calibseg.analysis.table import ScoreTable
from calibseg.benchmark.cell_stages import Bench, is_outdated, needs_kept
from calibseg.benchmark.grid import Cell
from calibseg.benchmark.kept import kept_tables
from calibseg.core import files
from calibseg.core.types import BadInput
from calibseg.report.html import report
from calibseg.runs import folders

CELL_COLUMNS = ("cell", "dataset", "network", "label", "seed", "split", "choice", "hash")


@dataclass(frozen=True)
class Collected:
    """What was put together, and what could not be."""

    scores: Path | None
    ranked: Ranked | None = None
    report: Path | None = None
    notes: list[str] = field(default_factory=list)


def collect_results(bench: Bench) -> Collected:
    """Merge the scores of all cells that have them, rank the methods that are complete, write the report."""
    folder, notes = bench.folder, []
    if outdated := [cell.title for cell in bench.grid.cells if is_outdated(bench, cell) and not bench.is_kept(cell)]:
        notes.append(f"left out, because their cases have been prepared anew since: {', '.join(outdated)}")
    merged = merge_scores(bench)
    if merged is None:
        return Collected(None, notes=[*notes, "no cell has test scores yet"])
    ranked = _rank(bench, merged, notes)
    del merged  # the report reads it again, and twice is too much
    return Collected(folder.scores, ranked, _report(folder, notes), notes)


def merge_scores(bench: Bench) -> ScoreTable | None:
    """OUT/scores.parquet and OUT/scores-validation.parquet; returns the scores of the test cases, if there are any."""
    merged = None
    for subset, path in (("validation", bench.folder.validation_scores), ("test", bench.folder.scores)):
        tables = list(_tables(bench, subset))
        merged = merge(tables) if tables else None
        del tables  # the same rows a second time
        if merged is None:
            path.unlink(missing_ok=True)  # of cells that no longer count
        else:
            table.write(merged, path)
    return merged


def write_cells(bench: Bench) -> None:
    """OUT/grid.toml, OUT/cells.csv and the recipe of every cell, which names its prepared cases."""
    folder = bench.folder
    files.write_text(folder.grid, bench.grid.toml())
    rows = []
    for cell in bench.grid.cells:
        recipe = cell.recipe
        choice = json.dumps(dict(cell.choice)) if cell.choice else ""
        names = cell.slug, cell.dataset, cell.network, cell.label
        rows.append([*names, recipe.seed, recipe.data.split, choice, recipe.fingerprint])
        content = replace(recipe, data=replace(recipe.data, work=str(bench.work(cell)))).toml()
        path = folder.recipe(cell.slug)
        if not path.is_file() or path.read_text(encoding="utf-8") != content:
            files.write_text(path, content)
    files.write_csv(folder.cells, CELL_COLUMNS, rows)


def _tables(bench: Bench, subset: str) -> Iterator[ScoreTable]:
    """The score tables of a subset, under the names of the grid."""
    chosen = chosen_cells(bench.folder.path)
    for cell in bench.grid.cells:
        if subset == "test" and cell.choice and cell.slug not in chosen:
            continue
        path = bench.kept_table(cell)
        if path is not None and needs_kept(bench, cell):
            yield from (_named(scores, cell, chosen) for scores in kept_tables(path, subset))
            continue
        if is_outdated(bench, cell):
            continue
        noises, calibrators = (cell.noises, cell.calibrators) if subset == "test" else ((0.0,), ("none",))
        for noise in noises:
            for calibrator in calibrators:
                path = folders.RunFolder(bench.run(cell)).scores(folders.predicted_name(subset, noise), calibrator)
                if path.is_file():
                    yield _named(table.read(path), cell, chosen)


def _named(scores: ScoreTable, cell: Cell, chosen: Collection[str]) -> ScoreTable:
    label = cell.title if cell.choice and cell.slug not in chosen else cell.label
    rows = table.called(scores.rows, dataset=cell.dataset, network=cell.network, loss=label)
    fold = cell.recipe.data.split
    if fold != "default":  # cases of several folds stand side by side; what was pooled stays apart
        rows = rows.astype({"subset": str, "case": str})
        pooled = rows["scope"] == "pooled"
        rows["subset"] = rows["subset"].where(~pooled, rows["subset"] + f" {fold}")
        repeated = ~pooled & (rows["subset"] == "validation")  # a patient is tested once, but selects in several folds
        rows["case"] = rows["case"].where(~repeated, rows["case"] + f" {fold}")
    rules = scores.rules
    if rules is not None:
        (rule,) = rules["datasets"].values()
        rules = {**rules, "datasets": {cell.dataset: rule}}
    return ScoreTable(rows, rules, scores.notes, scores.name)


def _rank(bench: Bench, merged: ScoreTable, notes: list[str]) -> Ranked | None:
    """Rank what was scored on clean images; a method that lacks a dataset is named and left out."""
    for path in (bench.folder.ranks, table.meta_path(bench.folder.ranks)):
        path.unlink(missing_ok=True)  # they are of other scores
    metrics = bench.grid.report.metrics or None
    rows = merged.rows[merged.rows["variant"] == ""]
    if not len(rows):
        notes.append("nothing was scored without noise, so nothing is ranked")
        return None
    cases = rows[rows["scope"] == "case"]
    cases = cases.assign(method=method_names(cases))[["method", "dataset", "network", "case"]].drop_duplicates()
    have: dict[str, set[tuple[str, str, str]]] = {}
    for method, *case in cases.itertuples(index=False, name=None):
        have.setdefault(method, set()).add(tuple(case))
    everything = set().union(*have.values())
    lacking = [method for method, scored in have.items() if scored != everything]
    if lacking and len(lacking) < len(have):
        notes.append(f"not ranked, because others were scored on more cases: {', '.join(lacking)}")
        rows = rows[~method_names(rows).isin(lacking)]
    try:
        (ranked,) = ranking.rank(ScoreTable(rows, merged.rules, merged.notes, merged.name), metrics)
    except BadInput as error:
        notes.append(f"not ranked: {error}")
        return None
    ranking.write([ranked], bench.folder.ranks, "min", "worst")
    return ranked


def _report(folder: folders.BenchmarkFolder, notes: list[str]) -> Path | None:
    try:
        report([folder.path], folder.report)
    except Exception as error:  # hours of work are done and lie on disk: say what they cannot be shown for
        files.write_text(folder.log("report"), traceback.format_exc())
        shown = f"{error}" if isinstance(error, BadInput) else f"{type(error).__name__}, see {folder.log('report')}"
        notes.append(f"no report: {shown}")
        return None
    return folder.report
