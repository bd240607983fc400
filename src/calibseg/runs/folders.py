"""What lies where on disk: the only place that knows the names of folders and files.

    WORK/dataset.json              which set, how it was prepared, its cases              format calibseg-dataset/1
    WORK/cases/ID.safetensors      one prepared case, slice after slice                   format calibseg-case/1
    WORK/splits/NAME.json          which cases train, select and test                     format calibseg-split/1

    RUN/recipe.toml                the recipe, every value stated
    RUN/run.json                   what was run, on what, with what outcome               format calibseg-run/1
    RUN/log.csv                    one row per epoch
    RUN/weights.safetensors        the chosen epoch's network                             format calibseg-weights/1
    RUN/last/state.safetensors     all that a resume needs, in one file                   format calibseg-state/1
    RUN/logits/SUBSET/ID.npz       what the network says about validation and test cases  format calibseg-logits/1
    RUN/calibrators/METHOD/        calibrator.json (+ .safetensors), fitted on validation format calibseg-calibrator/1
    RUN/calibrators/METHOD/cross-fitted.json   what it is worth on cases it has not seen  format calibseg-cross-fitted/1
    RUN/scans/                     maps of raw scans, unless they go elsewhere            format calibseg-prediction/1
    RUN/calibrators/choice.json    which of them was chosen, and the table behind it      format calibseg-choice/1
    RUN/scores-SUBSET+METHOD.csv   the score table of a subset, calibrated                format calibseg-scores/1
    RUN/scores-SUBSET.bins.csv     its reliability diagrams
    RUN/scores-SUBSET.meta.json    its rules, versions and sources
    RUN/lock                       who works in the folder

    CALIBRATED/METHOD/             as RUN/calibrators/METHOD, of `calibseg calibrate --apply`, and
    .../probabilities/CASE.nii.gz  calibrated predictions
    .../applied.json               what they were made from                               format calibseg-applied/1
    .../scores.csv                 their score table

    OUT/grid.toml                  a benchmark's grid, changes included
    OUT/cells.csv                  its cells: folder, names, seed, choice
    OUT/recipes/CELL.toml          each cell's recipe
    OUT/work/DATASET/              prepared cases, as WORK above
    OUT/runs/CELL/                 each cell's training run, as RUN above
    OUT/logs/CELL.log, CELL.csv    what it said; which of its stages ran when, where, how long
    OUT/outcomes/CELL.json         how its last attempt ended                             format calibseg-outcome/1
    OUT/selection.csv              candidates, what they reached on validation, which were chosen
    OUT/scores.parquet             all score tables together, with their rules            format calibseg-scores/1
    OUT/scores-validation.parquet  those of the validation cases
    OUT/jobs/                      scripts and logs of a cluster's jobs
    OUT/locks/NAME.lock            who prepares, selects or trains what
    OUT/ranks.csv, report.html     what they say

    OUT/cases/ID.json              what rules say about a case (calibseg decide)          format calibseg-decided/1
    OUT/sheet.json, sheet.csv, sheet.html   the same of all cases, those to look at first on top
    OUT/masks/DECISION/STRUCTURE/ID.nii.gz  the masks that rules make

A file is written under a temporary name and then renamed, so that what has its right name is whole (see `files`).
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from calibseg.core.hashing import file_fingerprint, fingerprint
from calibseg.core.types import BadInput


class Entry:
    """A file or folder, by its name inside the folder that it belongs to."""

    def __init__(self, *names: str) -> None:
        self.names = names

    def __get__(self, folder: Any, owner: type | None = None) -> Path:
        return folder.path.joinpath(*self.names)


@dataclass(frozen=True)
class RunFolder:
    """Where the parts of a training run lie."""

    path: Path

    recipe = Entry("recipe.toml")
    info = Entry("run.json")
    log = Entry("log.csv")
    weights = Entry("weights.safetensors")
    state = Entry("last", "state.safetensors")
    logits = Entry("logits")
    calibrators = Entry("calibrators")
    scans = Entry("scans")  # maps of raw scans, where no other folder is named
    lock = Entry("lock")

    def calibrator(self, method: str) -> "CalibratorFolder":
        return CalibratorFolder(self.calibrators / method_name(method))

    def scores(self, subset: str, calibrator: str = "none") -> Path:
        return self.path / f"scores-{subset}{'' if calibrator == 'none' else f'+{method_name(calibrator)}'}.csv"

    def score_tables(self, subset: str = "") -> list[Path]:
        """scores-test.csv, and its variants: scores-test+temperature.csv, scores-test-noise0.05-seed0.csv."""
        name = self.scores(subset).stem if subset else "scores"
        paths = [path for path in self.path.glob(f"{name}*.csv") if not path.name.endswith(".bins.csv")]
        return sorted((p for p in paths if p.stem.removeprefix(name)[:1] in ("", "+", "-")), key=lambda p: p.stem)

    def reliability_tables(self) -> list[Path]:
        return sorted(self.path.glob("scores-*.bins.csv"))


@dataclass(frozen=True)
class CalibratorFolder:
    """Where the parts of one method lie, in RUN/calibrators or in what `calibseg calibrate --apply` makes."""

    path: Path

    info = Entry("calibrator.json")
    arrays = Entry("calibrator.safetensors")
    cross_fitted = Entry("cross-fitted.json")
    applied = Entry("applied.json")
    probabilities = Entry("probabilities")
    scores = Entry("scores.csv")
    nnunet = Entry("nnunet")  # calibrated probabilities as nnU-Net's own commands read them
    nnunet_written = Entry("nnunet.json")


@dataclass(frozen=True)
class DecisionFolder:
    """Where what `calibseg decide apply` makes lies."""

    path: Path

    sheet = Entry("sheet.json")
    table = Entry("sheet.csv")
    page = Entry("sheet.html")

    def case(self, id: str) -> Path:
        return self.path / "cases" / f"{id}.json"

    def mask(self, decision: str, structure: str, id: str) -> Path:
        """`fnr 0.05` lies in the folder fnr-0.05."""
        return self.path / "masks" / decision.replace(" ", "-") / structure / f"{id}.nii.gz"


@dataclass(frozen=True)
class BenchmarkFolder:
    """Where the parts of a benchmark lie."""

    path: Path

    grid = Entry("grid.toml")
    cells = Entry("cells.csv")
    selection = Entry("selection.csv")
    scores = Entry("scores.parquet")
    validation_scores = Entry("scores-validation.parquet")
    ranks = Entry("ranks.csv")
    report = Entry("report.html")
    jobs = Entry("jobs")

    def work(self, dataset: str) -> Path:
        return self.path / "work" / re.sub(r"[^A-Za-z0-9._+-]+", "_", dataset)

    def run(self, cell: str) -> Path:
        return self.path / "runs" / cell

    def recipe(self, cell: str) -> Path:
        return self.path / "recipes" / f"{cell}.toml"

    def log(self, cell: str) -> Path:
        return self.path / "logs" / f"{cell}.log"

    def stages(self, cell: str) -> Path:
        return self.path / "logs" / f"{cell}.csv"

    def outcome(self, cell: str) -> Path:
        return self.path / "outcomes" / f"{cell}.json"

    def lock(self, name: str) -> Path:
        return self.path / "locks" / f"{name}.lock"


def weights_fingerprint(runs: Sequence[Path]) -> str:
    """Of the weights of one or several runs, which predictions and calibrators carry."""
    hashes = []
    for run in runs:
        path = RunFolder(run).weights
        if not path.is_file():
            raise BadInput(f"{run}: holds no weights ({path.name} is missing); run calibseg train first")
        hashes.append(file_fingerprint(path))
    return hashes[0] if len(hashes) == 1 else fingerprint(hashes)


def choice_path(calibrators_dir: Path) -> Path:
    """Where a folder of calibrators, a run's or any other, says which of them was chosen."""
    return calibrators_dir / "choice.json"


def fitted_paths(calibrators_dir: Path) -> list[Path]:
    """The calibrator.json of every method that such a folder holds."""
    return sorted(calibrators_dir.glob(f"*/{CalibratorFolder(calibrators_dir).info.name}"))


def method_name(method: str) -> str:
    """What a calibrator's folder and score tables are called: its name, or that of its Python file."""
    return Path(method).stem if method.endswith(".py") else method


def predicted_name(subset: str, noise: float = 0.0, seed: int = 0, flips: str = "none") -> str:
    """The folder of a subset's logits, which tells variants of a prediction apart.

    >>> predicted_name("test"), predicted_name("test", noise=0.05, seed=3, flips="both")
    ('test', 'test-noise0.05-seed3-flips-both')
    """
    noise_part = [f"noise{noise:g}-seed{seed}"] if noise else []
    return "-".join([subset, *noise_part, *([f"flips-{flips}"] if flips != "none" else [])])


def subset_and_variant(name: str) -> tuple[str, str]:
    """What such a name was made of: `test-noise0.05-seed3` -> ("test", "noise0.05-seed3")."""
    subset, _, variant = name.partition("-")
    return subset, variant
