"""What a report is made of: score tables, reliability rows, and the runs behind them, from whatever one points at.

A source is a score table (`scores.csv`), a run folder, a folder of runs, or a benchmark's folder (with `runs/` in it).
Tables that cannot stand beside the others (other rules) are left out and named, so that one odd file does not cost the
whole report. Two runs that the table's columns cannot tell apart take the names of their folders.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pandas as pd
from safetensors import SafetensorError, safe_open

from calibseg import store, table
from calibseg.comparable import method_names
from calibseg.figure_scores import shift_of
from calibseg.figure_sources import read_bins
from calibseg.table import EXPERIMENT, Frame, ScoreTable
from calibseg.types import BadInput

SEED_ENDING = re.compile(r"-s(?:eed)?\d+$")
NOT_LEARNT = ("running_mean", "running_var", "num_batches_tracked")  # what batch norm counts is no parameter


@dataclass(frozen=True)
class Run:
    """A training run: what it says about itself, and what its method is called in the tables."""

    path: Path
    about: dict[str, Any]
    log: Frame | None
    method: str

    @property
    def dataset(self) -> str:
        return self.about["recipe"]["data"]["dataset"]

    @property
    def network(self) -> str:
        return self.about["recipe"]["network"]["name"]

    @property
    def seed(self) -> str:
        return str(self.about["recipe"]["seed"])

    def logits(self, part: str = "test") -> Path | None:
        """The folder of its stored predictions, where there is one."""
        folder = store.RunFolder(self.path).logits / part
        return folder if folder.is_dir() and any(folder.glob("*.npz")) else None

    def work(self) -> Path | None:
        """The folder of its prepared cases: as its recipe says, from here or from a folder above the run."""
        data = self.about["recipe"]["data"]
        stated = Path(data.get("work") or Path("work") / data["dataset"])
        above = [parent / stated for parent in self.path.resolve().parents]
        return next((folder for folder in [stated, *above] if store.has_index(folder)), None)

    def parameters(self) -> int | None:
        """How many numbers the network learnt."""
        try:
            with safe_open(store.RunFolder(self.path).weights, "np") as file:
                names = [name for name in file.keys() if not name.endswith(NOT_LEARNT)]  # noqa: SIM118
                shapes = [file.get_slice(name).get_shape() for name in names]
        except (SafetensorError, OSError):
            return None
        return sum(_product(shape) for shape in shapes)

    def calibrators(self) -> list[dict[str, Any]]:
        """What was fitted after training, as the files say it."""
        files = sorted((self.path / "calibrators").glob("*/calibrator.json"))
        return [store.read_json(path, "calibrator") for path in files]

    def choice(self) -> dict[str, Any] | None:
        """The cross-fitted comparison of the calibrators on validation, where it was made."""
        path = self.path / "calibrators" / "choice.json"
        return store.read_json(path, "choice") if path.is_file() else None


@dataclass(frozen=True)
class Evidence:
    """Everything a report can show, and what had to be left out of it."""

    test: ScoreTable
    shifted: Frame  # the same rows and those of images with noise added
    validation: ScoreTable | None
    bins: Frame | None
    runs: tuple[Run, ...]
    warnings: tuple[str, ...] = field(default=())


@dataclass(frozen=True)
class _Found:
    """A score table, its reliability rows and the run it lies in."""

    scores: ScoreTable
    bins: Frame | None
    run: Path | None


def gather(sources: Sequence[Path | str]) -> Evidence:
    """Read everything that the sources hold."""
    if not sources:
        raise BadInput("name at least one score table, run folder or benchmark folder to report on")
    found: list[_Found] = []
    runs: list[Run] = []
    for source in map(Path, sources):
        tables, paths = _open(source)
        found += [_read(path, run) for path, run in tables]
        runs += [_run(path) for path in paths]
    if not found:
        raise BadInput(f"{', '.join(map(str, sources))}: no score table there yet; run calibseg score first")
    found, runs = _told_apart(found, runs)
    found, warnings = _compatible(found)
    warnings += [
        f"{run.path.name}: its training has the status {run.about.get('status', 'unknown')!r}, not 'finished'"
        for run in runs
        if run.about.get("status") != "finished"
    ]
    return _parted(found, tuple(runs), warnings)


def _open(source: Path) -> tuple[list[tuple[Path, Path | None]], list[Path]]:
    """The score tables of a source with the runs they lie in, and the run folders."""
    if source.is_file():
        return [(source, None)], []
    if not source.is_dir():
        raise BadInput(f"no file or folder {source}")
    if store.RunFolder(source).about.is_file():
        runs = [source]
    else:
        runs = sorted(path.parent for path in [*source.glob("*/run.json"), *source.glob("runs/*/run.json")])
    tables: list[tuple[Path, Path | None]] = [(path, run) for run in runs for path in _tables(run)]
    if not tables:  # a benchmark whose runs were not kept, or a folder of tables
        merged = source / "scores.csv"
        tables = [(path, None) for path in ([merged] if merged.is_file() else _tables(source))]
    if not tables and not runs:
        raise BadInput(f"{source}: holds neither a run (run.json), nor runs, nor a score table (scores.csv)")
    return tables, runs


def _tables(folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob("scores*.csv") if not path.name.endswith(".bins.csv"))


def _read(path: Path, run: Path | None) -> _Found:
    bins = table.bins_path(path)
    return _Found(table.read(path), read_bins(bins) if bins.is_file() else None, run)


def _run(path: Path) -> Run:
    about = store.read_run(path)
    log = store.RunFolder(path).log
    try:
        rows = pd.read_csv(log) if log.is_file() else None
    except (pd.errors.ParserError, pd.errors.EmptyDataError, UnicodeDecodeError) as error:
        raise BadInput(f"{log} is not a CSV table: {str(error).strip()}") from error
    return Run(path, about, rows, about["recipe"]["loss"]["name"])


def _told_apart(found: Sequence[_Found], runs: Sequence[Run]) -> tuple[list[_Found], list[Run]]:
    """Rename methods that several runs share: `mbls` with margin 5 and 10 become mbls5 and mbls10, as their folders."""
    owners: dict[tuple[str, ...], set[Path]] = {}
    for one in found:
        if one.run is not None:
            for key in _experiments(one.scores.rows):
                owners.setdefault(key, set()).add(one.run)
    loss = EXPERIMENT.index("loss")
    shared = {key[loss] for key, paths in owners.items() if len(paths) > 1}
    renamed = []
    for one in found:
        if one.run is not None and set(one.scores.rows["loss"]) & shared:
            name = SEED_ENDING.sub("", one.run.name)
            scores = replace(one.scores, rows=one.scores.rows.assign(loss=name))
            one = _Found(scores, None if one.bins is None else one.bins.assign(loss=name), one.run)
        renamed.append(one)
    called = {one.run: _base_name(one.scores.rows) for one in reversed(renamed)}
    return renamed, [replace(run, method=called.get(run.path, run.method)) for run in runs]


def _experiments(rows: Frame) -> list[tuple[str, ...]]:
    return list(rows[list(EXPERIMENT)].drop_duplicates().itertuples(index=False, name=None))


def _base_name(rows: Frame) -> str:
    """What a run's method is called without a calibrator."""
    first = rows.iloc[:1]
    _, variant = shift_of(first["variant"].iloc[0])
    return str(method_names(first.assign(calibrator="", variant=variant)).iloc[0])


