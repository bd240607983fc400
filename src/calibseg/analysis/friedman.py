r"""Friedman's test on a matrix of values, with Nemenyi's and Holm's comparisons of every pair.

One row per block (a patient), one column per method, small is good. With mean ranks $R_j$ over n blocks of k methods,

$$ \chi^2_F = \frac{12 n}{k (k + 1)} \Big( \sum_j R_j^2 - \frac{k (k + 1)^2}{4} \Big), \qquad
   CD = \frac{q_\alpha}{\sqrt 2} \sqrt{\frac{k (k + 1)}{6 n}} $$

where q is the studentised range with infinite degrees of freedom; two methods whose mean ranks lie further apart than
CD differ (Nemenyi). Holm's correction is applied to the normal p-values of the same rank differences, over all pairs.

Paper: Demsar, Statistical Comparisons of Classifiers over Multiple Data Sets, JMLR 2006, section 3.2.
Differs: chi-square is corrected for ties, as in scipy; Demsar's formula above is what is left without ties.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy import ndarray as Array
from scipy import stats

from calibseg.core.types import BadInput

Ties = Literal["min", "average"]
SAME = 1e-9  # values no further apart than this are equal


def ranks(values: Array, ties: Ties = "min") -> Array:
    """The rank of each method within each row, 1 for the smallest value.

    >>> ranks(np.array([[0.3, 0.1, 0.1]])).tolist(), ranks(np.array([[0.3, 0.1, 0.1]]), ties="average").tolist()
    ([[3.0, 1.0, 1.0]], [[3.0, 1.5, 1.5]])
    """
    return stats.rankdata(levels(values), method=ties, axis=1).astype(float)


def levels(values: Array) -> Array:
    """Numbers in the same order in which what differs by 1e-9 or less is equal: how a mean was rounded decides nothing.

    >>> levels(np.array([[0.1 + 0.2, 0.3, 0.1]])).tolist()
    [[1, 1, 0]]
    """
    order = np.argsort(values, axis=1, kind="stable")
    steps = np.diff(np.take_along_axis(values, order, axis=1), axis=1) > SAME
    result = np.zeros(values.shape, np.int64)
    np.put_along_axis(result, order[:, 1:], np.cumsum(steps, axis=1), axis=1)
    return result


@dataclass(frozen=True)
class Friedman:
    """Friedman's test over blocks, with both post-hoc comparisons of every pair of methods."""

    statistic: float
    p: float
    blocks: int
    mean_ranks: Array  # [methods], average ties
    critical_difference: float  # Nemenyi: mean ranks further apart than this differ at `alpha`
    nemenyi: Array  # p [methods, methods]
    holm: Array  # p [methods, methods]


def friedman(values: Array, alpha: float = 0.05) -> Friedman:
    """Do the methods (columns, small is good) differ over the blocks (rows)? Two methods or more."""
    blocks, methods = values.shape
    if methods < 2 or blocks < 2:
        raise BadInput(f"Friedman's test needs 2 methods and 2 blocks, and there are {methods} and {blocks}")
    values = levels(values)
    mean_ranks = ranks(values, "average").mean(axis=0)
    statistic, p = _friedman_chi_square(values)
    error = np.sqrt(methods * (methods + 1) / (6.0 * blocks))  # of the difference of two mean ranks
    z = np.abs(mean_ranks[:, None] - mean_ranks[None, :]) / error
    q, upper = stats.studentized_range, np.triu_indices(methods, 1)
    nemenyi = np.ones_like(z)
    nemenyi[upper] = nemenyi.T[upper] = np.clip(q.sf(z[upper] * np.sqrt(2.0), methods, np.inf), 0.0, 1.0)
    return Friedman(
        statistic,
        p,
        blocks,
        mean_ranks,
        float(q.isf(alpha, methods, np.inf) / np.sqrt(2.0) * error),
        nemenyi,
        _holm_pairs(2.0 * stats.norm.sf(z)),
    )


def holm(p: Array) -> Array:
    """Holm's step-down correction of a family of p-values.

    >>> holm(np.array([0.01, 0.04, 0.03])).round(6).tolist()       # sorted: 3 * 0.01, 2 * 0.03, then never smaller
    [0.03, 0.06, 0.06]
    """
    order = np.argsort(p)
    stepped = np.maximum.accumulate(p[order] * np.arange(len(p), 0, -1))
    adjusted = np.empty(len(p))
    adjusted[order] = np.minimum(stepped, 1.0)
    return adjusted


def _holm_pairs(p: Array) -> Array:
    upper = np.triu_indices(len(p), 1)
    adjusted = np.ones_like(p)
    adjusted[upper] = holm(p[upper])
    return np.minimum(adjusted, adjusted.T)


def _friedman_chi_square(values: Array) -> tuple[float, float]:
    """scipy's, which wants three methods and a difference; for two the same formula, and p = 1 where all are equal."""
    blocks, methods = values.shape
    if (values == values[:, :1]).all():
        return 0.0, 1.0
    if methods > 2:
        result = stats.friedmanchisquare(*values.T)
        return float(result.statistic), float(result.pvalue)
    within = ranks(values, "average")
    spread = ((within - 1.5) ** 2).sum()  # tie-corrected, as in scipy
    statistic = float(((within.sum(axis=0) - 1.5 * blocks) ** 2).sum() / spread)
    return statistic, float(stats.chi2.sf(statistic, 1))
