r"""What the figures about ranks show: heat maps of ranks, and the critical-difference diagram.

- Sum-rank (MRBrainS): per metric the sum over datasets of the method's rank, and `all` the sum over metrics too.
- Mean case-rank: per metric the mean over cases of the method's rank in the case, and `all` the mean over metrics too.
- Critical difference (Demsar 2006): methods on a line by their mean rank over patients; a bar joins those whose ranks
  lie within the critical difference, so that Nemenyi's test does not tell them apart.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy import ndarray as Array

from calibseg.analysis.columns import ALL, Frame
from calibseg.analysis.ranking import Ranked
from calibseg.core import registry
from calibseg.core.types import BadInput

Heat = Literal["sum-rank", "mean case-rank"]


@dataclass(frozen=True)
class CriticalDifference:
    """Methods from best to worst, and which of them the test does not tell apart."""

    metric: str
    methods: tuple[str, ...]  # best first
    mean_ranks: Array  # in the same order
    critical_difference: float
    groups: tuple[tuple[int, int], ...]  # first and last method of each bar, positions in `methods`
    p: float  # of Friedman's test: that all methods are equal
    patients: int


def rank_heat(ranked: Ranked, kind: Heat = "sum-rank") -> Frame:
    """Methods x metrics, with `all` as the last column, best method first."""
    if kind == "sum-rank":
        columns = ranked.ranks[ranked.ranks["ranking"] == "column"]
        wide = columns.pivot_table(index="method", columns="metric", values="rank", aggfunc="sum", sort=False)
    else:
        rows = ranked.ranks[(ranked.ranks["ranking"] == kind) & (ranked.ranks["metric"] != "")]
        wide = rows.pivot(index="method", columns="metric", values="rank")
    together = ranked.ranks[(ranked.ranks["ranking"] == kind) & (ranked.ranks["metric"] == "")]
    metrics = [metric for metric in ranked.data.metrics if metric in wide.columns]
    wide = wide[metrics].assign(**{ALL: together.set_index("method")["rank"]})
    wide.columns.name = None
    return wide.loc[list(ranked.data.methods)].sort_values(ALL, kind="stable")


def critical_difference(ranked: Ranked, metric: str) -> CriticalDifference:
    """The diagram of one metric (`ece@predicted`, or its bare name where that is clear)."""
    if len(ranked.data.methods) < 2:
        raise BadInput(
            f"a critical-difference diagram compares methods, and there is only {', '.join(ranked.data.methods)}"
        )
    known = [name for name in ranked.data.metrics if metric in (name, name.partition("@")[0])]
    if not known:
        raise BadInput(registry.unknown("ranked metric", metric, list(ranked.data.metrics)))
    test = ranked.tests.get(known[0])
    if test is None:
        raise BadInput(f"a critical-difference diagram of {known[0]} needs at least 2 patients with a value")
    order = np.argsort(test.mean_ranks, kind="stable")
    sorted_ranks = test.mean_ranks[order]
    return CriticalDifference(
        known[0],
        tuple(ranked.data.methods[i] for i in order),
        sorted_ranks,
        test.critical_difference,
        bars(sorted_ranks, test.critical_difference),
        test.p,
        test.blocks,
    )


def bars(mean_ranks: Array, critical_difference: float) -> tuple[tuple[int, int], ...]:
    """The largest runs of sorted ranks that span at most the critical difference; a run of one is no bar.

    >>> bars(np.array([1.0, 1.5, 2.2, 3.9, 4.0]), 1.0)
    ((0, 1), (1, 2), (3, 4))
    """
    groups: list[tuple[int, int]] = []
    for first, rank in enumerate(mean_ranks):
        last = int(np.searchsorted(mean_ranks, rank + critical_difference, side="right")) - 1
        if last > first and (not groups or last > groups[-1][1]):
            groups.append((first, last))
    return tuple(groups)
