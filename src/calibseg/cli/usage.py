"""How to use a loss in a bare loop, and the file that `calibseg new loss` writes."""

import keyword
import re
from pathlib import Path

from calibseg.core.registry import Member, members
from calibseg.core.types import BadInput


def usage(member: Member) -> tuple[str, list[str]]:
    """What a loop must do for this loss, and the lines that do it. Read from the source: nothing is imported."""
    make = [f"from calibseg.losses import {member.class_name}", f"loss = {member.class_name}().setup(num_classes)"]
    if member.module.startswith("calibseg_file_"):
        make[0] = f'from calibseg.core.registry import load; {member.class_name} = load("losses", "{member.path}")'
    if member.facts.get("views") == 2:
        return "needs two views", [
            *make,
            "logits = network(torch.cat([view_a, view_b]))          # two augmented copies of the batch",
            "logits, valid = back_to_the_grid(logits)               # invert the augmentation's affine",
            "loss(logits, target, valid=valid).backward()",
        ]
    if "observe" in member.facts["methods"]:
        return "needs observe and end_epoch", [
            *make,
            "loss(network(image), target).backward()                # every training step",
            "loss.observe(network(image), target)                   # every validation batch, under torch.no_grad()",
            "log = loss.end_epoch()                                 # once per epoch, after validation",
        ]
    return "plain", [
        make[0],
        f"loss = {member.class_name}()",
        "logits = network(image)                                # [n k *space]",
        "loss(logits, target).backward()                        # target: integer [n *space] or soft [n k *space]",
        "print(loss.terms(logits, target))                      # the same in named parts",
    ]


def write_loss(name: str, folder: Path) -> Path:
    """Write a working loss called `name` into `folder`; refuse bad names and existing files."""
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name) or keyword.iskeyword(name):
        raise BadInput(f"{name!r} cannot be a key: use lower-case letters, digits and underscores, such as 'my_loss'")
    if name in members("losses"):
        raise BadInput(f"there is a loss named {name!r} already: {members('losses')[name].path}")
    path = folder / f"{name}.py"
    if path.exists():
        raise BadInput(f"{path} exists already: choose another name")
    folder.mkdir(parents=True, exist_ok=True)
    path.write_text(
        TEMPLATE.format(class_name="".join(part.capitalize() for part in name.split("_"))), encoding="utf-8"
    )
    return path


TEMPLATE = '''\
r"""Cross-entropy plus a pull of all logits towards 0: say here in one line what your loss does.

$$ L = \\mathrm{{CE}} + \\frac{{\\lambda}}{{N K}} \\sum_{{i,k}} l_{{i,k}}^2 $$

Paper: whose idea it is.
Differs: where this file departs from that paper.
"""

from typing import Any

from torch import Tensor

from calibseg.core.labels import Target
from calibseg.core.options import at_least
from calibseg.losses import Loss, Terms
from calibseg.losses.maths.cross_entropy import weighted_cross_entropy


class {class_name}(Loss):
    """One line on the class; below it one line per option, with its range.

    weight: >= 0, lambda.
    """

    def __init__(self, weight: float = 0.1, **common: Any):
        super().__init__(**common)
        self.weight = at_least("weight", weight, 0)

    def objective(self, logits: Tensor, target: Target) -> Terms:
        """Named terms; `voxel_weight` is 1 / N on the voxels that count and 0 on ignored ones."""
        pull = (logits.square() * target.voxel_weight(logits.dtype)).sum() / target.num_classes
        return {{
            "ce": weighted_cross_entropy(logits, *self.weight_and_shares(logits, target)),
            "pull": self.weight * pull,
        }}
'''
