"""The stages of an experiment as functions: `calibseg.api` shows how they follow each other."""

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeVar

from rich.console import Console

from calibseg.analysis.ranking import By, Ranked, Ties, Undefined
from calibseg.analysis.ranking import rank as rank_table
from calibseg.analysis.ranking import write as write_ranks
from calibseg.analysis.sources import read_source
from calibseg.benchmark import Finished, chosen_by, grid_and_output, open_bench
from calibseg.benchmark import benchmark as walk_grid
from calibseg.benchmark.grid import read_grid
from calibseg.benchmark.workers import budget, run_here, visible_gpus
from calibseg.core.files import check_output
from calibseg.core.types import BadInput
from calibseg.io.conventions import FileConventions, PredictionFolder
from calibseg.io.labelled_folder import several_raters
from calibseg.report.html import report
from calibseg.runs.recipe import read_recipe
from calibseg.stages.calibrate.options import CalibrationOptions
from calibseg.stages.calibrate.stage import CalibrationResult, calibrate_folders, calibrate_run
from calibseg.stages.predict.cases import Subset
from calibseg.stages.predict.options import InferenceOptions, MapOptions
from calibseg.stages.predict.result import Predicted
from calibseg.stages.predict.scan import Scan
from calibseg.stages.predict.stage import predict as predict_runs
from calibseg.stages.prepare import make_splits as split
from calibseg.stages.prepare import prepare
from calibseg.stages.score.options import ScoringOptions, WorkerOptions
from calibseg.stages.score.stage import Scored, score_folder, score_run
from calibseg.stages.train.loop import Trained
from calibseg.stages.train.loop import train as train_recipe

__all__ = ["benchmark", "calibrate", "predict", "prepare", "rank", "report", "score", "split", "train"]

Folder = str | Path
Group = TypeVar("Group")


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


def predict(
    runs: Folder | Sequence[Folder],
    *,
    subset: Subset | None = None,
    input: Scan | None = None,
    output: Folder | None = None,
    **options: Any,
) -> Predicted:
    """Predict the cases of one subset of the split, or one scan. Several runs are averaged.

    output: default for cases: RUN/logits/SUBSET; for a scan: RUN/scans
    options: the fields of `InferenceOptions` (average, flips, noise, seed) and of `MapOptions` (per_class, quick_look),
        and work, calibrator, batch_size, device and progress as in `calibseg.stages.predict.stage`
    """
    inference, also = _group(InferenceOptions, options), _group(MapOptions, options)
    return predict_runs(runs, subset=subset, input=input, output=output, inference=inference, also=also, **options)


def score(
    run: Folder | None = None,
    *,
    predictions: Folder | Sequence[Folder] | None = None,
    labels: Folder | None = None,
    output: Folder | None = None,
    **options: Any,
) -> Scored:
    """Score a run's predicted cases, or a folder of predictions beside a folder of labels.

    output: the table; default for a run: RUN/scores-SUBSET[+CALIBRATOR].csv
    options: the fields of `ScoringOptions` (voxels, metrics, ...) and `WorkerOptions`; `members`, the folders (or runs)
        of an ensemble's members; with a run the options of `score_run` (subset, calibrator, ...), with folders
        `raters`, folders of further raters, and those of `score_folder` and `FileConventions` (kind, images, ...)
    """
    scoring, workers = _group(ScoringOptions, options), _group(WorkerOptions, options)
    if run is not None:
        if predictions is not None or labels is not None:
            raise BadInput("score a run, or a folder of predictions with its labels: not both at once")
        options["members"] = [Path(member) for member in options.pop("members", ())]
        return score_run(Path(run), _path(output), scoring=scoring, workers=workers, **options)
    first, raters = several_raters(_path(labels), [Path(rater) for rater in options.pop("raters", ())])
    if predictions is None or first is None or output is None:
        raise BadInput("say what to score: a run, or predictions and labels with an output")
    members = tuple(Path(member) for member in options.pop("members", ()))
    folder = _folder(predictions, first, options.pop("images", None), options)
    folder = replace(folder, raters=raters, members=members)
    options["calibrator"] = _path(options.get("calibrator"))
    return score_folder(folder, Path(output), scoring=scoring, workers=workers, **options)


