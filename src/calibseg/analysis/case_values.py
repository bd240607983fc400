"""The score table as one value per case, method and metric, so that methods can be compared.

A method is its loss, calibrator and variant. A case's value is the mean over the foreground classes, or over the
regions where the dataset has them (`evaluated_classes`); a metric that has one value for all classes together is read
there. Seeds are averaged. A bare calibration metric is read on the headline's voxels; `ece@truth` asks for others.

Undefined values: a value that no method has is left out. One that some methods have and others lack is not luck but a
missed organ: it takes the worst value any method has in that column and class, and is counted (`undefined="worst"`), or
that class of that case is left out for every method (`undefined="drop"`). A metric that is undefined only where neither
truth nor prediction has the class states what that is worth beside an invented one (`both_empty`: IoU and DSC, that
of several raters too, 1).

A signed error, best at 0 and bad on both sides, has no order to rank by and is refused (`SIGNED`).
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pandas as pd
from numpy import ndarray as Array

from calibseg.analysis.columns import ALL, Column, Frame, metric_key
from calibseg.analysis.headline import PAPER_METRICS, headline_voxels
from calibseg.analysis.table import plain
from calibseg.core import registry
from calibseg.core.types import BadInput

Undefined = Literal["worst", "drop"]

SIGNED = {  # what to rank by instead
    "signed_gap": "ece, overconfidence or underconfidence",
    "volume_error": "volume_error with sign=absolute",
}
CASE = ("dataset", "network", "patient", "case")
COLUMNS = [*CASE, "class", "method", "value", "higher_is_better"]


@dataclass(frozen=True)
class Scores:
    """Every case's value for every method and metric, complete and comparable."""

    methods: tuple[str, ...]
    metrics: tuple[str, ...]  # "dsc", "ece@predicted"
    cases: Frame  # dataset, network, patient, case
    values: Array  # [metrics, cases, methods]; a case that no method defines is NaN in all of them
    higher_is_better: Array  # [metrics]
    filled: Array  # [metrics, methods]: how many values were undefined and took the worst
    lacking: Array  # [metrics, methods]: in how many cases that was so, of those in which some method has a value

    def small_is_good(self) -> Array:
        return np.where(self.higher_is_better[:, None, None], -self.values, self.values)


def evaluated_classes(rules: Mapping[str, Any] | None) -> dict[str, tuple[str, ...]]:
    """By dataset, the classes that a case's value is averaged over: the regions, else all but the background."""
    datasets = (rules or {}).get("datasets") or {}
    return {name: tuple(rule.get("regions") or rule.get("classes", ())[1:]) for name, rule in datasets.items()}


def case_values(
    rows: Frame,
    metrics: Iterable[str] = PAPER_METRICS,
    undefined: Undefined = "worst",
    classes: Mapping[str, Collection[str]] | None = None,
) -> Scores:
    """Read the case rows of a score table as one value per case, method and metric. Seeds are averaged.

    classes: by dataset, those a case's value is averaged over, as `evaluated_classes` finds them; a dataset that is
        not there takes all the classes that it has.
    """
    cases = rows[rows["scope"] == "case"]
    cases = cases.assign(method=method_names(cases))
    methods = tuple(cases["method"].unique())
    keys = list(dict.fromkeys(_column(cases, metric) for metric in metrics))
    if not keys:
        raise BadInput("no metric is named: say at least one, such as dsc,ece")
    blocks, better, filled, lacking, names = [], [], [], [], []
    for metric, voxels in keys:
        rows = plain(cases.loc[(cases["metric"] == metric) & (cases["voxels"] == voxels), COLUMNS])
        name = metric_key(metric, voxels)
        chosen = _one_value_a_class(rows, classes or {}, name)
        _refuse_signed(chosen, metric)
        _refuse_gaps(chosen, methods, name)
        bigger = bool(chosen["higher_is_better"].iloc[0])
        wide = _mean_over_seeds(rightly_empty(chosen, metric))[list(methods)]
        complete, count = _settle(wide, bigger, undefined)
        partly = wide.isna() & wide.notna().any(axis=1).to_numpy()[:, None]
        blocks.append(complete.groupby(level=list(CASE), sort=False).mean())
        better.append(bigger)
        filled.append(count)
        lacking.append(partly.groupby(level=list(CASE), sort=False).any().sum().to_numpy())
        names.append(name)
    index = pd.MultiIndex.from_frame(cases[list(CASE)].drop_duplicates().astype(str))
    values = np.stack([block.reindex(index).to_numpy() for block in blocks])
    return Scores(
        methods, tuple(names), index.to_frame(index=False), values, np.array(better), np.array(filled, dtype=int),
        np.array(lacking, dtype=int),
    )  # fmt: skip


def method_names(rows: Frame) -> Column:
    """A method is its loss, calibrator and variant: `nacl`, `nacl+ts`, `nacl+ts (wide)`."""
    keys = ["loss", "calibrator", "variant"]
    group = rows.groupby(keys, sort=False).ngroup().to_numpy()  # numbered as they come
    parts = rows[keys].drop_duplicates().itertuples(index=False, name=None)
    codes, names = pd.factorize(np.array([_method_name(*part) for part in parts], dtype=object))
    return pd.Series(pd.Categorical.from_codes(codes[group], names), rows.index)


