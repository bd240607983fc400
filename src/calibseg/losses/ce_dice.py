r"""Cross-entropy plus soft Dice: what most medical networks are trained with.

$$ L = \mathrm{CE} + \mathrm{Dice} $$

Paper: CE + DSC (lambda = 1) of the MbLS and NACL papers.
Differs: the papers' code means to leave the background out of the Dice term and does not; here it is in, too, and
include_background=False leaves it out.
"""

from typing import Any

from calibseg.losses.ce import CE


class CEDice(CE):
    """Cross-entropy with a Dice term of weight 1.

    dice_weight: >= 0, weight of the soft Dice term.
    """

    acronym = "CE+Dice"
    colour = "#8c8c8c"
    marker = "s"

    def __init__(self, dice_weight: float = 1.0, **common: Any):
        super().__init__(dice_weight=dice_weight, **common)
