# Written by scripts/stubs.py (make stubs): do not edit.
from collections.abc import Iterator as Iterator
from dataclasses import replace as replace
from pathlib import Path as Path
from typing import Any as Any
from typing import ClassVar as ClassVar
from typing import Literal as Literal

import numpy as np
from numpy import ndarray as Array

from calibseg.core.ids import check_id as check_id
from calibseg.core.ids import check_patient as check_patient
from calibseg.core.ids import first_alike as first_alike
from calibseg.core.options import one_of as one_of
from calibseg.core.registry import lazy as lazy
from calibseg.core.types import IGNORED as IGNORED
from calibseg.core.types import BadInput as BadInput
from calibseg.core.types import Case as Case
from calibseg.data.study import Study as Study
from calibseg.io.class_names import check_classes as check_classes
from calibseg.io.images import LEAVE_OUT as LEAVE_OUT
from calibseg.io.images import Volume as Volume
from calibseg.io.images import read_volume as read_volume
from calibseg.io.nifti import displacement_mm as displacement_mm

AFFINE_TOLERANCE_MM = 0.1

class Dataset:
    """What all sets have in common.

    empty_labels: what to do with a case in which nothing is labelled: refuse it, or keep it as all background
    """

    title: ClassVar[str] = ""
    licence: ClassVar[str] = "Your own: this reader serves any folder in its layout."
    how_to_get: ClassVar[str] = "You have it."
    layout: ClassVar[str] = ""
    citation: ClassVar[str] = ""
    classes: ClassVar[tuple[str, ...]] = ()
    channels: ClassVar[tuple[str, ...]] = ()
    regions: ClassVar[dict[str, tuple[int, ...]]] = {}
    label_map: ClassVar[dict[int, int]] = {}
    protocol: ClassVar[dict[str, Any]] = {}
    split: ClassVar[dict[str, Any]] = {"sizes": (70, 10, 20)}
    needs_root: ClassVar[bool] = True
    empty_labels: Literal["refuse", "keep"]

    def __init__(self, *, empty_labels: Literal["refuse", "keep"] = "refuse"): ...
    def find(self, root: Path) -> list[Study]:
        """The studies below a root folder, in the order of their names. Each reader writes this one."""

    def studies(self, root: str | Path | None = None) -> list[Study]:
        """The studies below a root folder, checked: ids unique and safe as file names, patients known."""

    def study(self, id: str, patient: str, images: list[Path], labels: list[Path], **changes: Any) -> Study:
        """A study with this set's classes, channels, regions and label values, unless `changes` says otherwise."""

    def read(self, study: Study) -> Case:
        """Read and check one study."""

    def cases(self, root: str | Path | None = None) -> Iterator[Case]:
        """Every case below the root folder, one at a time."""

    def notes(self, studies: list[Study]) -> list[str]:
        """What a user should know about these studies; nothing by default."""

    def checked(self, case: Case, image: Path | str, label: Path | str) -> Case:
        """The same case, if its values are finite and something in it is labelled; the files are named if not."""

    def _labels(self, array: Array, path: Path, study: Study) -> Array:
        """Labels as written -> class ids in uint8, with IGNORED where the file says ignore."""

def _selected(image: Array, study: Study) -> Array:
    """The channels to take; a file that is too small to choose from, but has as many as are needed, has just those."""

def _channels(volume: Volume) -> Array: ...
def _check_same_grid(first: Volume, first_path: Path, other: Volume, path: Path) -> None: ...

from calibseg.data.datasets.acdc import ACDC as ACDC
from calibseg.data.datasets.brats19 import BraTS19 as BraTS19
from calibseg.data.datasets.busi import BUSI as BUSI
from calibseg.data.datasets.decathlon import Decathlon as Decathlon
from calibseg.data.datasets.flare import FLARE as FLARE
from calibseg.data.datasets.folder import Folder as Folder
from calibseg.data.datasets.hippocampus import Hippocampus as Hippocampus
from calibseg.data.datasets.lidc4 import LIDC4 as LIDC4
from calibseg.data.datasets.mrbrains18 import MRBrainS18 as MRBrainS18
from calibseg.data.datasets.nnunet import NNUNet as NNUNet
from calibseg.data.datasets.phantom import Phantom as Phantom
from calibseg.data.datasets.promise12 import PROMISE12 as PROMISE12
from calibseg.data.datasets.prostate import Prostate as Prostate
