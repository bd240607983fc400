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
        self.shape = (bands.number * 4, 2, 2, classes * bins.cells)  # cell, hit, m, (class, bin)
        cells, full = bands.number * 4, int(np.prod(self.shape))

        def table(*shape: int) -> Tensor:
            return torch.zeros(shape, dtype=torch.int64, device=device)

        self.count, self.confidence, self.soft_hits = table(full), table(full), table(full)
        self.squares = table(classes, cells)
        self.whole, self.fraction, self.impossible = (table(cells * classes) for _ in range(3))
        self.channel = torch.arange(classes, device=device)[:, None]

    def add(self, span: Span) -> None:
        """Count every (voxel, class) pair of a span in its cell."""
        p, y, rounded = span.p, span.y, span.rounded
        size = self.shape[-1]
        place = self._bin(rounded)  # float64, like everything that becomes an index: it holds integers exactly
        place += (self.channel * self.bins.cells).double()
        if self.activation == "sigmoid":  # every channel has its own foreground; m = 1 marks a predicted channel
            predicted = (rounded > 0.5).long()
            cell = (span.zone * 2 + (y > 0.5)) * 2 + predicted
            place += (cell * 4 + predicted) * size
        else:
            top = predicted_class(rounded)
            cell = (span.zone * 2 + ((y if y.ndim == 1 else predicted_class(y)) > 0)) * 2 + (top > 0)
            place += (cell * (4 * size)).double()
            place.add_((top == self.channel).double(), alpha=size)
        if y.ndim == 1:
            hit = (y == self.channel).double()
            place.add_(hit, alpha=2 * size)
            gap = hit.sub_(p)
        else:
            gap = y - p
        index = place.long()
        for a in range(0, p.shape[1], PACKED_VOXELS):  # a slice of an array that is not contiguous may be longer
            self._tally(p[:, a : a + PACKED_VOXELS], index[:, a : a + PACKED_VOXELS].reshape(-1))
        if y.ndim == 2:
            self.soft_hits.scatter_add_(0, index.flatten(), fixed(y).flatten())
        self.squares.scatter_add_(1, cell.expand(self.classes, -1), fixed(gap.mul_(gap)))
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

    def _tally(self, p: Tensor, index: Tensor) -> None:
        packed = (p * 2.0**32).add_(MAGIC).view(torch.int64).sub_(MAGIC_BITS - (1 << PACKED_BITS))
        sums = torch.zeros_like(self.count).scatter_add_(0, index, packed.reshape(-1))
        self.count += sums >> PACKED_BITS
        self.confidence += sums & ((1 << PACKED_BITS) - 1)

    def _likelihood(self, nll: Tensor, index: Tensor) -> None:
        bits = FRACTION_BITS["nll"]
        if nll.max() >= 64 or len(nll) > 2 * PACKED_VOXELS:  # 2^17 numbers below 64 fit into an int64
            whole = nll.floor()
            self.whole.scatter_add_(0, index, whole.long())
            nll = nll - whole
        self.fraction.scatter_add_(0, index, fixed(nll, bits))
        self.whole += self.fraction >> bits
        self.fraction &= (1 << bits) - 1

    def sums(self) -> dict[str, np.ndarray]:
        """Flat int64 tables; only nll is already in two words."""
        count, confidence, soft = (t.reshape(self.shape) for t in (self.count, self.confidence, self.soft_hits))
        tables = {
            "count": count.sum(1),
            "confidence": confidence.sum(1),
            "hits": (count[:, 1] << 32) + soft.sum(1),
            "squares": self.squares.T,
            "impossible": self.impossible,
        }
        flat = {name: table.reshape(-1).cpu().numpy() for name, table in tables.items()}
        return flat | {"nll": torch.stack([self.whole, self.fraction]).cpu().numpy()}


def fixed(values: Tensor, bits: int = 32) -> Tensor:
    """round(v 2^bits), halves to even, as int64; v 2^bits < 2^51."""
    return (values * 2.0**bits).add_(MAGIC).view(torch.int64).sub_(MAGIC_BITS)


def predicted_class(p: Tensor) -> Tensor:
    """argmax of non-negative float64 numbers over the first axis, ties to the smallest id.

    As integers, such numbers are ordered alike. Those of float32 precision leave 29 bits free below for the class, so
    that the largest integer names it. (torch.argmax is ten times slower on this layout.) Others are rounded down.
    """
    last = len(p) - 1
    order = torch.arange(last, -1, -1, device=p.device)[:, None]
    return last - (((p.view(torch.int64) >> 16) << 16) | order).amax(0).bitwise_and_(0xFFFF)
