"""The stage that scores: a folder of predictions and a folder of labels become a score table, its bins and its rules.

`scores.csv` has a row for every case, class, voxel rule and metric, and the same pooled over all cases; `bins.csv` the
reliability diagrams; `scores.meta.json` the rules, versions and sources. All three are written, or none.
"""

import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Protocol

import pandas as pd

from calibseg import __version__
from calibseg.analysis import summary, table
from calibseg.analysis.case_values import evaluated_classes
from calibseg.analysis.headline import VOXELS, headline_voxels
from calibseg.analysis.table import Frame, ScoreTable
from calibseg.calibrators.fitted.apply import Calibrated
from calibseg.calibrators.fitted.files import read_calibrator
from calibseg.calibrators.fitted.images import ImageFiles, PreparedImages, image_files, with_images
from calibseg.calibrators.fitted.selected import CHOSEN, find_calibrator, fitted_with, read_choice, refuse_other_weights
from calibseg.core import registry
from calibseg.core.types import BadInput, ScoreKind
from calibseg.io import predictions
from calibseg.io.class_names import ClassNames, find_vocabulary
from calibseg.io.predictions import Format, PredictionFiles
from calibseg.io.stored_logits import read_about
from calibseg.runs.folders import RunFolder
from calibseg.runs.info import prepared_dir, read_run
from calibseg.stages.score.case import (
    CaseMeasurement,
    ScoringOptions,
    Statistics,
    Value,
    pooling_error,
    stated_options,
    values,
)
from calibseg.stages.score.workers import Job, Progress, measure_all, share

BIN_COLUMNS = (*table.EXPERIMENT, "patient", "case", "class", "voxels", "scope", "bin", "low", "high", "count",
               "confidence", "accuracy")  # fmt: skip


@dataclass(frozen=True)
class Scored:
    """What a run of the stage found and wrote."""

    table: ScoreTable
    summary: Frame
    bad: list[str]  # with skip_bad: what was left out, and why
    resumed: int  # cases that an earlier, interrupted run had measured


def score(
    predictions_folder: Path,
    labels_folder: Path,
    output: Path,
    *,
    rules: ScoringOptions | None = None,
    kind: ScoreKind = "probabilities",
    form: Format | None = None,
    vocabulary: ClassNames | None = None,
    patients: Path | None = None,
    experiment: Mapping[str, str] | None = None,
    workers: int | None = None,
    skip_bad: bool = False,
    calibrator: Path | None = None,
    images: Path | None = None,
    notes: Mapping[str, Any] | None = None,
    progress: Progress = lambda done, total, case: None,
) -> Scored:
    """Score a folder and write `output`, its rules and its reliability rows: all of them, or none.

    vocabulary: names of classes and regions; None: those of the dataset.json in or above the folders
    experiment: values of the columns dataset, network, loss, calibrator, seed, variant, subset
    workers: processes; None: one for small folders, else as many as there are cores
    skip_bad: leave out what cannot be used and list it, instead of stopping at it
    calibrator: the folder of a fitted calibrator that is applied first, or of several with a choice among them; refused
        on cases that it was fitted on
    images: folder of NIfTI images, for a calibrator that looks at them
    notes: further facts for scores.meta.json
    """
    rules = rules or ScoringOptions()
    matched, unmatched = predictions.match_files(
        predictions_folder, labels_folder, kind, rules.activation, form, patients
    )
    if unmatched and not skip_bad:
        more = f" ({len(unmatched) - 1} more like it; --skip-bad scores the others)" if len(unmatched) > 1 else ""
        raise BadInput(f"{unmatched[0]}{more}")
    if vocabulary is None:
        vocabulary = find_vocabulary(predictions_folder, labels_folder)
    source = {"predictions": str(predictions_folder), "labels": str(labels_folder), "kind": kind, **(notes or {})}
    experiment = dict(experiment or {})
    calibrator = _fitted(calibrator)
    if calibrator is not None:
        about = read_calibrator(calibrator)
        _refuse_fitted(matched, about, calibrator)
        seen = ImageFiles(image_files(images)) if images else None
        matched = _calibrated(matched, calibrator, about, seen)
        experiment = {"calibrator": Path(about["method"]).stem, **experiment}
        source |= {"calibrator": str(calibrator), "fitted_on": {"calibrator": about["fitted_on"]}}
    return _score(matched, unmatched, vocabulary, output, rules, source, experiment, workers, skip_bad, progress)


