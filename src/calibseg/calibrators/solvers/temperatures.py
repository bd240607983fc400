r"""The best temperature of each group of voxels, for all groups in the same few passes.

With d_k = l_k - max_j l_j at a voxel and a = sum_k y_k d_k, the NLL of a group at b = 1 / T is

$$ F(b) = \sum_i w_i \big( \log S_i - b\, a_i \big), \quad S = \sum_k e^{b d_k}, \quad
   F' = \sum_i w_i (m_i - a_i), \quad F'' = \sum_i w_i \mathrm{Var}_i, \quad
   F''' = \sum_i w_i E_p[(d - m)^3]_i, \quad m = E_p[d] $$

convex in b. A pass over the voxels gives F and its three derivatives of every group. The sum of a is needed once, so
that passes after the first read only d without its zero, from a scratch file. `_search` says which b comes next.

Groups may be drawn to their common temperature 1 / b_0 by n_0 (b / b_0 - 1 - log(b / b_0)), in voxels n_0: convex too,
least at b_0, the same for scores in other units, and without weight in a group of many voxels. So a small group
cannot run away, an empty one has the common temperature, and no group's NLL is above what that temperature gives it.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy import ndarray as Array

from calibseg.calibrators.solvers.log_scores import likeliest
from calibseg.calibrators.solvers.scratch_file import Scratch
from calibseg.calibrators.solvers.search import Search
from calibseg.calibrators.solvers.voxels import ScoreChunk, VoxelStream
from calibseg.core.parallel import ordered_map

try:
    from calibseg.calibrators.solvers import kernel
except ImportError:  # numba comes with the extra `fast`; without it the same numbers take longer
    kernel = None

BLOCK = 1 << 14  # voxels whose temporaries fit into a processor's cache
FACTORS = 32  # numbers whose product is taken before its logarithm: below 2^1023 up to 2^31 classes


class Part(NamedTuple):
    """Voxels of one or several groups."""

    d: Array  # [k-1 n] <= 0: distances to the largest score, without the largest's own 0
    a: Array  # [n] <= 0: the target's mean of d
    weight: Array | None  # [n]
    group: Array | int  # [n], or one for all


class TemperatureFit(NamedTuple):
    """Per group: the temperature, the NLL per voxel before and after, how many voxels, and how the fit ended."""

    temperature: Array
    before: Array
    after: Array
    number: Array
    bounded: Array  # bool: log T stands at a bound
    unsettled: Array  # bool: the passes did not suffice, and T is the best that was seen
    passes: int
    common: float = 1.0  # the temperature that groups were drawn to

    def mean(self) -> tuple[float, float]:
        """The NLL of all voxels together, before and after."""
        share = self.number / self.number.sum()
        return float(np.nansum(self.before * share)), float(np.nansum(self.after * share))

    def remarks(self, named: Callable[[int], str]) -> list[str]:
        """What is to be said about groups whose temperature is not the minimum's."""
        said = {"log T stands at its bound": self.bounded, "T was not settled when passes ended": self.unsettled}
        return [f"{named(int(g))}{fact}" for fact, where in said.items() for g in np.flatnonzero(where)]


def softmax_part(chunk: ScoreChunk, group: Array | int = 0, top: Array | None = None) -> Part:
    """A slab of softmax scores as distances to the largest; `top` is its likeliest class where that is known."""
    if kernel is not None and chunk.target.ndim == 1:
        d, a, _ = kernel.relative(chunk.scores, chunk.target)
        return Part(d, a, chunk.weight, group)
    d = chunk.scores - chunk.scores.max(0)
    if chunk.target.ndim == 1:
        a = np.take_along_axis(d, chunk.target[None], 0)[0]
    else:
        a = np.einsum("kn,kn->n", chunk.target, d)
    top = likeliest(chunk.scores) if top is None else top
    others = np.flatnonzero(top)
    d[top[others], others] = d[0, others]  # the largest's own 0 goes, and class 0 takes its place
    return Part(d[1:], a, chunk.weight, group)


def sigmoid_parts(chunk: ScoreChunk) -> Iterator[Part]:
    """A slab of sigmoid logits: each channel is a group, and its own softmax over (z, 0)."""
    for channel, z in enumerate(chunk.scores):
        y = chunk.target[channel]
        yield Part(-np.abs(z)[None], np.minimum(z, 0) * y + np.minimum(-z, 0) * (1 - y), chunk.weight, channel)


def fit_temperatures(
    stream: VoxelStream, groups: int, parts: Callable[[ScoreChunk], Iterable[Part]], shrinkage: float | None = None
) -> TemperatureFit:
    """The temperature of each of so many groups.

    shrinkage: in voxels, how strongly groups are drawn to their common temperature; None: not at all, and a group
        without voxels has the temperature 1.
    """
    with Likelihoods(stream, parts, groups) as likelihoods:
        common, passes = 1.0, 0
        if shrinkage is not None:
            common, passes = best_common(likelihoods)
        search = Search(groups, common, shrinkage or 0.0)
        passes += search.run(likelihoods.at)
        number = likelihoods.number
        before, after = (values / np.maximum(number, 1e-300) for values in (likelihoods.first, search.nll))
        return TemperatureFit(1 / search.best, before, after, number, search.bounded(), search.open, passes, 1 / common)


def best_common(likelihoods: "Likelihoods") -> tuple[float, int]:
    """The one b that suits all groups together, and the passes it took."""
    whole = Search(1)
    passes = whole.run(lambda b, _: likelihoods.at(b, together=True))
    return float(whole.best[0]), passes


