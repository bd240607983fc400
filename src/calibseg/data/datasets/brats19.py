"""BraTS 2019: gliomas in four MR modalities.

Label 4 (enhancing tumour) becomes class 3, so that classes have no gap. Scores are given for the challenge's regions:
ET = {3}, TC = {1, 3}, WT = {1, 2, 3}. The papers resample 155x240x240 to 128x192x192; the MbLS paper leaves slices
without a label out of training: `data.keep = "foreground"`, as its recipes say.
"""

from pathlib import Path

from calibseg.core.types import BadInput
from calibseg.data.datasets import Dataset
from calibseg.data.study import Study
from calibseg.io.images import nifti


class BraTS19(Dataset):
    """Multimodal Brain Tumor Segmentation Challenge 2019."""

    title = "BraTS 2019"
    licence = "by registration; research only"
    how_to_get = "https://www.med.upenn.edu/cbica/brats2019/registration.html (training data)"
    layout = "{HGG,LGG}/BraTS19_ID/BraTS19_ID_{flair,t1,t1ce,t2,seg}.nii.gz"
    citation = (
        "Menze et al., The Multimodal Brain Tumor Image Segmentation Benchmark (BRATS), IEEE TMI 34 (2015) "
        "1993-2024; Bakas et al., Scientific Data 4 (2017) 170117; Bakas et al., arXiv 1811.02629 (2018)."
    )
    classes = ("background", "necrosis", "oedema", "enhancing")
    channels = ("flair", "t1", "t1ce", "t2")
    regions = {"ET": (3,), "TC": (1, 3), "WT": (1, 2, 3)}
    label_map = {0: 0, 1: 1, 2: 2, 4: 3}
    protocol = {"slice_axis": "axial", "resize": (128, 192, 192)}
    split = {"sizes": (235, 35, 65)}

    def find(self, root: Path) -> list[Study]:
        folders = sorted(path for grade in ("HGG", "LGG") for path in root.rglob(f"{grade}/BraTS19_*") if path.is_dir())
        if not folders:
            raise BadInput(f"{root}: no HGG/BraTS19_* nor LGG/BraTS19_* below. Layout: {self.layout}")
        return [
            self.study(
                path.name,
                path.name.rpartition("_")[0],  # the last number counts the scans of a patient
                [nifti(path, f"{path.name}_{channel}") for channel in self.channels],
                [nifti(path, f"{path.name}_seg")],
            )
            for path in folders
        ]
