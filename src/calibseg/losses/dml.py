r"""Cross-entropy plus the Dice semimetric: a Dice term that is right for soft labels too.

$$ L = \mathrm{CE} + 1 - \frac{\|s\|_1 + \|y\|_1 - \|s - y\|_1}{\|s\|_1 + \|y\|_1} $$

per image and class. Soft Dice is smallest at the wrong place where labels are soft: of one voxel with the label 1/2 at
s = 1. Several raters, smoothed labels and distillation have such labels. For hard labels both are the same.

Paper: Wang et al., MICCAI 2023 (Dice semimetric losses); NeurIPS 2023 (Jaccard: dice_alpha=1, dice_beta=1).
Differs: epsilon is 1e-5 as in our other Dice terms (theirs 1e-3); they sum over the batch and average over the classes
that are in it, here over each image and all classes. They weigh cross-entropy and Dice 1 : 1, or 1 : 3
(dice_weight=3).

>>> import torch
>>> half = torch.full((1, 2, 1, 1), 0.5)
>>> round(DML().terms(torch.zeros(1, 2, 1, 1), half)["dice"].item(), 4)      # s = y; soft Dice says 0.5
0.0
"""

from typing import Any, Literal

from calibseg.losses.ce import CE


class DML(CE):
    """Cross-entropy with the Dice semimetric.

    dice_weight: >= 0, weight of the Dice term.
    dice: "l1", the semimetric, or "soft".
    """

    acronym = "DML"
    colour = "#2f8f80"
    marker = "d"
    contract_options = (
        {},
        {"dice_alpha": 1.0, "dice_beta": 1.0},
        {"dice_gamma": 1.5, "dice_alpha": 0.3, "dice_beta": 0.7},
    )

    def __init__(self, dice_weight: float = 1.0, dice: Literal["soft", "l1"] = "l1", **common: Any):
        super().__init__(dice_weight=dice_weight, dice=dice, **common)
