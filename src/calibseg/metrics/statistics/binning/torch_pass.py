r"""The pure torch route: a few vector operations and integer scatter-adds per chunk of voxels, on any device.

The bin b of a probability, rounded to float32, is the one with edge[b] < p <= edge[b + 1], edges rounded to float32; 0
is in the first. The sums are of round(p 2^32) and round((p - y)^2 2^32), evaluated in float64 and added as int64, and
of -log p as a whole part and a fraction round(f 2^40).

How numbers become integers and are added is in `packed_sums`. On the CPU most voxels take a short way, see
`background`; the others are collected until they fill a chunk.

One Python thread does it all, and torch splits an operation over its own threads: several Python threads would spend
more time on handing Python's lock to each other than on numbers. On demand the same pass fills the fine histogram of
equal-mass bins.
"""

import numpy as np
import torch
from torch import Tensor

from calibseg.core.labels import likeliest
from calibseg.core.scores import ChunkRange
from calibseg.core.types import Array
from calibseg.metrics.statistics.binning.background import Background
from calibseg.metrics.statistics.binning.bin_index import BinIndex
from calibseg.metrics.statistics.binning.chunk import BLOCK, VoxelChunk, joined_chunks
from calibseg.metrics.statistics.binning.packed_sums import PACKER, PACKER_BITS, PackedSums, fixed, total
from calibseg.metrics.statistics.binning.probabilities import label_places
from calibseg.metrics.statistics.binning.reader import VoxelReader
from calibseg.metrics.statistics.binning.route import FirstPass
from calibseg.metrics.statistics.calibration import FRACTION_BITS, Bins

LONGEST = (1 << 16) - 256  # voxels of a chunk that are added at once: packed sums have room for them
NUMBERS = 1 << 18  # probabilities of a chunk: on fewer, threads wait for each other; more would not stay in the cache
VOXELS_PER_TABLE = 1 << 26  # long before 2^31 would fill an int64

# chunk -> the least and the largest float32 p of each class in each block of it [2 k block]
BucketRange = dict[ChunkRange, Tensor]


def torch_pass(reader: VoxelReader, bins: Bins, fine_threshold: float | None = None) -> FirstPass:
    """Tables, as many sets as their int64 sums need; on demand the fine histogram of equal-mass bins."""
    tables, histograms, bucket_range = [], [], {}
    for chunks in _chunks_per_table(reader):
        route = TorchRoute(reader, bins, fine_threshold)
        if fine_threshold is None:
            for at in chunks:
                route.read(reader, at)
        else:
            bucket_range |= _noting_range(reader, route, chunks)
        tables.append(route.sums())
        histograms.append(route.fine_sums())
    histogram = None if fine_threshold is None or not histograms else _words(*np.sum(histograms, axis=0))
    return FirstPass("torch", tables, histogram, bucket_range)