def _compatible(found: Sequence[_Found]) -> tuple[list[_Found], list[str]]:
    """The tables that obey the rules of those before them, and a sentence about each of the others."""
    kept: list[_Found] = []
    warnings: list[str] = []
    so_far: ScoreTable | None = None
    for one in found:
        rules_only = replace(one.scores, rows=one.scores.rows[:0])
        try:
            merged = table.merge([rules_only] if so_far is None else [so_far, rules_only])
        except BadInput as error:
            warnings.append(f"left out: {error}")
        else:
            so_far = replace(merged, name=kept[0].scores.name if kept else one.scores.name)
            kept.append(one)
    return kept, warnings


def _parted(found: Sequence[_Found], runs: tuple[Run, ...], warnings: Iterable[str]) -> Evidence:
    merged = table.merge([one.scores for one in found])
    bins = [one.bins for one in found if one.bins is not None]
    rows, warnings = merged.rows, list(warnings)
    chosen = rows["split"] == "validation"
    if chosen.all():
        warnings.append("these are scores of validation cases, on which networks were selected: there are none of test")
        chosen[:] = False
    noisy = _noisy(rows)
    test = rows[~chosen & ~noisy]
    if not len(test):
        raise BadInput(f"{merged.name}: holds only images with noise added; the report needs those without it too")
    all_bins: Frame | None = None
    if bins:
        all_bins = pd.concat(bins, ignore_index=True)
        all_bins = all_bins[~_noisy(all_bins) & all_bins["split"].isin(test["split"].unique())]
    return Evidence(
        replace(merged, rows=test),
        rows[~chosen],
        replace(merged, rows=rows[chosen & ~noisy]) if (chosen & ~noisy).any() else None,
        all_bins,
        runs,
        tuple(warnings),
    )


def _noisy(rows: Frame) -> Any:
    """Which rows are of images with noise added: the variant says so."""
    return rows["variant"].map({name: shift_of(name)[0] > 0 for name in rows["variant"].unique()}).astype(bool)


def _product(shape: Sequence[int]) -> int:
    total = 1
    for size in shape:
        total *= size
    return total


def notes(scores: ScoreTable) -> dict[str, dict[str, Any]]:
    """What each table says about where it comes from, by its name."""
    merged = scores.notes.get("merged")
    return dict(merged) if isinstance(merged, dict) else {scores.name: dict(scores.notes)}
