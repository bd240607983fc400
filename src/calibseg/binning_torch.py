r"""The pure torch route: a few vector operations and integer scatter-adds per span of voxels, on any device.

The bin b of a probability, rounded to float32, is the one with edge[b] < p <= edge[b + 1], edges rounded to float32; 0
is in the first. The sums are of round(p 2^32) and round((p - y)^2 2^32), evaluated in float64 and added as int64, and
of -log p as a whole part and a fraction round(f 2^40).

Adding 1.5 2^52 to a float64 rounds it to an integer, halves to even, and leaves that integer in its low bits; so
rounding and conversion are one pass. A count and a sum are added as one integer, the count from bit 48 up.
"""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from torch import Tensor

from calibseg.curves import FRACTION_BITS, Bands, Bins
from calibseg.spans import Span, Spans, Step
from calibseg.types import Activation, Array

MAGIC = 1.5 * 2.0**52
MAGIC_BITS = int(np.float64(MAGIC).view(np.int64))
PACKED_BITS = 48
PACKED_VOXELS = 1 << 15  # so many sums of at most 2^32 fit below bit 48, and as many counts above
SERIAL = 1 << 15  # numbers up to which torch does an operation in the calling thread
VOXELS_PER_TABLE = 1 << 26  # long before 2^31 would fill an int64