def score_run(
    run: Path,
    output: Path | None = None,
    *,
    cases: str = "test",
    calibrator: str = "none",
    work: str | Path | None = None,
    rules: ScoringOptions | None = None,
    workers: int | None = None,
    skip_bad: bool = False,
    progress: Progress = lambda done, total, case: None,
) -> Scored:
    """Score what `calibseg predict RUN --cases ...` stored; default output: RUN/scores-CASES[+CALIBRATOR].csv.

    cases: a folder of RUN/logits: test, validation, test-noise0.05-seed3, ...
    calibrator: one of RUN/calibrators, `chosen` for the one named in choice.json, or `none`
    work: the folder of prepared cases, for a calibrator that looks at images; default: as in training
    """
    info = read_run(run)
    folder = RunFolder(run).logits / cases
    matched, vocabulary = predictions.stored(folder)
    found = find_calibrator(RunFolder(run).calibrators, calibrator)
    part, _, variant = cases.partition("-")
    experiment = {
        "dataset": info.dataset,
        "network": info.network,
        "loss": info.loss,
        "seed": info.seed,
        "subset": part,
        "variant": variant,
    }
    source = {"run": info.slug, "cases": cases, **fitted_with(info.recipe, found)}
    if found.folder is not None:
        stored = read_about(matched[0].files[0])
        refuse_other_weights(found, stored.get("weights"))
        images = PreparedImages(prepared_dir(run, work), stored.get("noise", 0.0), stored.get("seed", 0))
        matched = _calibrated(matched, found.folder, found.about, images)
        experiment["calibrator"] = found.name
        source |= {"calibrator": found.name, "in_sample": found.fitted_on == part}
    output = output or RunFolder(run).scores(cases, found.name)
    return _score(
        matched, [], vocabulary, output, rules or ScoringOptions(), source, experiment, workers, skip_bad, progress
    )


def read_scored(path: Path) -> Scored:
    """What an earlier call wrote."""
    scores = table.read(path)
    return Scored(scores, _summary(scores), list(scores.notes.get("left_out", ())), 0)


def _fitted(folder: Path | None) -> Path | None:
    """The folder of a calibrator, or the one that was chosen among those of a folder."""
    if folder is None or (folder / "calibrator.json").is_file() or read_choice(folder) is None:
        return folder
    return find_calibrator(folder, CHOSEN).folder


def _calibrated(
    matched: Sequence[PredictionFiles],
    folder: Path,
    about: Mapping[str, Any],
    images: PreparedImages | ImageFiles | None,
) -> list[PredictionFiles]:
    """The cases as a calibrator sees them, with images if it looks at them."""
    if registry.load("calibrators", about["method"]).uses_image:
        if images is None:
            raise BadInput(f"{about['method']} looks at the images of the cases: say where they lie with --images DIR")
        matched = with_images(matched, images)
    return [Calibrated.of(pair, folder) for pair in matched]


def _refuse_fitted(matched: Sequence[PredictionFiles], about: Mapping[str, Any], folder: Path) -> None:
    known = about["fitted_on"]
    for pair in matched:
        if pair.case in known.get("cases", ()) or pair.patient in known.get("patients", ()):
            raise BadInput(f"{folder} was fitted on case {pair.case!r} or its patient: score it on others")


def _score(
    matched: Sequence[PredictionFiles],
    unmatched: Sequence[BadInput],
    vocabulary: ClassNames,
    output: Path,
    rules: ScoringOptions,
    source: Mapping[str, Any],
    experiment: Mapping[str, str],
    workers: int | None,
    skip_bad: bool,
    progress: Progress,
) -> Scored:
    experiment = _checked_experiment(experiment)
    for voxels in rules.voxels:
        if voxels not in VOXELS:
            raise BadInput(f"no voxel rule named {voxels!r}. Known: {', '.join(VOXELS)}")
    _check_names(vocabulary, rules)
    options = stated_options(rules)
    cache = output.with_name(f".{output.stem}.unfinished")
    workers, threads = share(workers, matched)
    jobs = [Job(pair, vocabulary, rules, threads, cache) for pair in matched]
    outcome = measure_all(jobs, workers, skip_bad, progress)
    bad, pooled = [*map(str, unmatched), *outcome.bad], outcome.pooled
    if pooled is None:
        raise BadInput(f"no case could be scored: {bad[0]}")
    measured = [(pair, outcome.found[pair.case]) for pair in matched if pair.case in outcome.found]
    rows = table.frame(score_rows(measured, pooled, rules, experiment))
    notes = _notes(source, measured, bad)
    notes["pooling_error"] = pooling_error(pooled, rules)
    scores = ScoreTable(rows, _stated(rules, options, vocabulary, measured, experiment), notes, str(output))
    table.write(scores, output, pd.DataFrame(bin_rows(measured, pooled, rules, experiment), columns=list(BIN_COLUMNS)))
    shutil.rmtree(cache, ignore_errors=True)
    return Scored(scores, _summary(scores), bad, outcome.resumed)


