r"""Which method is best: ranks over metrics, cases and datasets, and whether the differences could be luck.

A *column* is one metric on one dataset (and network); a method's value in it is the mean over cases.

- Sum-rank (NACL supplement, after MRBrainS): $R = \sum_m r_m$, with $r_m$ the rank of the method's mean in column m.
- Mean case-rank (NACL supplement): per case, the mean over the metrics of the method's ranks; then the mean over cases.
- Friedman mean rank (CRaC, Table 1): $R / |M|$. Ties take the smallest rank there (`ties="min"`). Final rank: the rank
  of that mean among the methods.

The tests of friedman.py need independent blocks, so they run over patients, one metric at a time: a patient whom
several networks saw is one block (the mean over cases and networks). Columns that share their patients are not
independent, and no test is made over columns. Tests always use average ranks for ties.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np
import pandas as pd
from numpy import ndarray as Array

from calibseg.analysis import bootstrap, table
from calibseg.analysis.case_values import Scores, Undefined, case_values, evaluated_classes, method_names
from calibseg.analysis.columns import Frame
from calibseg.analysis.friedman import Friedman, Ties, friedman, ranks
from calibseg.analysis.headline import default_metrics
from calibseg.analysis.table import ScoreTable
from calibseg.core import registry
from calibseg.core.files import atomic_write
from calibseg.core.types import BadInput

FORMAT = "calibseg-ranks/1"
By = Literal["dataset", "network", "seed", "subset"]


@dataclass(frozen=True)
class Ranked:
    """One ranking: of everything together, or of one part of the table."""

    part: str  # the dataset, network, ... that was ranked; blank: everything
    data: Scores
    ranks: Frame
    tests: dict[str, Friedman]
    differences: list[list["Difference"]]


def rank(
    merged: ScoreTable,
    metrics: Iterable[str] | None = None,
    ties: Ties = "min",
    undefined: Undefined = "worst",
    by: By | None = None,
    compare: Sequence[tuple[str, str]] = (),
) -> list[Ranked]:
    """Rank the methods of a table by the named metrics (`dsc`, `ece@truth`); `by` ranks each of its values apart."""
    metrics = default_metrics(merged.rows) if metrics is None else tuple(metrics)
    cases = merged.rows[merged.rows["scope"] == "case"]
    parts = dict(list(cases.groupby(by, sort=False))) if by else {"": cases}
    rankings = []
    for part, rows in parts.items():
        data = case_values(rows, metrics, undefined, evaluated_classes(merged.rules))
        pairs = [differences(data, first, second) for first, second in compare]
        rankings.append(Ranked(str(part), data, rank_table(data, ties), friedman_tests(data), pairs))
    return rankings


def selected(merged: ScoreTable, only: Sequence[str] = (), calibrators: Sequence[str] = ()) -> ScoreTable:
    """The rows of some methods, named in full or by their loss, and of some calibrators (`none`: without one)."""
    rows = merged.rows
    names, fitted = method_names(rows).astype(str), rows["calibrator"].astype(str).replace("", "none")
    losses = names.str.split(r"\+| \(", regex=True).str[0]
    choices = [("method", only, [*names.unique(), *losses.unique()]), ("calibrator", calibrators, [*fitted.unique()])]
    for kind, words, names_of_kind in choices:
        for word in words:
            if word not in names_of_kind:
                raise BadInput(registry.unknown(f"{kind} in {merged.name}", word, list(dict.fromkeys(names_of_kind))))
    chosen = names.isin(list(only)) | losses.isin(list(only)) | (not only)
    rows = rows[chosen & (fitted.isin(list(calibrators)) | (not calibrators))]
    if not len(rows):
        both = f"{', '.join(only)} with the calibrator {', '.join(calibrators)}"
        raise BadInput(f"{merged.name} has no scores of {both}: leave one of the two choices out")
    return replace(merged, rows=rows)


def write(ranked: Sequence[Ranked], path: Path, ties: Ties, undefined: Undefined) -> None:
    """`ranks.csv` with every rank, and `ranks.meta.json` beside it with the rules, tests and comparisons."""
    rows = pd.concat([ranking.ranks.assign(part=ranking.part) for ranking in ranked], ignore_index=True)
    meta = {
        "format": FORMAT,
        "ties": ties,
        "undefined": undefined,
        "parts": [
            {
                "part": ranking.part,
                "methods": ranking.data.methods,
                "metrics": ranking.data.metrics,
                "cases": len(ranking.data.cases),
                "undefined_values": dict(zip(ranking.data.metrics, ranking.data.filled.tolist(), strict=True)),
                "friedman_tests": {metric: asdict(test) for metric, test in ranking.tests.items()},
                "differences": [asdict(row) for pair in ranking.differences for row in pair],
            }
            for ranking in ranked
        ],
    }
    text = json.dumps(meta, indent=2, default=np.ndarray.tolist) + "\n"
    with atomic_write(path) as ranks_file, atomic_write(table.meta_path(path)) as meta_file:
        rows[["part", *rows.columns.drop("part")]].to_csv(ranks_file, index=False, na_rep="nan")
        meta_file.write_text(text, encoding="utf-8")


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
    if not names:
        raise BadInput(f"nothing to rank: {', '.join(data.metrics)} are undefined in every case")
    better = dict(zip(data.metrics, data.higher_is_better, strict=True))
    signed = np.array([-row if better[name[2]] else row for name, row in zip(names, means, strict=True)])
    column_ranks = ranks(signed.reshape(-1, len(data.methods)), ties)
    by_case = case_ranks(data, ties)
    rows = []

    def add(ranking: str, rank: Array, mean: Array | None = None, where: tuple[str, str, str] = ("", "", "")) -> None:
        for index, method in enumerate(data.methods):
            average = float("nan") if mean is None else float(mean[index])
            rows.append((ranking, *where, method, float(rank[index]), average))

    for where, rank, mean in zip(names, column_ranks, means, strict=True):
        add("column", rank, mean, where)
    add("sum-rank", column_ranks.sum(axis=0))
    add("friedman mean rank", column_ranks.mean(axis=0))
    add("final rank", ranks(column_ranks.mean(axis=0)[None], ties)[0])
    for metric, rank in zip(data.metrics, by_case, strict=True):
        add("mean case-rank", _mean_of_defined(rank), None, ("", "", metric))
    add("mean case-rank", _mean_of_defined(_mean_over_metrics(by_case)))
    return pd.DataFrame(rows, columns=["ranking", "dataset", "network", "metric", "method", "rank", "mean"])


def case_ranks(data: Scores, ties: Ties = "min") -> Array:
    """The rank of every method in every case, by every metric: [metrics, cases, methods]; NaN where undefined."""
    values = data.small_is_good()
    result = np.full(values.shape, np.nan)
    for block, out in zip(values, result, strict=True):
        defined = ~np.isnan(block).any(axis=1)
        if defined.any():
            out[defined] = ranks(block[defined], ties)
    return result


def friedman_tests(data: Scores) -> dict[str, Friedman]:
    """Friedman's test for each metric, over patients: a patient's cases, by all networks, are averaged first."""
    tests = {}
    for metric, values in zip(data.metrics, data.small_is_good(), strict=True):
        owner = [data.cases[column] for column in ("dataset", "patient")]
        frame: Frame = pd.DataFrame(values)
        patients = frame.groupby([column.to_numpy() for column in owner], sort=False).mean().dropna()
        if len(patients) > 1 and len(data.methods) > 1:
            tests[metric] = friedman(patients.to_numpy())
    return tests


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


def differences(data: Scores, first: str, second: str, repeats: int = 10_000) -> list[Difference]:
    """Paired patient-bootstrap of two methods, metric by metric, over all datasets of the table together."""
    for method in (first, second):
        if method not in data.methods:
            raise BadInput(f"no method named {method!r} in the table. Known: {', '.join(data.methods)}")
    i, j = data.methods.index(first), data.methods.index(second)
    owner = data.cases["dataset"] + "\0" + data.cases["patient"]
    result = []
    for metric, values in zip(data.metrics, data.values, strict=True):
        gap = values[:, i] - values[:, j]
        defined = ~np.isnan(gap)
        if not defined.any():
            continue
        patients = owner[defined].tolist()
        drawn = bootstrap.means(gap[defined, None], patients, repeats)
        (low,), (high,) = bootstrap.ends(drawn)
        rarer = min((drawn <= 0).sum(), (drawn >= 0).sum())
        p = min(1.0, 2.0 * (rarer + 1) / (repeats + 1))
        number = len(set(patients))
        if number < 2:  # the same patient drawn again and again shows nothing
            low = high = p = np.nan
        mean = float(gap[defined].mean())
        result.append(Difference(metric, first, second, mean, float(low), float(high), p, int(defined.sum()), number))
    return result


def _mean_over_metrics(case_rank: Array) -> Array:
    """[metrics, cases, methods] -> [cases, methods], over the metrics that a case defines."""
    defined = ~np.isnan(case_rank)
    number = defined.sum(axis=0)
    total = np.where(defined, case_rank, 0.0).sum(axis=0)
    return np.where(number > 0, total / np.maximum(number, 1), np.nan)


def _mean_of_defined(rank: Array) -> Array:
    """[cases, methods] -> [methods]."""
    defined = rank[~np.isnan(rank).any(axis=1)]
    return defined.mean(axis=0) if len(defined) else np.full(rank.shape[1], np.nan)
