"""What is done in a cell of a benchmark, stage by stage: the commands of the road, and whether each is still to do.

    prepare, split                    once per dataset
    train                             into OUT/runs/CELL
    predict validation, test, ...     and test images with noise
    score validation                  the network's own confidence: what choices rest on
    calibrate                         every method, fitted on validation
    score test, test+temperature, ... every subset and every calibrator

A stage is done when its files are there, are not older than what they were made from, and say of themselves what the
grid asks for, whoever made them: a command that was typed by hand counts. A candidate (`choice`) stops after validation
until it is chosen. A cell whose reduced scores are kept (`kept`) needs its data only.
"""

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypedDict

from calibseg.analysis import table
from calibseg.benchmark import kept
from calibseg.benchmark.command import Command
from calibseg.benchmark.grid import Cell, Grid, preparation
from calibseg.core import files, registry
from calibseg.core.types import BadInput
from calibseg.data import prepared
from calibseg.data.preprocessing import protocol_field
from calibseg.runs import folders
from calibseg.runs.choice import read_choice
from calibseg.runs.info import read_run
from calibseg.stages.calibrate.options import CalibrationOptions
from calibseg.stages.predict.options import InferenceOptions
from calibseg.stages.score.chosen_metrics import rules_of
from calibseg.stages.score.options import ScoringOptions
from calibseg.stages.train.hardware import Hardware


class _Rules(TypedDict):
    metrics: dict[str, dict[str, Any]]


class _Meta(TypedDict):
    """What a score table's companion says of how it was scored."""

    rules: _Rules
    voxels: dict[str, str]


@dataclass(frozen=True)
class Stage:
    """One command, and what it makes.

    outputs: its files, as far as their names are known beforehand
    sources: the files that those are made from
    as_asked: whether what the outputs say of themselves is what the grid asks for
    """

    name: str
    command: Command
    outputs: Callable[[], Sequence[Path]] = tuple
    sources: Callable[[], Sequence[Path]] = tuple
    as_asked: Callable[[], bool] = lambda: True

    def done(self) -> bool:
        """Whether all files are there, no output is older than a source, and all is as it was asked for."""
        outputs, sources = self.outputs(), self.sources()
        if not all(path.is_file() for path in (*outputs, *sources)):
            return False
        newest = max((path.stat().st_mtime_ns for path in sources), default=0)
        return all(path.stat().st_mtime_ns >= newest for path in outputs) and self.as_asked()


@dataclass(frozen=True)
class Bench:
    """A benchmark under way: the grid, its folder, the raw data, and how networks are trained.

    roots: raw studies by dataset
    kept: a folder of reduced score tables, which count as done
    """

    grid: Grid
    folder: folders.BenchmarkFolder
    roots: Mapping[str, str]
    hardware: Hardware = Hardware()
    kept: Path | None = None

    def cell(self, slug: str) -> Cell:
        cells = {cell.slug: cell for cell in self.grid.cells}
        if slug not in cells:
            raise BadInput(registry.unknown("cell", slug, list(cells)))
        return cells[slug]

    @property
    def words(self) -> list[str]:
        """The arguments of the command `calibseg` that goes on with this benchmark."""
        arguments = {"grid": self.folder.grid, "output": self.folder.path, "hardware": self.hardware, "kept": self.kept}
        roots = [word for name, root in self.roots.items() for word in ("--root", f"{name}={root}")]
        return [*Command("benchmark", arguments).words, *roots]

    def command(self, slug: str) -> list[str]:
        """The command that walks one cell, by this installation, whatever is on the PATH."""
        return [sys.executable, "-m", "calibseg", *self.words, "--cell", slug]

    def work(self, cell: Cell) -> Path:
        """Prepared cases: where the recipe says, else in the benchmark's folder, once for all labels of the same."""
        if cell.recipe.data.work:
            return Path(cell.recipe.data.work)
        same = (other.dataset for other in self.grid.cells if preparation(other) == preparation(cell))
        return self.folder.work(next(same))

    def root(self, cell: Cell) -> str | None:
        """The raw data of its label, or of its dataset; None where nobody says."""
        return self.roots.get(cell.dataset, self.roots.get(cell.recipe.data.dataset))

    def run(self, cell: Cell) -> Path:
        return self.folder.run(cell.slug)

    def kept_table(self, cell: Cell) -> Path | None:
        """Where the cell's reduced scores are kept, if they are to be."""
        return None if self.kept is None else kept.kept_path(self.kept, cell.slug)

    def is_kept(self, cell: Cell) -> bool:
        """Whether a kept table stands for the whole cell."""
        path = self.kept_table(cell)
        if path is None or not kept.is_current(path, kept.made_from(self.grid, cell, self.work(cell))):
            return False
        return _scored_as_asked(path, self.grid.score)


