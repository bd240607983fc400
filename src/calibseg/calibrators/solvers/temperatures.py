r"""The best temperature of each group of voxels, for all groups in the same few passes.

With d_k = l_k - max_j l_j at a voxel and a = sum_k y_k d_k, the NLL of a group at b = 1 / T is

$$ F(b) = \sum_i w_i \big( \log S_i - b\, a_i \big), \quad S = \sum_k e^{b d_k}, \quad
   F' = \sum_i w_i (m_i - a_i), \quad F'' = \sum_i w_i \mathrm{Var}_i, \quad
   F''' = \sum_i w_i E_p[(d - m)^3]_i, \quad m = E_p[d] $$

convex in b. A pass over the voxels gives F and its three derivatives of every group. Of a only sums are needed, so
that passes after the first read d without its zero from a scratch file. `search` says which b comes next.

Groups may be drawn to their common temperature 1 / b_0 by n_0 (b / b_0 - 1 - log(b / b_0)), in voxels n_0: convex too,
least at b_0, the same for scores in other units, and without weight in a group of many voxels. So a small group
cannot run away, an empty one has the common temperature, and no group's NLL is above what that temperature gives it.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy import ndarray as Array

from calibseg.calibrators.solvers.scratch_file import Scratch
from calibseg.calibrators.solvers.search import BOUND, Search
from calibseg.calibrators.solvers.voxels import ScoreChunk, VoxelStream
from calibseg.core.labels import likeliest_class
from calibseg.core.parallel import ordered_map

try:
    from calibseg.calibrators.solvers import kernel
except ImportError:  # numba comes with the extra `fast`; without it the same numbers take longer
    kernel = None

BLOCK = 1 << 14  # voxels whose temporaries fit into a processor's cache


class Part(NamedTuple):
    """Voxels of one or several groups."""

    d: Array  # [k-1 n] <= 0: distances to the largest score, without the largest's own 0
    a: Array  # [n] <= 0: the target's mean of d
    weight: Array | None  # [n]
    group: Array | int  # [n], or one for all


Parts = Callable[[ScoreChunk], Iterable[Part]]


class TemperatureFit(NamedTuple):
    """Per group: the temperature, the NLL per voxel before and after, how many voxels, and how the fit ended."""

    temperature: Array
    before: Array
    after: Array
    number: Array
    unsettled: Array  # bool: the passes did not suffice, and T is the best that was seen
    passes: int
    common: float = 1.0  # the temperature that groups were drawn to

    def record(self, group_name: Callable[[int], str], empty: str) -> dict[str, Any]:
        """The facts that a calibrator with several temperatures reports; empty: what a group without voxels is."""
        share = self.number / self.number.sum()
        names = [group_name(int(group)) for group in np.flatnonzero(self.number == 0)]
        return {
            "common_temperature": self.common,
            "nll_before": float(np.nansum(self.before * share)),
            "nll_after": float(np.nansum(self.after * share)),
            "passes": self.passes,
            "fallbacks": [f"{name} {empty}: it takes the common temperature" for name in names]
            + self.remarks(lambda group: f"{group_name(group)}: "),
        }

    def remarks(self, prefix: Callable[[int], str]) -> list[str]:
        """What is to be said about groups whose temperature is not the minimum's."""
        bounded = np.abs(np.log(self.temperature)) > BOUND - 1e-6
        facts = {"log T stands at its bound": bounded, "T was not settled when passes ended": self.unsettled}
        return [f"{prefix(int(group))}{fact}" for fact, where in facts.items() for group in np.flatnonzero(where)]


def softmax_part(chunk: ScoreChunk, group: Array | int = 0) -> Part:
    """A chunk of softmax scores as distances to the largest."""
    if kernel is not None and chunk.target.ndim == 1:
        return Part(*kernel.relative(chunk.scores, chunk.target), chunk.weight, group)
    d = chunk.scores - chunk.scores.max(0)
    if chunk.target.ndim == 1:
        a = np.take_along_axis(d, chunk.target[None], 0)[0]
    else:
        a = np.einsum("kn,kn->n", chunk.target, d)
    top = likeliest_class(chunk.scores)
    others = np.flatnonzero(top)
    d[top[others], others] = d[0, others]  # the largest's own 0 goes, and class 0 takes its place
    return Part(d[1:], a, chunk.weight, group)


def sigmoid_parts(chunk: ScoreChunk) -> Iterator[Part]:
    """A chunk of sigmoid logits: each channel is a group, and its own softmax over (z, 0)."""
    for channel, z in enumerate(chunk.scores):
        y = chunk.target[channel]
        yield Part(-np.abs(z)[None], np.minimum(z, 0) * y + np.minimum(-z, 0) * (1 - y), chunk.weight, channel)


