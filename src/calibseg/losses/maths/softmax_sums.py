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
from calibseg.losses.maths import numba
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

    def simple_slope(self, grad: Tensor) -> numba.SlopeOfPart | None:
        """That derivative for all voters in few numbers; None where it is not as simple."""
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
        sums = [part.start(logits) for part in parts]
        whole = None if ctx.softmax is None else numba.cross_entropy(1.0, None, logits, weight, labels, ctx.softmax)
        entropies = [] if whole is None else [whole.to(logits.dtype)]
        for at in chunks(logits):
            y = labels[at].to(logits.dtype)
            s = torch.empty_like(logits[at]) if ctx.softmax is None else ctx.softmax[at]
            if whole is None:
                entropies.append(_softmax(s, logits[at], y, _at(weight, at)))
            for part, total in zip(parts, sums, strict=True):
                part.add(total, at, s, y, _at(voters, at))
        return torch.stack(entropies).sum(), *sums

    @staticmethod
    def backward(ctx, *grads: Tensor):
        logits, weight, labels, voters = ctx.saved_tensors
        if torch.is_grad_enabled():
            which = slice(0 if weight is not None else 1, None)
            sums = _plain(logits, weight, labels, voters, ctx.parts)[which]
            return torch.autograd.grad(sums, logits, grads[which], create_graph=True)[0], *[None] * 4
        slope, ctx.softmax = ctx.softmax, None
        if slope is None:  # a second backward pass: the first has used it up; by the same steps, so that no bit differs
            slope = torch.empty_like(logits)
            if numba.cross_entropy(1.0, None, logits, weight, labels, slope) is None:
                torch.sub(logits, logits.amax(1, keepdim=True), out=slope).exp_()
                slope.mul_(slope.sum(1, keepdim=True).reciprocal_())
        w = None if weight is None else weight * grads[0]
        simple = [part.simple_slope(grad) for part, grad in zip(ctx.parts, grads[1:], strict=True)]
        if None not in simple and numba.softmax_slope(slope, labels, w, voters, simple):
            return slope, *[None] * 4
        for at in chunks(logits):
            y, s, g = labels[at].to(logits.dtype), slope[at], None
            for part, grad in zip(ctx.parts, grads[1:], strict=True):
                g = part.slope(g, grad, at, s, y, _at(voters, at))
            assert g is not None
            mean = (s * g).sum(1, keepdim=True)
            if w is None:
                s.mul_(g.sub_(mean))
            else:
                s.mul_(g.sub_(mean.sub_(w[at]))).addcmul_(y, w[at], value=-1)
        return slope, *[None] * 4


def _softmax(s: Tensor, logits: Tensor, y: Tensor, weight: Tensor | None) -> Tensor:
    """Fills s with the softmax; gives the cross-entropy, where it has weights."""
    torch.sub(logits, logits.amax(1, keepdim=True), out=s)
    of_label = s.new_zeros(()) if weight is None else (s * y).sum(1, keepdim=True)
    z = s.exp_().sum(1, keepdim=True)
    entropy = of_label if weight is None else z.log().sub_(of_label).mul_(weight).sum()
    s.mul_(z.reciprocal_())
    return entropy


def _at(values: Tensor | None, at: tuple[slice, ...]) -> Tensor | None:
    return None if values is None else values[at]
