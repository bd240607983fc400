"""A Lightning callback for losses that learn on validation data, such as CRaC: they need nothing else of a Trainer.

    from calibseg.integrations.lightning import CalibrationCallback

    class Segmenter(LightningModule):
        def __init__(self):
            self.loss = CRaC().setup(num_classes=4)                 # a submodule, so that checkpoints hold it
        def validation_step(self, batch, batch_idx):
            return {"logits": self.network(image), "target": target}

    Trainer(callbacks=[CalibrationCallback()])                      # of lightning or of pytorch_lightning

Only validation within `fit` counts: neither the sanity check nor `Trainer.validate` may move the multipliers. What was
observed in an epoch (several times, if val_check_interval says so) is used once, at its end, and what `end_epoch`
returns is logged; a checkpoint that is saved between validation and the end of the epoch says so, and a resumed run
uses it before it goes on.
"""

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

from torch import Tensor

from calibseg.core.types import BadInput
from calibseg.integrations.hosts import missing
from calibseg.losses import Loss

HOSTS = ("lightning.pytorch", "pytorch_lightning")  # one program under two names, whose classes are not the same


def _callback_class() -> Any:
    """The base class of callbacks, of the host that is in use already, or of any that is installed."""
    error: Exception = ImportError("neither lightning nor pytorch_lightning is installed")
    for host in sorted(HOSTS, key=lambda host: host not in sys.modules):
        try:
            return import_module(host).Callback
        except (ImportError, RuntimeError) as failed:
            error = failed
    raise missing("lightning", error)


if TYPE_CHECKING:
    from pytorch_lightning import Callback
else:
    Callback = _callback_class()


class CalibrationCallback(Callback):
    """Shows validation batches to the module's losses, and has them update once an epoch.

    logits, target: the keys of both in what validation_step returns
    """

    def __init__(self, logits: str = "logits", target: str = "target") -> None:
        self.keys = logits, target
        self.observed = False  # whether this epoch has validated, on any rank

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        if not _losses(pl_module):
            raise BadInput(
                f"{type(pl_module).__name__} has no loss of calibseg among its modules: CalibrationCallback is for one"
                " that learns on validation data, as in   self.loss = CRaC().setup(num_classes)"
            )

    def on_validation_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        if not _counts(trainer):
            return
        logits, target = (outputs.get(key) if isinstance(outputs, dict) else None for key in self.keys)
        if not isinstance(logits, Tensor) or not isinstance(target, Tensor):
            raise BadInput(
                f"validation_step returned {_described(outputs)}; CalibrationCallback needs the batch it saw:   "
                f'return {{"{self.keys[0]}": logits, "{self.keys[1]}": target}}'
            )
        for loss in _losses(pl_module):
            loss.observe(logits, target)

    def on_validation_epoch_end(self, trainer: Any, pl_module: Any) -> None:  # also on a rank that had no batch
        self.observed |= _counts(trainer)

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        if self.observed:
            self.observed = False
            for loss in _losses(pl_module):
                pl_module.log_dict(loss.end_epoch())

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:  # after a resume; else nothing is left to do
        self.on_train_epoch_end(trainer, pl_module)

    def state_dict(self) -> dict[str, Any]:
        return {"observed": self.observed}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.observed = bool(state_dict["observed"])


def _losses(module: Any) -> list[Loss]:
    return [part for part in module.modules() if isinstance(part, Loss)]


def _counts(trainer: Any) -> bool:
    return trainer.state.fn == "fit" and not trainer.sanity_checking


def _described(outputs: Any) -> str:
    return f"a dict of {', '.join(map(str, outputs))}" if isinstance(outputs, dict) else type(outputs).__name__
