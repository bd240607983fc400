r"""The pure torch route: a few vector operations and integer scatter-adds per span of voxels, on any device.

The bin b of a probability, rounded to float32, is the one with edge[b] < p <= edge[b + 1], edges rounded to float32; 0
is in the first. The sums are of round(p 2^32) and round((p - y)^2 2^32), evaluated in float64 and added as int64, and
of -log p as a whole part and a fraction round(f 2^40).

Adding 2^52 + 2^48 to a float64 rounds it to an integer, halves to even, and leaves in the float's bits that integer
plus 0x4331 2^48. So the bits can be added as they are: after c of them the upper 16 bits hold 0x4331 c, modulo 2^16,
from which c follows because 0x4331 is odd, and the lower 48 bits hold the sum. One addition counts and sums.

On the CPU spans are so short that torch runs each operation in the thread that asks for it, and several threads share
the spans: operations on a whole cache's worth of numbers gain nothing from being split, and lose by waiting. On demand
the same pass fills the fine histogram of equal-mass bins.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from calibseg.curves import FRACTION_BITS, Bins
from calibseg.places import Places
from calibseg.probabilities import label_places
from calibseg.spans import Span, Spans, Step
from calibseg.types import Array

MAGIC = 2.0**52 + 2.0**48
MAGIC_BITS = int(np.float64(MAGIC).view(np.int64))
PACKED_BITS = 48
PACKED_ODD = MAGIC_BITS >> PACKED_BITS
COUNTED = pow(PACKED_ODD, -1, 1 << 16)  # times what is in the upper bits: the count
ROOM = (1 << 16) - 1  # voxels that a packed cell has room for
LONGEST = 1 << 15  # voxels of a span that are added at once
SERIAL = 1 << 15  # numbers up to which torch does an operation in the calling thread
VOXELS_PER_TABLE = 1 << 26  # long before 2^31 would fill an int64

Reach = dict[Step, tuple[Tensor, Tensor]]  # the least and the largest float32 p of each class in a step
Found = TypeVar("Found")


@dataclass(frozen=True)
class TorchSums:
    """What one share of the spans adds up to."""

    sums: dict[str, Array]  # flat int64 tables; nll is already in two words
    fine: Array | None  # count, confidence and hits in units of 2^-32 [3, (t p m k g)]
    reach: Reach  # of its steps, with the fine histogram only


def torch_sums(spans: Spans, bins: Bins, threads: int, fine_threshold: float | None = None) -> list[TorchSums]:
    """Tables, one set per share of the spans."""

    def tables(share: list[Step]) -> TorchSums:
        route = TorchRoute(spans, bins, fine_threshold)
        reach: Reach = {}
        for step in share:
            span = spans.read(step)
            if span is not None:
                route.add(span)
                if fine_threshold is not None:
                    reach[step] = (span.rounded.amin(1), span.rounded.amax(1))
        return TorchSums(route.sums(), route.fine_sums(), reach)

    return in_threads(spans, threads, tables)


def in_threads(spans: Spans, threads: int, work: Callable[[list[Step]], Found]) -> list[Found]:
    """What `work` makes of each share of the spans, none longer than one set of tables may add."""
    on_cpu = spans.device.type == "cpu"
    steps = spans.steps(min(LONGEST, max(1 << 11, SERIAL // spans.classes)) if on_cpu else LONGEST)
    threads = max(1, min(threads, len(steps))) if on_cpu else 1
    voxels = max(1, int(np.prod(spans.space)) // max(1, len(steps)))
    size = max(1, min(-(-len(steps) // threads), VOXELS_PER_TABLE // voxels))
    shares = [steps[a : a + size] for a in range(0, len(steps), size)]
    if threads == 1:
        return [work(share) for share in shares]
    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(work, shares))


class Tally:
    """Counts and sums of numbers by cell, hit, m (see `curves`), class and place."""

    def __init__(self, places: Places, cells: int, classes: int, device: torch.device) -> None:
        self.places, self.shape = places, (cells, 2, 2, classes, places.size)
        full, self.step = int(np.prod(self.shape)), classes * places.size
        self.packed = torch.zeros(full, dtype=torch.int64, device=device)
        self.soft = torch.zeros(0, dtype=torch.int64, device=device)
        self.channel = (torch.arange(classes, device=device)[:, None] * places.size).int()
        self.count, self.total = np.zeros(full, np.int64), np.zeros(full, np.int64)
        self.magic = torch.tensor(MAGIC, dtype=torch.float64, device=device)
        self.room = ROOM

    def add(self, p: Tensor, rounded: Tensor, state: Tensor, y: Tensor) -> None:
        """Count float64 p [k n] where `rounded` and its state say; with soft labels y [k n] sum those too."""
        if p.shape[1] > self.room:
            self._unpack()
        self.room -= p.shape[1]
        place = self.places.of(rounded).add_(self.channel)
        index = place.add_(state, alpha=self.step).long().reshape(-1)
        self.packed.scatter_add_(0, index, torch.add(self.magic, p, alpha=2.0**32).view(torch.int64).reshape(-1))
        if y.ndim == 2:
            if not len(self.soft):
                self.soft = torch.zeros_like(self.packed)
            self.soft.scatter_add_(0, index, fixed(y).reshape(-1))

    def _unpack(self) -> None:
        words = self.packed.cpu().numpy()
        at = np.flatnonzero(words != 0)  # five times faster than without the comparison
        words = words[at]
        self.count[at] += (words >> PACKED_BITS) * COUNTED & 0xFFFF
        self.total[at] += words & ((1 << PACKED_BITS) - 1)
        self.packed.zero_()
        self.room = ROOM

    def sums(self) -> tuple[Array, Array, Array]:
        """count, confidence and hits (both in units of 2^-32) [cell m k place]."""
        self._unpack()
        count, total = self.count.reshape(self.shape), self.total.reshape(self.shape)
        hits = count[:, 1] << 32
        if len(self.soft):
            hits = hits + self.soft.cpu().numpy().reshape(self.shape).sum(1)
        return count.sum(1), total.sum(1), hits


class TorchRoute:
    """Adds spans of voxels into int64 tables."""

    def __init__(self, spans: Spans, bins: Bins, fine_threshold: float | None = None) -> None:
        self.classes, self.sigmoid = spans.classes, spans.activation == "sigmoid"
        cells, device = spans.bands.number * 4, spans.device
        self.on_cpu = device.type == "cpu"
        together = fine_threshold == bins.threshold and spans.rounds_nothing and cells == 4
        self.coarse = Tally(Places(bins, fine_threshold if together else None, device), cells, self.classes, device)
        self.fine = None
        if fine_threshold is not None:
            self.fine = (
                self.coarse if together else Tally(Places(None, fine_threshold, device), 4, self.classes, device)
            )

        def table(*shape: int) -> Tensor:
            return torch.zeros(shape, dtype=torch.int64, device=device)

        self.squares = table(self.classes, cells)
        self.whole, self.fraction, self.impossible = (table(cells * self.classes) for _ in range(3))
        self.channel = torch.arange(self.classes, device=device)[:, None]
        self.ones, self.twos = (torch.full((LONGEST,), i, dtype=torch.int32, device=device) for i in (1, 2))

    def add(self, span: Span) -> None:
        """Count every (voxel, class) pair of a span in its cell."""
        for a in range(0, span.p.shape[1], LONGEST):  # a slice of an array that is not contiguous may be longer
            self._add(span.part(a, a + LONGEST) if span.p.shape[1] > LONGEST else span)

    def _add(self, span: Span) -> None:
        p, y, rounded = span.p, span.y, span.rounded
        own = None
        if y.ndim == 1:
            own = label_places(y)
            squares = p * p
            squares.view(-1).scatter_(0, own, (1 - p.view(-1).index_select(0, own)).square_())
        else:
            squares = (y - p).square_()
        cell, state = self._states(span, own)
        self.coarse.add(p, rounded, state, y)
        if self.fine is not None and self.fine is not self.coarse:
            self.fine.add(rounded.double(), rounded, state.bitwise_and_(15), y)
        bits = squares.mul_(2.0**32).add_(MAGIC).view(torch.int64)
        first, last = cell.aminmax() if self.on_cpu else (0, 1)
        if first == last:  # MAGIC_BITS is a multiple of 2^48, so what is added above 2^48 is more of them
            self.squares[:, int(first)] += bits.sum(1).bitwise_and_((1 << PACKED_BITS) - 1)
        else:
            self.squares.scatter_add_(1, cell.expand(self.classes, -1), bits.sub_(MAGIC_BITS))
        short = cell * self.classes + (y if y.ndim == 1 else self.channel)
        self._likelihood(span.nll.flatten(), short.flatten())
        if len(span.impossible) and span.impossible.any():
            self.impossible += torch.bincount(short[span.impossible], minlength=len(self.impossible))

    def _states(self, span: Span, own: Tensor | None) -> tuple[Tensor, Tensor]:
        """The cell [n] (sigmoid: [k n]), and int32 [k n] 4 cell + 2 (this class is the label) + (it is predicted)."""
        y, rounded = span.y, span.rounded
        if self.sigmoid:  # every channel has its own foreground; m = 1 marks a predicted channel
            predicted = (rounded > 0.5).long()
            cell = (span.zone * 2 + (y > 0.5)) * 2 + predicted
            return cell, (cell * 4 + predicted).int()
        top = predicted_class(rounded)
        truth = y if y.ndim == 1 else predicted_class(y)
        cell = (span.zone * 2 + truth.clamp_max(1)) * 2 + top.clamp_max(1)
        state = (cell * 4).int().expand(self.classes, -1).contiguous()
        state.view(-1).scatter_add_(0, label_places(top), self.ones[: len(top)])
        if own is not None:
            state.view(-1).scatter_add_(0, own, self.twos[: len(own)])
        return cell, state

    def _likelihood(self, nll: Tensor, index: Tensor) -> None:
        bits = FRACTION_BITS["nll"]
        if nll.max() >= 64 or len(nll) > 1 << 16:  # 2^17 numbers below 64 fit into an int64
            whole = nll.floor()
            self.whole.scatter_add_(0, index, whole.long())
            nll = nll - whole
        self.fraction.scatter_add_(0, index, fixed(nll, bits))
        self.whole += self.fraction >> bits
        self.fraction &= (1 << bits) - 1

    def sums(self) -> dict[str, Array]:
        """Flat int64 tables; only nll is already in two words."""
        count, confidence, hits = (self.coarse.places.by_bin(table).reshape(-1) for table in self.coarse.sums())
        return {
            "count": count,
            "confidence": confidence,
            "hits": hits,
            "squares": self.squares.T.reshape(-1).cpu().numpy(),
            "nll": torch.stack([self.whole, self.fraction]).cpu().numpy(),
            "impossible": self.impossible.cpu().numpy(),
        }

    def fine_sums(self) -> Array | None:
        """count, confidence and hits [3, (t p m k g)]; with softmax without the pairs below the threshold."""
        if self.fine is None:
            return None
        tables = np.stack([self.fine.places.by_bucket(table) for table in self.fine.sums()])
        if not self.sigmoid:
            tables[:, :, 0, :, 0] = 0  # unless they are predicted
        return tables.reshape(3, -1)


def fixed(values: Tensor, bits: int = 32) -> Tensor:
    """round(v 2^bits), halves to even, as int64; 0 <= v 2^bits < 2^51."""
    return (values * 2.0**bits).add_(MAGIC).view(torch.int64).sub_(MAGIC_BITS)


def predicted_class(p: Tensor) -> Tensor:
    """argmax over the first axis, ties to the smallest id. (torch.argmax is a hundred times slower on this layout.)

    The distance from the largest number is 0 where a class is predicted; as an integer any other is at least 1.
    """
    classes = len(p)
    behind = (p.amax(0) - p).float().view(torch.int32).clamp_max_(1).mul_(classes)
    return behind.add_(torch.arange(classes, dtype=torch.int32, device=p.device)[:, None]).amin(0).long()