def _noting_range(reader: VoxelReader, route: "TorchRoute", chunks: list[ChunkRange]) -> BucketRange:
    """Read chunks, and note between which numbers each class lies in every block of them."""
    noted: BucketRange = {}
    blocks = sum(-(-reader.voxels(at) // BLOCK) for at in chunks)
    # one array for all: many small ones would fragment the memory
    ends = torch.empty(2, reader.classes, blocks, dtype=torch.float32, device=reader.device)
    end = 0
    for at in chunks:
        rounded = route.read(reader, at)
        if rounded is not None:
            values = in_blocks(rounded)
            start, end = end, end + values.shape[1]
            noted[at] = ends[:, :, start:end]
            torch.amin(values, -1, out=noted[at][0])
            torch.amax(values, -1, out=noted[at][1])
    return noted


def _chunks_per_table(reader: VoxelReader) -> list[list[ChunkRange]]:
    """The chunks of a volume in groups, none longer than one set of tables may add."""
    chunks = reader.chunks(voxels_at_once(reader.classes))
    voxels = max(1, int(np.prod(reader.space)) // max(1, len(chunks)))
    size = max(1, VOXELS_PER_TABLE // voxels)
    return [chunks[a : a + size] for a in range(0, len(chunks), size)]


def _words(count: Array, confidence: Array, hits: Array) -> Array:
    """Sums in units of 2^-32 as whole part and fraction."""
    return np.stack([count, confidence >> 32, confidence & 0xFFFFFFFF, hits >> 32, hits & 0xFFFFFFFF])


def voxels_at_once(classes: int) -> int:
    """How long a chunk is."""
    return min(LONGEST, max(1 << 11, NUMBERS // classes))


def in_blocks(p: Tensor) -> Tensor:
    """[k n] as [k block BLOCK]; a last block that is short is filled with its last number."""
    missing = -p.shape[1] % BLOCK
    if missing:
        p = torch.cat([p, p[:, -1:].expand(-1, missing)], 1)
    return p.unflatten(1, (-1, BLOCK))


class TorchRoute:
    """Adds chunks of voxels into int64 tables."""

    def __init__(self, reader: VoxelReader, bins: Bins, fine_threshold: float | None = None) -> None:
        self.classes, self.sigmoid = reader.classes, reader.activation == "sigmoid"
        cells, device = reader.bands.number * 4, reader.device
        self.on_cpu = device.type == "cpu"
        together = fine_threshold == bins.threshold and reader.rounds_nothing and cells == 4
        self.coarse = PackedSums(
            BinIndex(bins, fine_threshold if together else None, device), cells, self.classes, device
        )
        self.fine = None
        if fine_threshold is not None:
            self.fine = (
                self.coarse if together else PackedSums(BinIndex(None, fine_threshold, device), 4, self.classes, device)
            )

        def table(*shape: int) -> Tensor:
            return torch.zeros(shape, dtype=torch.int64, device=device)

        self.squares = table(self.classes, cells)
        self.whole, self.fraction, self.clipped = (table(cells * self.classes) for _ in range(3))
        self.channel = torch.arange(self.classes, device=device)[:, None]
        self.ones, self.twos = (torch.full((LONGEST,), i, dtype=torch.int32, device=device) for i in (1, 2))
        applies = Background.applies(reader)
        self.background = Background(self.classes, bins, fine_threshold, LONGEST) if applies else None
        self.waiting: list[VoxelChunk] = []
        self.room = self.full = voxels_at_once(self.classes)

    def read(self, reader: VoxelReader, at: ChunkRange) -> Tensor | None:
        """Count the voxels of a chunk and return their float32 probabilities; None where all are ignored."""
        chunk = reader.read(at)
        if chunk is None:
            return None
        self.add(chunk)
        return chunk.rounded

    def add(self, chunk: VoxelChunk) -> None:
        """Count every (voxel, class) pair of a chunk in its cell. Its numbers are used up."""
        for a in range(0, chunk.p.shape[1], LONGEST):  # a slice of an array that is not contiguous may be longer
            part = chunk.part(a, a + LONGEST) if chunk.p.shape[1] > LONGEST else chunk
            rest = part if self.background is None else self.background.take(part)
            if rest is part:
                self._add(part)
            elif rest is not None:
                self._wait(rest)

    def _wait(self, chunk: VoxelChunk) -> None:
        """Collect voxels: an operation on a few numbers costs almost as much as one on a chunk."""
        if len(chunk.y) > self.room:
            self._add_waiting()
        self.room -= len(chunk.y)
        self.waiting.append(chunk)

    def _add_waiting(self) -> None:
        if self.waiting:
            self._add(joined_chunks(self.waiting))
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
        bits = squares.mul_(2.0**32).add_(PACKER).view(torch.int64)
        first, last = cell.aminmax() if self.on_cpu else (0, 1)
        if first == last:
            self.squares[:, int(first)] += total(bits)
        else:
            self.squares.scatter_add_(1, cell.expand(self.classes, -1), bits.sub_(PACKER_BITS))
        short = cell * self.classes + (y if y.ndim == 1 else self.channel)
        self._likelihood(chunk.nll.flatten(), short.flatten())
        if len(chunk.clipped) and chunk.clipped.any():
            self.clipped += torch.bincount(short[chunk.clipped], minlength=len(self.clipped))

    def _states(self, chunk: VoxelChunk, own: Tensor | None) -> tuple[Tensor, Tensor]:
        """The cell [n] (sigmoid: [k n]), and int32 [k n] 4 cell + 2 (this class is the label) + (it is predicted)."""
        y, rounded = chunk.y, chunk.rounded
        if self.sigmoid:  # every channel has its own foreground; m = 1 marks a predicted channel
            predicted = (rounded > 0.5).long()
            cell = (y > 0.5) * 2 + predicted
            if chunk.zone is not None:
                cell += chunk.zone * 4
            return cell, (cell * 4 + predicted).int()
        top = likeliest(rounded)
        truth = y if y.ndim == 1 else likeliest(y)
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
        self.fraction.scatter_add_(0, index, fixed(nll, bits))  # LONGEST times LARGEST_NLL is far below 2^23
        self.whole += self.fraction >> bits
        self.fraction &= (1 << bits) - 1

    def sums(self) -> dict[str, Array]:
        """Flat int64 tables; only nll is already in two words."""
        self._add_waiting()
        count, confidence, hits = (self.coarse.places.by_bin(table) for table in self.coarse.sums())
        nll = torch.stack([self.whole, self.fraction]).cpu().numpy()
        tables = {
            "count": count,
            "confidence": confidence,
            "hits": hits,
            "squares": self.squares.T.contiguous().cpu().numpy(),
            "nll": nll.reshape(2, -1, self.classes),
            "clipped": self.clipped.cpu().numpy(),
        }
        if self.background is not None:
            self.background.add_to(tables)
        return {name: table.reshape(2, -1) if name == "nll" else table.reshape(-1) for name, table in tables.items()}

    def fine_sums(self) -> Array | None:
        """count, confidence and hits [3, (t p m k g)]; with softmax without the pairs below the threshold."""
        if self.fine is None:
            return None
        self._add_waiting()
        tables = np.stack([self.fine.places.by_bucket(table) for table in self.fine.sums()])
        if not self.sigmoid:
            tables[:, :, 0, :, 0] = 0  # unless they are predicted
        if self.background is not None:
            self.background.add_to_fine(tables)
        return tables.reshape(3, -1)