class Likelihoods:
    """F and three derivatives of every group of voxels at any b, a pass over them each time. Use it in a `with`."""

    def __init__(self, stream: VoxelStream, parts: Callable[[ScoreChunk], Iterable[Part]], groups: int = 0) -> None:
        self.stream, self.parts = stream, parts
        self.sums = np.zeros((2, groups))  # of w and of w a, known after the first pass
        self.first = np.zeros(groups)  # F at b = 1
        self.kept = Scratch(self._made)
        self.fresh = True

    def __enter__(self) -> "Likelihoods":
        return self

    def __exit__(self, *_: Any) -> None:
        self.kept.__exit__()

    @property
    def number(self) -> Array:
        """Voxels of every group."""
        return self.sums[0]

    def at(self, b: Array, wanted: Array | None = None, together: bool = False) -> Array:
        """[4 groups], or [4 1] of all groups together. The first pass is at b = 1 and finds out how many there are.

        b: one for each group, or one for all; wanted: only these groups are computed.
        """

        def sums(kept: tuple[Array, ...]) -> tuple[Array, Array]:
            d, groups, ends, weight = kept
            found, begin = np.zeros((4, len(groups))), 0
            for place, (group, end) in enumerate(zip(groups, ends, strict=True)):
                if wanted is None or len(wanted) == 1 or wanted[group]:
                    at = float(b[0] if len(b) == 1 else b[group])
                    found[:, place] = voxel_sums(d[:, begin:end], at, weight[begin:end])
                begin = end
            return groups, found

        totals = np.zeros((4, self.sums.shape[1]))
        cores = torch.get_num_threads()  # OMP_NUM_THREADS, or the cores of the process
        for groups, found in ordered_map(sums, self.kept, cores if cores > 1 else 0, ahead=cores):
            if groups[-1] >= totals.shape[1]:
                totals = _longer(totals, int(groups[-1]) + 1)
            totals[:, groups] += found
        a = self.sums[1]
        totals[0] -= b * a
        totals[1] -= a
        if self.fresh:
            self.first, self.fresh = totals[0].copy(), False
        return totals.sum(1, keepdims=True) if together else totals

    def _made(self) -> Iterator[tuple[Array, ...]]:
        """d with the voxels of a group side by side, which groups there are and where they end; weights or nothing."""
        self.sums[:] = 0
        for chunk in self.stream:
            for part in self.parts(chunk):
                if len(part.a):
                    kept, sums = _by_group(part)
                    groups = kept[1]
                    self._room(int(groups[-1]) + 1)
                    self.sums[:, groups] += sums
                    yield kept

    def _room(self, groups: int) -> None:
        if groups > self.sums.shape[1]:
            self.sums = _longer(self.sums, groups)


def _by_group(part: Part) -> tuple[tuple[Array, ...], Array]:
    """What is kept of a part, and the sums of w and of w a of its groups."""
    d, mine, a = part.d, part.group, part.a
    weight = np.zeros(0) if part.weight is None else part.weight
    if isinstance(mine, int):
        sums = (weight.sum(), a @ weight) if len(weight) else (len(a), a.sum(dtype=np.float64))
        return (d, np.array([mine]), np.array([len(a)]), weight), np.array(sums, np.float64)[:, None]
    counts = np.bincount(mine)
    groups = np.flatnonzero(counts)
    number = np.bincount(mine, weight) if len(weight) else counts
    sums = np.stack([number, np.bincount(mine, a * weight if len(weight) else a)])[:, groups]
    if len(groups) > 1:
        order = mine.argsort(kind="stable")  # by counting where groups are bytes or 16-bit numbers
        d, weight = d[:, order], weight[order] if len(weight) else weight
    return (d, groups, counts[groups].cumsum(), weight), sums


def _longer(table: Array, size: int) -> Array:
    return np.pad(table, ((0, 0), (0, size - table.shape[1])))


def voxel_sums(d: Array, b: float, weight: Array) -> tuple[float, float, float, float]:
    """Sums of w log S and of w times mean, variance and third moment of d, over voxels [k-1 n] at b, in float64.

    No weights: all 1.
    """
    if kernel is not None and not len(weight):
        return kernel.sums(d, b)
    totals = np.zeros(4)
    for low in range(0, d.shape[1], BLOCK):
        totals += _block_sums(d[:, low : low + BLOCK].astype(np.float64), b, weight[low : low + BLOCK])
    value, mean, variance, third = totals
    return float(value), float(mean), float(variance), float(third)


def _block_sums(d: Array, b: float, weight: Array) -> tuple[float, ...]:
    e = torch.from_numpy(d * b).exp_().numpy()  # on many processors three times as fast as numpy's
    total = e.sum(0)
    total += 1
    inverse = 1 / total
    moments = []
    for _ in range(3):
        e *= d
        moments.append(e.sum(0) * inverse)
    mean, square, cube = moments
    variance = square - mean * mean
    cube -= mean * (3 * variance + mean * mean)
    if len(weight):
        return tuple(float(part @ weight) for part in (np.log(total), mean, variance, cube))
    return (_log_sum(total), *(float(part.sum()) for part in (mean, variance, cube)))


def _log_sum(total: Array) -> float:
    """The sum of logarithms as that of products of FACTORS numbers, which are at most the number of classes."""
    whole = len(total) // FACTORS * FACTORS
    products = total[:whole].reshape(FACTORS, -1).prod(0)
    return float(np.log(products).sum() + np.log(total[whole:]).sum())
