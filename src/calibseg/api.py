"""The stable Python face of the stages: what the commands do, as functions.

from calibseg.api import calibrate, predict, score
predict("runs/a", cases="validation")                               # logits of the validation cases
calibrate("runs/a", ["temperature"]).chosen                         # fitted on them; named in runs/a
predict("runs/a", cases="test")
score("runs/a", calibrator="chosen").summary                        # runs/a/scores-test+temperature.csv
predict("runs/a", input="scan.nii.gz", output="out").structures     # calibrated maps of a scan, and what they say

Predictions that anybody made are folders:

score(predictions="p", labels="l", output="scores.csv")
calibrate(predictions="val_p", labels="val_l", apply="test_p", output="out", methods=["temperature"])
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from calibseg.core.types import BadInput
from calibseg.stages.calibrate.stage import Calibration, calibrate_folders, calibrate_run
from calibseg.stages.predict.stage import Predicted, predict
from calibseg.stages.score.stage import Scored, score_run
from calibseg.stages.score.stage import score as score_folder

__all__ = ["Calibration", "Predicted", "Scored", "calibrate", "predict", "score"]

Folder = str | Path


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
    options: of `calibseg.stages.score.score_run` (cases, calibrator, rules, ...) or `calibseg.stages.score.score`
        (kind, form, ...)
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

    options: of `calibrate_run` (cases, voxels, folds, ...) or `calibrate_folders` of `calibseg.stages.calibrate`
        (apply, apply_labels, images, kind, ...)
    """
    if run is not None:
        if predictions is not None or labels is not None or output is not None:
            raise BadInput("calibrate a run, or a folder of predictions with its labels: not both at once")
        return calibrate_run(run, methods, **options)
    if predictions is None or labels is None or output is None:
        raise BadInput("say what to calibrate: a run, or predictions and labels with an output")
    return calibrate_folders(predictions, labels, methods, output, **options)
