"""A training run as a report sees it: what it says about itself, what it cost, what was fitted on what."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict

import pandas as pd
from safetensors import SafetensorError, safe_open

from calibseg.analysis.columns import Frame
from calibseg.core import files
from calibseg.core.types import BadInput
from calibseg.runs import folders
from calibseg.runs.choice import read_choice
from calibseg.runs.info import RunInfo, prepared_dir, read_run


class _CrossFitted(TypedDict):
    cases: dict[str, dict[str, float | None]]


class _Calibrator(TypedDict):
    parameters: int


NOT_LEARNT = ("running_mean", "running_var", "num_batches_tracked")  # what batch norm counts is no parameter


@dataclass(frozen=True)
class Run:
    """A training run, and how its dataset, network and method are called in the tables."""

    path: Path
    info: RunInfo
    log: Frame | None
    method: str
    dataset: str
    network: str

    @property
    def seed(self) -> str:
        return self.info.seed

    @property
    def split(self) -> str:
        return str(self.info.table("data").get("split") or "default")

    def logits(self, subset: str = "test") -> Path | None:
        """The folder of its stored predictions, where there is one."""
        folder = folders.RunFolder(self.path).logits / subset
        return folder if folder.is_dir() and any(folder.glob("*.npz")) else None

    def prepared_dir(self) -> Path | None:
        """The folder of its prepared cases, where it is at hand."""
        try:
            return prepared_dir(self.path)
        except BadInput:
            return None

    def parameters(self) -> int | None:
        """How many numbers the network learnt."""
        return _numbers_in(folders.RunFolder(self.path).weights)

    def calibrators(self) -> list[dict[str, Any]]:
        """What was fitted after training, as the files say it."""
        paths = folders.fitted_paths(folders.RunFolder(self.path).calibrators)
        return [files.read_json(path, "calibrator") for path in paths]

    def choice(self) -> dict[str, Any] | None:
        """The cross-fitted comparison of the calibrators on validation, where it was made."""
        return read_choice(folders.RunFolder(self.path).calibrators)

    def held_out(self) -> dict[str, dict[str, Any]]:
        """By calibrator, and `none`: what cross-fitting says of every validation case, and how much was learnt.

        Of a choice that was not cross-fitted (a single patient) only the network itself is told.
        """
        choice, folder = self.choice() or {}, folders.RunFolder(self.path)
        by_calibrator = {}
        for row in choice.get("table", ()):
            name, path = row["method"], folder.calibrator(row["method"]).cross_fitted
            if path.is_file() and (name == "none" or choice.get("cross_fitted")):
                cases = files.read_json(path, "cross-fitted", _CrossFitted)["cases"]
                fitted = folder.calibrator(name).info
                learnt = 0 if name == "none" else files.read_json(fitted, "calibrator", _Calibrator)["parameters"]
                by_calibrator[name] = {"cases": cases, "keeps_labels": row["keeps_argmax"], "parameters": learnt}
        return by_calibrator


def read_run_folder(path: Path) -> Run:
    """A run by its folder, under the names of its recipe."""
    info = read_run(path)
    log = folders.RunFolder(path).log
    rows = read_log(log) if log.is_file() else None
    return Run(path, info, rows, info.loss, info.dataset, info.network)


def read_log(path: Path) -> Frame:
    """A run's log.csv, one row per epoch."""
    try:
        return pd.read_csv(path)
    except (pd.errors.ParserError, pd.errors.EmptyDataError, UnicodeDecodeError) as error:
        raise BadInput(f"{path} is not a CSV table: {str(error).strip()}") from error


def cost(runs: tuple[Run, ...]) -> list[dict[str, Any]]:
    """Time, memory and size of every run."""
    rows = []
    for run in runs:
        memory = run.info.peak_memory_mib
        epochs = run.info.epochs_done
        seconds = run.info.wall_time_s or math.nan
        rows.append(
            {
                "run": run.path.resolve().name,
                "method": run.method,
                "dataset": run.dataset,
                "network": run.network,
                "seed": run.seed,
                "epochs": epochs,
                "best_epoch": run.info.best_epoch,
                "minutes": seconds / 60,
                "seconds_an_epoch": seconds / epochs if epochs else math.nan,
                "memory_mib": memory.get("device") or memory.get("process") or math.nan,
                "parameters": run.parameters(),
                "device": run.info.provenance.get("device", ""),
                "processes": run.info.provenance.get("processes", 1),
            }
        )
    return rows


def fitted(runs: tuple[Run, ...]) -> list[dict[str, str]]:
    """What everything that was learnt was learnt on."""
    rows = []
    for run in runs:
        split, select = run.info.split, run.info.table("train")["select"]
        names = {"run": run.path.resolve().name, "method": run.method}
        validation = f"validation, {len(split.validation)} cases"
        rows.append(names | {"what": "network", "on": f"train, {len(split.train)} cases"})
        epoch = run.info.best_epoch
        rows.append(names | {"what": f"checkpoint (epoch {epoch})", "on": f"{validation}, by {select}"})
        if run.log is not None and any(column.startswith("lambda_") for column in run.log.columns):
            rows.append(names | {"what": "multipliers λ and ρ", "on": validation})
        rows += [names | _calibrator(record) for record in run.calibrators()]
        choice = run.choice()
        if choice:
            what = f"choice of a calibrator: {choice.get('chosen')}"
            rows.append(names | {"what": what, "on": str(choice.get("by", ""))})
    return rows


def chosen_in_folders(tables: Iterable[str]) -> list[dict[str, str]]:
    """The calibrators chosen where score tables OUT/METHOD/scores.csv of `calibseg calibrate --apply` lie."""
    paths = [path for path in map(Path, tables) if path == folders.CalibratorFolder(path.parent).scores]
    rows = []
    for folder in dict.fromkeys(path.parent.parent for path in paths):
        if choice := read_choice(folder):
            what = f"choice of a calibrator: {choice['chosen']}"
            rows.append({"run": folder.resolve().name, "method": "", "what": what, "on": choice.get("by", "")})
    return rows


def _numbers_in(path: Path) -> int | None:
    """How many numbers a file of tensors holds that were learnt; None where it cannot be read."""
    try:
        with safe_open(path, "np") as file:
            names = [name for name in file.keys() if not name.endswith(NOT_LEARNT)]  # noqa: SIM118
            return sum(math.prod(file.get_slice(name).get_shape()) for name in names)
    except (SafetensorError, OSError):
        return None


def _calibrator(record: Mapping[str, Any]) -> dict[str, str]:
    """What a calibrator learnt, as far as it is single numbers, and where."""
    source = record.get("fitted_on") or {}
    subset = source.get("subset") or source.get("folder") or "unknown cases"
    cases = source.get("cases")
    number = len(cases) if isinstance(cases, list) else cases
    learnt = {name: record.get(name) for name in record.get("learnt", ())}
    numbers = ", ".join(f"{name} {value:.4g}" for name, value in learnt.items() if isinstance(value, float))
    return {
        "what": f"calibrator {record.get('method', '')}" + (f" ({numbers})" if numbers else ""),
        "on": f"{subset}, {number} cases" if number is not None else str(subset),
    }
