r"""Which method is best: ranks over metrics, cases and datasets, and whether the differences could be luck.

A *column* is one metric on one dataset (and network); a method's value in it is the mean over cases, and a case's value
the mean over the foreground classes, or over the regions where the dataset has them (`judged`); a metric that has one
value for all classes together is read there.

- Sum-rank (NACL supplement, after MRBrainS): $R = \sum_m r_m$, with $r_m$ the rank of the method's mean in column m.
- Mean case-rank (NACL supplement): per case, the mean over the metrics of the method's ranks; then the mean over cases.
- Friedman mean rank (CRaC, Table 1): $R / |M|$. Ties take the smallest rank there (`ties="min"`).

The tests of friedman.py need independent blocks, so they run over patients, one metric at a time: columns that share
their patients are not independent, and no test is made over columns. Tests always use average ranks for ties.

Undefined values: a value that no method has is left out. One that some methods have and others lack is not luck but a
missed organ: it takes the worst value any method has in that column and class, and is counted (`undefined="worst"`), or
that class of that case is left out for every method (`undefined="drop"`).
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pandas as pd

from calibseg import bootstrap, table
from calibseg.friedman import Friedman, Ties, friedman, ranks
from calibseg.table import Column, Frame
from calibseg.types import BadInput

Array = np.ndarray
Undefined = Literal["worst", "drop"]

METRICS = ("dsc", "hd95", "ece", "cece")  # the four of the NACL paper
ON_ALL_VOXELS = ("nll", "brier")  # proper scores are read on every voxel, calibration errors where we predict something
CASE = ("dataset", "network", "patient", "case")


# --- from the score table to matrices -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Scores:
    """Every case's value for every method and metric, complete and comparable."""

    methods: tuple[str, ...]
    metrics: tuple[str, ...]  # "dsc", "ece@predicted"
    cases: Frame  # dataset, network, patient, case
    values: Array  # [metrics, cases, methods]; a case that no method defines is NaN in all of them
    higher_is_better: Array  # [metrics]
    filled: Array  # [metrics, methods]: how many values were undefined and took the worst

    def small_is_good(self) -> Array:
        return np.where(self.higher_is_better[:, None, None], -self.values, self.values)


def judged(rules: Mapping[str, Any] | None) -> dict[str, tuple[str, ...]]:
    """By dataset, the classes that a case's value is averaged over: the regions, else all but the background."""
    datasets = (rules or {}).get("datasets") or {}
    return {name: tuple(known.get("regions") or known.get("classes", ())[1:]) for name, known in datasets.items()}


def scores(
    rows: Frame,
    metrics: Iterable[str] = METRICS,
    undefined: Undefined = "worst",
    classes: Mapping[str, Collection[str]] | None = None,
) -> Scores:
    """Read the case rows of a score table as one value per case, method and metric. Seeds are averaged.

    classes: by dataset, those a case's value is averaged over, as `judged` finds them; a dataset that is not there
        takes all the classes that it has.
    """
    cases = rows[rows["scope"] == "case"]
    cases = cases.assign(method=method_names(cases))
    methods = tuple(dict.fromkeys(cases["method"]))
    keys = [_column(cases, metric) for metric in metrics]
    blocks, better, filled, names = [], [], [], []
    for metric, voxels in keys:
        chosen = _one_value_a_class(cases[(cases["metric"] == metric) & (cases["voxels"] == voxels)], classes or {})
        name = f"{metric}@{voxels}" if voxels else metric
        _refuse_gaps(chosen, methods, name)
        bigger = bool(chosen["higher_is_better"].iloc[0])
        complete, count = _settle(_mean_over_seeds(chosen)[list(methods)], bigger, undefined)
        blocks.append(complete.groupby(level=list(CASE), sort=False).mean())
        better.append(bigger)
        filled.append(count)
        names.append(name)
    index = pd.MultiIndex.from_frame(cases[list(CASE)].drop_duplicates())
    values = np.stack([block.reindex(index).to_numpy() for block in blocks])
    return Scores(
        methods, tuple(names), index.to_frame(index=False), values, np.array(better), np.array(filled, dtype=int)
    )


