"""Cases as a fitted calibrator sees them; those that it was fitted on are refused."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from calibseg.calibrators.fitted.apply import Calibrated
from calibseg.calibrators.fitted.files import read_calibrator
from calibseg.calibrators.fitted.images import ImageFiles, PreparedImages, image_files, with_images
from calibseg.calibrators.fitted.selected import CHOSEN, find_calibrator
from calibseg.core import registry
from calibseg.core.hashing import file_fingerprint
from calibseg.core.types import BadInput
from calibseg.io.predictions import PredictionFiles, is_constant
from calibseg.runs.choice import read_choice
from calibseg.runs.folders import CalibratorFolder


def calibrated_by_folder(
    matched: Sequence[PredictionFiles], folder: Path | None, images: Path | None
) -> tuple[Sequence[PredictionFiles], Path | None, dict[str, Any]]:
    """The cases as the calibrator in a folder sees them, or the one chosen among several there; its folder and record.

    Where there is no calibrator, or none was chosen: the cases themselves, None and nothing.
    """
    if folder is not None and not CalibratorFolder(folder).info.is_file() and read_choice(folder) is not None:
        folder = find_calibrator(folder, CHOSEN).folder
    if folder is None:
        return matched, None, {}
    record = read_calibrator(folder)
    refuse_fitted(matched, record["fitted_on"], folder)
    files = ImageFiles(image_files(images)) if images else None
    return with_calibrator(matched, folder, record, files), folder, record


def with_calibrator(
    matched: Sequence[PredictionFiles],
    folder: Path,
    about: Mapping[str, Any],
    images: PreparedImages | ImageFiles | None,
) -> list[PredictionFiles]:
    """The cases as a calibrator sees them, with images if it looks at them."""
    if registry.load("calibrators", about["method"], folder).uses_image and about.get("image_channels", 1):
        if images is None:
            raise BadInput(f"{about['method']} looks at the images of the cases: say where they lie with --images DIR")
        matched = with_images(matched, images)
    return [Calibrated.of(pair, folder) for pair in matched]


def refuse_fitted(matched: Sequence[PredictionFiles], fitted_on: Mapping[str, Any], path: Path) -> None:
    """Refuse cases and patients that a calibrator or rules were fitted on, and their files under other names.

    A name that stands for somebody else is refused too: a label map that differs may be the same patient's, drawn anew.
    """
    for pair in matched:
        if pair.case in fitted_on.get("cases", ()) or pair.patient in fitted_on.get("patients", ()):
            raise BadInput(
                f"{path} was fitted on case {pair.case!r} or its patient: use it on others (files of somebody else who"
                " has the same name: rename them)"
            )
        if file_fingerprint(pair.files[0]) in fitted_on.get("files", ()) and not is_constant(pair):
            raise BadInput(f"{path} was fitted on {pair.files[0]} under another name: use it on others")
