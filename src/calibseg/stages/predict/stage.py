"""The stage that predicts: what trained networks say, about prepared cases or about a scan as it comes.

Cases of the run's split become logits on the prepared grid, to be scored and calibrated:

    RUN/logits/test/ID.npz                  see `logits`; noise and mirrored views have folders of their own

A raw scan goes through the run's own preparation and comes back on its own grid:

    DIR/labels/NAME.nii.gz                  the likeliest class
    DIR/probabilities/NAME.nii.gz           of every class, on the fourth axis: `calibseg score` reads this folder
    DIR/confidence/NAME.nii.gz              the largest probability
    DIR/entropy/NAME.nii.gz                 in nats
    DIR/NAME.json                           per structure: volume, expected volume, confidence

Slices pass through one after the other, so memory does not grow with the volume times its classes. What has its right
name is whole: files are made in a hidden folder, and NAME.json is the last to appear.
"""

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from calibseg import __version__
from calibseg.calibrators.fitted.apply import calibrated_slices
from calibseg.calibrators.fitted.files import load_calibrator
from calibseg.calibrators.fitted.selected import (
    NONE,
    SelectedCalibrator,
    find_calibrator,
    fitted_with,
    refuse_other_weights,
)
from calibseg.core import files, registry
from calibseg.core.hashing import fingerprint
from calibseg.core.types import BadInput, Case
from calibseg.data import prepared
from calibseg.data.datasets import Dataset
from calibseg.data.layouts import stem
from calibseg.data.noise import Noisy
from calibseg.data.original_grid import original_slices
from calibseg.data.preprocessing import AXES, Preprocessing, preprocess
from calibseg.data.slices import CaseSlices
from calibseg.data.study import Study
from calibseg.io.images import LEAVE_OUT
from calibseg.io.stored_logits import read_about, write_logits
from calibseg.runs import folders
from calibseg.runs.info import prepared_dir
from calibseg.stages.predict.ensemble import Ensemble, InferenceOptions
from calibseg.stages.predict.maps import Maps
from calibseg.stages.predict.slice_inference import Average, Flips

Subset = Literal["test", "validation", "calibration"]
Scan = str | Path | Sequence[str | Path] | Mapping[str, str | Path]  # a file, "CHANNEL=file" each, or by channel
Progress = Callable[[int, int, str], None]  # done, total, case id
FOLDERS = {"label": "labels", "probabilities": "probabilities", "confidence": "confidence", "entropy": "entropy"}


@dataclass(frozen=True)
class Predicted:
    """What was written where."""

    output: Path
    written: int
    unchanged: int = 0  # cases that were there already, from the same weights and data
    structures: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # of a scan
    calibrator: str = "none"
    why: str = ""  # it is this calibrator


def predict(
    runs: str | Path | Sequence[str | Path],
    *,
    subset: Subset | None = None,
    input: Scan | None = None,
    output: str | Path | None = None,
    work: str | Path | None = None,
    calibrator: str | None = None,
    average: Average = "probabilities",
    flips: Flips = "none",
    noise: float = 0.0,
    seed: int = 0,
    batch_size: int = 16,
    device: str = "auto",
    progress: Progress = lambda done, total, id: None,
) -> Predicted:
    """Predict the cases of one subset of the split, or one scan. Several runs are averaged.

    output: default for cases: RUN/logits/SUBSET
    work: the folder of prepared cases; default: as in training
    calibrator: for a scan, one of RUN/calibrators, `chosen` or `none`; default: the chosen one where there is one
    """
    inference = InferenceOptions(average, flips, noise, seed)
    if (subset is None) == (input is None):
        raise BadInput("say what to predict: either the cases of a subset of the split, or a scan as input")
    if batch_size < 1:
        raise BadInput(f"batch_size = {batch_size} must be at least 1")
    run_paths = [Path(run) for run in ([runs] if isinstance(runs, str | Path) else runs)]
    ensemble = Ensemble.of(run_paths, device, batch_size)
    if input is not None:
        if output is None:
            raise BadInput("say where the maps of a scan go: --output DIR")
        if noise:
            raise BadInput("noise is for cases of the split: a scan is predicted as it is")
        found = _calibrator(run_paths, ensemble, inference, calibrator)
        return _predict_scan(ensemble, inference, _files(input, ensemble.channels), Path(output), found)
    if calibrator not in (None, "none"):
        raise BadInput(
            "logits of cases are stored as the network gives them: calibrate them with   calibseg score RUN"
            f" --calibrator {calibrator}"
        )
    assert subset is not None
    if output is None:
        if len(run_paths) > 1:
            raise BadInput(f"{len(run_paths)} runs are averaged: say where their logits go with --output DIR")
        output = folders.RunFolder(run_paths[0]).logits / inference.folder(subset)
    return _predict_cases(ensemble, inference, subset, Path(output), prepared_dir(run_paths[0], work), progress)


