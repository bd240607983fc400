"""The stage that scores: a folder of predictions and a folder of labels become a score table, its bins and its rules.

`scores.csv` has a row for every case, class, voxel rule and metric, and the same pooled over all cases; `bins.csv` the
reliability diagrams; `scores.meta.json` the rules, versions and sources. All three are written, or none.
"""

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pandas as pd

from calibseg import __version__
from calibseg.analysis import summary, table
from calibseg.analysis.case_values import evaluated_classes
from calibseg.analysis.columns import ALL, EXPERIMENT, NO_WORD, Frame, is_word
from calibseg.analysis.headline import VOXEL_RULES, headline
from calibseg.analysis.table import ScoreTable
from calibseg.calibrators.fitted.cases import calibrated_by_folder, with_calibrator
from calibseg.calibrators.fitted.images import PreparedImages
from calibseg.calibrators.fitted.selected import find_calibrator, fitted_with, refuse_other_weights
from calibseg.core.types import BadInput, Progress
from calibseg.io import predictions
from calibseg.io.class_names import ClassNames
from calibseg.io.conventions import PredictionFolder
from calibseg.io.labelled_folder import check_members, match_folder
from calibseg.io.predictions import PredictionFiles
from calibseg.io.stored_logits import About, read_about
from calibseg.runs.folders import RunFolder, subset_and_variant, weights_fingerprint
from calibseg.runs.info import prepared_dir, read_run
from calibseg.stages.score.case import CaseMeasurement, pooling_error, refuse_without_rows
from calibseg.stages.score.chosen_metrics import check_scoring, rules_of
from calibseg.stages.score.options import ScoringOptions, WorkerOptions
from calibseg.stages.score.rows import BIN_COLUMNS, bin_rows, score_rows
from calibseg.stages.score.workers import Job, measure_all, share


@dataclass(frozen=True)
class Scored:
    """What a run of the stage found and wrote."""

    table: ScoreTable
    summary: Frame
    bad: list[str]  # with skip_bad: what was left out, and why
    resumed: int  # cases that an earlier, interrupted run had measured


@dataclass(frozen=True)
class Cases:
    """What is scored.

    left_out: why a file has no partner
    experiment: values of the columns dataset, network, loss, calibrator, seed, variant, subset
    source: where the cases come from, for scores.meta.json
    """

    matched: Sequence[PredictionFiles]
    class_names: ClassNames
    experiment: Mapping[str, str]
    source: Mapping[str, Any]
    left_out: Sequence[str] = ()


def score_folder(
    folder: PredictionFolder,
    output: Path,
    *,
    scoring: ScoringOptions = ScoringOptions(),
    calibrator: Path | None = None,
    experiment: Mapping[str, str] | None = None,
    notes: Mapping[str, Any] | None = None,
    workers: WorkerOptions = WorkerOptions(),
    progress: Progress = lambda done, total, case: None,
) -> Scored:
    """Score a folder and write `output`, its rules and its reliability rows: all of them, or none.

    calibrator: the folder of a fitted calibrator that is applied first, or of several with a choice among them; refused
        on cases that it was fitted on
    experiment: values of the columns dataset, network, loss, calibrator, seed, variant, subset
    notes: further facts for scores.meta.json
    """
    matched, unmatched, left_out = match_folder(folder)
    if unmatched and not workers.skip_bad:
        more = f" ({len(unmatched) - 1} more like it; --skip-bad scores the others)" if len(unmatched) > 1 else ""
        raise BadInput(f"{unmatched[0]}{more}")
    source = {
        "predictions": ", ".join(map(str, folder.all_predictions)),
        "labels": str(folder.labels),
        "kind": folder.files.kind,
    }
    source |= {
        name: [str(path) for path in getattr(folder, name)] for name in ("raters", "members") if getattr(folder, name)
    }
    source |= notes or {}
    experiment = dict(experiment or {})
    matched, calibrator, record = calibrated_by_folder(matched, calibrator, folder.images)
    if calibrator is not None:
        experiment = {"calibrator": Path(record["method"]).stem, **experiment}
        source |= {"calibrator": str(calibrator), "fitted_on": {"calibrator": record["fitted_on"]}}
    cases = Cases(matched, folder.names(), experiment, source, [*map(str, unmatched), *left_out])
    return score_cases(cases, output, scoring, workers, progress)