def fit_temperatures(stream: VoxelStream, groups: int, parts: Parts, shrinkage: float | None = None) -> TemperatureFit:
    """The temperature of each of so many groups.

    shrinkage: in voxels, how strongly groups are drawn to their common temperature; None: not at all, and a group
        without voxels has the temperature 1.
    """
    with Likelihoods(stream, parts, groups) as likelihoods:
        common, passes = (1.0, 0) if shrinkage is None else best_common(likelihoods)
        search = Search(groups, common, shrinkage or 0.0)
        passes += search.run(likelihoods.at)
    number = likelihoods.number
    before, after = (values / np.maximum(number, 1e-300) for values in (likelihoods.first, search.nll))
    return TemperatureFit(1 / search.best, before, after, number, search.open, passes, 1 / common)


def best_common(likelihoods: "Likelihoods") -> tuple[float, int]:
    """The one b that suits all groups together, and the passes it took."""
    whole = Search(1)
    passes = whole.run(lambda b: likelihoods.at(b).sum(1, keepdims=True))
    return float(whole.best[0]), passes


class Likelihoods:
    """F and three derivatives of every group of voxels at any b, a pass over them each time. Use it in a `with`.

    groups: at least so many; where it is not known, the first pass finds out.
    """

    def __init__(self, stream: VoxelStream, parts: Parts, groups: int = 0) -> None:
        self.groups = groups
        self.kept = Scratch(lambda: (_by_group(part) for chunk in stream for part in parts(chunk) if len(part.a)))
        self.number = self.first = np.zeros(0)  # voxels of every group; F in the first pass, which is at b = 1

    def __enter__(self) -> "Likelihoods":
        return self

    def __exit__(self, *_: Any) -> None:
        self.kept.__exit__()

    def at(self, b: Array) -> Array:
        """[4 groups] at one b for each group, or at one for all."""

        def sums(kept: tuple[Array, ...]) -> tuple[Array, Array]:
            d, groups, ends, weight, known = kept
            totals, begin = np.concatenate([np.zeros((4, len(groups))), known]), 0
            for place, (group, end) in enumerate(zip(groups, ends, strict=True)):
                at = float(b[0] if len(b) == 1 else b[group])
                totals[:4, place] = voxel_sums(d[:, begin:end], at, weight[begin:end])
                begin = end
            return groups, totals

        cores = torch.get_num_threads()  # OMP_NUM_THREADS, or the cores of the process
        results = list(ordered_map(sums, self.kept, cores if cores > 1 else 0, ahead=cores))
        self.groups = max(self.groups, *(int(groups[-1]) + 1 for groups, _ in results))
        totals = np.zeros((6, self.groups))
        for groups, part in results:
            totals[:, groups] += part
        a = totals[5]
        totals[0] -= b * a
        totals[1] -= a
        self.number = totals[4]
        if not len(self.first):
            self.first = totals[0]
        return totals[:4]


def _by_group(part: Part) -> tuple[Array, ...]:
    """d, voxels of a group side by side; which groups there are and where they end; weights or none; sums of w, w a."""
    d, group, a = part.d, part.group, part.a
    weight = np.zeros(0) if part.weight is None else part.weight
    if isinstance(group, int):
        sums = (weight.sum(), a @ weight) if len(weight) else (len(a), a.sum(dtype=np.float64))
        return d, np.array([group]), np.array([len(a)]), weight, np.array(sums, np.float64)[:, None]
    counts = np.bincount(group)
    groups = np.flatnonzero(counts)
    number = np.bincount(group, weight) if len(weight) else counts
    sums = np.stack([number, np.bincount(group, a * weight if len(weight) else a)])[:, groups]
    if len(groups) > 1:
        order = group.argsort(kind="stable")  # by counting where groups are bytes or 16-bit numbers
        d, weight = d[:, order], weight[order] if len(weight) else weight
    return d, groups, counts[groups].cumsum(), weight, sums


def voxel_sums(d: Array, b: float, weight: Array) -> tuple[float, ...]:
    """Sums of w log S and of w times mean, variance and third moment of d, over voxels [k-1 n] at b, in float64.

    No weights: all 1.
    """
    if kernel is not None and not len(weight):
        return kernel.sums(d, b)
    totals = np.zeros(4)
    for low in range(0, d.shape[1], BLOCK):
        totals += _block_sums(d[:, low : low + BLOCK].astype(np.float64), b, weight[low : low + BLOCK])
    return tuple(totals.tolist())


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
    parts = (np.log(total), mean, variance, cube)
    return tuple(float(part @ weight if len(weight) else part.sum()) for part in parts)