def _predict_cases(
    ensemble: Ensemble, inference: InferenceOptions, subset: Subset, output: Path, work: Path, progress: Progress
) -> Predicted:
    """Logits of the split's cases; those whose weights, data and options have not changed are left alone."""
    if subset not in ("test", "validation", "calibration"):
        raise BadInput(registry.unknown("subset of the split", subset, ["test", "validation", "calibration"]))
    index = prepared.read_index(work)
    for name in ("classes", "channels", "protocol"):
        trained_on = getattr(ensemble.info, name)
        trained_on = list(trained_on) if isinstance(trained_on, tuple) else trained_on
        if index[name] != trained_on:
            raise BadInput(f"{work}: its {name} are {index[name]}, the run was trained on {trained_on}")
    ids = ensemble.cases(subset)
    written = 0
    for number, id in enumerate(ids):
        case = prepared.open_case(work, id)
        key = fingerprint([ensemble.weights, case.fingerprint, asdict(inference)])
        path = output / f"{id}.npz"
        if not (path.is_file() and _key_of(path) == key):
            _write_case(ensemble, inference, case, path, {"part": subset, "key": key})
            written += 1
        progress(number + 1, len(ids), id)
    return Predicted(output, written, len(ids) - written)


def _write_case(
    ensemble: Ensemble, inference: InferenceOptions, case: prepared.PreparedCase, path: Path, facts: dict[str, Any]
) -> None:
    n, _, h, w = case.shape
    space = [h, w]
    space.insert(case.axis, n)
    z, y, x = space
    labels = np.moveaxis(case.read("labels"), 0, 1 + case.axis) if "labels" in case.tensors else None
    told = {name: case.about[name] for name in ("id", "patient", "classes", "regions", "spacing_mm", "affine")}
    told |= {"raters": 0 if labels is None else len(labels), **facts, **ensemble.provenance(inference)}
    source = Noisy(case, inference.noise, inference.seed) if inference.noise else case
    parts = (part.numpy() for part in ensemble.scores(source, inference))
    write_logits(path, parts, (len(ensemble.classes), z, y, x), case.axis, labels, told)


def _calibrator(
    run_paths: Sequence[Path], ensemble: Ensemble, inference: InferenceOptions, name: str | None
) -> SelectedCalibrator:
    """The calibrator for a scan. One belongs to one network and to the way that it was asked."""
    if len(run_paths) > 1 or inference.flips != "none":
        what = f"{len(run_paths)} runs" if len(run_paths) > 1 else "mirror images"
        if name not in (None, NONE):
            raise BadInput(
                f"the average of {what} has no calibrator, because each is fitted to one network's own"
                " answer: say --calibrator none"
            )
        return SelectedCalibrator(NONE, why=f"the average of {what} has no calibrator")
    found = find_calibrator(folders.RunFolder(run_paths[0]).calibrators, name)
    if found.folder is not None:
        refuse_other_weights(found, ensemble.weights)
    return found