def score_run(
    run: Path,
    output: Path | None = None,
    *,
    subset: str = "test",
    calibrator: str = "none",
    work: str | Path | None = None,
    members: Sequence[Path] = (),
    scoring: ScoringOptions = ScoringOptions(),
    workers: WorkerOptions = WorkerOptions(),
    progress: Progress = lambda done, total, case: None,
) -> Scored:
    """Score what `calibseg predict RUN --subset ...` stored; default output: RUN/scores-SUBSET[+CALIBRATOR].csv.

    subset: a folder of RUN/logits: test, validation, test-noise0.05-seed3, ...
    calibrator: one of RUN/calibrators, `chosen` for the one named in choice.json, or `none`
    work: the folder of prepared cases, for a calibrator that looks at images; default: as in training
    members: the runs of an ensemble's members, which predicted the same subset
    """
    check_scoring(scoring)
    cases = run_cases(run, subset, calibrator, work)
    if members:
        cases = with_members(cases, members, subset)
    output = output or RunFolder(run).scores(subset, cases.experiment.get("calibrator", "none"))
    return score_cases(cases, output, scoring, workers, progress)


def run_cases(run: Path, subset: str, calibrator: str = "none", work: str | Path | None = None) -> Cases:
    """The cases of a subset that a run predicted, as one of its calibrators sees them; see `score_run`."""
    info = read_run(run)
    matched, class_names, abouts = run_predictions(run, subset)
    selected = find_calibrator(RunFolder(run).calibrators, calibrator)
    plain_subset, variant = subset_and_variant(subset)
    experiment = {
        "dataset": info.dataset,
        "network": info.network,
        "loss": info.loss,
        "seed": info.seed,
        "subset": plain_subset,
        "variant": variant,
    }
    source = {"run": info.slug, "subset": subset, **fitted_with(info.recipe, selected)}
    if selected.folder is not None:
        stored = abouts[0]
        refuse_other_weights(selected, stored.get("weights"))
        images = PreparedImages(prepared_dir(run, work), stored.get("noise", 0.0), stored.get("seed", 0))
        matched = with_calibrator(matched, selected.folder, selected.about, images)
        experiment["calibrator"] = selected.name
        source |= {"calibrator": selected.name, "in_sample": selected.fitted_on == plain_subset}
    return Cases(matched, class_names, experiment, source)


def with_members(cases: Cases, runs: Sequence[Path], subset: str) -> Cases:
    """The cases with what the members of an ensemble predicted."""
    check_members(runs)
    by_case = [(run, {pair.case: pair for pair in run_predictions(run, subset)[0]}) for run in runs]
    matched = []
    for pair in cases.matched:
        for run, pairs in by_case:
            if pair.case not in pairs:
                raise BadInput(f"{run}: did not predict the {subset} case {pair.case!r}")
        matched.append(replace(pair, members=tuple(pairs[pair.case] for _, pairs in by_case)))
    return replace(cases, matched=matched, source={**cases.source, "members": [str(run) for run in runs]})


def run_predictions(run: Path, subset: str) -> tuple[list[PredictionFiles], ClassNames, list[About]]:
    """What `calibseg predict RUN` stored of a subset, by the run's present weights, and what each file tells of it."""
    folder = RunFolder(run)
    matched, names = predictions.stored(folder.logits / subset)
    _refuse_partial(run, subset, [pair.case for pair in matched])
    abouts = [read_about(pair.files[0]) for pair in matched]
    weights = weights_fingerprint([run]) if folder.weights.is_file() else abouts[0].get("weights")
    for pair, about in zip(matched, abouts, strict=True):
        if about.get("weights") != weights:
            raise BadInput(
                f"{pair.files[0]}: was predicted by other weights than the run has now; {_again(run, subset)}"
            )
    return matched, names, abouts


def _refuse_partial(run: Path, subset: str, predicted: Sequence[str]) -> None:
    """What was stored of a subset must be all of it, and nothing else."""
    plain, _ = subset_and_variant(subset)
    expected, folder = read_run(run).cases(plain), RunFolder(run).logits / subset
    missing, foreign = (sorted(set(a) - set(b)) for a, b in ((expected, predicted), (predicted, expected)))
    if missing:
        raise BadInput(f"{folder}: lacks case {missing[0]!r} of {plain}; {_again(run, subset)}")
    if foreign:
        raise BadInput(f"{folder}: holds case {foreign[0]!r}, which is none of the run's {plain} cases; remove it")


def _again(run: Path, subset: str) -> str:
    """The command that predicts a subset."""
    plain, variant = subset_and_variant(subset)
    return f"run   calibseg predict {run} --subset {plain}{f' with the options of {variant}' if variant else ''}"


