r"""The pure torch route: a few vector operations and integer scatter-adds per span of voxels, on any device.

The bin b of a probability, rounded to float32, is the one with edge[b] < p <= edge[b + 1], edges rounded to float32; 0
is in the first. The sums are of round(p 2^32) and round((p - y)^2 2^32), evaluated in float64 and added as int64, and
of -log p as a whole part and a fraction round(f 2^40).
"""

import numpy as np
import torch
from torch import Tensor

from calibseg.curves import FRACTION_BITS, Bands, Bins
from calibseg.spans import Span
from calibseg.types import Activation


class TorchRoute:
    """Adds spans of voxels into int64 tables."""

    def __init__(self, classes: int, bins: Bins, activation: Activation, bands: Bands, device: torch.device) -> None:
        self.classes, self.bins, self.activation = classes, bins, activation
        full = bands.number * 8 * classes * bins.cells
        short = bands.number * 4 * classes

        def table(size: int) -> Tensor:
            return torch.zeros(size, dtype=torch.int64, device=device)

        self.count, self.confidence, self.hits = table(full), table(full), table(full)
        self.squares, self.whole, self.fraction, self.impossible = (table(short) for _ in range(4))
        self.channel = torch.arange(classes, device=device)[:, None]

    def add(self, span: Span) -> None:
        """Count every (voxel, class) pair of a span in its cell."""
        p, y = span.p, span.y
        if self.activation == "sigmoid":  # every channel has its own foreground; m = 1 marks a predicted channel
            predicted = (p > 0.5).long()
            cell = (span.zone * 2 + (y > 0.5)) * 2 + predicted
            index = (cell * 2 + predicted) * self.classes + self.channel
        else:
            top = predicted_class(p)
            truth = y if y.ndim == 1 else predicted_class(y)
            cell = (span.zone * 2 + (truth > 0)) * 2 + (top > 0)
            index = cell * (2 * self.classes) + self.channel
            index.scatter_add_(0, top[None], torch.full_like(top[None], self.classes))
        index = index.mul_(self.bins.cells).add_(bin_index(p, self.bins))
        self._tally(span.exact, index, cell, y)
        short = cell * self.classes + (y if y.ndim == 1 else self.channel)
        self._likelihood(span.nll.flatten(), short.flatten())
        if span.impossible.any():
            self.impossible += torch.bincount(short[span.impossible], minlength=len(self.impossible))

    def _tally(self, p: Tensor, index: Tensor, cell: Tensor, y: Tensor) -> None:
        flat = index.flatten()
        self.count += torch.bincount(flat, minlength=len(self.count))
        self.confidence.scatter_add_(0, flat, fixed(p).flatten())
        if y.ndim == 1:
            self.hits += torch.bincount(index.gather(0, y[None])[0], minlength=len(self.hits)) << 32
            gap = p.scatter_add(0, y[None], torch.full_like(y[None], -1, dtype=torch.float64))
        else:
            self.hits.scatter_add_(0, flat, fixed(y).flatten())
            gap = p - y
        short = cell * self.classes + self.channel
        self.squares.scatter_add_(0, short.flatten(), fixed(gap * gap).flatten())

    def _likelihood(self, nll: Tensor, index: Tensor) -> None:
        whole = nll.floor()
        self.whole.scatter_add_(0, index, whole.long())
        self.fraction.scatter_add_(0, index, fixed(nll - whole, FRACTION_BITS["nll"]))
        self.whole += self.fraction >> FRACTION_BITS["nll"]  # 2^23 fractions would fill an int64
        self.fraction &= (1 << FRACTION_BITS["nll"]) - 1

    def sums(self) -> dict[str, np.ndarray]:
        """Flat int64 tables; only nll is already in two words."""
        tables = {name: getattr(self, name) for name in ("count", "confidence", "hits", "squares", "impossible")}
        tables["nll"] = torch.stack([self.whole, self.fraction])
        return {name: table.cpu().numpy() for name, table in tables.items()}


def fixed(values: Tensor, bits: int = 32) -> Tensor:
    """round(v 2^bits), halves to even, as int64."""
    return (values * 2.0**bits).round_().long()


def bin_index(p: Tensor, bins: Bins) -> Tensor:
    """The stored bin of each float32 probability, as int64: 0 for p <= threshold, else 1 + its bin."""
    scale = bins.scale
    if scale is None:
        inner = torch.from_numpy(bins.edges[1:-1]).to(p.device)
        index = torch.bucketize(p, inner) + 1
    else:
        index = (p.double() * scale).ceil_().long().clamp_(1, bins.number)
    index -= (p <= float(np.float32(bins.threshold))).long()
    return index


def predicted_class(p: Tensor) -> Tensor:
    """argmax over the first axis, ties to the smallest id. (torch.argmax is ten times slower on this layout.)"""
    best = p[0].clone()
    which = torch.zeros(p.shape[1], dtype=torch.int64, device=p.device)
    for k in range(1, len(p)):
        which.masked_fill_(p[k] > best, k)
        torch.maximum(best, p[k], out=best)
    return which
