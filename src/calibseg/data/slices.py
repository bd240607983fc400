"""Case -> slices -> batches.

What is in a batch depends on the seed, the epoch and the batch's number only. So the order is the same with any number
of reading threads, and after a resume one asks for the batches that are still missing. Slices of different size are
padded at the bottom and on the right: the image with 0, the target with ignore_index (a soft target with all 0). A
network must see the same frame when it predicts as when it learnt (a small slice alone, without the black that stood
around it in mixed batches, costs a batch-norm U-Net 0.06 DSC on the hippocampus), so batches are padded to at least
the largest training slice everywhere. A source is opened only while a slice is read; memory does not grow with the
number of cases.
"""

from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass
from functools import cached_property
from typing import Literal, Protocol

import numpy as np
import torch
from numpy import ndarray as Array
from torch import Tensor

from calibseg.core.parallel import ordered_map
from calibseg.core.types import IGNORE_INDEX, IGNORED, BadInput, Case
from calibseg.data.augmentation import OFF, Augmentation
from calibseg.data.views import recoloured, warped, warped_labels

Target = Literal["first", "random", "mean", "truth"]
Size = tuple[int, int]  # height, width


class SliceSource(Protocol):
    """A case that hands out slices: one in the store, or `CaseSlices` for one in memory."""

    @property
    def id(self) -> str: ...
    @property
    def classes(self) -> tuple[str, ...]: ...
    @property
    def axis(self) -> int: ...  # of (z, y, x), along which slices follow each other
    @property
    def shape(self) -> tuple[int, int, int, int]: ...  # slices, channels, height, width
    @property
    def foreground(self) -> Array: ...  # labelled voxels of each slice
    def read(self, name: str, index: int) -> Array: ...  # a slice of image [c h w], labels [r h w] or true_p [k h w]


@dataclass(frozen=True)
class CaseSlices:
    """The slices of a case in memory."""

    case: Case
    axis: int = 0

    @property
    def id(self) -> str:
        return self.case.id

    @property
    def classes(self) -> tuple[str, ...]:
        return self.case.classes

    @property
    def shape(self) -> tuple[int, int, int, int]:
        n, c, h, w = np.moveaxis(self.case.image, 1 + self.axis, 0).shape
        return n, c, h, w

    @property
    def foreground(self) -> Array:
        labels = self.case.labels
        if labels is None:
            return np.zeros(self.shape[0], np.int32)
        drawn = ((labels > 0) & (labels != IGNORED)).any(0)
        return np.moveaxis(drawn, self.axis, 0).sum((1, 2))

    def read(self, name: str, index: int) -> Array:
        if (array := getattr(self.case, name)) is None:
            raise BadInput(f"case {self.id!r} has no {name}")
        return np.moveaxis(array, 1 + self.axis, 0)[index]


@dataclass(frozen=True)
class Batch:
    """Slices, what they should be labelled, and where they come from."""

    image: Tensor  # [n c h w] float32
    target: Tensor  # [n h w] int64, or soft [n k h w] float32
    case_ids: tuple[str, ...]
    slices: tuple[int, ...]


