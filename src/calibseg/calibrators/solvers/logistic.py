r"""Multinomial logistic regression on log scores, by Newton, a streamed pass over the voxels for each step.

$$ z = W x + v, \quad p = \mathrm{softmax}(z), \quad
   F = \sum_i w_i \mathrm{NLL}_i + \tfrac12 \sum_m \rho_m (\theta_m - \theta^0_m)^2 $$

x are a voxel's normalised log scores, theta the free ones among W and v, theta^0 the identity. F is convex; with
u = (x, 1) and q_m = p_k u_j for the parameter m that multiplies u_j in z_k,

$$ F'_m = \sum_i w_i (p_k - y_k) u_j + ..., \qquad
   F''_{mn} = \sum_i w_i \big( [k_m = k_n] p_k u_j u_{j'} - q_m q_n \big) + ... $$

A step that does not lower F enough is shortened, which costs a pass too. Sums are float64.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy import ndarray as Array

from calibseg.calibrators.solvers.scratch_file import Scratch
from calibseg.calibrators.solvers.voxels import VoxelStream

PASSES = 40
CLOSE = 1e-12  # nats per voxel that another step could still gain
BLOCK = 1 << 13


class Linear(NamedTuple):
    """W [k k] and v [k], what they cost per voxel before and after, and which classes never occurred."""

    matrix: Array
    bias: Array
    before: float
    after: float
    passes: int
    absent: list[int]

    def record(self) -> dict[str, Any]:
        """The facts that every linear calibrator reports."""
        return {
            "nll_before": self.before,
            "nll_after": self.after,
            "passes": self.passes,
            "fallbacks": [f"class {k} never occurs in the labels: it keeps the identity" for k in self.absent],
        }


def fit_linear(stream: VoxelStream, free: Array, penalty: Array, per_voxel: Array) -> Linear:
    """Find the free entries of (W | v) [k k+1]; the others stay the identity's.

    free: bool [k k+1]. A class that never occurs keeps the identity: all that its scores could learn is to vanish.
    penalty: rho [k k+1] in voxels; per_voxel: a further rho for every voxel, which does not fade as voxels grow.
    """
    with Scratch(lambda: _kept(stream)) as kept:
        counts, number = np.zeros(stream.classes), 0.0
        for scores, target, weight in kept:
            weights = weight if len(weight) else np.ones(scores.shape[1])
            counts += target @ weights if target.ndim == 2 else np.bincount(target, weights, len(scores))
            number += weights.sum()
        absent = np.flatnonzero(counts == 0)
        free = free.copy()
        free[absent] = False
        free[:, absent] = False
        newton = _Newton(kept, free, penalty + number * per_voxel, number)
        return Linear(*newton.run(), absent=[int(k) for k in absent])


def linear(scores: Array, matrix: Array, bias: Array) -> Array:
    """W x + v in the scores' own precision."""
    z = matrix.astype(scores.dtype) @ scores
    z += bias.astype(scores.dtype)[:, None]
    return z


def _kept(stream: VoxelStream) -> Iterator[tuple[Array, ...]]:
    for chunk in stream:
        target = chunk.target if chunk.target.ndim == 2 else chunk.target.astype(np.uint16)
        yield chunk.scores, target, np.zeros(0) if chunk.weight is None else chunk.weight


class _Newton:
    def __init__(self, kept: Scratch, free: Array, penalty: Array, number: float) -> None:
        self.kept, self.number = kept, number
        self.rows, self.columns = free.nonzero()  # of z, of u
        self.penalty = penalty[free]
        self.start = np.eye(*free.shape)
        self.theta0 = self.start[free]

    def table(self, theta: Array) -> Array:
        """(W | v) with the free parameters in their places."""
        full = self.start.copy()
        full[self.rows, self.columns] = theta
        return full

    def run(self) -> tuple[Array, Array, float, float, int]:
        """W, v, NLL per voxel before and after, passes."""
        theta = self.theta0.copy()
        value, nll, slope, curve = self.at(theta)
        before, passes = nll, 1
        while passes < PASSES and len(theta):
            curve[np.diag_indices_from(curve)] += 1e-12 * max(1.0, float(np.abs(curve).max()))
            step = -np.linalg.solve(curve, slope)
            gain = -float(slope @ step)  # twice what a full step should win
            if not gain > CLOSE * self.number:
                break
            scale = 1.0
            while passes < PASSES:
                further = self.at(theta + scale * step)
                passes += 1
                if further[0] <= value - 0.1 * scale * gain:
                    break
                scale /= 4
            else:
                break
            theta = theta + scale * step
            value, nll, slope, curve = further
        full = self.table(theta)
        return full[:, :-1], full[:, -1], before / self.number, nll / self.number, passes

    def at(self, theta: Array) -> tuple[float, float, Array, Array]:
        """F, the NLL in it, F' and F'' at theta: one pass."""
        full, nll = self.table(theta), 0.0
        slope, curve = np.zeros(len(theta)), np.zeros((len(theta), len(theta)))
        for scores, target, weight in self.kept:
            for low in range(0, scores.shape[1], BLOCK):
                at = slice(low, low + BLOCK)
                part = self._block(full, scores[:, at].astype(np.float64), target[..., at], weight[at])
                nll += part[0]
                slope += part[1]
                curve += part[2]
        away = theta - self.theta0
        value = nll + 0.5 * float(self.penalty @ away**2)
        slope += self.penalty * away
        curve[np.diag_indices_from(curve)] += self.penalty
        return value, nll, slope, curve

    def _block(self, full: Array, x: Array, y: Array, weight: Array) -> tuple[float, Array, Array]:
        k, n = x.shape
        u = np.concatenate([x, np.ones((1, n))])
        z = full @ u
        z -= z.max(0)
        p = np.exp(z)
        total = p.sum(0)
        p /= total
        w = weight if len(weight) else np.ones(n)
        hard = y.ndim == 1
        own = np.take_along_axis(z, y[None].astype(np.int64), 0)[0] if hard else np.einsum("kn,kn->n", y, z)
        nll = float((np.log(total) - own) @ w)
        gap = p - ((y == np.arange(k)[:, None]) if hard else y)
        slope = ((gap * w) @ u.T)[self.rows, self.columns]
        root = np.sqrt(w)
        q = p[self.rows] * u[self.columns]
        q *= root
        curve = -(q @ q.T)
        for row in range(k):
            mine = np.flatnonzero(self.rows == row)
            if len(mine):
                v = u[self.columns[mine]]
                curve[np.ix_(mine, mine)] += (v * (p[row] * w)) @ v.T
        return nll, slope, curve
