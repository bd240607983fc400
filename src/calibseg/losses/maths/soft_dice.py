r"""Soft Dice loss on softmax probabilities, per image and class; alone, or together with cross-entropy.

$$ 1 - \frac{2\,TP + \epsilon}{2\,TP + 2\alpha\,FP + 2\beta\,FN + \epsilon}, \qquad
   FP = \sum_i ((1 - y_i) s_i)^\gamma, \quad FN = \sum_i (y_i (1 - s_i))^\gamma, \quad TP = \sum_i s_i y_i $$

with epsilon = 1e-5, averaged over images and classes. A class absent from an image therefore costs nearly 1 for any
mass put on it. alpha = beta = 1/2 and gamma = 1 is soft Dice, with the denominator sum s + sum y; the value agrees with
MONAI's DiceLoss(softmax=True, to_onehot_y=True). alpha and beta make it Tversky's index, both 1 Jaccard's; gamma = 2 is
DSC++. kind="l1" is the Dice semimetric: TP = sum min(s, y), FP = sum max(s - y, 0)^gamma, FN = sum max(y - s, 0)^gamma,
the same for hard labels; for soft ones it is 0 where s = y, where soft Dice is not.

Papers: Yeung et al., Journal of Digital Imaging 2023 (DSC++); Wang et al., MICCAI 2023 (semimetric) and NeurIPS 2023
(Jaccard); Salehi et al., MLMI 2017 (Tversky).
Differs: ignored voxels leave all sums. The authors of DSC++ take epsilon = 1e-7. Those of the semimetric sum over the
batch and average over the classes that are in it; here, as with soft Dice, over each image and all classes.

Where the sums are linear in s their gradient needs nothing but s and y, and that of cross-entropy too: forward walks
over the logits chunk by chunk, as in `fused_sums.py`, and keeps s, which backward turns into the gradient in place.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from calibseg.core.labels import Target
from calibseg.losses.maths.cross_entropy import nll
from calibseg.losses.maths.fused_sums import chunks

EPSILON = 1e-5


@dataclass(frozen=True)
class Overlap:
    """What is compared: the options of the Dice term, see above."""

    include_background: bool = True
    kind: Literal["soft", "l1"] = "soft"
    gamma: float = 1.0
    alpha: float = 0.5
    beta: float = 0.5

    def linear(self, target: Target) -> bool:
        """Whether the sums are linear in the probabilities."""
        return self.gamma == 1 and (self.kind == "soft" or target.soft is None)

    def mean_loss(self, common: Tensor, predicted: Tensor, true: Tensor) -> Tensor:
        """From TP and the sums of s and y, each [n k]; predicted = TP + FP and true = TP + FN."""
        if self.alpha == self.beta == 0.5:
            whole = predicted + true
        else:
            whole = 2 * (common + self.alpha * (predicted - common) + self.beta * (true - common))
        loss = 1 - (2 * common + EPSILON) / (whole + EPSILON)
        return (loss if self.include_background else loss[:, 1:]).mean()


def soft_dice_loss(logits: Tensor, target: Target, overlap: Overlap) -> Tensor:
    """Mean Dice loss of logits [n k *space], a scalar."""
    labels = target.one_hot if target.soft is None else target.soft.to(logits.dtype)
    if overlap.linear(target):
        return cross_entropy_and_dice(logits, None, labels, target, overlap)[1]
    s, y = torch.softmax(logits, 1), labels.to(logits.dtype)
    s = s if target.all_valid else s * target.valid.unsqueeze(1)
    if overlap.kind == "soft":
        common, false, missed = s * y, s * (1 - y), y * (1 - s)
    else:
        common, false, missed = torch.minimum(s, y), torch.relu(s - y), torch.relu(y - s)
    space = tuple(range(2, s.ndim))
    tp, fp, fn = (part.sum(space) for part in (common, false.pow(overlap.gamma), missed.pow(overlap.gamma)))
    return overlap.mean_loss(tp, tp + fp, tp + fn)


def cross_entropy_and_dice(
    logits: Tensor, weight: Tensor | None, labels: Tensor, target: Target, overlap: Overlap
) -> tuple[Tensor, Tensor]:
    """sum_i weight_i H(y_i, softmax(l_i)) for integer labels as one-hot (0 without weights), and the Dice loss."""
    voters = None if target.all_valid else target.valid.unsqueeze(1).view(torch.uint8)
    weight = None if weight is None else weight.expand(logits.shape[0], 1, *logits.shape[2:])
    sums = _sums if torch.compiler.is_compiling() else _Sums.apply
    ce, common, predicted, true = sums(logits, weight, labels, voters)  # pyright: ignore[reportGeneralTypeIssues]
    return ce, overlap.mean_loss(common, predicted, true)


def _sums(logits: Tensor, weight: Tensor | None, labels: Tensor, voters: Tensor | None) -> tuple[Tensor, ...]:
    """Cross-entropy, a scalar; sum_i s_i y_i, sum_i s_i and sum_i y_i over the voxels that count, each [n k]."""
    space = tuple(range(2, logits.ndim))
    s, y = torch.softmax(logits, 1), labels.to(logits.dtype)
    ce = logits.new_zeros(()) if weight is None else nll(logits, weight, labels)
    return ce, (s * y).sum(space), (s if voters is None else s * voters).sum(space), y.sum(space)


class _Sums(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx, logits: Tensor, weight: Tensor | None, labels: Tensor, voters: Tensor | None
    ) -> tuple[Tensor, ...]:
        ctx.save_for_backward(logits, weight, labels, voters)
        ctx.softmax = torch.empty_like(logits) if ctx.needs_input_grad[0] else None
        space = tuple(range(2, logits.ndim))
        entropies, totals = [], logits.new_zeros((3, *logits.shape[:2]))
        for at in chunks(logits):
            y = labels[at].to(logits.dtype)
            s = torch.sub(logits[at], logits[at].amax(1, keepdim=True), out=_at(ctx.softmax, at))
            of_label = 0 if weight is None else (s * y).sum(1, keepdim=True)
            z = s.exp_().sum(1, keepdim=True)
            if weight is not None:
                entropies.append(z.log().sub_(of_label).mul_(weight[at]).sum())
            s.mul_(z.reciprocal_())
            counted = s if voters is None else s * voters[at]
            totals[:, at[0]] += torch.stack([(s * y).sum(space), counted.sum(space), y.sum(space)])
        ce = torch.stack(entropies).sum() if entropies else logits.new_zeros(())
        common, predicted, true = totals
        ctx.mark_non_differentiable(true)
        return ce, common, predicted, true

    @staticmethod
    def backward(ctx, *grads: Tensor):
        """With g = a y + b per image and class: d/dl_k = s_k (g_k - sum_j s_j g_j + w) - w y_k."""
        logits, weight, labels, voters = ctx.saved_tensors
        if torch.is_grad_enabled():
            which = slice(0 if weight is not None else 1, 3)
            sums = _sums(logits, weight, labels, voters)[which]
            return torch.autograd.grad(sums, logits, grads[which], create_graph=True)[0], None, None, None
        slope, ctx.softmax = ctx.softmax, None
        if slope is None:  # a second backward pass: the first has used it up; by the same steps, so that no bit differs
            slope = (logits - logits.amax(1, keepdim=True)).exp_()
            slope.mul_(slope.sum(1, keepdim=True).reciprocal_())
        a, b = (grad.view(*grad.shape, *[1] * (logits.ndim - 2)) for grad in grads[1:3])
        for at in chunks(logits):
            y, s = labels[at].to(logits.dtype), slope[at]
            g = y * a[at[0]]
            g = g.add_(b[at[0]]) if voters is None else g.addcmul_(voters[at].to(g.dtype), b[at[0]])
            mean = (s * g).sum(1, keepdim=True)
            if weight is None:
                s.mul_(g.sub_(mean))
            else:
                w = weight[at] * grads[0]
                s.mul_(g.sub_(mean.sub_(w))).addcmul_(y, w, value=-1)
        return slope, None, None, None


def _at(values: Tensor | None, at: tuple[slice, ...]) -> Tensor | None:
    return None if values is None else values[at]
