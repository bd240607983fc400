"""What a training run says about itself: run.json as a typed record, checked when it is read.

>>> info = RunInfo("toy-s0", {"data": {"dataset": "toy"}, "seed": 0}, ("none", "a"), ("T1",), Split((), (), (), 0))
>>> info.dataset, info.frame, info.provenance.get("device", "")
('toy', (1, 1), '')
"""

from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, get_type_hints

from calibseg.core.coerce import coerce
from calibseg.core.files import read_json, write_json
from calibseg.core.types import BadInput, Split
from calibseg.data import prepared
from calibseg.runs.folders import RunFolder

KEYS = {"fingerprint": "hash", "data_fingerprint": "data_hash"}  # fields that are called otherwise in the file


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
        return self.table("data")["dataset"]

    @property
    def network(self) -> str:
        return self.table("network")["name"]

    @property
    def loss(self) -> str:
        return self.table("loss")["name"]

    @property
    def seed(self) -> str:
        return str(self.recipe.get("seed", 0))

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
    hints = get_type_hints(RunInfo)
    values: dict[str, Any] = {}
    for item in fields(RunInfo):
        key = KEYS.get(item.name, item.name)
        if key in content and item.name != "provenance":
            value = content.pop(key)
            values[item.name] = (
                _split(path, value) if key == "split" else coerce(f"{path}: {key}", value, hints[item.name])
            )
        elif item.default is MISSING and item.default_factory is MISSING:
            raise BadInput(f"{path}: has no {key!r}; it is damaged, or no record of a training run")
    for name, inner in (("data", "dataset"), ("network", "name"), ("loss", "name")):
        table = values["recipe"].get(name)
        if table is not None and not (isinstance(table, dict) and isinstance(table.get(inner), str)):
            raise BadInput(f"{path}: recipe.{name} = {table!r} must be a table with {inner!r}")
    return RunInfo(**values, provenance=content)


def _split(path: Path, value: Any) -> Split:
    table: Mapping[str, Any] = coerce(f"{path}: split", value, dict)
    subsets = ("train", "validation", "test", "calibration")
    ids = {name: coerce(f"{path}: split.{name}", table.get(name, ()), tuple[str, ...]) for name in subsets}
    return Split(split_seed=coerce(f"{path}: split.split_seed", table.get("split_seed", 0), int), **ids)


def prepared_dir(run: str | Path, given: str | Path | None = None) -> Path:
    """The folder of a run's prepared cases: the one given, or the recipe's, from here or from a folder above the run.

    A run that was moved together with its prepared cases finds them by the second rule.
    """
    if given:
        return Path(given)
    info = read_run(run)
    stated = Path(info.table("data").get("work") or Path("work") / info.dataset)
    for base in (Path(), *Path(run).resolve().parents):
        if prepared.has_index(base / stated):
            return base / stated
    raise BadInput(f"{run}: its prepared cases are not in {stated}; say where they are (--work)")
