"""Which calibrators a folder holds, which of them was chosen on validation, and what everything was fitted on.

The folder is RUN/calibrators or the output of `calibseg calibrate --apply`: METHOD/calibrator.json for every
method, and choice.json. `chosen` stands for the method that choice.json names, `none` for the network's own
probabilities.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from calibseg.calibrators.fitted.files import read_calibrator
from calibseg.core import registry
from calibseg.core.types import BadInput
from calibseg.runs import folders
from calibseg.runs.choice import read_choice

NONE, CHOSEN = "none", "chosen"


@dataclass(frozen=True)
class SelectedCalibrator:
    """A calibrator by name, and why it is this one."""

    name: str
    folder: Path | None = None  # None: there is nothing to apply
    about: Mapping[str, Any] = field(default_factory=dict)
    why: str = "asked for"
    chosen_on: str | None = None  # the subset of a split, or the folder, by which it was chosen

    @property
    def fitted_on(self) -> str:
        """The subset of a split, or the folder, that it was fitted on."""
        source = self.about.get("fitted_on", {})
        return str(source.get("subset") or source.get("folder") or "unknown cases")

    @property
    def keeps_labels(self) -> bool:
        """Whether the label of every voxel stays as the network has it."""
        return bool(self.about.get("keeps_argmax", True))


def fitted_methods(calibrators_dir: Path) -> list[str]:
    """The names of the fitted calibrators in a folder."""
    return [path.parent.name for path in folders.fitted_paths(calibrators_dir)]


def find_calibrator(calibrators_dir: Path, name: str | None) -> SelectedCalibrator:
    """A calibrator by its name; `chosen`: as choice.json says; None: the same, or none where nothing was chosen."""
    why, chosen_on = "asked for", None
    if name in (None, CHOSEN):
        choice = read_choice(calibrators_dir)
        if choice is None and name == CHOSEN:
            raise BadInput(f"{calibrators_dir}: no calibrator was chosen yet; run calibseg calibrate first")
        if choice is None:
            return SelectedCalibrator(NONE, why="no calibrator was chosen for this run")
        name, chosen_on = choice["chosen"], str(choice.get("fitted_on", "validation"))
        why = f"chosen on {chosen_on}"
    assert name is not None
    if name == NONE:
        return SelectedCalibrator(NONE, why=why, chosen_on=chosen_on)
    names = fitted_methods(calibrators_dir)
    if name not in names:
        raise BadInput(f"{calibrators_dir}: {registry.unknown('calibrator', name, [NONE, CHOSEN, *names])}")
    return SelectedCalibrator(name, calibrators_dir / name, read_calibrator(calibrators_dir / name), why, chosen_on)


def refuse_other_weights(calibrator: SelectedCalibrator, weights: str | None) -> None:
    """A calibrator repairs the network that it was fitted to, and no other."""
    theirs = calibrator.about.get("fitted_on", {}).get("weights")
    if theirs is not None and theirs != weights:
        raise BadInput(
            f"{calibrator.folder}: was fitted to other weights than the run has now; predict the validation cases again"
            " and run calibseg calibrate again, or say --calibrator none"
        )


def fitted_with(recipe: Mapping[str, Any], calibrator: SelectedCalibrator) -> dict[str, Any]:
    """What was fitted on what, of a run's network and its calibrator, and how often validation was used for it.

    recipe: the tables of the run's recipe
    """
    fitted_on = {"network": "train"}
    fitted_on["checkpoint"] = "train" if recipe.get("train", {}).get("select") == "last" else "validation"
    if _observes(recipe.get("loss", {}).get("name", "")):
        fitted_on["multipliers"] = "validation"
    if calibrator.name != NONE:
        fitted_on["calibrator"] = calibrator.fitted_on
    if calibrator.chosen_on is not None:
        fitted_on["choice"] = calibrator.chosen_on
    return {"fitted_on": fitted_on, "validation_used": sum(subset == "validation" for subset in fitted_on.values())}


def _observes(loss: str) -> bool:
    """Whether a loss learns from validation; one whose file is gone can no longer say so."""
    try:
        return "observe" in registry.find("losses", loss).facts["methods"]
    except BadInput:
        return False
