"""Training objectives, one file each: `from calibseg.losses import NACL`.

Every loss is a plain `nn.Module` with one signature, `loss(logits [n k *space], target) -> scalar`; `loss.terms(...)`
gives the same value in named parts. `target` is integer labels [n *space] (or [n 1 *space], also of whole floats) or
soft labels [n k *space], one-hot among them.

activation="sigmoid" is for regions and labels that may hold together: logits and target are [n r *space], and channel r
is a problem of two classes with the logits (0, l_r). What is averaged over voxels is averaged over channels too.
`DeepSupervision(loss)` takes the heads of a network that answers at several resolutions.
"""

import math
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from calibseg.core.labels import Target
from calibseg.core.options import at_least, one_of
from calibseg.core.registry import lazy
from calibseg.core.types import Activation, BadInput
from calibseg.losses.maths.cross_entropy import weight_and_shares
from calibseg.losses.maths.deep_supervision import DeepSupervision as DeepSupervision
from calibseg.losses.maths.numba import LARGE
from calibseg.losses.maths.soft_dice import Overlap, soft_dice_loss

if TYPE_CHECKING:
    from calibseg.losses._members import *
else:
    __getattr__, __dir__ = lazy(__name__)

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

    acronym: ClassVar[str] = ""  # how papers write it; with colour and marker, how figures show it
    colour: ClassVar[str] = ""
    marker: ClassVar[str] = ""
    views: ClassVar[int] = 1  # how many augmented copies of a batch the network must see
    contract_options: ClassVar[Options] = ({},)  # sets of options that the contract tests try, beside the common ones

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
    ):
        super().__init__()
        self.activation: Activation = one_of("activation", activation, ("softmax", "sigmoid"))
        if activation == "sigmoid" and not include_background:
            raise BadInput("include_background is for softmax: with activation='sigmoid' no channel is the background")
        if activation == "sigmoid" and ignore_index in (0, 1):
            raise BadInput(f"ignore_index = {ignore_index} is a label of every channel with activation='sigmoid'")
        self.dice_weight = at_least("dice_weight", dice_weight, 0)
        self.overlap = Overlap(
            include_background and activation == "softmax",
            one_of("dice", dice, ("soft", "l1")),
            at_least("dice_gamma", dice_gamma, 1),
            at_least("dice_alpha", dice_alpha, 0),
            at_least("dice_beta", dice_beta, 0),
        )
        self.ignore_index = ignore_index
        if class_weight is not None and not all(0 <= weight < math.inf for weight in class_weight):
            raise BadInput(f"class_weight must be a number of 0 or more for every class, not {class_weight!r}")
        weight = None if class_weight is None else torch.tensor(class_weight, dtype=torch.float64)
        self.register_buffer("class_weight", weight, persistent=False)
        self.class_weight: Tensor | None
        self.value_check = one_of("value_check", value_check, ("first", "always", "never"))
        self._checked: set[bool] = set()  # with gradients, without

    def forward(
        self, logits: Tensor, target: Tensor, image: Tensor | None = None, valid: Tensor | None = None
    ) -> Tensor:
        """The objective, a scalar: the sum of its terms."""
        return torch.stack(list(self.terms(logits, target, image, valid).values())).sum()

    def terms(self, logits: Tensor, target: Tensor, image: Tensor | None = None, valid: Tensor | None = None) -> Terms:
        """The objective in named parts, weights included; valid: bool [n *space], the voxels that count."""
        logits, read = self.read(logits, target, valid)
        return self.with_dice(logits, read) if self.dice_weight else self.objective(logits, read)

    def objective(self, logits: Tensor, target: Target) -> Terms:
        """What a subclass adds: its named terms, from logits in float32 or float64."""
        raise TypeError(f"{type(self).__name__} does not define its objective")

    def with_dice(self, logits: Tensor, target: Target) -> Terms:
        """The objective and the Dice term; cross-entropy computes both in one go."""
        terms = self.objective(logits, target)
        terms["dice"] = self.dice_weight * soft_dice_loss(logits, target, self.overlap)
        return terms

    def weight_and_shares(self, logits: Tensor, target: Target, smoothing: float = 0.0) -> tuple[Tensor, Tensor]:
        """The target as voxel weights and class shares for the cross-entropy part, class weights included."""
        return weight_and_shares(target, logits.dtype, self.class_weight, smoothing)

    def setup(self, num_classes: int) -> "Loss":
        """Make the buffers that depend on the number of classes (with sigmoid, of channels); most losses only check."""
        classes = 2 if self.activation == "sigmoid" else num_classes
        if self.class_weight is not None and len(self.class_weight) != classes:
            raise BadInput(
                f"class_weight has {len(self.class_weight)} values for {classes} classes"
                + (", outside and inside of every channel" if self.activation == "sigmoid" else "")
            )
        return self

    def observe(self, logits: Tensor, target: Tensor, valid: Tensor | None = None) -> None:
        """Look at one validation batch; nothing for most losses."""

    def end_epoch(self) -> dict[str, float]:
        """Update what was learnt from `observe` and return it for the log; nothing for most losses."""
        return {}

    def read(self, logits: Any, target: Any, valid: Tensor | None = None) -> tuple[Tensor, Target]:
        """Logits in float32 (or float64) and the target in one shape. Wrong rank, dtype, device or shape: BadInput.

        With sigmoid [n r *space] becomes [n*r 2 *space], the logits (0, l_r) of every channel.
        Values are checked as `value_check` says, but for torch.compile, which cannot look at them. On the CPU the
        smallest and largest label are looked at in any case, which costs nothing.
        """
        logits, read = self._read(logits, target, valid)
        if not torch.compiler.is_compiling() and logits.device.type != "meta":
            first = self.value_check == "first" and torch.is_grad_enabled() not in self._checked
            if first or self.value_check == "always":
                self._check(logits, read)
        logits = logits.float() if logits.dtype in (torch.float16, torch.bfloat16) else logits
        if self.activation == "sigmoid":
            logits = torch.stack([torch.zeros_like(logits), logits], 2).flatten(0, 1)
        return logits, read

    def check(self, logits: Tensor, target: Tensor, valid: Tensor | None = None) -> None:
        """Check values: NaN logits, labels out of range, soft labels that do not sum to 1. Slow: call it rarely."""
        self._check(*self._read(logits, target, valid))

    def _read(self, logits: Any, target: Any, valid: Tensor | None) -> tuple[Tensor, Target]:
        logits, target, valid = (_plain(given) for given in (logits, target, valid))
        read = Target.of(target, logits, self.ignore_index, self.views, self.activation, valid)
        Loss.setup(self, logits.shape[1])
        return logits, read

    def _check(self, logits: Tensor, read: Target) -> None:
        if not torch.isfinite(logits).all():
            bad = int((~torch.isfinite(logits)).sum())
            raise BadInput(f"{bad} of {logits.numel()} logits are NaN or infinite")
        read.check(self.ignore_index)
        self._checked.add(torch.is_grad_enabled())


def _plain(given: Any) -> Any:
    """MONAI's MetaTensor as the plain tensor that it is.

    In large batches on the CPU classes that lie side by side (channels_last, a moved axis of one-hot labels) are copied
    apart: torch reduces a short innermost axis number by number, twice as slowly in all.
    """
    if not isinstance(given, Tensor):
        return given
    plain = given.as_tensor() if hasattr(given, "as_tensor") else given  # pyright: ignore[reportAttributeAccessIssue]
    return plain.contiguous() if plain.device.type == "cpu" and plain.numel() >= LARGE else plain
