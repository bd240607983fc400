"""The stages of an experiment as functions: `calibseg.api` shows how they follow each other."""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

from rich.console import Console

from calibseg.analysis.headline import PAPER_METRICS
from calibseg.analysis.ranking import By, Ranked, Ties, Undefined
from calibseg.analysis.ranking import rank as rank_table
from calibseg.analysis.ranking import write as write_ranks
from calibseg.analysis.table import merge, named, read
from calibseg.benchmark import Finished, chosen_by, open_bench
from calibseg.benchmark import benchmark as walk_grid
from calibseg.benchmark.grid import read_grid
from calibseg.benchmark.workers import budget, count_gpus, run_here, this_command
from calibseg.core.types import BadInput
from calibseg.report.html import report
from calibseg.runs.folders import BenchmarkFolder
from calibseg.runs.recipe import read_recipe
from calibseg.stages.calibrate.stage import Calibration, calibrate_folders, calibrate_run
from calibseg.stages.predict.stage import predict
from calibseg.stages.prepare import make_splits as split
from calibseg.stages.prepare import prepare
from calibseg.stages.score.stage import Scored, score_run
from calibseg.stages.score.stage import score as score_folder
from calibseg.stages.train.loop import Trained
from calibseg.stages.train.loop import train as train_recipe

__all__ = ["benchmark", "calibrate", "predict", "prepare", "rank", "report", "score", "split", "train"]

Folder = str | Path


def train(
    recipe: Folder | Mapping[str, Any],
    run: Folder | None = None,
    *,
    changes: Sequence[str] = (),
    device: Literal["auto", "cpu", "cuda"] = "auto",
    resume: bool = False,
) -> Trained:
    """Train a network as a recipe says (a packaged name, a TOML file, a run folder or a dict) into the folder `run`.

    run: default: runs/SLUG, or the run folder that was given as the recipe
    changes: single values of the recipe, like "loss.weight=0.3"
    """
    if run is None and not isinstance(recipe, Mapping) and Path(recipe).is_dir():
        run = recipe
    return train_recipe(read_recipe(recipe, changes), run, device=device, resume=resume)


def score(
    run: Folder | None = None,
    *,
    predictions: Folder | None = None,
    labels: Folder | None = None,
    output: Folder | None = None,
    **options: Any,
) -> Scored:
    """Score a run's predicted cases, or a folder of predictions beside a folder of labels.

    output: the table; default for a run: RUN/scores-CASES[+CALIBRATOR].csv
    options: of `score_run` (cases, calibrator, rules, ...) or of `score` (kind, form, ...), both in
        `calibseg.stages.score.stage`
    """
    table = Path(output) if output is not None else None
    if run is not None:
        if predictions is not None or labels is not None:
            raise BadInput("score a run, or a folder of predictions with its labels: not both at once")
        return score_run(Path(run), table, **options)
    if predictions is None or labels is None or table is None:
        raise BadInput("say what to score: a run, or predictions and labels with an output")
    for name in ("calibrator", "images", "patients"):
        if options.get(name) is not None:
            options[name] = Path(options[name])
    return score_folder(Path(predictions), Path(labels), table, **options)


def calibrate(
    run: Folder | None = None,
    methods: Sequence[str] = ("temperature",),
    *,
    predictions: Folder | None = None,
    labels: Folder | None = None,
    output: Folder | None = None,
    **options: Any,
) -> Calibration:
    """Fit calibrators on a run's validation cases, or on a folder of predictions, and choose among them.

    options: of `calibrate_run` (cases, voxels, folds, ...) or `calibrate_folders` (apply, apply_labels, images, kind,
        ...) in `calibseg.stages.calibrate.stage`
    """
    if run is not None:
        if predictions is not None or labels is not None or output is not None:
            raise BadInput("calibrate a run, or a folder of predictions with its labels: not both at once")
        return calibrate_run(run, methods, **options)
    if predictions is None or labels is None or output is None:
        raise BadInput("say what to calibrate: a run, or predictions and labels with an output")
    return calibrate_folders(predictions, labels, methods, output, **options)


def rank(
    tables: Sequence[Folder] | Mapping[str, Folder],
    metrics: Sequence[str] = PAPER_METRICS,
    *,
    ties: Ties = "min",
    undefined: Undefined = "worst",
    by: By | None = None,
    compare: Sequence[tuple[str, str]] = (),
    output: Folder | None = None,
) -> list[Ranked]:
    """Rank the methods of score tables, which are merged; {"ours": "a.csv", "theirs": "b.csv"} gives them names.

    metrics: like dsc, ece, ece@truth; bare: on predicted voxels, NLL and Brier on all
    by: rank each dataset, network, seed or subset apart: a list with one ranking for each
    compare: pairs of methods for a paired bootstrap over patients
    output: write ranks.csv and ranks.meta.json there
    """
    if isinstance(tables, Mapping):
        scores = [named(read(path), method) for method, path in tables.items()]
    else:
        scores = [read(path) for path in tables]
    ranked = rank_table(merge(scores), metrics, ties, undefined, by, compare)
    if output is not None:
        write_ranks(ranked, Path(output), ties, undefined)
    return ranked


def benchmark(
    grid: Folder,
    output: Folder | None = None,
    *,
    roots: Mapping[str, Folder] | None = None,
    changes: Sequence[str] = (),
    only: Sequence[str] = (),
    workers: int | None = None,
    threads: int | None = None,
) -> Finished:
    """Walk a grid on this machine, from raw data to one table, ranks and a report; what exists is skipped.

    output: default: results/GRID, or the output folder that was given as the grid
    roots: where the raw data of each dataset lie
    only: labels, datasets, networks or seeds (s0) of the cells to walk; empty: all
    """
    own = BenchmarkFolder(Path(grid)).grid  # an output folder stands for its own grid
    source = own if own.is_file() else Path(grid)
    folder = Path(output or (grid if own.is_file() else Path("results") / Path(grid).with_suffix("")))
    wanted = read_grid(str(source), changes)
    cells = chosen_by(wanted, only)
    bench = open_bench(wanted, folder, {name: str(root) for name, root in (roots or {}).items()})
    where = [word for name, root in bench.roots.items() for word in ("--root", f"{name}={root}")]
    words = ["benchmark", str(BenchmarkFolder(folder).grid), "-o", str(folder), *where]
    runner = partial(run_here, share=budget(len(cells), workers, threads, gpus=count_gpus()))
    return walk_grid(bench, cells, runner, lambda slug: this_command(*words, "--cell", slug), Console(stderr=True))
