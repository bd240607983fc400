"""Training objectives, one file each: `from calibseg.losses import NACL`.

Every loss is a plain `nn.Module` with one signature, `loss(logits [n k *space], target) -> scalar`; `loss.terms(...)`
gives the same value in named parts. `target` is integer labels [n *space] (or [n 1 *space]) or soft labels [n k
*space].
"""

from typing import ClassVar

import torch
from torch import Tensor, nn

from calibseg.core.labels import Target
from calibseg.core.options import at_least
from calibseg.core.registry import lazy
from calibseg.core.types import BadInput
from calibseg.losses.maths.cross_entropy import weight_and_shares
from calibseg.losses.maths.soft_dice import soft_dice_loss

__getattr__, __dir__ = lazy(__name__)

Terms = dict[str, Tensor]


class Loss(nn.Module):
    """What every objective shares: reading the target, checks, and an optional soft Dice term.

    dice_weight: >= 0, weight of a soft Dice term added to the objective.
    include_background: whether class 0 takes part in the Dice term.
    ignore_index: label of the voxels that count for nobody.
    class_weight: one weight >= 0 per class for the cross-entropy part.
    """

    acronym: ClassVar[str] = ""  # how papers write it; with colour and marker, how figures show it
    colour: ClassVar[str] = ""
    marker: ClassVar[str] = ""
    views: ClassVar[int] = 1  # how many augmented copies of a batch the network must see

    def __init__(
        self,
        *,
        dice_weight: float = 0.0,
        include_background: bool = True,
        ignore_index: int = -100,
        class_weight: list[float] | None = None,
    ):
        super().__init__()
        self.dice_weight = at_least("dice_weight", dice_weight, 0)
        self.include_background = include_background
        self.ignore_index = ignore_index
        if class_weight is not None and min(class_weight) < 0:
            raise BadInput(f"class_weight must be 0 or more for every class, not {class_weight!r}")
        weight = None if class_weight is None else torch.tensor(class_weight, dtype=torch.float64)
        self.register_buffer("class_weight", weight, persistent=False)
        self.class_weight: Tensor | None

    def forward(self, logits: Tensor, target: Tensor, image: Tensor | None = None, **views: Tensor) -> Tensor:
        """The objective, a scalar: the sum of its terms."""
        return torch.stack(list(self.terms(logits, target, image, **views).values())).sum()

    def terms(self, logits: Tensor, target: Tensor, image: Tensor | None = None) -> Terms:
        """The objective in named parts, weights included. Checks shapes and dtypes; `check` looks at values."""
        logits, read = self.read(logits, target)
        return self.with_dice(logits, read) if self.dice_weight else self.objective(logits, read)

    def objective(self, logits: Tensor, target: Target) -> Terms:
        """What a subclass adds: its named terms, from logits in float32 or float64."""
        raise TypeError(f"{type(self).__name__} does not define its objective")

    def with_dice(self, logits: Tensor, target: Target) -> Terms:
        """The objective and the Dice term; cross-entropy computes both in one go."""
        terms = self.objective(logits, target)
        terms["dice"] = self.dice_weight * soft_dice_loss(logits, target, self.include_background)
        return terms

    def weight_and_shares(self, logits: Tensor, target: Target, smoothing: float = 0.0) -> tuple[Tensor, Tensor]:
        """The target as voxel weights and class shares for the cross-entropy part, class weights included."""
        if self.class_weight is not None and len(self.class_weight) != target.num_classes:
            raise BadInput(f"class_weight has {len(self.class_weight)} values for {target.num_classes} classes")
        return weight_and_shares(target, logits.dtype, self.class_weight, smoothing)

    def setup(self, num_classes: int) -> "Loss":
        """Make the buffers that depend on the number of classes; nothing for most losses."""
        return self

    def observe(self, logits: Tensor, target: Tensor) -> None:
        """Look at one validation batch; nothing for most losses."""

    def end_epoch(self) -> dict[str, float]:
        """Update what was learnt from `observe` and return it for the log; nothing for most losses."""
        return {}

    def read(self, logits: Tensor, target: Tensor) -> tuple[Tensor, Target]:
        """Logits in float32 (or float64) and the target in one shape. Wrong rank, dtype, device or shape: BadInput."""
        if logits.ndim < 3 or not logits.is_floating_point() or logits.shape[1] < 2:
            raise BadInput(
                f"logits must be floating [n k *space] with at least 2 classes, not {_shape(logits)}; "
                "give a binary problem two channels"
            )
        if not target.is_floating_point() and target.ndim == logits.ndim and target.shape[1] == 1:
            target = target.squeeze(1)
        labels = (logits.shape[0], *logits.shape[2:])
        expected = tuple(logits.shape) if target.is_floating_point() else labels
        if tuple(target.shape) != expected or target.is_complex() or target.dtype == torch.bool:
            raise BadInput(
                f"target must be integer labels {list(labels)} or soft labels {list(logits.shape)} for logits "
                f"{list(logits.shape)}, not {_shape(target)}"
            )
        if target.device != logits.device:
            raise BadInput(f"logits are on {logits.device} and target is on {target.device}: move one of them")
        if logits.dtype in (torch.float16, torch.bfloat16):
            logits = logits.float()
        return logits, Target.read(target, logits.shape[1], self.ignore_index)

    def check(self, logits: Tensor, target: Tensor) -> None:
        """Check values: NaN logits, labels out of range, soft labels that do not sum to 1. Slow: call it rarely."""
        _, read = self.read(logits, target)
        if not torch.isfinite(logits).all():
            bad = int((~torch.isfinite(logits)).sum())
            raise BadInput(f"{bad} of {logits.numel()} logits are NaN or infinite")
        if read.soft is None:
            wrong = read.labels[(read.labels < 0) | (read.labels >= read.num_classes)]
            if wrong.numel():
                raise BadInput(
                    f"label {int(wrong[0])} at {wrong.numel()} voxels: labels are 0 to {read.num_classes - 1}, "
                    f"or {self.ignore_index} for voxels to ignore"
                )
            return
        total = read.soft.sum(1)
        off = (total - 1).abs().where(read.valid, 0)
        if not torch.isfinite(total).all() or (read.soft < 0).any() or off.max() > 1e-3:
            raise BadInput(
                f"soft labels must be 0 or more and sum to 1 at every voxel (or be all 0 to ignore it): "
                f"smallest value {float(read.soft.min()):.4g}, sums from {float(total.min()):.4g} "
                f"to {float(total.max()):.4g}"
            )


def _shape(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"
