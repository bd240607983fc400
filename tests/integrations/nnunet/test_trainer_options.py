"""Options of nnU-Net trainers, which come without arguments."""

import pytest

from calibseg.core.types import BadInput
from calibseg.integrations.nnunet.options import Options, parsed


@pytest.mark.parametrize(
    "text",
    ["weight", "weight=", "0.3", "weight=__import__('os')", "**{'weight': 1}", "weight=1)(", "weight=1, weight=2",
     "weight=1 if 1 else 2", "weight=\0"],
)  # fmt: skip
def test_what_is_no_table_of_literals_is_refused(text):
    with pytest.raises(BadInput, match="CALIBSEG_NNUNET"):
        parsed(text)


def test_options_are_told_apart_and_said_again():
    given = {"weight": 0.3, "epochs": 5, "kernel_size": (1, 3, 3), "dice_weight": 0.5}
    options = Options.of(given)
    assert (options.epochs, options.dice_weight, options.loss) == (5, 0.5, {"weight": 0.3, "kernel_size": (1, 3, 3)})
    assert options.said() == given
    assert Options.of({}).said() == {}


@pytest.mark.parametrize(
    ("given", "fact"),
    [({"epochs": 0}, "epochs"), ({"iterations": 2.5}, "iterations"), ({"dice_weight": -1}, "dice_weight"),
     ({"ignore_index": 3}, "ignore_index"), ({"save_every": True}, "save_every")],
)  # fmt: skip
def test_options_out_of_range_and_those_that_the_plans_decide_are_refused(given, fact):
    with pytest.raises(BadInput, match=fact):
        Options.of(given)
