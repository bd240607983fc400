"""Calibrators applied to a folder of predictions: calibrated NIfTI files, and scores before and after.

What was written from the same files by the same calibrator is left alone. A case, patient or file that a calibrator was
fitted on is refused.
"""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict

from calibseg.analysis.columns import ALL, MEAN, rows_of_key
from calibseg.analysis.table import meta_path
from calibseg.calibrators.fitted.files import load_calibrator, read_calibrator
from calibseg.calibrators.fitted.nifti import write_probabilities
from calibseg.calibrators.fitted.selected import NONE
from calibseg.core import files
from calibseg.core.hashing import file_fingerprint, fingerprint
from calibseg.core.types import BadInput, Progress
from calibseg.io.conventions import PredictionFolder
from calibseg.io.predictions import PredictionFiles, is_constant
from calibseg.runs.folders import CalibratorFolder
from calibseg.stages.calibrate.cross_fitting import SHOWN
from calibseg.stages.score.options import ScoringOptions, WorkerOptions
from calibseg.stages.score.stage import Cases, Scored, read_scored, score_cases
from calibseg.stages.score.workers import program


class _Applied(TypedDict):
    """applied.json: which cases were written, and from what."""

    cases: dict[str, str]


@dataclass(frozen=True)
class ApplyTarget:
    """The cases that calibrators are applied to, with labels; left_out: how many labels have no prediction."""

    folder: PredictionFolder
    pairs: Sequence[PredictionFiles]
    left_out: Sequence[str]
    workers: int | None
    progress: Progress


def refuse_overlap(
    fit: Sequence[PredictionFiles], to: Sequence[PredictionFiles], fit_folder: Path, to_folder: Any
) -> None:
    """What is fitted on must not be applied to: no common case, patient or file."""
    why = "nothing is fitted on the cases that it is applied to"
    for kind, of in (("case", lambda pair: pair.case), ("patient", lambda pair: pair.patient)):
        common = sorted({of(pair) for pair in fit} & {of(pair) for pair in to})
        if common:
            raise BadInput(f"the {kind} {common[0]!r} is in {fit_folder} and in {to_folder}: {why}")
    by_hash = {file_fingerprint(pair.files[0]): pair.files[0] for pair in fit}
    for pair in to:
        twin = by_hash.get(file_fingerprint(pair.files[0]))
        if twin is not None and not is_constant(pair):
            raise BadInput(f"{pair.files[0]} is the same file as {twin}: {why}")


def write_calibrated(method: str, pairs: Sequence[PredictionFiles], output: Path, progress: Progress) -> int:
    """Write calibrated probabilities; those of the same files and the same calibrator are left alone."""
    if not pairs:
        return 0
    folder, calibrator = CalibratorFolder(output / method), load_calibrator(output / method)
    cases = files.read_json(folder.applied, "applied", _Applied)["cases"] if folder.applied.is_file() else {}
    written = 0
    for number, pair in enumerate(pairs):
        progress(number, len(pairs), f"{method}: {pair.case}")
        path = folder.probabilities / f"{pair.case}.nii.gz"
        made_from = fingerprint([file_fingerprint(folder.info), cases_fingerprint([pair])])
        if cases.get(pair.case) != made_from or not path.is_file():
            path.parent.mkdir(parents=True, exist_ok=True)
            write_probabilities(pair, calibrator, path)
            cases[pair.case] = made_from
            files.write_json(folder.applied, "applied", {"cases": cases})
            written += 1
    progress(len(pairs), len(pairs), method)
    return written


def score_applied(method: str, output: Path, to: ApplyTarget) -> dict[str, Any]:
    """The score table of the cases that were applied to, before or after; one row of the printed table."""
    folder, before = CalibratorFolder(output / method), method == NONE
    scoring, names = ScoringOptions(), to.folder.names()
    calibrator = None if before else file_fingerprint(folder.info)
    made_from = fingerprint([calibrator, cases_fingerprint(to.pairs), str(scoring), str(names), program()])
    scored = _scores_with(folder.scores, made_from)
    if scored is None:
        fitted_on = {} if before else {"calibrator": read_calibrator(folder.path)["fitted_on"]["folder"]}
        source = {
            "predictions": str(to.folder.predictions if before else folder.probabilities),
            "labels": str(to.folder.labels),
            "kind": to.folder.files.kind if before else "probabilities",
            "made_from": made_from,
            "fitted_on": {"network": "unknown", **fitted_on},
        }
        pairs = to.pairs if before else [_calibrated(pair, folder.probabilities) for pair in to.pairs]
        cases = Cases(pairs, names, {"calibrator": method}, source, to.left_out)
        scored = score_cases(cases, folder.scores, scoring, WorkerOptions(to.workers), to.progress)
    return {"method": method, **_means(scored)}


def _calibrated(pair: PredictionFiles, probabilities: Path) -> PredictionFiles:
    """What was written of a case; the folder may also hold cases of calls before this one."""
    files = (probabilities / f"{pair.case}.nii.gz",)
    return PredictionFiles(
        pair.case, pair.patient, files, pair.label, "probabilities", pair.activation, raters=pair.raters
    )


def _scores_with(path: Path, made_from: str) -> Scored | None:
    """Scores that were made before from the same files by the same rules."""
    if not meta_path(path).is_file() or not path.is_file():
        return None
    try:
        record = json.loads(meta_path(path).read_text(encoding="utf-8"))
    except ValueError:
        return None
    return read_scored(path) if isinstance(record, dict) and record.get("made_from") == made_from else None


def _means(scored: Scored) -> dict[str, float | None]:
    """The columns of the printed table from a summary over cases."""
    values: dict[str, float | None] = {}
    for name in SHOWN:
        rows = rows_of_key(scored.summary, name)
        rows = rows[rows["class"] == ALL] if (rows["class"] == ALL).any() else rows[rows["class"] == MEAN]
        value = float(rows["mean"].iloc[0]) if len(rows) else math.nan
        values[name] = None if math.isnan(value) else value
    return values


def cases_fingerprint(pairs: Sequence[PredictionFiles]) -> str:
    """Of everything that cases are made of."""
    return fingerprint(
        [(pair.case, pair.patient, pair.stated, [*map(file_fingerprint, pair.all_files)]) for pair in pairs]
    )
