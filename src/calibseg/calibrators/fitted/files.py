"""A fitted calibrator on disk: what a person reads as JSON, arrays beside it, both strict, nothing ever unpickled.

    FOLDER/calibrator.json           method, options, what was learnt, on which cases    format calibseg-calibrator/1
    FOLDER/calibrator.safetensors    arrays, where the method learns any                 format calibseg-calibrator/1

What was learnt stands at the JSON's top level: a temperature is readable there as `temperature`. The arrays are written
first, with the same fingerprint as the JSON, so that a folder never holds the one of this fit and the other of another.
"""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NotRequired, TypedDict

import numpy as np

from calibseg.calibrators import Calibrator
from calibseg.core import files, registry
from calibseg.core.types import Activation, Array, BadInput, ScoreKind
from calibseg.runs.folders import CalibratorFolder

KIND = "calibrator"
# what every calibrator knows
FITTED_ON = ("cases", "patients", "fit_on", "voxels_counted", "sample", "seed", "distances", "slice_axis")
OURS = (
    "method", "options", "activation", "kind", "classes", "keeps_argmax", "fitted_on", "learnt", "arrays", "parameters",
    "mark",
)  # fmt: skip


class _FittedOn(TypedDict):
    cases: NotRequired[list[str] | int]
    patients: NotRequired[list[str] | int]
    folder: NotRequired[str]
    subset: NotRequired[str]
    weights: NotRequired[str]


class _Fitted(TypedDict):
    """What calibrator.json of every method holds, beside what was learnt."""

    method: str
    options: dict[str, Any]
    activation: Activation
    kind: ScoreKind
    classes: int
    keeps_argmax: bool
    fitted_on: _FittedOn
    learnt: list[str]
    arrays: list[str]
    parameters: int  # how many numbers were learnt
    mark: str  # the fingerprint of what was learnt


def save_calibrator(folder: Path | str, calibrator: Calibrator, metadata: Mapping[str, Any] | None = None) -> Path:
    """Write a fitted calibrator; return the JSON's path.

    metadata: further facts for the JSON, such as `seconds`; its `fitted_on` joins what the calibrator knows, and its
        `method` says where the class is found again, for one that came from a file or a plug-in.
    """
    target, metadata = CalibratorFolder(Path(folder)), dict(metadata or {})
    method = metadata.pop("method", calibrator.name)
    if not calibrator.classes:
        raise BadInput(f"{calibrator.name} is not fitted yet: there is nothing to save")
    facts, arrays = calibrator.state()
    twice = (set(facts) | set(metadata)) & set(OURS) - {"fitted_on"} | set(facts) & set(metadata)
    if twice:
        raise BadInput(f"{calibrator.name}: {', '.join(sorted(twice))} would be written twice into {target.info.name}")
    arrays = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    learnt = _fingerprint(facts, arrays)
    content = {
        "method": method,
        **facts,
        "options": calibrator.options,
        "activation": calibrator.activation,
        "kind": calibrator.kind,
        "classes": calibrator.classes,
        "keeps_argmax": calibrator.keeps_argmax,
        "fitted_on": {**metadata.pop("fitted_on", {}), **calibrator.fitted_on},
        **metadata,
        "learnt": list(facts),
        "arrays": sorted(arrays),
        "parameters": calibrator.parameters(),
        "mark": learnt,
    }
    if arrays:
        files.write_tensors(target.arrays, KIND, arrays, {"mark": learnt})
    files.write_json(target.info, KIND, content)
    if not arrays:
        target.arrays.unlink(missing_ok=True)
    return target.info


def load_calibrator(folder: Path | str) -> Calibrator:
    """The calibrator that `save_calibrator` wrote, ready to transform; anything else is refused."""
    source, record = CalibratorFolder(Path(folder)), read_calibrator(folder)
    options = {"fit_on" if name == "voxels" else name: value for name, value in record["options"].items()}  # as it was
    calibrator: Calibrator = registry.build("calibrators", record["method"], options, source.info)
    facts = {name: record[name] for name in record["learnt"]}
    arrays: dict[str, Array] = {}
    if record["arrays"]:
        arrays, metadata = files.read_tensors(source.arrays, KIND)
        if sorted(arrays) != record["arrays"] or metadata.get("mark") != record["mark"]:
            raise BadInput(
                f"{source.info}: does not belong to the {source.arrays.name} beside it; fit the calibrator again"
            )
    if _fingerprint(facts, arrays) != record["mark"]:
        raise BadInput(f"{source.info}: what was learnt was changed after it was written; fit the calibrator again")
    calibrator.classes, calibrator.activation = record["classes"], record["activation"]
    calibrator.kind = record["kind"]
    calibrator.fitted_on = {name: record["fitted_on"][name] for name in FITTED_ON if name in record["fitted_on"]}
    return calibrator.load_state(facts, arrays)


def read_calibrator(folder: Path | str) -> dict[str, Any]:
    """What a calibrator's JSON says, checked for what every one has."""
    path = CalibratorFolder(Path(folder)).info
    if not path.is_file():
        raise BadInput(f"{folder}: holds no calibrator ({path.name} is missing); run calibseg calibrate first")
    record = files.read_json(path, KIND, _Fitted)
    missing = [name for name in record["learnt"] if name not in record]
    if missing:
        raise BadInput(f"{path}: says that {missing[0]!r} was learnt, but does not hold it")
    return record


def _fingerprint(facts: Mapping[str, Any], arrays: Mapping[str, Array]) -> str:
    """Of what was learnt."""
    digest = hashlib.sha256(json.dumps(facts, sort_keys=True).encode())
    for name in sorted(arrays):
        digest.update(f"{name} {arrays[name].dtype} {arrays[name].shape}".encode())
        digest.update(np.ascontiguousarray(arrays[name]).data)
    return digest.hexdigest()[:16]
