r"""Scores of any kind as float64 probabilities, and -log p of the truth, in float64 from the scores as they are stored.

softmax    p_k = exp(z_k) / sum_j exp(z_j)        -log p_y = log sum_j exp(z_j) - z_y
sigmoid    p_k = 1 / (1 + exp(-z_k))              -y_k log p_k - (1 - y_k) log(1 - p_k), channel by channel

In a logarithm p (with sigmoid 1 - p too) is at least 2^-24, the least positive number of float16: what a network was
sure of and wrong about costs 24 log 2 = 16.6 nats, whether its file says 1e-30, 0 or a logit of -1000. `clipped` says
where.
"""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from calibseg.core.types import LEAST_PROBABILITY, TOLERANCE, Activation, ScoreKind

LARGEST_NLL = -float(np.log(LEAST_PROBABILITY))
SURE = float(np.log(2.0**24 - 1))  # of a logit beyond it p or 1 - p is below the least probability
NOWHERE = torch.zeros(0, dtype=torch.bool)


def probabilities(
    scores: Tensor, y: Tensor, kind: ScoreKind, activation: Activation, check: Callable[[Tensor], None]
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """p [k n] in float64 and float32, -log p of the label (or per class, times the soft label), where p is clipped.

    check: refuses the voxels [n] where it is given True.
    """
    z = scores.to(torch.float64, memory_format=torch.contiguous_format, copy=True)
    hard = y.ndim == 1
    if activation == "sigmoid":
        p, nll, clipped = _sigmoid(z, y, kind, check)
        return p, p.float(), nll, clipped
    rounded = None
    if kind == "probabilities":
        low, high = (end.item() for end in scores.aminmax())
        total = (scores if scores.dtype == torch.float32 else z).sum(0)
        if not (low >= 0 and high <= 1):  # true of NaN as well
            check(~((z >= -TOLERANCE) & (z <= 1 + TOLERANCE)).all(0))
            z.clamp_(0, 1)
        elif scores.dtype == torch.float32:
            rounded = scores
        least_total, most_total = (end.item() for end in total.aminmax())
        if least_total < 1 - TOLERANCE or most_total > 1 + TOLERANCE:
            check((total - 1).abs() > TOLERANCE)
        p = z
        stored = at_labels(p, y) if hard else p
        clipped = stored < LEAST_PROBABILITY if stored.amin() < LEAST_PROBABILITY else NOWHERE
        nll = stored.clamp_min(LEAST_PROBABILITY).log_().neg_()
    else:
        largest = z.amax(0)
        e = (z - largest).exp_()
        total = e.sum(0)
        check(total.isnan())
        norm = total.log().add_(largest)
        if kind == "log_probabilities":
            check((norm.exp() - 1).abs() > TOLERANCE)
        nll = norm - (at_labels(z, y) if hard else z)
        clipped = nll > LARGEST_NLL if nll.amax() > LARGEST_NLL else NOWHERE
        nll = nll.clamp_max(LARGEST_NLL)
        p = e.div_(total)
    if not hard and clipped is not NOWHERE:
        clipped = clipped & (y > 0)
    return p, (p.float() if rounded is None else rounded), (nll if hard else nll * y), clipped


def _sigmoid(z: Tensor, y: Tensor, kind: ScoreKind, check: Callable[[Tensor], None]) -> tuple[Tensor, Tensor, Tensor]:
    if kind == "logits":
        check(z.isnan().any(0))
        p = torch.sigmoid(z)
        nll = torch.logaddexp(torch.where(y > 0.5, -z, z), torch.zeros_like(z))  # -log p of the likelier label
        nll += torch.where(y > 0.5, (1 - y) * z, -y * z).nan_to_num_(0.0)
        low, high = z < -SURE, z > SURE
        unlikely = torch.where(low, y, 1 - y)
        nll = torch.where(low | high, unlikely * LARGEST_NLL + (1 - unlikely) * torch.log1p(torch.exp(-z.abs())), nll)
    else:
        p = z.exp() if kind == "log_probabilities" else z
        check(~((p >= -TOLERANCE) & (p <= 1 + TOLERANCE)).all(0))
        p = p.clamp(0, 1)
        nll = -(y * p.clamp_min(LEAST_PROBABILITY).log() + (1 - y) * torch.log1p(-p).clamp_min(-LARGEST_NLL))
        low, high = p < LEAST_PROBABILITY, 1 - p < LEAST_PROBABILITY
    return p, nll, (low & (y > 0)) | (high & (y < 1))


def label_places(y: Tensor) -> Tensor:
    """Where the labels [n] lie in a flat [k n]."""
    return (y * len(y)).add_(torch.arange(len(y), device=y.device))


def at_labels(values: Tensor, y: Tensor) -> Tensor:
    """The numbers [n] of contiguous values [k n] at the labels. (torch.gather is twice as slow.)"""
    if values.device.type == "cpu" and y.amax() == 0:  # most chunks of a volume
        return values[0]
    return values.view(-1).index_select(0, label_places(y))
