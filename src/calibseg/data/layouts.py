"""Folder layouts that several sets share: `dataset.json` of the Decathlon and of nnU-Net, and where a set's root is.

>>> class_names({"0": "background", "1": "Anterior", "2": "Posterior"}, "dataset.json")
('background', 'Anterior', 'Posterior')
"""

from pathlib import Path
from typing import Any, NotRequired, TypedDict

from calibseg.core.coerce import coerce
from calibseg.core.files import read_json
from calibseg.core.types import BadInput
from calibseg.io.nifti import stem


class _Pair(TypedDict):
    image: str
    label: str


class _Task(TypedDict):
    training: NotRequired[list[_Pair]]


def first_folder(root: Path, holds: str, below: tuple[str, ...]) -> Path:
    """The root itself, or the first of the usual folders below it, that holds something matching a pattern."""
    for folder in (root, *(root / name for name in below)):
        if folder.is_dir() and next(folder.glob(holds), None) is not None:
            return folder
    raise BadInput(f"{root}: no {holds} here nor in {', '.join(below) or 'a folder below'}")


def class_names(names: Any, source: Path | str) -> tuple[str, ...]:
    """The Decathlon's {"0": "background", "1": ...} as a tuple; ids must run from 0 without a gap."""
    try:
        by_id = {int(key): name for key, name in coerce(f"{source}: labels", names, dict[str, str]).items()}
    except ValueError as error:
        raise BadInput(f'{source}: "labels" must map class ids to names, found {names!r}') from error
    if sorted(by_id) != list(range(len(by_id))) or len(by_id) < 2:
        raise BadInput(f"{source}: class ids must be 0, 1, 2, ... without a gap, found {sorted(by_id)}")
    return tuple(by_id[index] for index in range(len(by_id)))


def decathlon_pairs(root: Path) -> tuple[Path, dict[str, Any], list[tuple[str, Path, Path]]]:
    """A Decathlon task: its folder, its dataset.json, and (id, image, label) of every training case.

    The archives carry macOS's `._name` twins, which are no images; dataset.json does not list them.
    """
    below = sorted(path.name for path in root.iterdir() if path.is_dir()) if root.is_dir() else ()
    folder = first_folder(root, "dataset.json", tuple(below))
    metadata = read_json(folder / "dataset.json", shape=_Task)
    files = [(folder / entry["image"], folder / entry["label"]) for entry in metadata.get("training", [])]
    return folder, metadata, [(stem(image), image, label) for image, label in files]