def torch_sums(spans: Spans, bins: Bins, threads: int) -> Iterator[dict[str, Array]]:
    """Flat int64 tables, one set per share of the spans.

    On the CPU spans are so short that torch runs each operation in the thread that asks for it, and several threads
    share the spans: operations on a whole cache's worth of numbers gain nothing from being split, and lose by waiting.
    """
    on_cpu = spans.device.type == "cpu"
    steps = spans.steps(min(PACKED_VOXELS, max(1 << 11, SERIAL // spans.classes)) if on_cpu else PACKED_VOXELS)
    threads = max(1, min(threads, len(steps))) if on_cpu else 1
    voxels = max(1, int(np.prod(spans.space)) // max(1, len(steps)))
    size = max(1, min(-(-len(steps) // threads), VOXELS_PER_TABLE // voxels))
    shares = [steps[a : a + size] for a in range(0, len(steps), size)]

    def tables(share: list[Step]) -> dict[str, Array]:
        route = TorchRoute(spans.classes, bins, spans.activation, spans.bands, spans.device)
        for step in share:
            span = spans.read(step)
            if span is not None:
                route.add(span)
        return route.sums()

    if threads == 1:
        yield from map(tables, shares)
    else:
        with ThreadPoolExecutor(threads) as pool:
            yield from pool.map(tables, shares)


class TorchRoute:
    """Adds spans of voxels into int64 tables."""

    def __init__(self, classes: int, bins: Bins, activation: Activation, bands: Bands, device: torch.device) -> None:
        self.classes, self.bins, self.activation, self.scale = classes, bins, activation, bins.scale
        full, short = bands.number * 8 * classes * bins.cells, bands.number * 4

        def table(*shape: int) -> Tensor:
            return torch.zeros(shape, dtype=torch.int64, device=device)

        self.count, self.confidence, self.hits = table(full), table(full), table(full)
        self.squares = table(classes, short)
        self.whole, self.fraction, self.impossible = (table(short * classes) for _ in range(3))
        self.channel = torch.arange(classes, device=device)[:, None]
        self.magic = torch.tensor(MAGIC, dtype=torch.float64, device=device)

    def add(self, span: Span) -> None:
        """Count every (voxel, class) pair of a span in its cell."""
        p, y, rounded = span.p, span.y, span.rounded
        place = self._bin(rounded)  # float64, like everything that becomes an index: it holds integers exactly
        if self.activation == "sigmoid":  # every channel has its own foreground; m = 1 marks a predicted channel
            predicted = (rounded > 0.5).long()
            cell = (span.zone * 2 + (y > 0.5)) * 2 + predicted
            place += (cell * 2 + predicted) * (self.classes * self.bins.cells)
        else:
            top = predicted_class(rounded)
            truth = y if y.ndim == 1 else predicted_class(y)
            cell = (span.zone * 2 + (truth > 0)) * 2 + (top > 0)
            size = self.classes * self.bins.cells
            place += (cell * (2 * size)).double()
            place.scatter_add_(0, top[None], place.new_full((1, 1), size).expand(1, len(top)))
        place += self.channel * self.bins.cells
        index = place.long()
        for a in range(0, p.shape[1], PACKED_VOXELS):  # a slice of an array that is not contiguous may be longer
            self._tally(p[:, a : a + PACKED_VOXELS], index[:, a : a + PACKED_VOXELS].reshape(-1))
        if y.ndim == 1:
            self.hits += torch.bincount(index.gather(0, y[None])[0], minlength=len(self.hits)) << 32
            gap = p.scatter_add(0, y[None], p.new_full((1, 1), -1.0).expand(1, len(y)))
        else:
            self.hits.scatter_add_(0, index.flatten(), self._fixed(y).flatten())
            gap = p - y
        self.squares.scatter_add_(1, cell.expand(self.classes, -1), self._fixed(gap.mul_(gap)))
        short = cell * self.classes + (y if y.ndim == 1 else self.channel)
        self._likelihood(span.nll.flatten(), short.flatten())
        if span.impossible.any():
            self.impossible += torch.bincount(short[span.impossible], minlength=len(self.impossible))

    def _bin(self, rounded: Tensor) -> Tensor:
        """The stored bin of each probability, as float64: 0 for p <= threshold, else 1 + its bin."""
        threshold = float(np.float32(self.bins.threshold))
        if self.scale is not None:
            return torch.nn.functional.threshold(rounded, threshold, 0.0).mul_(self.scale).ceil_()
        inner = torch.from_numpy(self.bins.edges[1:-1].astype(np.float64)).to(rounded.device)
        return (torch.bucketize(rounded, inner) + 1).masked_fill_(rounded <= threshold, 0).double()

    def _fixed(self, values: Tensor) -> Tensor:
        """round(v 2^32), halves to even, as int64."""
        return torch.add(self.magic, values, alpha=2.0**32).view(torch.int64).sub_(MAGIC_BITS)

    def _tally(self, p: Tensor, index: Tensor) -> None:
        packed = torch.add(self.magic, p, alpha=2.0**32).view(torch.int64).sub_(MAGIC_BITS - (1 << PACKED_BITS))
        sums = torch.zeros_like(self.count).scatter_add_(0, index, packed.reshape(-1))
        self.count += sums >> PACKED_BITS
        self.confidence += sums & ((1 << PACKED_BITS) - 1)

    def _likelihood(self, nll: Tensor, index: Tensor) -> None:
        whole = nll.floor()
        self.whole.scatter_add_(0, index, whole.long())
        self.fraction.scatter_add_(0, index, fixed(nll - whole, FRACTION_BITS["nll"]))
        self.whole += self.fraction >> FRACTION_BITS["nll"]  # 2^23 fractions would fill an int64
        self.fraction &= (1 << FRACTION_BITS["nll"]) - 1

    def sums(self) -> dict[str, np.ndarray]:
        """Flat int64 tables; only nll is already in two words."""
        tables = {name: getattr(self, name) for name in ("count", "confidence", "hits", "impossible")}
        tables["squares"] = self.squares.T.reshape(-1)
        tables["nll"] = torch.stack([self.whole, self.fraction])
        return {name: table.cpu().numpy() for name, table in tables.items()}


def fixed(values: Tensor, bits: int = 32) -> Tensor:
    """round(v 2^bits), halves to even, as int64."""
    return (values * 2.0**bits).round_().long()


def predicted_class(p: Tensor) -> Tensor:
    """argmax over the first axis, ties to the smallest id. (torch.argmax is ten times slower on this layout.)"""
    best = p[0]
    which = torch.zeros(p.shape[1], dtype=torch.int64, device=p.device)
    for k in range(1, len(p)):
        which.masked_fill_(p[k] > best, k)
        best = torch.maximum(best, p[k])
    return which