def read_scored(path: Path) -> Scored:
    """What an earlier call wrote."""
    scores = table.read(path)
    return Scored(scores, _summary(scores), list(scores.notes.get("left_out", ())), 0)


def score_cases(
    cases: Cases, output: Path, scoring: ScoringOptions, workers: WorkerOptions, progress: Progress
) -> Scored:
    """Score cases and write `output`, its rules and its reliability rows: all of them, or none."""
    table.check_output(output)
    _check_experiment(cases.experiment)
    _check_names(cases)
    rules = rules_of(check_scoring(scoring))
    cache = output.with_name(f".{output.stem}.unfinished")
    processes, threads = share(workers.workers, cases.matched)
    jobs = [Job(pair, cases.class_names, scoring, threads, cache) for pair in cases.matched]
    try:
        outcome = measure_all(jobs, processes, workers.skip_bad, progress)
        refuse_without_rows(scoring, outcome.measured.values())
    except BadInput:
        shutil.rmtree(cache, ignore_errors=True)  # only a run that was interrupted goes on where it stopped
        raise
    bad, pooled = [*cases.left_out, *outcome.bad], outcome.pooled
    if pooled is None:
        raise BadInput(f"no case could be scored: {bad[0]}")
    measured = [(pair, outcome.measured[pair.case]) for pair in cases.matched if pair.case in outcome.measured]
    rows = table.frame(score_rows(measured, pooled, scoring, cases.experiment))
    notes = {**_notes(cases.source, measured, bad), "pooling_error": pooling_error(pooled, scoring)}
    notes["clipped_voxels"] = int(pooled.calibration.clipped.sum())
    rules |= {"activation": measured[0][1].channels.activation, "datasets": _dataset(cases, measured[0][1])}
    scores = ScoreTable(rows, rules, notes, str(output))
    bins = pd.DataFrame(bin_rows(measured, pooled, scoring, cases.experiment), columns=list(BIN_COLUMNS))
    table.write(scores, output, bins)
    shutil.rmtree(cache, ignore_errors=True)
    return Scored(scores, _summary(scores), bad, outcome.resumed)


def _summary(scores: ScoreTable) -> Frame:
    (classes,) = evaluated_classes(scores.rules).values()
    return pd.concat([summary.summary(scores.rows), summary.class_means(scores.rows, classes)], ignore_index=True)


def _dataset(cases: Cases, first: CaseMeasurement) -> dict[str, Any]:
    """What the classes of the dataset are, as the rules hold it."""
    names, _, activation = first.channels
    classes = cases.class_names.classes or (names if activation == "softmax" else ("", *names))
    facts = {
        "classes": list(classes),
        "regions": {name: list(members) for name, members in cases.class_names.regions.items()},
        "ignore_label": cases.class_names.ignore_label,
    }
    return {cases.experiment.get("dataset", ""): facts}


def _notes(
    source: Mapping[str, Any], measured: Sequence[tuple[PredictionFiles, CaseMeasurement]], bad: Sequence[str]
) -> dict[str, Any]:
    packages = ("numpy", "scipy", "torch", "nibabel", "pandas")
    chosen = dict.fromkeys(row.voxels for row in measured[0][1].values if row.voxels)
    return {
        "headline": [key for key in headline() if "@" in key],
        "voxels": {name: VOXEL_RULES.get(name, "signed distance to the true surface") for name in chosen},
        "versions": {"calibseg": __version__, **{package: version(package) for package in packages}},
        **source,
        "cases": len(measured),
        "patients": len({pair.patient for pair, _ in measured}),
        "label_fingerprints": {pair.case: one.labels for pair, one in measured},
        "left_out": list(bad),
    }


def _check_experiment(experiment: Mapping[str, str]) -> None:
    for column, word in experiment.items():
        if column not in EXPERIMENT:
            raise BadInput(f"no experiment column named {column!r}. Known: {', '.join(EXPERIMENT)}")
        if not is_word(word):
            raise BadInput(f"{column} is {word!r}, {NO_WORD}")


def _check_names(cases: Cases) -> None:
    names = cases.class_names
    regions_only = names.regions and any(pair.activation == "sigmoid" for pair in cases.matched)
    known = [*(() if regions_only else names.classes), *names.regions, ALL]
    for name in known:
        if known.count(name) > 1:
            raise BadInput(f"the name {name!r} stands for two of: {', '.join(known[:-1])}, all (all classes together)")