def method_names(rows: Frame) -> Column:
    """A method is its loss, calibrator and variant: `nacl`, `nacl+ts`, `nacl+ts (wide)`."""
    name = rows["loss"].where(rows["loss"] != "", "unnamed")
    name = name + ("+" + rows["calibrator"]).where(~rows["calibrator"].isin(["", "none"]), "")
    return name + (" (" + rows["variant"] + ")").where(rows["variant"] != "", "")


def _column(cases: Frame, metric: str) -> tuple[str, str]:
    """`ece@truth` -> (ece, truth); a bare name reads the headline's voxels, or the only ones there are."""
    name, at, asked = metric.partition("@")
    present = cases.loc[cases["metric"] == name, "voxels"].unique().tolist()
    if not present:
        raise BadInput(f"no metric named {name!r} in the table. Known: {', '.join(sorted(cases['metric'].unique()))}")
    wanted = asked if at else ("all" if name in ON_ALL_VOXELS else "predicted")
    if wanted in present:
        return name, wanted
    if not at and len(present) == 1:
        return name, present[0]
    choices = ", ".join(f"{name}@{voxels}" for voxels in present)
    raise BadInput(f"the table has {name} not on the voxels {wanted!r}; it has {choices}")


def _one_value_a_class(rows: Frame, classes: Mapping[str, Collection[str]]) -> Frame:
    """The rows for all classes together where the metric has them, else those of the classes that count."""
    together = rows[rows["class"] == table.ALL]
    if len(together):
        return together
    pairs = zip(rows["dataset"], rows["class"], strict=True)
    return rows[[dataset not in classes or name in classes[dataset] for dataset, name in pairs]]


def _mean_over_seeds(rows: Frame) -> Frame:
    """[case and class, method]; what is undefined for one seed is undefined."""
    groups = rows.assign(undefined=rows["value"].isna()).groupby([*CASE, "class", "method"], sort=False)
    return groups["value"].mean().where(~groups["undefined"].any()).unstack("method")


def _refuse_gaps(chosen: Frame, methods: Sequence[str], metric: str) -> None:
    """A ranking compares like with like: every method must have been scored on the same cases."""
    have = {method: set(map(tuple, rows[list(CASE)].to_numpy())) for method, rows in chosen.groupby("method")}
    everything = set().union(*have.values())
    for method in methods:
        missing = sorted(everything - have.get(method, set()))
        if missing:
            dataset, _, _, case = missing[0]
            where = f"{case} of {dataset}" if dataset else case
            raise BadInput(
                f"{method} has no {metric} for {len(missing)} of {len(everything)} cases that others were scored on,"
                f" the first is {where}: a ranking needs every method on the same cases"
            )


def _settle(wide: Frame, bigger_is_better: bool, undefined: Undefined) -> tuple[Frame, list[int]]:
    """Deal with undefined values: [case and class, method] -> the same without partly defined rows, and the count."""
    partly = wide.isna().any(axis=1) & ~wide.isna().all(axis=1)
    count = wide[partly].isna().sum().tolist()
    if undefined == "drop":
        return wide[~partly], count
    column = ["dataset", "network", "class"]
    by_row = wide.min(axis=1) if bigger_is_better else wide.max(axis=1)
    grouped = by_row.groupby(level=column, sort=False)
    worst = grouped.transform("min") if bigger_is_better else grouped.transform("max")
    settled = wide.copy()
    for method in wide.columns:
        settled[method] = wide[method].where(~(partly & wide[method].isna()), worst)
    return settled, count


# --- the rankings ----------------------------------------------------------------------------------------------------


def column_means(data: Scores) -> tuple[list[tuple[str, str, str]], Array]:
    """(dataset, network, metric) of each column, and the methods' means in it: [columns, methods]."""
    names, means = [], []
    for (dataset, network), part in data.cases.groupby(["dataset", "network"], sort=False):
        chosen = data.values[:, part.index.to_numpy(), :]
        for metric, values in zip(data.metrics, chosen, strict=True):
            defined = values[~np.isnan(values).any(axis=1)]
            if len(defined):
                names.append((str(dataset), str(network), metric))
                means.append(defined.mean(axis=0))
    return names, np.array(means).reshape(-1, len(data.methods))


