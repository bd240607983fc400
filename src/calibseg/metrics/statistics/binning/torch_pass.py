r"""The pure torch route: a few vector operations and integer scatter-adds per span of voxels, on any device.

The bin b of a probability, rounded to float32, is the one with edge[b] < p <= edge[b + 1], edges rounded to float32; 0
is in the first. The sums are of round(p 2^32) and round((p - y)^2 2^32), evaluated in float64 and added as int64, and
of -log p as a whole part and a fraction round(f 2^40).

How numbers become integers and are added is in `tally`. On the CPU most voxels take a short way, see
`sure_background`; the others are collected until there is a span of them.

One Python thread does it all, and torch splits an operation over its own threads: several Python threads would spend
more time on handing Python's lock to each other than on numbers. On demand the same pass fills the fine histogram of
equal-mass bins.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from calibseg.core.types import Array
from calibseg.metrics.statistics.binning.background import SureBackground
from calibseg.metrics.statistics.binning.bin_index import BinIndex
from calibseg.metrics.statistics.binning.chunk import VoxelChunk, joined_spans
from calibseg.metrics.statistics.binning.packed_sums import MAGIC, MAGIC_BITS, Tally, fixed, total
from calibseg.metrics.statistics.binning.probabilities import label_places
from calibseg.metrics.statistics.binning.reader import Step, VoxelReader
from calibseg.metrics.statistics.calibration import FRACTION_BITS, Bins

LONGEST = (1 << 16) - 256  # voxels of a span that are added at once: a tally has room for them
NUMBERS = 1 << 18  # probabilities of a span: on fewer, threads wait for each other; more would not stay in the cache
VOXELS_PER_TABLE = 1 << 26  # long before 2^31 would fill an int64

BLOCK = 256  # voxels whose least and largest probabilities are noted for the second pass of equal-mass bins

Reach = dict[Step, Tensor]  # the least and the largest float32 p of each class in each block of a step [2 k block]


@dataclass(frozen=True)
class TorchSums:
    """What one share of the spans adds up to."""

    sums: dict[str, Array]  # flat int64 tables; nll is already in two words
    fine: Array | None  # count, confidence and hits in units of 2^-32 [3, (t p m k g)]
    reach: Reach  # of its steps, with the fine histogram only


def torch_sums(reader: VoxelReader, bins: Bins, fine_threshold: float | None = None) -> list[TorchSums]:
    """Tables, one set per share of the spans."""

    def tables(share: list[Step]) -> TorchSums:
        route = TorchRoute(reader, bins, fine_threshold)
        reach: Reach = {}
        room = 0 if fine_threshold is None else sum(-(-reader.voxels(step) // BLOCK) for step in share)
        # one piece of memory, or what is free would be parted by many small ones
        ends = torch.empty(2, reader.classes, room, dtype=torch.float32, device=reader.device)
        end = 0
        for step in share:
            chunk = reader.read(step)
            if chunk is not None:
                route.add(chunk)
                if fine_threshold is not None:
                    blocks = in_blocks(chunk.rounded)
                    start, end = end, end + blocks.shape[1]
                    reach[step] = ends[:, :, start:end]
                    torch.amin(blocks, -1, out=reach[step][0])
                    torch.amax(blocks, -1, out=reach[step][1])
        return TorchSums(route.sums(), route.fine_sums(), reach)

    return [tables(share) for share in shares_of(reader)]


def shares_of(reader: VoxelReader) -> list[list[Step]]:
    """The steps of a volume in shares, none longer than one set of tables may add."""
    steps = reader.steps(voxels_at_once(reader.classes))
    voxels = max(1, int(np.prod(reader.space)) // max(1, len(steps)))
    size = max(1, VOXELS_PER_TABLE // voxels)
    return [steps[a : a + size] for a in range(0, len(steps), size)]


def voxels_at_once(classes: int) -> int:
    """How long a span is."""
    return min(LONGEST, max(1 << 11, NUMBERS // classes))


def in_blocks(p: Tensor) -> Tensor:
    """[k n] as [k block BLOCK]; a last block that is short is filled with its last number."""
    missing = -p.shape[1] % BLOCK
    if missing:
        p = torch.cat([p, p[:, -1:].expand(-1, missing)], 1)
    return p.unflatten(1, (-1, BLOCK))


class TorchRoute:
    """Adds spans of voxels into int64 tables."""

    def __init__(self, reader: VoxelReader, bins: Bins, fine_threshold: float | None = None) -> None:
        self.classes, self.sigmoid = reader.classes, reader.activation == "sigmoid"
        cells, device = reader.bands.number * 4, reader.device
        self.on_cpu = device.type == "cpu"
        together = fine_threshold == bins.threshold and reader.rounds_nothing and cells == 4
        self.coarse = Tally(BinIndex(bins, fine_threshold if together else None, device), cells, self.classes, device)
        self.fine = None
        if fine_threshold is not None:
            self.fine = (
                self.coarse if together else Tally(BinIndex(None, fine_threshold, device), 4, self.classes, device)
            )

        def table(*shape: int) -> Tensor:
            return torch.zeros(shape, dtype=torch.int64, device=device)

        self.squares = table(self.classes, cells)
        self.whole, self.fraction, self.impossible = (table(cells * self.classes) for _ in range(3))
        self.channel = torch.arange(self.classes, device=device)[:, None]
        self.ones, self.twos = (torch.full((LONGEST,), i, dtype=torch.int32, device=device) for i in (1, 2))
        fits = SureBackground.fits(reader)
        self.sure = SureBackground(self.classes, bins, fine_threshold, LONGEST) if fits else None
        self.waiting: list[VoxelChunk] = []
        self.room = self.full = voxels_at_once(self.classes)

    def add(self, chunk: VoxelChunk) -> None:
        """Count every (voxel, class) pair of a span in its cell. Its numbers are used up."""
        for a in range(0, chunk.p.shape[1], LONGEST):  # a slice of an array that is not contiguous may be longer
            part = chunk.part(a, a + LONGEST) if chunk.p.shape[1] > LONGEST else chunk
            rest = part if self.sure is None else self.sure.take(part)
            if rest is part:
                self._add(part)
            elif rest is not None:
                self._wait(rest)

    def _wait(self, chunk: VoxelChunk) -> None:
        """Collect voxels: an operation on a few numbers costs almost as much as one on a span."""
        if len(chunk.y) > self.room:
            self._add_waiting()
        self.room -= len(chunk.y)
        self.waiting.append(chunk)

    def _add_waiting(self) -> None:
        if self.waiting:
            self._add(joined_spans(self.waiting))
        self.waiting, self.room = [], self.full

    def _add(self, chunk: VoxelChunk) -> None:
        p, y, rounded = chunk.p, chunk.y, chunk.rounded
        own = None
        if y.ndim == 1:
            own = label_places(y)
            squares = p * p
            squares.view(-1).scatter_(0, own, (1 - p.view(-1).index_select(0, own)).square_())
        else:
            squares = (y - p).square_()
        cell, state = self._states(chunk, own)
        self.coarse.add(p, rounded, state, y)
        if self.fine is not None and self.fine is not self.coarse:
            self.fine.add(rounded.double(), rounded, state.bitwise_and_(15), y)
        bits = squares.mul_(2.0**32).add_(MAGIC).view(torch.int64)
        first, last = cell.aminmax() if self.on_cpu else (0, 1)
        if first == last:
            self.squares[:, int(first)] += total(bits)
        else:
            self.squares.scatter_add_(1, cell.expand(self.classes, -1), bits.sub_(MAGIC_BITS))
        short = cell * self.classes + (y if y.ndim == 1 else self.channel)
        self._likelihood(chunk.nll.flatten(), short.flatten())
        if len(chunk.impossible) and chunk.impossible.any():
            self.impossible += torch.bincount(short[chunk.impossible], minlength=len(self.impossible))

    def _states(self, chunk: VoxelChunk, own: Tensor | None) -> tuple[Tensor, Tensor]:
        """The cell [n] (sigmoid: [k n]), and int32 [k n] 4 cell + 2 (this class is the label) + (it is predicted)."""
        y, rounded = chunk.y, chunk.rounded
        if self.sigmoid:  # every channel has its own foreground; m = 1 marks a predicted channel
            predicted = (rounded > 0.5).long()
            cell = (y > 0.5) * 2 + predicted
            if chunk.zone is not None:
                cell += chunk.zone * 4
            return cell, (cell * 4 + predicted).int()
        top = predicted_class(rounded)
        truth = y if y.ndim == 1 else predicted_class(y)
        cell = truth.clamp_max(1) * 2 + top.clamp_max(1)
        if chunk.zone is not None:
            cell += chunk.zone * 4
        state = (cell * 4).int().expand(self.classes, -1).contiguous()
        state.view(-1).scatter_add_(0, label_places(top), self.ones[: len(top)])
        if own is not None:
            state.view(-1).scatter_add_(0, own, self.twos[: len(own)])
        return cell, state

    def _likelihood(self, nll: Tensor, index: Tensor) -> None:
        bits = FRACTION_BITS["nll"]
        if nll.max() * len(nll) >= 1 << 22:  # else fractions of 2^-40 fit into an int64
            whole = nll.floor()
            self.whole.scatter_add_(0, index, whole.long())
            nll = nll - whole
        self.fraction.scatter_add_(0, index, fixed(nll, bits))
        self.whole += self.fraction >> bits
        self.fraction &= (1 << bits) - 1

    def sums(self) -> dict[str, Array]:
        """Flat int64 tables; only nll is already in two words."""
        self._add_waiting()
        count, confidence, hits = (self.coarse.places.by_bin(table) for table in self.coarse.sums())
        nll = torch.stack([self.whole, self.fraction]).cpu().numpy()
        found = {
            "count": count,
            "confidence": confidence,
            "hits": hits,
            "squares": self.squares.T.contiguous().cpu().numpy(),
            "nll": nll.reshape(2, -1, self.classes),
            "impossible": self.impossible.cpu().numpy(),
        }
        if self.sure is not None:
            self.sure.add_to(found)
        return {name: table.reshape(2, -1) if name == "nll" else table.reshape(-1) for name, table in found.items()}

    def fine_sums(self) -> Array | None:
        """count, confidence and hits [3, (t p m k g)]; with softmax without the pairs below the threshold."""
        if self.fine is None:
            return None
        self._add_waiting()
        tables = np.stack([self.fine.places.by_bucket(table) for table in self.fine.sums()])
        if not self.sigmoid:
            tables[:, :, 0, :, 0] = 0  # unless they are predicted
        if self.sure is not None:
            self.sure.add_to_fine(tables)
        return tables.reshape(3, -1)


def predicted_class(p: Tensor) -> Tensor:
    """argmax over the first axis, ties to the smallest id. (torch.argmax is a hundred times slower on this layout.)

    The distance from the largest number is 0 where a class is predicted; as an integer any other is at least 1.
    """
    classes = len(p)
    behind = (p.amax(0) - p).float().view(torch.int32).clamp_max_(1).mul_(classes)
    return behind.add_(torch.arange(classes, dtype=torch.int32, device=p.device)[:, None]).amin(0).long()
