r"""Sums over voxels of functions of softmax and label, from one pass: cross-entropy, overlap, calibration in bins.

With weights w of the cross-entropy, and g = dL/ds of everything else that is computed from the sums,

$$ \frac{\partial L}{\partial l_k} = s_k \Big( g_k - \sum_j s_j g_j + w \Big) - w y_k. $$

Forward walks over the logits chunk by chunk, as in `fused_sums.py`, and keeps s, which backward turns into the gradient
in place. What is summed beside the cross-entropy is a `Part`; under torch.compile, and for a second derivative, its
plain equation is used.
"""

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from calibseg.core.labels import Target
from calibseg.losses.maths import numba as compiled
from calibseg.losses.maths.cross_entropy import nll
from calibseg.losses.maths.fused_sums import chunks


class Part(Protocol):
    """Sums of a function of s and y [n k *space]; voters: uint8 [n 1 *space], 0 where ignored; None: nowhere."""

    def plain(self, s: Tensor, y: Tensor, voters: Tensor | None) -> Tensor:
        """The sums, in plain differentiable PyTorch."""
        ...

    def start(self, logits: Tensor) -> Tensor:
        """Zeros in the shape of the sums."""
        ...

    def add(self, sums: Tensor, at: tuple[slice, ...], s: Tensor, y: Tensor, voters: Tensor | None) -> None:
        """Add the chunk `at` to the sums."""
        ...

    def slope(
        self, g: Tensor | None, grad: Tensor, at: tuple[slice, ...], s: Tensor, y: Tensor, voters: Tensor | None
    ) -> Tensor:
        """g (None: 0), which is used up, plus the derivative by s of (grad * sums).sum(), in the chunk `at`."""
        ...


def softmax_sums(
    logits: Tensor, target: Target, parts: Sequence[Part], weight: Tensor | None = None
) -> tuple[Tensor, ...]:
    """sum_i weight_i H(y_i, softmax(l_i)) for integer labels (0 without weights), and the sums of every part."""
    assert weight is None or target.soft is None
    labels = target.one_hot if target.soft is None else target.soft.to(logits.dtype)
    voters = None if target.all_valid else target.valid.unsqueeze(1).view(torch.uint8)
    if weight is not None:
        weight = weight.expand(logits.shape[0], 1, *logits.shape[2:])
    sums = _plain if torch.compiler.is_compiling() else _SoftmaxSums.apply
    return sums(logits, weight, labels, voters, parts)  # pyright: ignore[reportReturnType]


def _plain(
    logits: Tensor, weight: Tensor | None, labels: Tensor, voters: Tensor | None, parts: Sequence[Part]
) -> tuple[Tensor, ...]:
    s, y = torch.softmax(logits, 1), labels.to(logits.dtype)
    ce = logits.new_zeros(()) if weight is None else nll(logits, weight, labels)
    return ce, *(part.plain(s, y, voters) for part in parts)


class _SoftmaxSums(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx, logits: Tensor, weight: Tensor | None, labels: Tensor, voters: Tensor | None, parts: Sequence[Part]
    ) -> tuple[Tensor, ...]:
        ctx.parts = parts
        ctx.save_for_backward(logits, weight, labels, voters)
        ctx.softmax = torch.empty_like(logits) if ctx.needs_input_grad[0] else None
        entropies, sums = [], [part.start(logits) for part in parts]
        for at in chunks(logits):
            y = labels[at].to(logits.dtype)
            s = torch.empty_like(logits[at]) if ctx.softmax is None else ctx.softmax[at]
            entropy = _softmax(s, logits[at], labels[at], y, _at(weight, at))
            if weight is not None:
                entropies.append(entropy)
            for part, total in zip(parts, sums, strict=True):
                part.add(total, at, s, y, _at(voters, at))
        return torch.stack(entropies).sum() if entropies else logits.new_zeros(()), *sums

    @staticmethod
    def backward(ctx, *grads: Tensor):
        logits, weight, labels, voters = ctx.saved_tensors
        if torch.is_grad_enabled():
            which = slice(0 if weight is not None else 1, None)
            sums = _plain(logits, weight, labels, voters, ctx.parts)[which]
            return torch.autograd.grad(sums, logits, grads[which], create_graph=True)[0], *[None] * 4
        slope, ctx.softmax = ctx.softmax, None
        if slope is None:  # a second backward pass: the first has used it up; by the same steps, so that no bit differs
            slope = (logits - logits.amax(1, keepdim=True)).exp_()
            slope.mul_(slope.sum(1, keepdim=True).reciprocal_())
        for at in chunks(logits):
            y, s, g = labels[at].to(logits.dtype), slope[at], None
            for part, grad in zip(ctx.parts, grads[1:], strict=True):
                g = part.slope(g, grad, at, s, y, _at(voters, at))
            assert g is not None
            mean = (s * g).sum(1, keepdim=True)
            if weight is None:
                s.mul_(g.sub_(mean))
            else:
                w = weight[at] * grads[0]
                s.mul_(g.sub_(mean.sub_(w))).addcmul_(y, w, value=-1)
        return slope, *[None] * 4


def _softmax(s: Tensor, logits: Tensor, labels: Tensor, y: Tensor, weight: Tensor | None) -> Tensor:
    """Fills s with the softmax; gives the cross-entropy, where it has weights."""
    entropy = compiled.cross_entropy(1.0, None, logits, weight, labels, s)
    if entropy is not None:
        return entropy.to(s.dtype)
    torch.sub(logits, logits.amax(1, keepdim=True), out=s)
    of_label = s.new_zeros(()) if weight is None else (s * y).sum(1, keepdim=True)
    z = s.exp_().sum(1, keepdim=True)
    entropy = of_label if weight is None else z.log().sub_(of_label).mul_(weight).sum()
    s.mul_(z.reciprocal_())
    return entropy


def _at(values: Tensor | None, at: tuple[slice, ...]) -> Tensor | None:
    return None if values is None else values[at]
