"""What a calibrator of a run makes of a case that the report shows: the confidence after calibration, and the label.

One calibrator for each run: that of the method whose worst cases are shown, if the run has it; else the one that was
chosen on validation; else the first that was fitted.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy import ndarray as Array

from calibseg.analysis.run_records import Run
from calibseg.core.types import BadInput
from calibseg.io.predictions import StoredFiles
from calibseg.io.stored_logits import read_about, slabs
from calibseg.runs.folders import RunFolder, fitted_paths


@dataclass(frozen=True)
class CalibratedMaps:
    """Label and confidence of the predicted class in 255ths, both uint8 [z y x]."""

    calibrator: str
    prediction: Array
    confidence: Array


def calibrator_of(run: Run, subject: str) -> str | None:
    """The name of the calibrator to show; None where the run has none."""
    fitted = [path.parent.name for path in fitted_paths(RunFolder(run.path).calibrators)]
    own = f"{run.method}+"
    asked = subject.removeprefix(own).partition(" (")[0] if subject.startswith(own) else ""
    chosen = str((run.choice() or {}).get("chosen", ""))
    return next((name for name in (asked, chosen, *fitted) if name in fitted), None)


def calibrated_maps(run: Run, stored: Path, calibrator: str) -> CalibratedMaps:
    """The maps of a stored prediction after one of the run's calibrators; BadInput where it cannot be applied."""
    from calibseg.calibrators.fitted.cases import with_calibrator  # torch: only where pictures are made
    from calibseg.calibrators.fitted.images import PreparedImages
    from calibseg.calibrators.fitted.selected import find_calibrator, refuse_other_weights

    about = read_about(stored)
    fitted = find_calibrator(RunFolder(run.path).calibrators, calibrator)
    refuse_other_weights(fitted, about.get("weights"))
    if fitted.folder is None:
        raise BadInput(f"{calibrator} is no calibrator")
    work = run.prepared_dir()
    images = PreparedImages(work, about.get("noise", 0.0), about.get("seed", 0)) if work else None
    pair = StoredFiles(about["id"], about["patient"], (stored,), stored, "logits", "softmax")
    (case,) = with_calibrator([pair], fitted.folder, fitted.about, images)
    scores = case.open().scores
    prediction, confidence = (np.zeros(scores.shape[1:], np.uint8) for _ in range(2))
    for part, slab in slabs(scores):
        prediction[part] = slab.argmax(0)
        confidence[part] = np.rint(255.0 * slab.max(0))
    return CalibratedMaps(calibrator, prediction, confidence)
