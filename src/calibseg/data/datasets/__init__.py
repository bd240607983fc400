"""Datasets: one file each. A reader says only what is particular to its set; reading and checking live here, once.

A reader finds the files of each study below a root folder; `read` turns a study into a `Case`. What is checked on the
way in: a study's id is a plain file name and unique, its patient is known, image and label share shape and place (a
corner may lie AFFINE_TOLERANCE_MM apart), values are finite, labels are whole numbers of known classes, and a label is
not empty. A failure names the file, the fact and the choice.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from numpy import ndarray as Array

from calibseg.core.ids import check_id, check_patient, first_alike
from calibseg.core.options import one_of
from calibseg.core.registry import lazy
from calibseg.core.types import IGNORED, BadInput, Case
from calibseg.data.study import Study
from calibseg.io.class_names import check_classes
from calibseg.io.images import LEAVE_OUT, Volume, read_volume
from calibseg.io.nifti import displacement_mm

if TYPE_CHECKING:
    from calibseg.data.datasets._members import *
else:
    __getattr__, __dir__ = lazy(__name__)

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
    classes: ClassVar[tuple[str, ...]] = ()  # empty: the folder itself says
    channels: ClassVar[tuple[str, ...]] = ()
    regions: ClassVar[dict[str, tuple[int, ...]]] = {}
    label_map: ClassVar[dict[int, int]] = {}  # value in the file -> class; empty: as they are
    protocol: ClassVar[dict[str, Any]] = {}  # fields of Preprocessing, as in the papers
    split: ClassVar[dict[str, Any]] = {"sizes": (70, 10, 20)}  # arguments of splits; sizes count patients
    needs_root: ClassVar[bool] = True

    def __init__(self, *, empty_labels: Literal["refuse", "keep"] = "refuse"):
        self.empty_labels = one_of("empty_labels", empty_labels, ("refuse", "keep"))

    def find(self, root: Path) -> list[Study]:
        """The studies below a root folder, in the order of their names. Each reader writes this one."""
        raise TypeError(f"{type(self).__name__} does not say how to find its studies below {root}")

    def studies(self, root: str | Path | None = None) -> list[Study]:
        """The studies below a root folder, checked: ids unique and safe as file names, patients known."""
        if self.needs_root:
            if root is None:
                raise BadInput(f"the dataset {self.title or type(self).__name__} needs --root. Layout: {self.layout}")
            if not Path(root).exists():
                raise BadInput(f"{root}: no such folder. Layout: {self.layout}")
        studies = sorted(self.find(Path(root or ".")), key=lambda study: study.id)
        if not studies:
            raise BadInput(f"{root}: no case found. Layout: {self.layout}")
        for study in studies:
            check_patient(study.patient, check_id(study.id, where=root), root)
            check_classes(root, study.classes, study.regions, None if study.label_map else study.ignore_label)
            if len(study.classes) < 2:
                raise BadInput(f"{root}: case {study.id!r} has {len(study.classes)} classes; background is one of two")
            if len(study.classes) > IGNORED:
                raise BadInput(
                    f"{root}: case {study.id!r} has {len(study.classes)} classes; at most {IGNORED} can be read"
                )
            if not study.images and type(self).read is Dataset.read:
                raise BadInput(f"{root}: case {study.id!r} has no image")
            if not study.channels or len(set(study.channels)) < len(study.channels):
                raise BadInput(f"{root}: the channels of {study.id!r} must have names that differ, {study.channels}")
        if (twice := first_alike([study.id for study in studies])) is not None:
            raise BadInput(f"{root}: two cases have the id {twice!r}; ids must differ")
        return studies

    def study(self, id: str, patient: str, images: list[Path], labels: list[Path], **changes: Any) -> Study:
        """A study with this set's classes, channels, regions and label values, unless `changes` says otherwise."""
        own = Study(id, patient, tuple(images), tuple(labels), self.channels, self.classes, self.regions)
        return replace(own, **({"label_map": self.label_map} | changes))

    def read(self, study: Study) -> Case:
        """Read and check one study."""
        volumes = [read_volume(path) for path in study.images]
        raters = [read_volume(path) for path in study.labels]
        first = volumes[0]
        for volume, path in zip([*volumes, *raters], [*study.images, *study.labels], strict=True):
            _check_same_grid(first, study.images[0], volume, path)
        image = np.concatenate([_channels(volume) for volume in volumes])
        image = _selected(image, study)
        if len(study.channels) == 1 and len(image) == 3 and (image == image[:1]).all():
            image = image[:1]  # a grey picture that is stored in colour, as BUSI's are
        if len(image) != len(study.channels):
            raise BadInput(
                f"{study.images[0]}: found {len(image)} channels, expected {len(study.channels)} "
                f"({', '.join(study.channels)})"
            )
        labels = [self._labels(volume.array, path, study) for volume, path in zip(raters, study.labels, strict=True)]
        case = Case(
            id=study.id,
            patient=study.patient,
            image=image,
            channels=study.channels,
            labels=np.stack(labels) if labels else None,
            spacing_mm=first.spacing_mm,
            classes=study.classes,
            affine=first.affine,
            regions=study.regions,
            ignore_label=IGNORED if study.ignore_label is not None else None,
            header={"original": first.original},
        )
        return self.checked(case, study.images[0], study.labels[0] if study.labels else study.images[0])

    def case(self, study: Study, image: Array, labels: Array, original: Mapping[str, Any], **more: Any) -> Case:
        """A case of arrays [c z y x] and [r z y x] that know no millimetres: 1 mm a voxel; checked like any other."""
        names = {"channels": study.channels, "classes": study.classes, "header": {"original": dict(original)}}
        place = {"spacing_mm": (1.0, 1.0, 1.0), "affine": np.eye(4)}
        case = Case(study.id, study.patient, image.astype(np.float32), labels=labels, **names, **place, **more)
        files = [*study.images, *study.labels] or [study.id]
        return self.checked(case, files[0], study.labels[0] if study.labels else files[0])

    def cases(self, root: str | Path | None = None) -> Iterator[Case]:
        """Every case below the root folder, one at a time."""
        for study in self.studies(root):
            yield self.read(study)

    def notes(self, studies: list[Study]) -> list[str]:
        """What a user should know about these studies; nothing by default."""
        return []

    def checked(self, case: Case, image: Path | str, label: Path | str) -> Case:
        """The same case, if its values are finite and something in it is labelled; the files are named if not."""
        bad = int(case.image.size - np.isfinite(case.image).sum())
        if bad:
            raise BadInput(f"{image}: {bad} image voxels of case {case.id!r} are NaN or infinite; {LEAVE_OUT}")
        drawn = case.labels is None or ((case.labels > 0) & (case.labels != IGNORED)).any()
        if not drawn and self.empty_labels == "refuse":
            raise BadInput(
                f"{label}: no voxel of case {case.id!r} is labelled; keep such cases with "
                "empty_labels=keep, or leave them out with --skip-bad"
            )
        return case

    def _labels(self, array: Array, path: Path, study: Study) -> Array:
        """Labels as written -> class ids in uint8, with IGNORED where the file says ignore."""
        integral = np.isfinite(array) & (array == np.rint(array)) if array.dtype.kind == "f" else np.True_
        if not integral.all():
            raise BadInput(f"{path}: labels must be whole numbers, found {array[~integral][0]}; {LEAVE_OUT}")
        table = dict(study.label_map) or {index: index for index in range(len(study.classes))}
        if study.ignore_label is not None:
            table[study.ignore_label] = IGNORED
        low, high = int(array.min()), int(array.max())
        steps = array.astype(np.intp) - low
        unknown = {low, high} - set(table)  # before counting: a stray value may be huge
        if not unknown:
            unknown = {low + int(step) for step in np.bincount(steps.ravel()).nonzero()[0]} - set(table)
        if unknown:
            value = min(unknown)
            choices = ", ".join(map(str, sorted(table)))
            raise BadInput(
                f"{path}: {int((array == value).sum())} voxels have the label {value}, known labels are {choices}; "
                "correct the labels, or leave such cases out with --skip-bad"
            )
        lookup = np.array([table.get(value, 0) for value in range(low, high + 1)], np.uint8)
        return lookup[steps]


