"""Hippocampus: T1 MR of both hippocampi, anterior and posterior (Decathlon Task04; the papers' HPC).

260 volumes at 1 mm, between 31x40x24 and 43x59x47 voxels; the papers cut them into 9198 sagittal slices. Intensities
differ between volumes by four orders of magnitude, so each is scaled by itself.
"""

from pathlib import Path

from calibseg.data.datasets import Dataset
from calibseg.data.layouts import decathlon_pairs
from calibseg.data.study import Study


class Hippocampus(Dataset):
    """Medical Segmentation Decathlon, Task04."""

    title = "Hippocampus (MSD Task04, HPC)"
    licence = "CC BY-SA 4.0"
    how_to_get = "Download Task04_Hippocampus.tar from http://medicaldecathlon.com and unpack it."
    layout = "Task04_Hippocampus/{dataset.json, imagesTr/hippocampus_NNN.nii.gz, labelsTr/hippocampus_NNN.nii.gz}"
    citation = "Antonelli et al., The Medical Segmentation Decathlon, Nature Communications 13 (2022) 4128."
    classes = ("background", "anterior", "posterior")
    channels = ("T1",)
    protocol = {"slice_axis": "sagittal"}
    split = {"sizes": (185, 25, 50)}

    def find(self, root: Path) -> list[Study]:
        _, _, pairs = decathlon_pairs(root)
        return [self.study(id, id, [image], [label]) for id, image, label in pairs]
