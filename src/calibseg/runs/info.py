"""Metadata of a training run: run.json as a typed record, checked when it is read.

>>> info = RunInfo("toy-s0", {"data": {"dataset": "toy"}, "seed": 0}, ("none", "a"), ("T1",), Split((), (), (), 0))
>>> info.dataset, info.frame, info.provenance.get("device", "")
('toy', (1, 1), '')
"""

import contextlib
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, NotRequired, TypedDict

from calibseg.core.coerce import coerce
from calibseg.core.files import read_json, write_json
from calibseg.core.types import BadInput, Split
from calibseg.data import prepared
from calibseg.io.class_names import check_classes
from calibseg.runs.folders import RunFolder

KEYS = {"fingerprint": "hash", "data_fingerprint": "data_hash"}  # fields that are called otherwise in the file


class _Named(TypedDict):
    name: str


class _Data(TypedDict):
    dataset: str
    work: NotRequired[str]


class _Recipe(TypedDict):
    data: NotRequired[_Data]
    network: NotRequired[_Named]
    loss: NotRequired[_Named]
    train: NotRequired[dict[str, Any]]


@dataclass(frozen=True)
class RunInfo:
    """A training run.

    recipe: the recipe's tables, every value stated
    regions, protocol: of the prepared cases, as their index has them
    select: which channels of a file that holds more of them
    frame: the size of slice that the network learnt on
    fingerprint, data_fingerprint: of the recipe, and of the training and validation cases
    best: what the chosen epoch reached on validation
    provenance: everything else: versions, machine, device, processes, source revision, command
    """

    slug: str
    recipe: dict[str, Any]
    classes: tuple[str, ...]
    channels: tuple[str, ...]
    split: Split
    regions: dict[str, Any] = field(default_factory=dict)
    protocol: dict[str, Any] = field(default_factory=dict)
    select: list[int] | None = None
    frame: tuple[int, int] = (1, 1)
    fingerprint: str = ""
    data_fingerprint: str = ""
    status: str = "unknown"
    epochs_done: int = 0
    best_epoch: int | None = None
    best: float | None = None
    wall_time_s: float | None = None
    peak_memory_mib: dict[str, Any] = field(default_factory=dict)
    provenance: dict[str, Any] = field(default_factory=dict)

    @property
    def dataset(self) -> str:
        return self._required("data", "dataset")

    @property
    def network(self) -> str:
        return self._required("network", "name")

    @property
    def loss(self) -> str:
        return self._required("loss", "name")

    @property
    def seed(self) -> str:
        return str(self.recipe.get("seed", 0))

    def _required(self, table: str, key: str) -> str:
        if key not in self.table(table):
            raise BadInput(f"the record of run {self.slug!r} does not say its recipe's {table}.{key}")
        return self.table(table)[key]

    def table(self, name: str) -> dict[str, Any]:
        """A table of the recipe; empty where the recipe has none."""
        return self.recipe.get(name, {})

    def cases(self, subset: str) -> list[str]:
        """The ids of the training, validation, test or calibration cases."""
        return list(getattr(self.split, subset, ()))


def write_run(folder: RunFolder, info: RunInfo) -> None:
    content = asdict(info)
    provenance = content.pop("provenance")
    write_json(folder.info, "run", {KEYS.get(name, name): value for name, value in content.items()} | provenance)


def read_run(run: str | Path) -> RunInfo:
    """What a run folder says about itself; a value that is missing or of another type is named with its file."""
    path = RunFolder(Path(run)).info
    if not path.is_file():
        raise BadInput(f"{run}: holds no training run ({path.name} is missing); run calibseg train first")
    content = read_json(path, "run")
    names = {KEYS.get(item.name, item.name): item.name for item in fields(RunInfo) if item.name != "provenance"}
    values = {name: content.pop(key) for key, name in names.items() if key in content}
    coerce(f"{path}: recipe", values.get("recipe"), _Recipe)
    info = coerce(f"{path}: ", {**values, "provenance": content}, RunInfo)
    check_classes(path, info.classes, {}, None)
    return info


def prepared_dir(run: str | Path, given: str | Path | None = None) -> Path:
    """The folder of a run's prepared cases: the one given, or the recipe's, from here or from a folder above the run.

    A run that was moved together with its prepared cases finds them by the second rule. Of several folders of that
    name the one that holds the cases it learnt from is taken; where none does any more, the first.
    """
    if given:
        return Path(given)
    info = read_run(run)
    relative = Path(info.table("data").get("work") or Path("work") / info.dataset)
    found = [base / relative for base in (Path(), *Path(run).resolve().parents) if prepared.has_index(base / relative)]
    if not found:
        raise BadInput(f"{run}: its prepared cases are not in {relative}; say where they are (--work)")
    return next((folder for folder in found if _learnt_from(folder, info)), found[0])


def _learnt_from(folder: Path, info: RunInfo) -> bool:
    with contextlib.suppress(BadInput):  # whoever reads the folder says what is wrong with it
        return prepared.split_fingerprint(folder, info.split) == info.data_fingerprint
    return False