def _selected(image: Array, study: Study) -> Array:
    """The channels to take; a file that is too small to choose from, but has as many as are needed, has just those."""
    if study.select is None or (max(study.select) >= len(image) == len(study.channels)):
        return image
    if max(study.select) >= len(image):
        raise BadInput(
            f"{study.images[0]}: found {len(image)} channels, but number {max(study.select) + 1} is to be taken"
        )
    return image[list(study.select)]


def _channels(volume: Volume) -> Array:
    array = volume.array if volume.array.ndim == 4 else volume.array[None]
    return np.ascontiguousarray(array, np.float32)


def _check_same_grid(first: Volume, first_path: Path, other: Volume, path: Path) -> None:
    if other is not first and other.array.ndim == 4:
        raise BadInput(f"{path}: has 4 axes {other.array.shape[::-1]}, a label or further modality has 3")
    shape, other_shape = first.array.shape[-3:], other.array.shape[-3:]
    ours, theirs = first.original["orientation"], other.original["orientation"]
    if shape != other_shape:
        raise BadInput(
            f"{path}: shape {tuple(other.original['shape'])} ({theirs}) differs from "
            f"{tuple(first.original['shape'])} ({ours}) of {first_path.name}; they must share one grid"
        )
    apart = displacement_mm(shape, first.affine, other.affine)
    if apart > AFFINE_TOLERANCE_MM:
        raise BadInput(
            f"{path}: lies {apart:.3g} mm away from {first_path.name} (at most {AFFINE_TOLERANCE_MM} mm is "
            f"allowed), being stored {theirs} and the other {ours}; they must share one grid"
        )
