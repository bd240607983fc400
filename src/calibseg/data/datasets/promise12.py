"""PROMISE12: transversal T2 MR of the prostate, 50 cases, one class.

The papers name this set, yet their code reads three classes from 32 files named prostate_NN: see `prostate`. Cases
differ in resolution and field of view, so they are resampled to 0.625 mm in the plane, and the central 160x160 pixels
(100 mm) are kept. Needs SimpleITK (extra `io`).
"""

from pathlib import Path

from calibseg.data.datasets import Dataset
from calibseg.data.study import Study


class PROMISE12(Dataset):
    """Prostate MR Image Segmentation, MICCAI 2012."""

    title = "PROMISE12"
    licence = "by registration; research only"
    how_to_get = "https://promise12.grand-challenge.org (training data)"
    layout = "CaseNN.mhd, CaseNN.raw, CaseNN_segmentation.mhd, CaseNN_segmentation.raw, in any folder below"
    citation = (
        "Litjens et al., Evaluation of prostate segmentation algorithms for MRI: the PROMISE12 challenge, Medical "
        "Image Analysis 18 (2014) 359-373."
    )
    classes = ("background", "prostate")
    channels = ("T2",)
    protocol = {"slice_axis": "acquisition", "spacing_mm": (None, 0.625, 0.625), "crop": (None, 160, 160)}
    split = {"sizes": (35, 5, 10)}

    def find(self, root: Path) -> list[Study]:
        masks = sorted(root.rglob("Case*_segmentation.mhd"))
        ids = [path.stem.removesuffix("_segmentation") for path in masks]
        return [self.study(id, id, [mask.with_name(f"{id}.mhd")], [mask]) for id, mask in zip(ids, masks, strict=True)]
