"""FLARE 2021: abdominal CT with liver, kidney, spleen and pancreas.

The papers resample "to a common space" and crop to 192x192x30, and do not say which space nor where. Here the whole
volume is resized to 30 slices of 192x192: no label is needed to place it, no organ is cut off, and it can be undone.
Intensities are clipped to the window of soft tissue, -160 to 240 HU, which the papers do not state either.
"""

from pathlib import Path

from calibseg.data.datasets import Dataset
from calibseg.data.layouts import first_folder
from calibseg.data.study import Study
from calibseg.io.images import nifti
from calibseg.io.nifti import ENDINGS, stem


class FLARE(Dataset):
    """Fast and Low GPU memory Abdominal oRgan sEgmentation, 2021."""

    title = "FLARE 2021"
    licence = "the challenge's terms; research only"
    how_to_get = "https://flare.grand-challenge.org/Data/ (TrainingImg and TrainingMask)"
    layout = "TrainingImg/train_NNN_0000.nii.gz and TrainingMask/train_NNN.nii.gz"
    citation = (
        "Ma et al., AbdomenCT-1K: Is Abdominal Organ Segmentation a Solved Problem?, IEEE TPAMI 44 (2022) 6695-6714."
    )
    classes = ("background", "liver", "kidney", "spleen", "pancreas")
    channels = ("CT",)
    protocol = {"slice_axis": "axial", "resize": (30, 192, 192), "intensity": "window", "range": (-160.0, 240.0)}
    split = {"sizes": (240, 40, 80)}

    def find(self, root: Path) -> list[Study]:
        folder = first_folder(root, "TrainingMask", ("FLARE21", "Training"))
        masks = [path for path in sorted((folder / "TrainingMask").glob("[!.]*")) if path.name.endswith(ENDINGS)]
        ids = [stem(path) for path in masks]
        images = [nifti(folder / "TrainingImg", f"{id}_0000") for id in ids]
        return [self.study(id, id, [image], [mask]) for id, image, mask in zip(ids, images, masks, strict=True)]
