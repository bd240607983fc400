# Written by scripts/stubs.py (make stubs): do not edit.
import math
from typing import Any as Any
from typing import ClassVar as ClassVar
from typing import Literal as Literal

import torch
from torch import Tensor as Tensor
from torch import nn as nn

from calibseg.core.labels import Target as Target
from calibseg.core.options import at_least as at_least
from calibseg.core.options import one_of as one_of
from calibseg.core.registry import lazy as lazy
from calibseg.core.types import Activation as Activation
from calibseg.core.types import BadInput as BadInput
from calibseg.losses.maths.cross_entropy import weight_and_shares as weight_and_shares
from calibseg.losses.maths.deep_supervision import DeepSupervision as DeepSupervision
from calibseg.losses.maths.soft_dice import Overlap as Overlap
from calibseg.losses.maths.soft_dice import soft_dice_loss as soft_dice_loss

Terms = dict[str, Tensor]
Options = tuple[dict[str, Any], ...]

class Loss(nn.Module):
    """What every objective shares: reading the target, checks, and an optional soft Dice term.

    dice_weight: >= 0, weight of a Dice term added to the objective.
    dice: "soft", or "l1", which is right for soft labels: the smallest where prediction and label are the same.
    dice_gamma: >= 1, errors count to this power in the Dice term; DSC++ has 2.
    dice_alpha: >= 0, weight of what is falsely predicted in the Dice term (Tversky); 1/2 is Dice.
    dice_beta: >= 0, weight of what is missed; 1 and 1 is Jaccard.
    include_background: whether class 0 takes part in the Dice term (softmax only).
    ignore_index: label of the voxels that count for nobody; with sigmoid, in any of the channels.
    class_weight: one weight >= 0 per class for the cross-entropy part; with sigmoid, of outside and inside.
    activation: "softmax" or "sigmoid": classes that exclude each other, or channels that may hold together.
    value_check: "first" (`check` the first call with gradients and the first without), "always" or "never".
    """

    acronym: ClassVar[str] = ""
    colour: ClassVar[str] = ""
    marker: ClassVar[str] = ""
    views: ClassVar[int] = 1
    contract_options: ClassVar[Options] = ({},)
    activation: Activation
    dice_weight: float
    overlap: Any
    ignore_index: int
    class_weight: Tensor | None
    value_check: Literal["first", "always", "never"]
    _checked: set[bool]

    def __init__(
        self,
        *,
        dice_weight: float = 0.0,
        dice: Literal["soft", "l1"] = "soft",
        dice_gamma: float = 1.0,
        dice_alpha: float = 0.5,
        dice_beta: float = 0.5,
        include_background: bool = True,
        ignore_index: int = -100,
        class_weight: list[float] | None = None,
        activation: Activation = "softmax",
        value_check: Literal["first", "always", "never"] = "first",
    ): ...
    def forward(
        self, logits: Tensor, target: Tensor, image: Tensor | None = None, valid: Tensor | None = None
    ) -> Tensor:
        """The objective, a scalar: the sum of its terms."""

    def terms(self, logits: Tensor, target: Tensor, image: Tensor | None = None, valid: Tensor | None = None) -> Terms:
        """The objective in named parts, weights included; valid: bool [n *space], the voxels that count."""

    def objective(self, logits: Tensor, target: Target) -> Terms:
        """What a subclass adds: its named terms, from logits in float32 or float64."""

    def with_dice(self, logits: Tensor, target: Target) -> Terms:
        """The objective and the Dice term; cross-entropy computes both in one go."""

    def weight_and_shares(self, logits: Tensor, target: Target, smoothing: float = 0.0) -> tuple[Tensor, Tensor]:
        """The target as voxel weights and class shares for the cross-entropy part, class weights included."""

    def setup(self, num_classes: int) -> Loss:
        """Make the buffers that depend on the number of classes (with sigmoid, of channels); most losses only check."""

    def observe(self, logits: Tensor, target: Tensor, valid: Tensor | None = None) -> None:
        """Look at one validation batch; nothing for most losses."""

    def end_epoch(self) -> dict[str, float]:
        """Update what was learnt from `observe` and return it for the log; nothing for most losses."""

    def read(self, logits: Any, target: Any, valid: Tensor | None = None) -> tuple[Tensor, Target]:
        """Logits in float32 (or float64) and the target in one shape. Wrong rank, dtype, device or shape: BadInput.

        With sigmoid [n r *space] becomes [n*r 2 *space], the logits (0, l_r) of every channel.
        Values are checked as `value_check` says, but for torch.compile, which cannot look at them. On the CPU the
        smallest and largest label are looked at in any case, which costs nothing.
        """

    def check(self, logits: Tensor, target: Tensor, valid: Tensor | None = None) -> None:
        """Check values: NaN logits, labels out of range, soft labels that do not sum to 1. Slow: call it rarely."""

    def _read(self, logits: Any, target: Any, valid: Tensor | None) -> tuple[Tensor, Target]: ...
    def _check(self, logits: Tensor, read: Target) -> None: ...

def _plain(given: Any) -> Any:
    """MONAI's MetaTensor as the plain tensor that it is."""

from calibseg.losses.bwcr import BWCR as BWCR
from calibseg.losses.cals import CALS as CALS
from calibseg.losses.ce import CE as CE
from calibseg.losses.ce_dice import CEDice as CEDice
from calibseg.losses.crac import CRaC as CRaC
from calibseg.losses.dml import DML as DML
from calibseg.losses.dsc_plus_plus import DSCPlusPlus as DSCPlusPlus
from calibseg.losses.ecp import ECP as ECP
from calibseg.losses.focal import Focal as Focal
from calibseg.losses.focal_brier import FocalBrier as FocalBrier
from calibseg.losses.ls import LS as LS
from calibseg.losses.mbls import MbLS as MbLS
from calibseg.losses.meep import MEEP as MEEP
from calibseg.losses.ml1_ace import ML1ACE as ML1ACE
from calibseg.losses.nacl import NACL as NACL
from calibseg.losses.svls import SVLS as SVLS