def _method_name(loss: str, calibrator: str, variant: str) -> str:
    name = (loss or "unnamed") + (f"+{calibrator}" if calibrator not in ("", "none") else "")
    return f"{name} ({variant})" if variant else name


def _column(cases: Frame, metric: str) -> tuple[str, str]:
    """`ece@truth` -> (ece, truth); a bare name reads the headline's voxels, or the only ones there are."""
    name, at, stated = metric.partition("@")
    present = cases.loc[cases["metric"] == name, "voxels"].unique().tolist()
    if not present:
        raise BadInput(f"no metric named {name!r} in the table. Known: {', '.join(sorted(cases['metric'].unique()))}")
    rule = stated if at else headline_voxels().get(name, "predicted")
    if rule in present:
        return name, rule
    if not at and ("" in present or len(present) == 1):
        return name, "" if "" in present else present[0]
    choices = ", ".join(f"{name}@{voxels}" for voxels in present)
    raise BadInput(f"the table has {name} not on the voxels {rule!r}; it has {choices}")


def _one_value_a_class(rows: Frame, classes: Mapping[str, Collection[str]], metric: str) -> Frame:
    """Of each dataset the rows for all classes together where it has them, else those of the classes that count."""
    together = set(rows.loc[rows["class"] == ALL, "dataset"])
    keys = ["dataset", "class"]
    pairs = rows[keys].drop_duplicates().itertuples(index=False, name=None)
    counts = [
        name == ALL if dataset in together else dataset not in classes or name in classes[dataset]
        for dataset, name in pairs
    ]
    chosen = rows.loc[np.array(counts, bool)[rows.groupby(keys, sort=False).ngroup().to_numpy()]]
    for dataset in set(rows["dataset"]) - set(chosen["dataset"]):
        raise BadInput(
            f"{metric} has no value for any class of {dataset or 'the dataset'} that its rules judge"
            f" ({', '.join(classes[dataset]) or 'none'})"
        )
    return chosen


def rightly_empty(rows: Frame, metric: str) -> Frame:
    """A class that some invented and others rightly left out: what is undefined for those is what the metric states."""
    member = registry.members("metrics").get(metric)
    value = member and member.facts.get("both_empty")
    if value is None:
        return rows
    invented = rows.groupby([*CASE, "class"], sort=False)["value"].transform("count") > 0
    return rows.assign(value=rows["value"].where(rows["value"].notna() | ~invented, value))


def _mean_over_seeds(rows: Frame) -> Frame:
    """[case and class, method]; what is undefined for one seed is undefined."""
    groups = rows.assign(undefined=rows["value"].isna()).groupby([*CASE, "class", "method"], sort=False)
    return groups["value"].mean().where(~groups["undefined"].any()).unstack("method")


def _refuse_signed(chosen: Frame, metric: str) -> None:
    """Neither lower nor higher is better where 0 is best. The volume error has a sign only if asked for one."""
    if metric == "signed_gap" or (metric in SIGNED and (chosen["value"] < 0).any()):
        raise BadInput(f"{metric} is best at 0 and bad on both sides, so it cannot be ranked: use {SIGNED[metric]}")


def _refuse_gaps(chosen: Frame, methods: Sequence[str], metric: str) -> None:
    """A ranking compares like with like: every method must have been scored on the same cases."""
    for keys, unit in ((list(CASE), "cases"), ([*CASE, "class"], "classes of cases")):
        scored = chosen[[*keys, "method"]].drop_duplicates()
        counts = scored["method"].value_counts()
        if (counts.reindex(list(methods)) == len(scored[keys].drop_duplicates())).all():
            continue
        have = {method: set(map(tuple, rows[keys].to_numpy())) for method, rows in scored.groupby("method")}
        everything = set().union(*have.values())
        for method in methods:
            missing = sorted(everything - have.get(method, set()))
            if missing:
                dataset, _, _, case, *of_class = missing[0]
                where = " of ".join(filter(None, [*of_class, case, dataset]))
                raise BadInput(
                    f"{method} has no {metric} for {len(missing)} of {len(everything)} {unit} that others were scored"
                    f" on, the first is {where}: a ranking needs every method on the same {unit}"
                )


def _settle(wide: Frame, bigger_is_better: bool, undefined: Undefined) -> tuple[Frame, list[int]]:
    """Deal with undefined values: [case and class, method] -> the same without partly defined rows, and the count."""
    values = wide.to_numpy()
    missing = np.isnan(values)
    partly = missing.any(axis=1) & ~missing.all(axis=1)
    count = missing[partly].sum(axis=0).tolist()
    if undefined == "drop":
        return wide[~partly], count
    by_row = wide.min(axis=1) if bigger_is_better else wide.max(axis=1)
    grouped = by_row.groupby(level=["dataset", "network", "class"], sort=False)
    worst = (grouped.transform("min") if bigger_is_better else grouped.transform("max")).to_numpy()
    settled = np.where(partly[:, None] & missing, worst[:, None], values)
    return pd.DataFrame(settled, wide.index, wide.columns), count
