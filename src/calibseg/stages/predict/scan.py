"""Maps of a raw scan, which goes through the run's own preparation and comes back on its own grid.

    DIR/labels/NAME.nii.gz                  the likeliest class
    DIR/probabilities/NAME.nii.gz           of every class, on the fourth axis: `calibseg score` reads this folder
    DIR/confidence/NAME.nii.gz              the largest probability
    DIR/entropy/NAME.nii.gz                 in nats
    DIR/classes/NAME-ID-CLASS.nii.gz        of one class, where asked for
    DIR/NAME.png                            a picture: image, mask, confidence, where it is uncertain
    DIR/labels.txt, DIR/labels.ctbl         names and colours of the labels, for ITK-SNAP and for 3D Slicer
    DIR/NAME.json                           per structure: volume, expected volume, confidence

Slices pass through one after the other, so memory does not grow with the volume times its classes. What has its right
name is whole: files are made in a hidden folder, and NAME.json is the last to appear.
"""

import os
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

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
from calibseg.core.types import BadInput, Case
from calibseg.data.datasets import Dataset
from calibseg.data.layouts import stem
from calibseg.data.original_grid import original_slices
from calibseg.data.preprocessing import AXES, preprocess, read_protocol
from calibseg.data.slices import CaseSlices
from calibseg.data.study import Study
from calibseg.io.images import LEAVE_OUT
from calibseg.io.label_colours import itk_snap_table, slicer_table
from calibseg.runs import folders
from calibseg.stages.predict.ensemble import Ensemble
from calibseg.stages.predict.maps import Maps
from calibseg.stages.predict.options import InferenceOptions, MapOptions
from calibseg.stages.predict.quick_look import quick_look
from calibseg.stages.predict.result import Predicted

Scan = str | Path | Sequence[str | Path] | Mapping[str, str | Path]  # a file, "CHANNEL=file" each, or by channel
FOLDERS = {"label": "labels", "probabilities": "probabilities", "confidence": "confidence", "entropy": "entropy"}


def predict_scan(
    ensemble: Ensemble,
    inference: InferenceOptions,
    scans: Sequence[Path],
    output: Path,
    calibrator: SelectedCalibrator,
    also: MapOptions = MapOptions(),
) -> Predicted:
    """Maps on the scan's own grid, and what they say about each structure."""
    began = time.monotonic()
    name = stem(scans[0])
    raw = _read(scans, ensemble)
    image, spacing_mm = raw.image[0], raw.spacing_mm
    case = preprocess(raw, read_protocol("the run's protocol: ", ensemble.info.protocol))
    del raw
    source = CaseSlices(case, AXES[case.header["slice_axis"]])
    if calibrator.folder is None:
        slices = (p for batch in ensemble.scores(source, inference) for p in batch.softmax(1).numpy())
    else:
        batches = (batch.numpy() for batch in ensemble.scores(source, inference))
        slices = calibrated_slices(batches, case, source.axis, load_calibrator(calibrator.folder))
    with files.write_errors(output), files.temporary_folder(output / name) as scratch:
        maps = Maps(scratch, len(ensemble.info.classes), case.header, scans[0], per_class=also.per_class)
        for p in original_slices(slices, len(ensemble.info.classes), case.header):
            maps.add(p)
        paths = maps.close()
        structures = maps.structures(ensemble.info.classes, ensemble.regions)
        (output / f"{name}.json").unlink(missing_ok=True)  # an older one must not speak for newer maps
        for kind, folder in FOLDERS.items():
            (output / folder).mkdir(exist_ok=True)
            os.replace(paths[kind], output / folder / f"{name}.nii.gz")
        for k, class_name in enumerate(ensemble.info.classes if also.per_class else ()):
            (output / "classes").mkdir(exist_ok=True)
            plain = re.sub(r"[^\w.-]+", "_", class_name)
            os.replace(paths[f"class_{k}"], output / "classes" / f"{name}-{k}-{plain}.nii.gz")
        if also.quick_look:
            _, index, label, confidence = maps.fullest
            image_slice = np.moveaxis(image, source.axis, 0)[index]
            with files.atomic_write(output / f"{name}.png") as temporary:
                temporary.write_bytes(quick_look(image_slice, label, confidence, source.axis, spacing_mm))
        files.write_text(output / "labels.txt", itk_snap_table(ensemble.info.classes))
        files.write_text(output / "labels.ctbl", slicer_table(ensemble.info.classes))
        record = {
            "scan": {channel: scan.name for channel, scan in zip(ensemble.info.channels, scans, strict=True)}
            if len(scans) > 1
            else scans[0].name,
            "shape": case.header["original"]["shape"],
            "voxel_ml": maps.voxel_ml,
            "structures": structures,
            "mean_entropy_nats": maps.entropy / int(maps.voxels.sum()),
            "maps": {kind: f"{folder}/{name}.nii.gz" for kind, folder in FOLDERS.items()},
            "calibrator": calibrator.name,
            "calibrator_because": calibrator.why,
            "calibrator_keeps_labels": calibrator.keeps_labels,
            "calibrator_fitted_on": calibrator.about.get("fitted_on"),
            **fitted_with(ensemble.info.recipe, calibrator),
            **ensemble.provenance(inference),
            "calibseg": __version__,
            "seconds": round(time.monotonic() - began, 3),
        }
        files.write_json(output / f"{name}.json", "prediction", record)
    return Predicted(output, 1, structures=structures, calibrator=calibrator.name, why=_why(calibrator))


