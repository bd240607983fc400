"""MRBrainS18: brain tissue of seven subjects in FLAIR, T1 and T1 inversion recovery.

Ten labels become three tissues: grey matter {1, 2}, white matter with its lesions {3, 4}, fluid {5, 6}; all else is
background. The papers' text has 240x240 pixels, their code keeps the central 192x192. It also has two rules to split
seven subjects, leave-one-out and 5 + 2, and no validation part: both are made, as `without-SUBJECT` and `default`.
"""

from pathlib import Path

from calibseg.data.datasets import Dataset
from calibseg.data.study import Study
from calibseg.io.images import nifti


class MRBrainS18(Dataset):
    """Grand Challenge on MR Brain Segmentation, MICCAI 2018."""

    title = "MRBrainS18"
    licence = "the challenge's terms; research only"
    how_to_get = "https://mrbrains18.isi.uu.nl/data/ (training set)"
    layout = "training/SUBJECT/{segm.nii.gz, pre/FLAIR.nii.gz, pre/reg_T1.nii.gz, pre/reg_IR.nii.gz}"
    citation = (
        "Kuijf et al., MRBrainS18 Grand Challenge, https://mrbrains18.isi.uu.nl; Mendrik et al., MRBrainS "
        "Challenge, Computational Intelligence and Neuroscience 2015, 813696."
    )
    classes = ("background", "GM", "WM", "CSF")
    channels = ("FLAIR", "T1", "IR")
    label_map = {0: 0, 1: 1, 2: 1, 3: 2, 4: 2, 5: 3, 6: 3, 7: 0, 8: 0, 9: 0, 10: 0}
    protocol = {"slice_axis": "axial", "crop": (None, 192, 192)}
    split = {"sizes": (5, 0, 2), "leave_one_out": True}

    def find(self, root: Path) -> list[Study]:
        folders = sorted({path.parent for path in root.rglob("segm.nii*")})
        return [
            self.study(
                f"subject_{folder.name}",
                folder.name,
                [nifti(folder / "pre", name) for name in ("FLAIR", "reg_T1", "reg_IR")],
                [nifti(folder, "segm")],
            )
            for folder in folders
        ]