def _summary(scores: ScoreTable) -> Frame:
    (classes,) = evaluated_classes(scores.rules).values()
    return pd.concat([summary.summary(scores.rows), summary.class_means(scores.rows, classes)], ignore_index=True)


class Named(Protocol):
    """Whose a measurement is."""

    @property
    def case(self) -> str: ...

    @property
    def patient(self) -> str: ...


def score_rows(
    measured: Sequence[tuple[Named, CaseMeasurement]],
    pooled: Statistics,
    rules: ScoringOptions,
    experiment: Mapping[str, str],
) -> Iterator[dict[str, Any]]:
    """The rows of a score table: every case's, then those of all cases pooled."""
    for pair, one in measured:
        whose = {**experiment, "patient": pair.patient, "case": pair.case, "scope": "case"}
        yield from (whose | _columns(row) for row in one.values)
    channels = measured[0][1].channels
    yield from ({**experiment, "scope": "pooled"} | _columns(row) for row in values(pooled, channels, rules))


def _columns(row: Value) -> dict[str, Any]:
    fields = row._asdict()
    return {"class": fields.pop("name"), **fields}


def bin_rows(
    measured: Sequence[tuple[Named, CaseMeasurement]],
    pooled: Statistics,
    rules: ScoringOptions,
    experiment: Mapping[str, str],
) -> Iterator[dict[str, Any]]:
    """The rows of the reliability diagrams: every case's, then those of all cases pooled."""
    channels = measured[0][1].channels
    blank = dict.fromkeys((*table.EXPERIMENT, "patient", "case"), "") | dict(experiment)
    sources = [({"patient": p.patient, "case": p.case, "scope": "case"}, one.statistics) for p, one in measured]
    for whose, statistics in [*sources, ({"scope": "pooled"}, pooled)]:
        for voxels in rules.voxels:
            for row in statistics.calibration.on(voxels).rows():
                name = table.ALL if row["class"] is None else channels.names[row["class"]]
                yield blank | whose | row | {"class": name}


def _stated(
    rules: ScoringOptions,
    options: Mapping[str, Any],
    vocabulary: ClassNames,
    measured: Sequence[tuple[PredictionFiles, CaseMeasurement]],
    experiment: Mapping[str, str],
) -> dict[str, Any]:
    """The rules as JSON holds them. Which voxels and metrics were chosen is no rule: rows say it themselves."""
    channels = measured[0][1].channels
    classes = vocabulary.classes or (channels.names if rules.activation == "softmax" else ("", *channels.names))
    dataset = {
        "classes": list(classes),
        "regions": {name: list(members) for name, members in vocabulary.regions.items()},
        "ignore_label": vocabulary.ignore_label,
    }
    return {
        "bins": rules.bins,
        "activation": rules.activation,
        "units": rules.units,
        "empty": rules.empty,
        "cece": rules.cece,
        "boundary_mm": rules.boundary_mm,
        "metrics": json.loads(json.dumps(options)),
        "datasets": {experiment.get("dataset", ""): dataset},
    }


def _notes(
    source: Mapping[str, Any], measured: Sequence[tuple[PredictionFiles, CaseMeasurement]], bad: Sequence[str]
) -> dict[str, Any]:
    packages = ("numpy", "scipy", "torch", "nibabel", "pandas")
    chosen = dict.fromkeys(row.voxels for row in measured[0][1].values if row.voxels)
    return {
        "headline": [f"{metric}@{voxels}" for metric, voxels in headline_voxels().items()],
        "voxels": {name: VOXELS.get(name, "signed distance to the true surface") for name in chosen},
        "versions": {"calibseg": __version__, **{package: version(package) for package in packages}},
        **source,
        "cases": len(measured),
        "patients": len({pair.patient for pair, _ in measured}),
        "left_out": list(bad),
    }


def _checked_experiment(experiment: Mapping[str, str]) -> dict[str, str]:
    for column in experiment:
        if column not in table.EXPERIMENT:
            raise BadInput(f"no experiment column named {column!r}. Known: {', '.join(table.EXPERIMENT)}")
    return dict(experiment)


def _check_names(vocabulary: ClassNames, rules: ScoringOptions) -> None:
    regions_only = rules.activation == "sigmoid" and vocabulary.regions
    names = [*(() if regions_only else vocabulary.classes), *vocabulary.regions, table.ALL]
    for name in names:
        if names.count(name) > 1:
            raise BadInput(f"the name {name!r} stands for two of: {', '.join(names[:-1])}, all (all classes together)")