def scan_calibrator(
    run_paths: Sequence[Path], ensemble: Ensemble, inference: InferenceOptions, name: str | None
) -> SelectedCalibrator:
    """The calibrator for a scan. One belongs to one network and to the way that it was asked."""
    if len(run_paths) > 1 or inference.flips != "none":
        averaged = f"{len(run_paths)} runs" if len(run_paths) > 1 else "mirror images"
        if name not in (None, NONE):
            raise BadInput(
                f"the average of {averaged} has no calibrator, because each is fitted to one network's own"
                " answer: say --calibrator none"
            )
        return SelectedCalibrator(NONE, why=f"the average of {averaged} has no calibrator")
    selected = find_calibrator(folders.RunFolder(run_paths[0]).calibrators, name)
    if selected.folder is not None:
        refuse_other_weights(selected, ensemble.weights)
    return selected


def scan_files(scan: Scan, channels: tuple[str, ...]) -> list[Path]:
    """One file that holds all channels, or a file for each, in the order of the channels."""
    if isinstance(scan, Mapping):
        by_name, plain = {str(name): Path(path) for name, path in scan.items()}, []
    else:
        items = [scan] if isinstance(scan, str | Path) else list(scan)
        by_name, plain = {}, []
        for item in items:
            name, equals, path = str(item).partition("=")
            if not equals or Path(item).exists():
                plain.append(Path(item))
            elif name in by_name:
                raise BadInput(f"the channel {name!r} is given twice: {by_name[name]} and {path}")
            else:
                by_name[name] = Path(path)
    if plain and (by_name or len(plain) > 1):
        raise BadInput(f"say which channel each file is, as CHANNEL=FILE. Channels: {', '.join(channels)}")
    if plain:
        return plain
    spelt = {channel.casefold(): channel for channel in channels}
    for name in by_name:
        if name.casefold() not in spelt:
            raise BadInput(registry.unknown("channel", name, list(channels)))
    by_channel = {spelt[name.casefold()]: path for name, path in by_name.items()}
    missing = [channel for channel in channels if channel not in by_channel]
    if missing:
        raise BadInput(f"the scan lacks {', '.join(missing)}: the network was trained on {', '.join(channels)}")
    return [by_channel[channel] for channel in channels]


def _read(scans: Sequence[Path], ensemble: Ensemble) -> Case:
    """The scan as a case without labels, checked like any other."""
    name = stem(scans[0])
    select = ensemble.info.select if len(scans) == 1 else None
    study = Study(name, name, tuple(scans), (), ensemble.info.channels, ensemble.info.classes, ensemble.regions)
    study = replace(study, select=tuple(select) if select else None)
    try:
        return Dataset().read(study)
    except BadInput as error:  # there are no other cases to go on with
        raise BadInput(str(error).replace(f"; {LEAVE_OUT}", "")) from error


def _why(calibrator: SelectedCalibrator) -> str:
    return calibrator.why if calibrator.keeps_labels else f"{calibrator.why}; it may change the segmentation"