@dataclass(eq=False)
class Slices:
    """The slices of some cases in batches.

    cases: slice sources, e.g. from prepared.open_case
    batch_size: slices in a batch; the last one of an epoch may be smaller
    steps: batches in an epoch, all of them whole, of passes over the slices that follow each other without a gap: no
        slice is ever seen two times more often than another; 0: an epoch is one pass
    seed: order, augmentation and choice of raters
    order: shuffled anew in each epoch, or as the cases stand
    keep: all slices, or only those in which something is labelled
    target: the first rater, a random one for each slice and epoch, the raters' mean (soft), or the phantom's truth
        (soft)
    multiple_of: height and width are padded to a multiple of this
    at_least: height and width that every batch is padded to
    augmentation: random views; none by default
    ignore_index: the target's value where a pixel is ignored
    workers: threads that read ahead; 0 reads when asked
    rank: which of `world` processes this is; each gets its share of every epoch
    """

    cases: Sequence[SliceSource]
    batch_size: int
    _: KW_ONLY
    seed: int = 0
    order: Literal["shuffled", "as given"] = "shuffled"
    keep: Literal["all", "foreground"] = "all"
    target: Target = "first"
    multiple_of: int = 1
    at_least: Size = (1, 1)
    augmentation: Augmentation = OFF
    ignore_index: int = IGNORE_INDEX
    workers: int = 1
    rank: int = 0
    world: int = 1
    steps: int = 0

    def __post_init__(self) -> None:
        if not self.cases:
            raise BadInput("there is no case to take slices from")
        small = self.batch_size < 1 or self.multiple_of < 1 or min(self.workers, self.steps) < 0
        if small or not 0 <= self.rank < self.world:
            raise BadInput(
                f"batch_size={self.batch_size} and multiple_of={self.multiple_of} must be at least 1, "
                f"workers={self.workers}, steps={self.steps} at least 0, and rank={self.rank} below world={self.world}"
            )
        if not len(self.index):
            raise BadInput(f"none of {len(self.cases)} cases has a labelled slice; keep all slices instead")

    @cached_property
    def index(self) -> Array:
        """[slices 2]: the case's number and the slice's, of every slice that is kept."""
        indices = [
            np.arange(case.shape[0]) if self.keep == "all" else np.nonzero(np.asarray(case.foreground))[0]
            for case in self.cases
        ]
        numbers = np.repeat(np.arange(len(indices)), [len(slices) for slices in indices])
        return np.stack([numbers, np.concatenate(indices)], 1)

    def __len__(self) -> int:
        """Batches in an epoch, in this process."""
        return -(-self._share() // self.batch_size)

    def epoch(self, epoch: int, start: int = 0, step: int = 1) -> Generator[Batch, None, None]:
        """The batches of an epoch from number `start` on, or every `step`-th of them."""
        order = self._order(epoch)
        numbers = range(start, len(self), step)
        yield from ordered_map(
            lambda number: self._batch(order, epoch, number), numbers, self.workers, ahead=2 * self.workers
        )

    def batch(self, epoch: int, number: int) -> Batch:
        """One batch, by its number."""
        return self._batch(self._order(epoch), epoch, number)

    def _share(self) -> int:
        return self.steps * self.batch_size or -(-len(self.index) // self.world)

    def _order(self, epoch: int) -> Array:
        """This process's slices in this epoch; the first ones are repeated until all processes have equally many."""
        n, size = len(self.index), self._share() * self.world
        first, begin = divmod(epoch * size, n) if self.steps else (epoch, 0)
        passes = -(-(begin + size) // n) if self.steps else 1
        order = np.concatenate([self._pass(first + number) for number in range(passes)])
        return np.resize(order[begin:], size)[self.rank :: self.world]

    def _pass(self, number: int) -> Array:
        """All slices once."""
        n = len(self.index)
        return np.random.default_rng([self.seed, number]).permutation(n) if self.order == "shuffled" else np.arange(n)

    def _batch(self, order: Array, epoch: int, number: int) -> Batch:
        begin = number * self.batch_size
        rows = self.index[order[begin : begin + self.batch_size]]
        rng = np.random.default_rng([self.seed, epoch, number, self.rank])
        sources = [self.cases[number] for number in rows[:, 0]]
        images = [source.read("image", index) for source, index in zip(sources, rows[:, 1], strict=True)]
        targets = [self._target(source, index, rng) for source, index in zip(sources, rows[:, 1], strict=True)]
        soft = targets[0].ndim == 3
        frame = self.multiple_of, self.at_least
        image = torch.from_numpy(padded(images, *frame, 0, np.float32))
        fill, dtype = (0, np.float32) if soft else (self.ignore_index, np.int64)
        target = torch.from_numpy(padded(targets, *frame, fill, dtype))
        image, target = self._view(image, target, rng)
        return Batch(image, target, tuple(source.id for source in sources), tuple(rows[:, 1].tolist()))

    def _target(self, source: SliceSource, index: int, rng: np.random.Generator) -> Array:
        if self.target == "truth":
            return source.read("true_p", index)
        labels = source.read("labels", index)
        if self.target == "mean":
            votes = (labels[:, None] == np.arange(len(source.classes))[:, None, None]).sum(0).astype(np.float32)
            return votes / np.maximum(1, votes.sum(0))
        rater = labels[rng.integers(len(labels)) if self.target == "random" else 0]
        return np.where(rater == IGNORED, self.ignore_index, rater.astype(np.int64))

    def _view(self, image: Tensor, target: Tensor, rng: np.random.Generator) -> tuple[Tensor, Tensor]:
        if self.augmentation.geometric:
            matrices = torch.from_numpy(self.augmentation.matrices(rng, len(image)))
            image = warped(image, matrices)
            if target.ndim == 3:
                target = warped_labels(target, matrices, self.ignore_index)
            else:
                moved = warped(target, matrices)
                total = moved.sum(1, keepdim=True)  # below 1 where a pixel was mixed with ignored ones
                target = torch.where(total > 0.5, moved / total.clamp_min(0.5), 0)
        return recoloured(image, self.augmentation, rng), target


def volume_batches(
    case: SliceSource, batch_size: int, multiple_of: int = 1, at_least: Size = (1, 1)
) -> Iterator[Tensor]:
    """A case's slices in order, [n c h w], padded as in training: what a network is run on to predict a volume."""
    for begin in range(0, case.shape[0], batch_size):
        images = [case.read("image", index) for index in range(begin, min(begin + batch_size, case.shape[0]))]
        yield torch.from_numpy(padded(images, multiple_of, at_least, 0, np.float32))


def largest(cases: Iterable[SliceSource]) -> Size:
    """Height and width that hold every slice of these cases."""
    heights, widths = zip(*(case.shape[2:] for case in cases), strict=True)
    return max(heights), max(widths)


def padded(parts: Sequence[Array], multiple_of: int, at_least: Size, fill: float, dtype: type) -> Array:
    """[..., h, w] each -> [n ... H W], padded at the bottom and on the right to a common size."""
    height, width = (
        max(low, *(part.shape[axis] for part in parts)) for axis, low in zip((-2, -1), at_least, strict=True)
    )
    height, width = (-(-size // multiple_of) * multiple_of for size in (height, width))
    out = np.full((len(parts), *parts[0].shape[:-2], height, width), fill, dtype)
    for row, part in zip(out, parts, strict=True):
        row[..., : part.shape[-2], : part.shape[-1]] = part
    return out