def calibrate(
    run: Folder | None = None,
    methods: Sequence[str] = ("temperature",),
    *,
    predictions: Folder | Sequence[Folder] | None = None,
    labels: Folder | None = None,
    output: Folder | None = None,
    apply: Folder | None = None,
    **options: Any,
) -> CalibrationResult:
    """Fit calibrators on a run's validation cases, or on a folder of predictions, and choose among them.

    apply: a folder of predictions to calibrate, of other cases
    options: the fields of `CalibrationOptions` (fit_on, folds, ...); with a run those of `calibrate_run` (subset,
        work), with folders `images`, `apply_labels`, `apply_images` and the fields of `FileConventions` (kind, ...)
    """
    how = _group(CalibrationOptions, options)
    if run is not None:
        if any(given is not None for given in (predictions, labels, output, apply)):
            raise BadInput("calibrate a run, or a folder of predictions with its labels: not both at once")
        return calibrate_run(run, methods, options=how, **options)
    if predictions is None or labels is None or output is None:
        raise BadInput("say what to calibrate: a run, or predictions and labels with an output")
    images, to_labels, to_images = (options.pop(name, None) for name in ("images", "apply_labels", "apply_images"))
    if apply is None and (to_labels or to_images):
        raise BadInput("labels or images of cases to apply to are given, but not their predictions: apply")
    options_to_apply = dict(options)
    fit = _folder(predictions, labels, images, options)
    to = _folder(apply, to_labels, to_images, options_to_apply) if apply is not None else None
    return calibrate_folders(fit, methods, output, apply=to, options=how, **options)


def rank(
    tables: Sequence[Folder] | Mapping[str, Folder],
    metrics: Sequence[str] | None = None,
    *,
    ties: Ties = "min",
    undefined: Undefined = "worst",
    by: By | None = None,
    compare: Sequence[tuple[str, str]] = (),
    subset: str = "",
    output: Folder | None = None,
) -> list[Ranked]:
    """Rank the methods of score tables, which are merged; {"ours": "a.csv", "theirs": "b.csv"} gives them names.

    metrics: like dsc, ece, ece@truth; bare: on predicted voxels, NLL and Brier on all; None: dsc, hd95, ece and cece,
        those that the tables have
    by: rank each dataset, network, seed or subset apart: a list with one ranking for each
    compare: pairs of methods for a paired bootstrap over patients
    subset: which one is ranked; blank: test where tables hold several, else the only one
    output: write ranks.csv and ranks.meta.json there
    """
    paths, by_name = ((), tables) if isinstance(tables, Mapping) else (tables, {})
    source = read_source(paths, by_name, subset, every_subset=by == "subset")
    if output is not None:
        check_output(Path(output), (".csv",), source.paths)
    ranked = rank_table(source.table, metrics, ties, undefined, by, compare)
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
    source, folder = grid_and_output(grid, output)
    experiments = read_grid(source, changes)
    cells = chosen_by(experiments, only)
    bench = open_bench(experiments, folder, {name: str(root) for name, root in (roots or {}).items()})
    runner = partial(run_here, share=budget(len(cells), workers, threads, gpus=visible_gpus()))
    return walk_grid(bench, cells, runner, Console(stderr=True))


def _group(kind: type[Group], options: dict[str, Any]) -> Group:
    """The options that a dataclass has fields for, taken out of the others."""
    return kind(**{field.name: options.pop(field.name) for field in fields(kind) if field.name in options})  # pyright: ignore[reportArgumentType]


def _folder(
    predictions: Folder | Sequence[Folder], labels: Folder | None, images: Folder | None, options: dict[str, Any]
) -> PredictionFolder:
    if options.get("patients") is not None:
        options["patients"] = Path(options["patients"])
    names = options.pop("class_names", None)
    first, *more = (Path(path) for path in ([predictions] if isinstance(predictions, str | Path) else predictions))
    files = _group(FileConventions, options)
    return PredictionFolder(first, _path(labels), _path(images), files, names, tuple(more))


def _path(path: Folder | None) -> Path | None:
    return None if path is None else Path(path)