def data_stages(bench: Bench, cell: Cell) -> list[Stage]:
    """What a cell needs of its dataset; cells of one dataset share it."""
    work, data = bench.work(cell), cell.recipe.data
    source = {"dataset": data.dataset, "output": work, "root": bench.root(cell)}
    prepare = Command("prepare", {**source, "option": data.options, "protocol": data.protocol})
    split = Command("split", {"work": work, "how": bench.grid.split})
    return [
        Stage("prepare", prepare, as_asked=lambda: _prepared_as_asked(work, cell)),
        Stage("split", split, lambda: [prepared.split_path(work, data.split)]),
    ]


def validation_stages(bench: Bench, cell: Cell) -> list[Stage]:
    """Training, and what the validation cases tell."""
    run, work = bench.run(cell), bench.work(cell)
    recipe = bench.folder.recipe(cell.slug)
    kwargs = {"recipe": recipe, "output": run, "hardware": bench.hardware, "resume": True, "quiet": True}
    record = [folders.RunFolder(run).info]
    train = Stage("train", Command("train", kwargs), lambda: record, as_asked=lambda: _trained_as_asked(bench, cell))
    stages = [train]
    if _has_validation(run, cell):
        stages += [_predict(run, work, "validation"), _score(run, bench.grid.score, "validation")]
    return stages


def test_stages(bench: Bench, cell: Cell) -> list[Stage]:
    """Calibrators, and what the test cases tell."""
    run, work = bench.run(cell), bench.work(cell)
    methods = tuple(name for name in cell.calibrators if name != "none")
    stages = []
    if methods:
        kwargs = {"run": run, "method": methods, "subset": "validation", "work": work, "options": bench.grid.calibrate}
        calibrators = [folders.RunFolder(run).calibrator(name) for name in methods]
        fitted = [path for calibrator in calibrators for path in (calibrator.info, calibrator.cross_fitted)]
        choice = folders.choice_path(folders.RunFolder(run).calibrators)
        programs = [path for path in map(Path, methods) if path.suffix == ".py"]
        stages.append(
            Stage(
                "calibrate",
                Command("calibrate", kwargs),
                lambda: [*fitted, choice],
                lambda: [*_logits(run, "validation"), *programs],
                lambda: _fitted_as_asked(fitted, choice, bench.grid.calibrate),
            )
        )
    for noise in cell.noises:
        stages.append(_predict(run, work, "test", noise))
        stages += [
            _score(run, bench.grid.score, folders.predicted_name("test", noise), name) for name in cell.calibrators
        ]
    return stages


def stages(bench: Bench, cell: Cell, chosen: bool) -> list[Stage]:
    """Everything from raw data to scores; a candidate that is not chosen ends with validation."""
    if bench.is_kept(cell):
        return data_stages(bench, cell)
    until_validation = [*data_stages(bench, cell), *validation_stages(bench, cell)]
    return until_validation if cell.choice and not chosen else [*until_validation, *test_stages(bench, cell)]


def needs_kept(bench: Bench, cell: Cell) -> bool:
    """Whether a cell's numbers are read from its kept table: its own folder, which has more, is not whole."""
    own = [*validation_stages(bench, cell), *test_stages(bench, cell)]
    return bench.is_kept(cell) and not all(stage.done() for stage in own)


def is_outdated(bench: Bench, cell: Cell) -> bool:
    """Whether a cell was trained on other cases than are prepared now; where none are, nobody can tell."""
    run, work = bench.run(cell), bench.work(cell)
    if not folders.RunFolder(run).info.is_file() or not prepared.has_index(work):
        return False
    return data_fingerprint(work, cell.recipe.data.split) not in (None, read_run(run).data_fingerprint)


def data_fingerprint(work: Path, split: str) -> str | None:
    """Of the training and validation cases, as a run records it; None where there is no such split."""
    if split not in prepared.split_names(work):
        return None
    return prepared.split_fingerprint(work, prepared.read_split(work, split))


