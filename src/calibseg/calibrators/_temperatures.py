r"""The best temperature of each group of voxels, for all groups in the same few passes.

With d_k = l_k - max_j l_j at a voxel and a = sum_k y_k d_k, the NLL of a group at b = 1 / T is

$$ F(b) = \sum_i w_i \big( \log S_i - b\, a_i \big), \quad S = \sum_k e^{b d_k}, \quad
   F' = \sum_i w_i (m_i - a_i), \quad F'' = \sum_i w_i \mathrm{Var}_i, \quad m = E_p[d] $$

convex in b. A pass over the voxels gives F, F' and F'' of every group. The next b is Newton's, taken in the coordinate
T^2: where margins are spread evenly around 0, as they are around a segmentation's borders, E_p[d] falls like 1 / b^2,
so that F' is a straight line there. Where that line never meets 0 the bound is tried, then Newton's own step in b; what
leaves the bracket that the signs of F' have left is replaced by a point halfway to its end in log T. The sum of a is
needed once, so that passes after the first read only d without its zero, from a scratch file. log T stays within
[-4, 4]: a group that is separable (no error in it) would run away to 0.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import numpy as np
from numpy import ndarray as Array

from calibseg.calibrators._scratch import Scratch
from calibseg.calibrators._slabs import Slab, Slabs
from calibseg.log_scores import likeliest

BOUND = 4.0  # of |log T|
PASSES = 8
CLOSE = 1e-7  # a step in log T so small is the last: it is still taken, and the next would be its square
NEAR = 1e-3  # a step so small is worth taking even where no pass is left to look at what it gave
BLOCK = 1 << 14  # voxels whose temporaries fit into a processor's cache


class Part(NamedTuple):
    """Voxels of one or several groups."""

    d: Array  # [k-1 n] <= 0: distances to the largest score, without the largest's own 0
    a: Array  # [n] <= 0: the target's mean of d
    weight: Array | None  # [n]
    group: Array | int  # [n], or one for all


class Found(NamedTuple):
    """Per group: the temperature, the NLL per voxel before and after, how many voxels, and how the fit ended."""

    temperature: Array
    before: Array
    after: Array
    number: Array
    bounded: Array  # bool: log T stands at a bound
    passes: int


def softmax_part(slab: Slab, group: Array | int = 0, top: Array | None = None) -> Part:
    """A slab of softmax scores as distances to the largest; `top` is its likeliest class where that is known."""
    d = slab.scores - slab.scores.max(0)
    if slab.target.ndim == 1:
        a = np.take_along_axis(d, slab.target[None], 0)[0]
    else:
        a = np.einsum("kn,kn->n", slab.target, d)
    top = likeliest(slab.scores) if top is None else top
    others = np.flatnonzero(top)
    d[top[others], others] = d[0, others]  # the largest's own 0 goes, and class 0 takes its place
    return Part(d[1:], a, slab.weight, group)


def sigmoid_parts(slab: Slab) -> Iterator[Part]:
    """A slab of sigmoid logits: each channel is a group, and its own softmax over (z, 0)."""
    for channel, z in enumerate(slab.scores):
        y = slab.target[channel]
        yield Part(-np.abs(z)[None], np.minimum(z, 0) * y + np.minimum(-z, 0) * (1 - y), slab.weight, channel)


def fit_temperatures(slabs: Slabs, groups: int, parts: Callable[[Slab], Iterable[Part]]) -> Found:
    """The temperature of each of so many groups, 1 for a group without voxels."""
    sums = np.zeros((2, groups))  # of w and of w a
    state = _State(groups)

    def made() -> Iterator[tuple[Array, ...]]:
        sums[:] = 0
        for slab in slabs:
            for part in parts(slab):
                yield _sorted(part, groups, sums)

    passes = 0
    with Scratch(made) as kept:
        while passes < PASSES and state.open.any():
            totals = np.zeros((3, groups))
            for arrays in kept:
                _add(totals, state, *arrays)
            passes += 1
            state.step(totals, *sums)
    number = np.maximum(sums[0], 1e-300)
    return Found(1 / state.best, state.first / number, state.least / number, sums[0], state.bounded(), passes)


def _sorted(part: Part, groups: int, sums: Array) -> tuple[Array, ...]:
    """d with the voxels of a group side by side, where each group ends, and weights (empty: all 1)."""
    weight = np.zeros(0) if part.weight is None else part.weight
    if isinstance(part.group, int):
        ends = np.where(np.arange(groups) < part.group, 0, len(part.a))
        sums[0, part.group] += weight.sum() if len(weight) else len(part.a)
        sums[1, part.group] += float(part.a @ weight) if len(weight) else part.a.sum(dtype=np.float64)
        return part.d, ends, weight
    order = part.group.argsort(kind="stable")
    ends = np.bincount(part.group, minlength=groups).cumsum()
    sums[0] += np.bincount(part.group, weight if len(weight) else None, minlength=groups)
    sums[1] += np.bincount(part.group, part.a * weight if len(weight) else part.a, minlength=groups)
    return part.d[:, order], ends, weight[order] if len(weight) else weight


def _add(totals: Array, state: "_State", d: Array, ends: Array, weight: Array) -> None:
    """Add sum w log S, sum w m and sum w Var of every open group, each at its own b, in float64."""
    begin = 0
    for group, end in enumerate(ends):
        if state.open[group]:
            for low in range(begin, end, BLOCK):
                high = min(low + BLOCK, end)
                totals[:, group] += voxel_sums(d[:, low:high], float(state.b[group]), weight[low:high])
        begin = end


def voxel_sums(d: Array, b: float, weight: Array) -> tuple[float, float, float]:
    """Sums of w log S, w m and w Var over voxels [k-1 n] at b, in float64; no weights: all 1."""
    d = d.astype(np.float64, copy=False)
    e = np.exp(d * b)
    s = e.sum(0)
    e *= d
    mean = e.sum(0)
    e *= d
    square = e.sum(0)
    inverse = 1 / (1 + s)
    mean *= inverse
    square *= inverse
    square -= mean * mean
    np.log1p(s, out=s)
    if len(weight):
        return float(s @ weight), float(mean @ weight), float(square @ weight)
    return float(s.sum()), float(mean.sum()), float(square.sum())


class _State:
    """Where the search of every group stands: b, the bracket in log b, the best so far."""

    def __init__(self, groups: int) -> None:
        self.b, self.best = np.ones(groups), np.ones(groups)
        self.low, self.high = np.full(groups, -BOUND), np.full(groups, BOUND)
        self.open = np.ones(groups, bool)
        self.first, self.least = np.full(groups, np.nan), np.full(groups, np.inf)
        self.fresh = True

    def step(self, totals: Array, number: Array, a: Array) -> None:
        """Take the sums of a pass at b and move b."""
        if self.fresh:
            self.open &= number > 0
            self.least[number == 0] = 0
        value, slope, curve = totals - np.stack([self.b * a, a, np.zeros_like(a)])
        for group in map(int, np.flatnonzero(self.open)):
            if self.fresh:
                self.first[group] = value[group]
            if value[group] <= self.least[group]:
                self.least[group], self.best[group] = value[group], self.b[group]
            self._move(group, slope[group], curve[group])
        self.fresh = False

    def _move(self, group: int, slope: float, curve: float) -> None:
        b = self.b[group]
        x = np.log(b)
        if slope > 0:
            self.high[group] = min(self.high[group], x)
        elif slope < 0:
            self.low[group] = max(self.low[group], x)
        low, high = self.low[group], self.high[group]
        if slope == 0 or high - low < CLOSE:
            self.open[group] = False
            return
        r = slope / max(curve * b, 1e-300)
        if r > -0.49:
            aim = x - np.log1p(2 * r) / 2
        else:
            aim = BOUND if high == BOUND else x + np.log1p(-r)
        if aim <= low:
            aim = low if low == -BOUND else (low + x) / 2
        elif aim >= high:
            aim = high if high == BOUND else (high + x) / 2
        if abs(aim - x) < NEAR:
            self.best[group] = np.exp(aim)
        self.open[group] = abs(aim - x) > CLOSE
        self.b[group] = np.exp(aim)

    def bounded(self) -> Array:
        return np.abs(np.log(self.best)) > BOUND - 1e-6
