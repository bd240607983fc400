r"""Cross-entropy plus DSC++: small errors cost little in the Dice term, so that probabilities stay softer.

$$ L = \mathrm{CE} + 1 - \frac{2 \sum s y + \epsilon}{2 \sum s y + \sum (y (1 - s))^\gamma
   + \sum ((1 - y) s)^\gamma + \epsilon} $$

per image and class. An error u costs u^gamma: the gradient vanishes towards the label, where that of soft Dice still
pushes, which is what makes networks trained by Dice over-confident.

Paper: Yeung et al., Journal of Digital Imaging 2023 (arXiv 2111.00528), gamma = 2.
Differs: epsilon is 1e-5 as in our other Dice terms (theirs 1e-7). The paper's loss has no cross-entropy; `dice_weight`
weighs the two.

>>> import torch
>>> logits = torch.log(torch.tensor([[[[0.25]], [[0.75]]]]))               # one pixel of class 1, s = 3/4
>>> term = DSCPlusPlus(include_background=False).terms(logits, torch.tensor([[[1]]]))["dice"]
>>> round(term.item(), 4)                                                   # 1 - 1.5 / (1.5 + 0.25^2)
0.04
"""

from typing import Any

from calibseg.losses.ce import CE


class DSCPlusPlus(CE):
    """Cross-entropy with DSC++.

    dice_weight: >= 0, weight of the Dice term.
    dice_gamma: >= 1, the power of an error; 1 is soft Dice.
    """

    acronym = "DSC++"
    colour = "#117733"
    marker = "p"
    contract_options = (
        {},
        {"dice_gamma": 3.0, "dice_weight": 0.5},
        {"dice_gamma": 1.0, "dice_alpha": 0.3, "dice_beta": 0.7},
    )

    def __init__(self, dice_weight: float = 1.0, dice_gamma: float = 2.0, **common: Any):
        super().__init__(dice_weight=dice_weight, dice_gamma=dice_gamma, **common)
