"""ACDC: short-axis cardiac MR of 100 patients at end diastole and end systole.

Info.cfg tells the two frames of a patient, which are two cases of one patient. The papers resize slices to 224x224 and
their code then keeps the central 192x192.
"""

from pathlib import Path

from calibseg.core.files import read_text
from calibseg.core.types import BadInput
from calibseg.data.datasets import Dataset
from calibseg.data.layouts import first_folder
from calibseg.data.study import Study
from calibseg.io.images import nifti


class ACDC(Dataset):
    """Automated Cardiac Diagnosis Challenge."""

    title = "ACDC"
    licence = "CC BY-NC-SA 4.0; research only"
    how_to_get = "https://humanheart-project.creatis.insa-lyon.fr/database/ (ACDC, training set)"
    layout = "training/patientNNN/{Info.cfg, patientNNN_frameNN.nii.gz, patientNNN_frameNN_gt.nii.gz}"
    citation = (
        "Bernard et al., Deep Learning Techniques for Automatic MRI Cardiac Multi-Structures Segmentation and "
        "Diagnosis, IEEE TMI 37 (2018) 2514-2525."
    )
    classes = ("background", "RV", "MYO", "LV")
    channels = ("cine MR",)
    protocol = {"slice_axis": "acquisition", "resize": (None, 224, 224), "crop": (None, 192, 192)}
    split = {"sizes": (70, 10, 20)}

    def find(self, root: Path) -> list[Study]:
        folder = first_folder(root, "patient*", ("training", "database/training", "ACDC/database/training"))
        return [
            self._phase(path, phase)
            for path in sorted(folder.glob("patient*"))
            if path.is_dir()
            for phase in ("ED", "ES")
        ]

    def _phase(self, folder: Path, phase: str) -> Study:
        stem = f"{folder.name}_frame{_frame(folder / 'Info.cfg', phase):02d}"
        id = f"{folder.name}_{phase}"
        return self.study(id, folder.name, [nifti(folder, stem)], [nifti(folder, f"{stem}_gt")])


def _frame(path: Path, phase: str) -> int:
    """The number of a frame, from a line like `ED: 1`."""
    for line in read_text(path).splitlines():
        name, _, value = line.partition(":")
        if name.strip() == phase and value.strip().isdecimal():
            return int(value)
    raise BadInput(f"{path}: has no line '{phase}: NUMBER'")