def _predict_scan(
    ensemble: Ensemble, inference: InferenceOptions, scans: Sequence[Path], output: Path, found: SelectedCalibrator
) -> Predicted:
    """Maps on the scan's own grid, and what they say about each structure."""
    began = time.monotonic()
    name = stem(scans[0])
    case = preprocess(_read(scans, ensemble), _protocol(ensemble.info.protocol))
    source = CaseSlices(case, AXES[case.header["slice_axis"]])
    if found.folder is None:
        slices = (p for part in ensemble.scores(source, inference) for p in part.softmax(1).numpy())
    else:
        parts = (part.numpy() for part in ensemble.scores(source, inference))
        slices = calibrated_slices(parts, case, source.axis, load_calibrator(found.folder))
    with files.write_errors(output), files.temporary_folder(output / name) as scratch:
        maps = Maps(scratch, len(ensemble.classes), case.header, scans[0])
        for p in original_slices(slices, len(ensemble.classes), case.header):
            maps.add(p)
        made = maps.close()
        structures = maps.structures(ensemble.classes, ensemble.regions)
        (output / f"{name}.json").unlink(missing_ok=True)  # an older one must not speak for newer maps
        for kind, folder in FOLDERS.items():
            (output / folder).mkdir(exist_ok=True)
            os.replace(made[kind], output / folder / f"{name}.nii.gz")
        told = {
            "scan": dict(zip(ensemble.channels, map(str, scans), strict=True)) if len(scans) > 1 else str(scans[0]),
            "shape": case.header["original"]["shape"],
            "voxel_ml": maps.voxel_ml,
            "structures": structures,
            "mean_entropy_nats": maps.entropy / int(maps.voxels.sum()),
            "maps": {kind: f"{folder}/{name}.nii.gz" for kind, folder in FOLDERS.items()},
            "calibrator": found.name,
            "calibrator_because": found.why,
            "calibrator_keeps_labels": found.keeps_labels,
            "calibrator_fitted_on": found.about.get("fitted_on"),
            **fitted_with(ensemble.info.recipe, found),
            **ensemble.provenance(inference),
            "calibseg": __version__,
            "seconds": round(time.monotonic() - began, 3),
        }
        files.write_json(output / f"{name}.json", "prediction", told)
    return Predicted(output, 1, structures=structures, calibrator=found.name, why=_why(found))


def _why(found: SelectedCalibrator) -> str:
    return found.why if found.keeps_labels else f"{found.why}; it may change labels"


def _read(scans: Sequence[Path], ensemble: Ensemble) -> Case:
    """The scan as a case without labels, checked like any other."""
    name = stem(scans[0])
    select = ensemble.info.select if len(scans) == 1 else None
    study = Study(name, name, tuple(scans), (), ensemble.channels, ensemble.classes, ensemble.regions)
    study = replace(study, select=tuple(select) if select else None)
    try:
        return Dataset().read(study)
    except BadInput as error:  # there are no other cases to go on with
        raise BadInput(str(error).replace(f"; {LEAVE_OUT}", "")) from error


def _files(scan: Scan, channels: tuple[str, ...]) -> list[Path]:
    """One file that holds all channels, or a file for each, in the order of the channels."""
    if isinstance(scan, Mapping):
        named, plain = {str(name): Path(path) for name, path in scan.items()}, []
    else:
        given = [scan] if isinstance(scan, str | Path) else list(scan)
        named, plain = {}, []
        for item in given:
            name, equals, path = str(item).partition("=")
            if not equals or Path(item).exists():
                plain.append(Path(item))
            elif name in named:
                raise BadInput(f"the channel {name!r} is given twice: {named[name]} and {path}")
            else:
                named[name] = Path(path)
    if plain and (named or len(plain) > 1):
        raise BadInput(f"say which channel each file is, as CHANNEL=FILE. Channels: {', '.join(channels)}")
    if plain:
        return plain
    spelt = {channel.casefold(): channel for channel in channels}
    for name in named:
        if name.casefold() not in spelt:
            raise BadInput(registry.unknown("channel", name, list(channels)))
    found = {spelt[name.casefold()]: path for name, path in named.items()}
    missing = [channel for channel in channels if channel not in found]
    if missing:
        raise BadInput(f"the scan lacks {', '.join(missing)}: the network was trained on {', '.join(channels)}")
    return [found[channel] for channel in channels]


def _protocol(told: Mapping[str, Any]) -> Preprocessing:
    """A protocol as JSON keeps it."""
    values: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in told.items()}
    return Preprocessing(**values)


def _key_of(path: Path) -> str | None:
    """The key of a file that is there; None where it cannot be read and is to be made again."""
    try:
        return read_about(path)["key"]
    except BadInput:
        return None
