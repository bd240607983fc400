"""Prostate: T2 MR with peripheral and transition zone (Decathlon Task05), 32 cases.

Most likely what the papers' PROMISE rows are: three classes, a grid of 320 pixels, files named prostate_NN and
22 + 3 + 7 patients. Of the two channels in a file (T2, ADC) T2 is used. Slices are resized to 320x320 and the
central 160x160 kept.
"""

from pathlib import Path

from calibseg.data.datasets import Dataset
from calibseg.data.layouts import decathlon_pairs
from calibseg.data.study import Study


class Prostate(Dataset):
    """Medical Segmentation Decathlon, Task05."""

    title = "Prostate (MSD Task05, the papers' PROMISE)"
    licence = "CC BY-SA 4.0"
    how_to_get = "Download Task05_Prostate.tar from http://medicaldecathlon.com and unpack it."
    layout = "Task05_Prostate/{dataset.json, imagesTr/prostate_NN.nii.gz, labelsTr/prostate_NN.nii.gz}"
    citation = "Antonelli et al., The Medical Segmentation Decathlon, Nature Communications 13 (2022) 4128."
    classes = ("background", "PZ", "TZ")
    channels = ("T2",)
    protocol = {"slice_axis": "acquisition", "resize": (None, 320, 320), "crop": (None, 160, 160)}
    split = {"sizes": (22, 3, 7)}

    def find(self, root: Path) -> list[Study]:
        _, _, pairs = decathlon_pairs(root)
        return [self.study(id, id, [image], [label], select=(0,)) for id, image, label in pairs]
