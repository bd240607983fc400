"""LIDC, four raters: central slices of lung nodules in CT, each outlined by four radiologists.

856 crops of 128x128 pixels from 539 patients; rater k is not the same person in two patients. The mean of the four
outlines is a soft target, and their disagreement is what a calibrated probability should show.
"""

from functools import lru_cache
from pathlib import Path
from zipfile import BadZipFile

import numpy as np
from numpy import ndarray as Array

from calibseg.core.types import BadInput, Case
from calibseg.data.datasets import Dataset
from calibseg.data.study import Study

NAME = "lidc_4rater_central.npz"
KEYS = ("images", "masks_packed", "patient", "nodule", "slice")


class LIDC4(Dataset):
    """LIDC-IDRI nodules with four outlines each."""

    title = "LIDC, four raters"
    licence = "CC BY 3.0 (LIDC-IDRI, TCIA)"
    how_to_get = "lidc_4rater_central.npz: crops from LIDC-IDRI, https://doi.org/10.7937/K9/TCIA.2015.LO9QL9SX"
    layout = (
        "lidc_4rater_central.npz with images uint8 [N 128 128], masks_packed uint8 [N 4 128 16] (np.packbits along"
        " the last axis), patient, nodule and slice [N]"
    )
    citation = (
        "Armato et al., The Lung Image Database Consortium (LIDC) and Image Database Resource Initiative (IDRI), "
        "Medical Physics 38 (2011) 915-931."
    )
    classes = ("background", "nodule")
    channels = ("CT",)
    protocol = {"slice_axis": "axial"}
    split = {"sizes": (70, 10, 20)}

    def find(self, root: Path) -> list[Study]:
        path = root if root.is_file() else root / NAME
        arrays = _arrays(path)
        rows = zip(arrays["patient"], arrays["nodule"], arrays["slice"], strict=True)
        return [
            self.study(f"{patient}_n{nodule}_s{index}", str(patient), [path], [], item=item)
            for item, (patient, nodule, index) in enumerate(rows)
        ]

    def read(self, study: Study) -> Case:
        arrays = _arrays(study.images[0])
        image = arrays["images"][study.item]
        labels = np.unpackbits(arrays["masks_packed"][study.item], axis=-1)
        original = {"file": NAME, "shape": [*image.shape[::-1], 1], "affine": np.eye(4).tolist(), "orientation": "RAS"}
        return self.case(study, image[None, None], labels[:, None], original)


@lru_cache(maxsize=1)
def _arrays(path: Path) -> dict[str, Array]:
    """The file's arrays, unpacked once for its 856 cases."""
    if not path.is_file():
        raise BadInput(f"{path}: no such file. Layout: {LIDC4.layout}")
    try:
        with np.load(path, allow_pickle=False) as file:
            return {key: file[key] for key in KEYS}
    except KeyError as error:
        raise BadInput(f"{path}: lacks the array {error}. Layout: {LIDC4.layout}") from error
    except (BadZipFile, ValueError, EOFError, OSError) as error:
        raise BadInput(f"{path}: the file is cut short or damaged ({error})") from error