def rank_table(data: Scores, ties: Ties = "min") -> Frame:
    """Every ranking in one tidy table: ranking, dataset, network, metric, method, rank, mean."""
    names, means = column_means(data)
    better = dict(zip(data.metrics, data.higher_is_better, strict=True))
    signed = np.array([-row if better[name[2]] else row for name, row in zip(names, means, strict=True)])
    column_ranks = ranks(signed.reshape(-1, len(data.methods)), ties)
    by_case = case_ranks(data, ties)
    found = []

    def add(ranking: str, rank: Array, mean: Array | None = None, where: tuple[str, str, str] = ("", "", "")) -> None:
        for index, method in enumerate(data.methods):
            average = float("nan") if mean is None else float(mean[index])
            found.append((ranking, *where, method, float(rank[index]), average))

    for where, rank, mean in zip(names, column_ranks, means, strict=True):
        add("column", rank, mean, where)
    add("sum-rank", column_ranks.sum(axis=0))
    add("friedman mean rank", column_ranks.mean(axis=0))
    for metric, rank in zip(data.metrics, by_case, strict=True):
        add("mean case-rank", _mean_of_defined(rank), None, ("", "", metric))
    add("mean case-rank", _mean_of_defined(_mean_over_metrics(by_case)))
    return pd.DataFrame(found, columns=["ranking", "dataset", "network", "metric", "method", "rank", "mean"])


def case_ranks(data: Scores, ties: Ties = "min") -> Array:
    """The rank of every method in every case, by every metric: [metrics, cases, methods]; NaN where undefined."""
    values = data.small_is_good()
    found = np.full(values.shape, np.nan)
    for block, out in zip(values, found, strict=True):
        defined = ~np.isnan(block).any(axis=1)
        if defined.any():
            out[defined] = ranks(block[defined], ties)
    return found


def friedman_tests(data: Scores, alpha: float = 0.05) -> dict[str, Friedman]:
    """Friedman's test for each metric, over patients: a patient's cases are averaged first."""
    found = {}
    for metric, values in zip(data.metrics, data.small_is_good(), strict=True):
        owner = [data.cases[column] for column in ("dataset", "network", "patient")]
        frame: Frame = pd.DataFrame(values)
        patients = frame.groupby([column.to_numpy() for column in owner], sort=False).mean().dropna()
        if len(patients) > 1 and len(data.methods) > 1:
            found[metric] = friedman(patients.to_numpy(), alpha)
    return found


@dataclass(frozen=True)
class Difference:
    """How much better or worse one method is than another on the same patients: mean of `first` minus `second`."""

    metric: str
    first: str
    second: str
    mean: float
    low: float
    high: float
    p: float  # two-sided: how rarely resampled patients would turn the sign
    cases: int
    patients: int


def compare(
    data: Scores, first: str, second: str, repeats: int = 10_000, seed: int = 0, level: float = bootstrap.LEVEL
) -> list[Difference]:
    """Paired patient-bootstrap of two methods, metric by metric, over all datasets of the table together."""
    for method in (first, second):
        if method not in data.methods:
            raise BadInput(f"no method named {method!r} in the table. Known: {', '.join(data.methods)}")
    one, two = data.methods.index(first), data.methods.index(second)
    owner = data.cases["dataset"] + "\0" + data.cases["patient"]
    found = []
    for metric, values in zip(data.metrics, data.values, strict=True):
        gap = values[:, one] - values[:, two]
        defined = ~np.isnan(gap)
        if not defined.any():
            continue
        patients = owner[defined].tolist()
        drawn = bootstrap.means(gap[defined, None], patients, repeats, seed)[:, 0]
        tail = 50.0 * (1.0 - level)
        low, high = np.percentile(drawn, [tail, 100.0 - tail])
        rarer = min((drawn <= 0).sum(), (drawn >= 0).sum())
        p = min(1.0, 2.0 * (rarer + 1) / (repeats + 1))
        number = len(set(patients))
        mean = float(gap[defined].mean())
        found.append(Difference(metric, first, second, mean, float(low), float(high), p, int(defined.sum()), number))
    return found


def _mean_over_metrics(case_rank: Array) -> Array:
    """[metrics, cases, methods] -> [cases, methods], over the metrics that a case defines."""
    defined = ~np.isnan(case_rank)
    number = defined.sum(axis=0)
    total = np.where(defined, case_rank, 0.0).sum(axis=0)
    return np.where(number > 0, total / np.maximum(number, 1), np.nan)


def _mean_of_defined(rank: Array) -> Array:
    """[cases, methods] -> [methods]."""
    return rank[~np.isnan(rank).any(axis=1)].mean(axis=0)
