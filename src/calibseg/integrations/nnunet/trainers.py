"""A trainer of nnU-Net for every loss that needs one view of a batch: `nnUNetTrainer` and the name of the loss's class.

    export nnUNet_extTrainer=$(calibseg nnunet path)
    nnUNetv2_train 4 3d_fullres 0 -tr nnUNetTrainerNACL

The classes are made when they are asked for (`from calibseg.integrations.nnunet.trainers import nnUNetTrainerNACL`), of
`CalibratedTrainer`, which may be mixed into any other trainer that has nnU-Net's usual loss:

    class Mine(CalibratedTrainer, nnUNetTrainerNoMirroring):
        calibseg_loss = "nacl"
        calibseg_options = {"weight": 0.3}
"""

import csv
import io
import os
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

from calibseg import __version__
from calibseg.core import registry
from calibseg.core.types import BadInput
from calibseg.integrations.nnunet.options import VARIABLE, Options, parsed

PREFIX = "nnUNetTrainer"
STATE = "calibseg"  # our entry in a checkpoint
LOG = "calibseg.csv"  # what the loss learnt, epoch by epoch, beside nnU-Net's own log
FOLDER = Path(__file__).parent / "trainer_folder"
_Host: Any = object  # nnU-Net is imported only where a trainer is made


class CalibratedTrainer(_Host):
    """What makes a trainer of nnU-Net train with one of our losses: mixed in before nnUNetTrainer.

    calibseg_loss: the key of a loss, or a path to a Python file with one
    calibseg_options: its options and those of `Options`; the variable CALIBSEG_NNUNET comes before them
    """

    calibseg_loss: ClassVar[str] = "ce"
    calibseg_options: ClassVar[Mapping[str, Any]] = {}
    _options: Options | None = None
    _epochs: tuple[dict[str, float], ...] = ()

    def initialize(self) -> None:
        if self._options is None:
            self._take(Options.of(self._said()))
        super().initialize()

    def _said(self) -> dict[str, Any]:
        return {**self.calibseg_options, **parsed(os.environ.get(VARIABLE, ""))}

    def _take(self, options: Options) -> None:
        self._options = options
        for ours, theirs in (
            ("epochs", "num_epochs"),
            ("iterations", "num_iterations_per_epoch"),
            ("validation_iterations", "num_val_iterations_per_epoch"),
            ("save_every", "save_every"),
        ):
            if (value := getattr(options, ours)) is not None:
                setattr(self, theirs, value)
        said = ", ".join(f"{name}={value!r}" for name, value in options.said().items()) or "its defaults"
        self.print_to_log_file(f"calibseg {__version__}: the loss {self.calibseg_loss} with {said}")

    def _build_loss(self) -> Any:
        from calibseg.integrations.nnunet.objective import Objective, make_loss

        assert self._options is not None
        about = self.label_manager
        loss = make_loss(self.calibseg_loss, dict(self._options.loss), about.num_segmentation_heads, about.has_regions)
        own = super()._build_loss()
        objective = Objective(own, loss, about.ignore_label, about.has_regions, self._options.dice_weight)
        return objective.to(self.device)

    def on_train_epoch_start(self) -> None:
        super().on_train_epoch_start()
        self.loss.train()

    def on_validation_epoch_start(self) -> None:
        super().on_validation_epoch_start()
        self.loss.eval()

    def on_validation_epoch_end(self, val_outputs: list[dict[str, Any]]) -> None:
        super().on_validation_epoch_end(val_outputs)
        learnt = self.loss.end_epoch()
        self._epochs = (*self._epochs[: self.current_epoch], learnt)
        if learnt:
            self.print_to_log_file("calibseg", ", ".join(f"{name} {value:.4g}" for name, value in learnt.items()))
        if self.local_rank == 0:
            from calibseg.core.files import write_text

            write_text(Path(self.output_folder) / LOG, _table(self._epochs))

    def save_checkpoint(self, filename: str) -> None:
        """nnU-Net's file with one more entry, which nnU-Net does not look at; at no moment is there one without it."""
        from calibseg.integrations.nnunet.checkpoint import add_entry

        if self.local_rank != 0 or self.disable_checkpointing:
            super().save_checkpoint(filename)
            return
        assert self._options is not None
        part = f"{filename}.part"
        super().save_checkpoint(part)
        state = {name: value.cpu() for name, value in self.loss.loss.state_dict().items()}
        entry = {
            "version": __version__,
            "loss": self.calibseg_loss,
            "options": self._options.said(),
            "state": state,
            "epochs": list(self._epochs),
        }
        add_entry(Path(part), STATE, entry, Path(filename))

    def load_checkpoint(self, filename_or_checkpoint: Any) -> None:
        """Go on as it was trained: by its options, where none or the same are given, and with its multipliers."""
        from calibseg.integrations.nnunet.checkpoint import read_checkpoint

        given = filename_or_checkpoint
        known = given if isinstance(given, dict) else read_checkpoint(Path(given))
        if STATE not in known:
            raise BadInput(f"{given}: was not trained by {type(self).__name__}, but by {known.get('trainer_name')}")
        entry = known[STATE]
        stored, said = Options.of(entry["options"]), Options.of(self._said())
        same = (said.loss, said.dice_weight) == (stored.loss, stored.dice_weight)
        if entry["loss"] != self.calibseg_loss or not (same or not self._said()):
            raise BadInput(
                f"{given}: was trained by the loss {entry['loss']} with {entry['options']}, and now it is"
                f" {self.calibseg_loss} with {self._said()}: give the same to {VARIABLE}, or nothing"
            )
        self._take(said if self._said() else stored)
        if self.was_initialized:
            self.loss, self.lr_scheduler.max_steps = self._build_loss(), self.num_epochs
        super().load_checkpoint(given)
        self.loss.loss.load_state_dict(entry["state"])
        self._epochs = tuple(entry["epochs"])


def _table(epochs: tuple[dict[str, float], ...]) -> str:
    names = list(dict.fromkeys(name for learnt in epochs for name in learnt))
    made = io.StringIO()
    rows = csv.writer(made, lineterminator="\n")
    rows.writerow(["epoch", *names])
    rows.writerows([number, *(learnt.get(name, "") for name in names)] for number, learnt in enumerate(epochs))
    return made.getvalue()


def trainer_names() -> dict[str, str]:
    """The names of the trainers, and the loss of each. Imports nothing."""
    losses = registry.members("losses").values()
    return {PREFIX + loss.class_name: loss.key for loss in losses if loss.facts.get("views", 1) == 1}


@cache
def _made(name: str) -> type:
    from nnunetv2.training.nnUNetTrainer.nnUNetTrainer import nnUNetTrainer  # pyright: ignore[reportMissingImports]

    facts = {"calibseg_loss": trainer_names()[name], "__module__": __name__, "__doc__": f"Trains with {name}'s loss."}
    return type(name, (CalibratedTrainer, nnUNetTrainer), facts)


def __getattr__(name: str) -> Any:
    if name.startswith(PREFIX) and name in trainer_names():
        return _made(name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*globals(), *trainer_names()]