def _predict(run: Path, work: Path, subset: str, noise: float = 0.0) -> Stage:
    name = folders.predicted_name(subset, noise)
    kwargs = {"run": run, "subset": subset, "work": work, "inference": InferenceOptions(noise=noise)}

    def logits() -> list[Path]:
        return _logits(run, name)

    def sources() -> list[Path]:
        cases = [prepared.case_path(work, path.stem) for path in logits()]
        return [folders.RunFolder(run).weights, *filter(Path.is_file, cases)]

    return Stage(f"predict {name}", Command("predict", kwargs), logits, sources)


def _score(run: Path, how: ScoringOptions, predicted: str, calibrator: str = "none") -> Stage:
    calibrator = folders.method_name(calibrator)
    kwargs = {"run": run, "subset": predicted, "scoring": how, "calibrator": calibrator}
    path = folders.RunFolder(run).scores(predicted, calibrator)
    fitted = [folders.RunFolder(run).calibrator(calibrator).info] if calibrator != "none" else []
    shown = predicted if calibrator == "none" else f"{predicted}+{calibrator}"
    return Stage(
        f"score {shown}",
        Command("score", kwargs),
        lambda: [path],
        lambda: [*_logits(run, predicted), *fitted],
        lambda: _scored_as_asked(path, how),
    )


def _prepared_as_asked(work: Path, cell: Cell) -> bool:
    if not prepared.has_index(work):
        return False
    index = prepared.read_index(work)
    data = cell.recipe.data
    if index["dataset"] != registry.find("datasets", data.dataset).key:
        return False
    protocol = {name: protocol_field(name, value) for name, value in data.protocol.items()}
    plain = json.loads(json.dumps({"options": data.options, "protocol": protocol}))
    if not data.work:  # a folder of the grid's own: what it no longer asks for must not be there either
        return index["options"] == plain["options"] and index.get("changes", plain["protocol"]) == plain["protocol"]
    return all(index[part].get(name) == value for part in plain for name, value in plain[part].items())


def _trained_as_asked(bench: Bench, cell: Cell) -> bool:
    """Whether the folder holds this very recipe, trained to the end on these very cases."""
    info, work = read_run(bench.run(cell)), bench.work(cell)
    return (
        info.status == "finished"
        and info.fingerprint == cell.recipe.fingerprint
        and data_stages(bench, cell)[0].done()
        and info.data_fingerprint == data_fingerprint(work, cell.recipe.data.split)
    )


def _fitted_as_asked(fitted: Sequence[Path], choice: Path, options: CalibrationOptions) -> bool:
    """Whether the choice, which is written last, was made by these options and after all that it chose from."""
    record = read_choice(choice.parent) or {}
    last = choice.stat().st_mtime_ns >= max(path.stat().st_mtime_ns for path in fitted)
    return last and record.get("options") == json.loads(json.dumps(asdict(options)))


def _scored_as_asked(path: Path, scoring: ScoringOptions) -> bool:
    """Whether a table was scored as the grid says; it may hold more metrics and voxel rules."""
    meta = table.meta_path(path)
    if not meta.is_file():
        return False
    record, expected = files.read_json(meta, "scores", _Meta), rules_of(scoring)
    rules = record["rules"]
    metrics = expected.pop("metrics")
    same = all(rules.get(name) == value for name, value in expected.items())
    same_metrics = all(rules["metrics"].get(key) == options for key, options in metrics.items())
    return same and same_metrics and set(scoring.voxels) <= set(record["voxels"])


def _has_validation(run: Path, cell: Cell) -> bool:
    """Whether there are validation cases; until the split is known, whether anybody will ask for them."""
    if folders.RunFolder(run).info.is_file():
        return bool(read_run(run).split.validation)
    return cell.recipe.train.select != "last" or cell.calibrators != ("none",) or bool(cell.choice)


def _logits(run: Path, predicted: str) -> list[Path]:
    """The files of a prediction; where there is no run yet, the record that will name its cases."""
    folder = folders.RunFolder(run)
    if not folder.info.is_file():
        return [folder.info]
    subset, _ = folders.subset_and_variant(predicted)
    return [folder.logits / predicted / f"{id}.npz" for id in read_run(run).cases(subset)]
