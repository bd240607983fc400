"""Any task of the Medical Segmentation Decathlon, or your own folder in its layout.

Classes and channels come from dataset.json. A file with several modalities has them on its last axis. Every file is
taken as a patient of its own, since the Decathlon does not tell patients.
"""

from pathlib import Path

from calibseg.core.types import BadInput
from calibseg.data.datasets import Dataset
from calibseg.data.layouts import class_names, decathlon_pairs
from calibseg.data.study import Study


class Decathlon(Dataset):
    """A folder in the Decathlon's layout."""

    title = "any Decathlon task"
    licence = "CC BY-SA 4.0 for the ten tasks; your own folder has yours."
    how_to_get = "Download a task from http://medicaldecathlon.com and unpack it."
    layout = "TaskNN_Name/{dataset.json, imagesTr/*.nii.gz, labelsTr/*.nii.gz}"
    citation = "Antonelli et al., The Medical Segmentation Decathlon, Nature Communications 13 (2022) 4128."

    def find(self, root: Path) -> list[Study]:
        folder, metadata, pairs = decathlon_pairs(root)
        classes = class_names(metadata.get("labels"), folder / "dataset.json")
        modality = metadata.get("modality")
        if not isinstance(modality, dict) or not modality:
            raise BadInput(f'{folder / "dataset.json"}: "modality" must name the channels, found {modality!r}')
        numbered = sorted(modality, key=lambda key: (len(key), key))  # "10" after "2"
        channels = tuple(str(modality[key]) for key in numbered)
        return [self.study(id, id, [image], [label], classes=classes, channels=channels) for id, image, label in pairs]
