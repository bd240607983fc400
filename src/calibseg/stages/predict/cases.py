"""Logits of the prepared cases of a subset, on the prepared grid, to be scored and calibrated.

RUN/logits/test/ID.npz                  see `stored_logits`; noise and mirrored views have folders of their own
"""

from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np

from calibseg.core import registry
from calibseg.core.hashing import fingerprint
from calibseg.core.types import BadInput, Progress
from calibseg.data import prepared
from calibseg.data.noise import Noisy
from calibseg.io.stored_logits import read_about, write_logits
from calibseg.stages.predict.ensemble import Ensemble
from calibseg.stages.predict.options import InferenceOptions
from calibseg.stages.predict.result import Predicted

Subset = Literal["test", "validation", "calibration"]


def predict_cases(
    ensemble: Ensemble, inference: InferenceOptions, subset: Subset, output: Path, work: Path, progress: Progress
) -> Predicted:
    """Logits of the split's cases; those whose weights, data and options have not changed are left alone."""
    if subset not in get_args(Subset):
        raise BadInput(registry.unknown("subset of the split", subset, list(get_args(Subset))))
    index = prepared.read_index(work)
    for name in ("classes", "channels", "protocol"):
        trained_on = getattr(ensemble.info, name)
        trained_on = list(trained_on) if isinstance(trained_on, tuple) else trained_on
        if index[name] != trained_on:
            raise BadInput(f"{work}: its {name} are {index[name]}, the run was trained on {trained_on}")
    ids = ensemble.cases(subset)
    written = 0
    for number, case in enumerate(prepared.open_cases(work, ids)):
        made_from = fingerprint([ensemble.weights, case.fingerprint, asdict(inference)])
        path = output / f"{case.id}.npz"
        if not (path.is_file() and _fingerprint_of(path) == made_from):
            _write_case(ensemble, inference, case, path, {"subset": subset, "key": made_from})
            written += 1
        progress(number + 1, len(ids), case.id)
    return Predicted(output, written, len(ids) - written)


def _write_case(
    ensemble: Ensemble, inference: InferenceOptions, case: prepared.PreparedCase, path: Path, metadata: dict[str, Any]
) -> None:
    n, _, h, w = case.shape
    space = [h, w]
    space.insert(case.axis, n)
    z, y, x = space
    labels = np.moveaxis(case.read("labels"), 0, 1 + case.axis) if "labels" in case.tensors else None
    record = {name: case.about[name] for name in ("id", "patient", "classes", "regions", "spacing_mm", "affine")}
    record |= {"raters": 0 if labels is None else len(labels), **metadata, **ensemble.provenance(inference)}
    source = Noisy(case, inference.noise, inference.seed) if inference.noise else case
    batches = (batch.numpy() for batch in ensemble.scores(source, inference))
    write_logits(path, batches, (len(ensemble.info.classes), z, y, x), case.axis, labels, record)


def _fingerprint_of(path: Path) -> str | None:
    """What a file that is there was made from; None where it cannot be read and is to be made again."""
    try:
        return read_about(path).get("key")
    except BadInput:
        return None
