"""Options of a trainer that nnU-Net makes, which passes none: a class attribute, or the variable CALIBSEG_NNUNET.

    CALIBSEG_NNUNET="weight=0.3, kernel_size=(1, 3, 3), epochs=50"

Values are Python literals. Those below belong to the trainer; any other is the loss's own (`calibseg explain nacl`).

>>> parsed("weight=0.3, kernel_size=(1, 3, 3)")
{'weight': 0.3, 'kernel_size': (1, 3, 3)}
>>> Options.of({"weight": 0.3, "epochs": 50}).epochs
50
"""

import ast
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from calibseg.core.coerce import check_fields
from calibseg.core.options import at_least, whole_number
from calibseg.core.types import BadInput

VARIABLE = "CALIBSEG_NNUNET"
_PLANNED = ("ignore_index", "activation", "include_background")  # nnU-Net's dataset.json and plans decide them


@dataclass(frozen=True)
class Options:
    """What may be said of a training. None: as nnU-Net has it.

    epochs: how many
    iterations: training batches of an epoch
    validation_iterations: validation batches of an epoch
    save_every: epochs between two checkpoints
    dice_weight: of nnU-Net's Dice term beside the objective
    loss: the loss's own options
    """

    epochs: int | None = None
    iterations: int | None = None
    validation_iterations: int | None = None
    save_every: int | None = None
    dice_weight: float = 1.0
    loss: Mapping[str, Any] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        check_fields(self)
        for name in ("epochs", "iterations", "validation_iterations", "save_every"):
            if (value := getattr(self, name)) is not None:
                whole_number(name, value, 1)
        at_least("dice_weight", self.dice_weight, 0)
        for name in _PLANNED:
            if name in self.loss:
                raise BadInput(f"{name} is no option here: nnU-Net's dataset.json and plans say it")

    @staticmethod
    def of(given: Mapping[str, Any]) -> "Options":
        """The trainer's options and the loss's, told apart by their names."""
        own = {one.name for one in fields(Options)} - {"loss"}
        return Options(
            **{name: value for name, value in given.items() if name in own},
            loss={name: value for name, value in given.items() if name not in own},
        )

    def said(self) -> dict[str, Any]:
        """The table that they were made of."""
        own = {name: value for name, value in asdict(self).items() if value is not None and name != "loss"}
        if own["dice_weight"] == 1:
            del own["dice_weight"]
        return own | dict(self.loss)


def parsed(text: str) -> dict[str, Any]:
    """`name=literal, name=literal` as a table."""
    form = f'{VARIABLE}={text!r} is not of the form "weight=0.3, kernel_size=(1, 3, 3), epochs=50"'
    try:
        call = ast.parse(f"_({text})", mode="eval").body
        assert isinstance(call, ast.Call)
        options = {one.arg: ast.literal_eval(one.value) for one in call.keywords}
    except (SyntaxError, ValueError, AssertionError, RecursionError, MemoryError) as error:
        raise BadInput(f"{form}: values are Python literals") from error
    if call.args or None in options or len(options) < len(call.keywords) or not isinstance(call.func, ast.Name):
        raise BadInput(form)
    return {str(name): value for name, value in options.items()}
