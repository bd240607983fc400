"""Any nnU-Net (version 2) raw folder: imagesTr, labelsTr and dataset.json.

Channels are files `CASE_0000`, `CASE_0001`, ...; classes, regions and the ignore label come from dataset.json. Labels
given as lists are regions over the ids they list; an id that only regions mention is called `label N`. nnU-Net does not
tell patients: give a pattern whose first group is the patient, or every case is a patient of its own.
"""

import os
import re
from pathlib import Path
from typing import Any, NotRequired, TypedDict

from calibseg.core.files import read_json
from calibseg.core.types import BadInput
from calibseg.data.datasets import Dataset
from calibseg.data.study import Study
from calibseg.io.images import PICTURES


class _Listed(TypedDict):
    images: list[str]
    label: str


class _Raw(TypedDict):
    """What is read of nnU-Net's dataset.json."""

    channel_names: NotRequired[dict[str, str]]
    modality: NotRequired[dict[str, str]]
    labels: NotRequired[Any]
    file_ending: NotRequired[str]
    dataset: NotRequired[dict[str, _Listed]]


class NNUNet(Dataset):
    """A folder in nnU-Net's raw layout.

    patient: a regular expression for the case id whose first group is the patient, e.g. (patient\\d+)_frame
    """

    title = "any nnU-Net raw folder"
    layout = "DatasetNNN_Name/{dataset.json, imagesTr/CASE_0000.nii.gz, labelsTr/CASE.nii.gz}"
    citation = "Isensee et al., nnU-Net, Nature Methods 18 (2021) 203-211."

    def __init__(self, patient: str = "(.*)", **common: Any):
        super().__init__(**common)
        try:
            self.patient = re.compile(patient)
        except re.error as error:
            raise BadInput(f"patient={patient!r} is no regular expression: {error}") from error

    def find(self, root: Path) -> list[Study]:
        source = root / "dataset.json"
        metadata = read_json(source, shape=_Raw)
        channels = _channels(metadata, source)
        classes, regions, ignore = _labels(metadata.get("labels"), source)
        ending = metadata.get("file_ending", ".nii.gz")
        studies = []
        for id, images, label in _files(root, metadata, ending, len(channels)):
            match = self.patient.search(id)
            if match is None or not match.groups() or match.group(1) is None:
                raise BadInput(f"the pattern patient={self.patient.pattern!r} finds no patient in the case id {id!r}")
            studies.append(
                self.study(
                    id,
                    match.group(1),
                    images,
                    [label],
                    classes=classes,
                    channels=channels,
                    regions=regions,
                    ignore_label=ignore,
                )
            )
        return studies


def _channels(metadata: dict[str, Any], source: Path) -> tuple[str, ...]:
    names = metadata.get("channel_names", metadata.get("modality"))
    if not names or sorted(names) != sorted(map(str, range(len(names)))):
        raise BadInput(f'{source}: "channel_names" must map "0", "1", ... to names, found {names!r}')
    return tuple(names[str(number)] for number in range(len(names)))


def _labels(labels: Any, source: Path) -> tuple[tuple[str, ...], dict[str, tuple[int, ...]], int | None]:
    """Class names, regions and the ignore label."""
    if not isinstance(labels, dict) or "background" not in labels:
        raise BadInput(f'{source}: "labels" must map names to ids and hold "background", found {labels!r}')
    try:
        ids = {
            str(name): tuple(map(int, value)) if isinstance(value, list) else (int(value),)
            for name, value in labels.items()
        }
    except (TypeError, ValueError, OverflowError) as error:
        raise BadInput(f'{source}: "labels" must hold ids or lists of ids, found {labels!r}') from error
    ignore = next(iter(ids.pop("ignore", ())), None)
    has_regions = any(isinstance(value, list) for value in labels.values())
    regions = {name: value for name, value in ids.items() if name != "background"} if has_regions else {}
    values = sorted({id for value in ids.values() for id in value})
    if values != list(range(len(values))):
        raise BadInput(f"{source}: label ids must be 0, 1, 2, ... without a gap, found {values}")
    single = {value[0]: name for name, value in ids.items() if len(value) == 1 and name not in regions}
    return tuple(single.get(id, f"label {id}") for id in values), regions, ignore


def _files(root: Path, metadata: dict[str, Any], ending: str, channels: int) -> list[tuple[str, list[Path], Path]]:
    """(id, channel files, label file) of every case; dataset.json may list them under "dataset" itself."""
    if isinstance(listed := metadata.get("dataset"), dict):
        return [
            (id, [Path(os.path.normpath(root / path)) for path in entry["images"]], root / entry["label"])
            for id, entry in listed.items()
        ]
    images, labels = root / "imagesTr", root / "labelsTr"
    if not labels.is_dir() or not images.is_dir():
        raise BadInput(f"{root}: needs the folders imagesTr and labelsTr")
    ids = [path.name.removesuffix(ending) for path in sorted(labels.glob(f"[!.]*{ending}"))]
    if ending in PICTURES and not any(images.glob(f"*_0001{ending}")):
        channels = 1  # a colour picture holds its three channels in one file
    return [
        (id, [images / f"{id}_{channel:04d}{ending}" for channel in range(channels)], labels / f"{id}{ending}")
        for id in ids
    ]
