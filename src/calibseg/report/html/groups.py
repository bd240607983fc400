"""Where methods are compared with each other: one dataset and network at a time, and the metrics a report looks at."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from calibseg.analysis import ranking
from calibseg.analysis.case_values import method_names
from calibseg.analysis.columns import Frame, split_key
from calibseg.analysis.evidence import Evidence
from calibseg.analysis.headline import ranked, shown
from calibseg.analysis.run_records import Run
from calibseg.analysis.table import ScoreTable
from calibseg.core.types import BadInput
from calibseg.report.figure_data.scores import means


@dataclass(frozen=True)
class ComparisonGroup:
    """One dataset and network, with everything that was found there; ranked_by: the metrics that a grid names."""

    name: str
    dataset: str
    network: str
    table: ScoreTable
    shifted: Frame
    bins: Frame | None
    runs: tuple[Run, ...]
    ranked_by: tuple[str, ...] = ()

    @cached_property
    def keys(self) -> list[str]:
        """Those of the metrics a report looks at that were measured here."""
        return available(self.table.rows, shown())

    @cached_property
    def core(self) -> ScoreTable:
        """The values of single cases in these metrics: a small part of the table."""
        pairs = set(map(split_key, self.keys))
        rows = self.table.rows[self.table.rows["scope"] == "case"]
        groups = rows.groupby(["metric", "voxels"], sort=False).indices
        wanted = sorted(index for pair, where in groups.items() if pair in pairs for index in where)
        return replace(self.table, rows=rows.iloc[wanted])

    @cached_property
    def methods(self) -> list[str]:
        return list(dict.fromkeys(method_names(self.core.rows if self.keys else self.table.rows)))

    @cached_property
    def means(self) -> Frame | None:
        """The means of all these metrics; None where methods were scored on different cases."""
        try:
            return means(self.core, self.keys) if self.keys else None
        except BadInput:
            return None

    def ranked(self) -> ranking.Ranked:
        """The methods ranked by the same metrics as in a benchmark, or as in `calibseg rank`."""
        if self.ranked_by:
            return ranking.rank(self.table, self.ranked_by)[0]
        keys = [key for key in ranked() if key in self.keys]
        if not keys:
            raise BadInput(f"{self.name} has none of {', '.join(ranked())}")
        return ranking.rank(self.core, keys)[0]


def available(rows: Frame, wanted: Iterable[str]) -> list[str]:
    """Those of the wanted metrics (`dsc`, `ece@truth`) that a table has: shape metrics have no voxel rule."""
    have = set(rows[["metric", "voxels"]].drop_duplicates().itertuples(index=False, name=None))
    return [key for key in wanted if split_key(key) in have]


def comparison_groups(evidence: Evidence) -> list[ComparisonGroup]:
    """The datasets of a report, each with its networks; the network is named where there is more than one."""
    rows = evidence.test.rows
    several = rows["network"].nunique() > 1
    named = (evidence.stated or {}).get("metrics", "").split(",")
    groups = []
    for dataset, network in rows[["dataset", "network"]].drop_duplicates().itertuples(index=False, name=None):
        name = " · ".join(filter(None, [dataset or "unnamed dataset", network if several else ""]))
        bins = None if evidence.bins is None else _of(evidence.bins, dataset, network)
        groups.append(
            ComparisonGroup(
                name,
                dataset,
                network,
                replace(evidence.test, rows=_of(rows, dataset, network)),
                _of(evidence.shifted, dataset, network),
                bins if bins is not None and len(bins) else None,
                tuple(run for run in evidence.runs if (run.dataset, run.network) == (dataset, network)),
                tuple(key.strip() for key in named if key.strip()),
            )
        )
    return groups


def case_rank(one: ranking.Ranked) -> Mapping[str, float]:
    """The mean case-rank of each method over all metrics."""
    rows = one.ranks[(one.ranks["ranking"] == "mean case-rank") & (one.ranks["metric"] == "")]
    return dict(zip(rows["method"], rows["rank"], strict=True))


def _of(rows: Frame, dataset: str, network: str) -> Frame:
    return rows[(rows["dataset"] == dataset) & (rows["network"] == network)]
