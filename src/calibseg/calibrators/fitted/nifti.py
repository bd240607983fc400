"""Calibrated probabilities as NIfTI: classes on the fourth axis, voxels exactly where the label or prediction has them.

The affine, the codes of sform and qform and the units are copied number by number from the file that places the case. A
file is made in a hidden folder, piece by piece, and appears under its name when it is whole.
"""

import os
from pathlib import Path

import numpy as np

from calibseg.calibrators import Calibrator
from calibseg.calibrators.fitted.apply import transformed
from calibseg.core.files import temporary_folder, write_errors
from calibseg.core.types import BadInput
from calibseg.io.nifti import Grid
from calibseg.io.nifti_writer import compressed, mapped_nifti, place_of
from calibseg.io.predictions import PredictionFiles


def write_probabilities(pair: PredictionFiles, calibrator: Calibrator, path: Path) -> None:
    """The calibrated probabilities of a case, float32 [x y z k] as in the file that places it."""
    prediction, grid = pair.open(), Grid.of(pair.label)
    classes = prediction.scores.shape[0]
    with write_errors(path), temporary_folder(path) as scratch:
        try:
            geometry = place_of(pair.label, grid.file_affine)
            file = mapped_nifti(scratch / "p.nii", (*grid.file_shape, classes), np.float32, geometry)
            views = [grid.reoriented(file[..., number]) for number in range(classes)]
            for where, p in transformed(prediction, calibrator):
                for view, part in zip(views, p, strict=True):
                    view[where[1:]] = part
        except BadInput as error:
            raise BadInput(f"{pair.files[0]}: {error}") from error
        del file, views  # the last holders of the mapped file
        os.replace(compressed(scratch / "p.nii"), path)
