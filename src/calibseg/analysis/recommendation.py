r"""Which method to recommend, chosen without looking at the test cases.

Of the methods whose mean DSC on validation lies within 0.005 of the best, the one with the smallest mean NLL there:

$$ \hat m = \arg\min_{m} \mathrm{NLL}_{val}(m) \quad \text{subject to} \quad
   \mathrm{DSC}_{val}(m) \ge \max_{m'} \mathrm{DSC}_{val}(m') - 0.005 $$

NLL is a proper score over every voxel: over- and under-confidence both raise it. What the chosen method scores on test
is the honest headline. The best value on test is the *oracle's*: nobody could have chosen it beforehand.

Some calibrators may change labels. Where one of them is recommended, the best that keeps them is named as well, by the
same rule: a network with a calibrator that keeps every label, or without one.

>>> values = pd.DataFrame({
...     "dataset": "heart", "network": "unet", "method": ["ce", "mbls", "ls"],
...     "dsc": [0.900, 0.897, 0.880], "nll": [0.080, 0.060, 0.050],
... })
>>> choice = recommend(values)[0]                   # ls has the best NLL, but its DSC is 0.020 below the best
>>> choice.method, choice.best_dsc, choice.candidates
('mbls', 0.9, ('ce', 'mbls'))
"""

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy import ndarray as Array

from calibseg.analysis.case_values import evaluated_classes, method_names
from calibseg.analysis.columns import ALL, Frame
from calibseg.analysis.table import ScoreTable, plain
from calibseg.core import registry
from calibseg.core.types import BadInput

WITHIN = 0.005  # of the best validation DSC
BY = ("dataset", "network")
COLUMNS = (*BY, "method", "dsc", "nll", "keeps_labels")


@dataclass(frozen=True)
class Recommendation:
    """The method that validation recommends for one dataset and network."""

    dataset: str
    network: str
    method: str
    dsc: float  # on validation, as are the following
    nll: float
    best_dsc: float
    candidates: tuple[str, ...]  # near enough to the best DSC, in the order of the table
    keeping: str | None = None  # the best of those that keep the network's labels: often the method itself
    keeping_nll: float = math.nan

    @property
    def keeps_labels(self) -> bool:
        return self.method == self.keeping


@dataclass(frozen=True)
class Oracle:
    """The method with the smallest NLL on test: a bound, no recommendation."""

    method: str
    nll: float


def case_means(table: ScoreTable) -> Frame:
    """dataset, network, method, the means of DSC and NLL over cases, classes and seeds, and whether labels are kept.

    DSC is averaged over the foreground classes or regions that the dataset judges, NLL is that of all voxels.
    """
    rows = table.rows[table.rows["scope"] == "case"]
    rows = plain(rows[rows["metric"].isin(["dsc", "nll"])])
    rows = rows.assign(method=method_names(rows).astype(str))
    nll = rows[(rows["metric"] == "nll") & (rows["voxels"] == "all") & (rows["class"] == ALL)]
    dsc = rows[rows["metric"] == "dsc"]
    dsc = dsc[_counts(dsc, evaluated_classes(table.rules))]
    for name, found in (("dsc", dsc), ("nll@all", nll)):
        if not len(found):
            raise BadInput(f"{table.name} holds no {name}, and a method is recommended by DSC and NLL")
    keys = [*BY, "method"]
    together = pd.concat({"dsc": _mean(dsc, keys), "nll": _mean(nll, keys)}, axis=1)
    order = rows.drop_duplicates(keys)
    order = order[keys].assign(keeps_labels=[_keeps_labels(name) for name in order["calibrator"]])
    return order.merge(together.reset_index(), on=keys)[list(COLUMNS)]


def held_out_values(runs: Iterable[tuple[str, str, str, Mapping[str, Any] | None]]) -> Frame:
    """The same from what cross-fitting said of calibrators: dataset, network, method and choice.json of each run.

    A calibrator is fitted on the validation cases, so what it scores there flatters it; cross-fitting does not. Where a
    choice was not cross-fitted, its calibrators are left out. Several runs of one method (seeds) are averaged.
    """
    rows = []
    for dataset, network, method, choice in runs:
        for row in (choice or {}).get("table", ()):
            name = method if row["method"] == "none" else f"{method}+{row['method']}"
            if name == method or (choice or {}).get("cross_fitted"):
                keeps = row.get("keeps_argmax", _keeps_labels(row["method"]))
                rows.append((dataset, network, name, row.get("dsc"), row.get("nll@all"), keeps))
    frame = pd.DataFrame(rows, columns=list(COLUMNS)).astype({"dsc": float, "nll": float, "keeps_labels": bool})
    means = {"dsc": "mean", "nll": "mean", "keeps_labels": "all"}
    return frame.groupby([*BY, "method"], sort=False, as_index=False).agg(means)


def prefer(first: Frame, second: Frame | None) -> Frame:
    """The values of the first table, and of the second those that the first does not have."""
    if second is None:
        return first
    both = pd.concat([first, second], ignore_index=True) if len(first) else second
    return both.drop_duplicates([*BY, "method"], ignore_index=True)


def recommend(values: Frame, within: float = WITHIN) -> list[Recommendation]:
    """One choice for each dataset and network of a table with the columns dataset, network, method, dsc, nll.

    Equal NLL: the higher DSC, then the first in the table. A method whose DSC or NLL is undefined is not chosen. A
    further column, keeps_labels, says who leaves the network's labels as they are; without it everybody does.
    """
    found = []
    for (dataset, network), part in values.groupby(list(BY), sort=False):
        known = part.dropna(subset=["dsc", "nll"])
        if not len(known):
            continue
        best = known["dsc"].max()
        near = known[known["dsc"] >= best - within - 1e-12]  # 0.9 - 0.005 and 0.895 differ in the last bit
        ordered = near.sort_values(["nll", "dsc"], ascending=[True, False], kind="stable")
        chosen = ordered.iloc[0]
        keeping = ordered[ordered["keeps_labels"].astype(bool)] if "keeps_labels" in ordered else ordered
        kept = keeping.iloc[0] if len(keeping) else None
        found.append(
            Recommendation(
                str(dataset),
                str(network),
                chosen["method"],
                float(chosen["dsc"]),
                float(chosen["nll"]),
                float(best),
                tuple(near["method"]),
                None if kept is None else str(kept["method"]),
                math.nan if kept is None else float(kept["nll"]),
            )
        )
    return found


def oracle(test: Frame, dataset: str, network: str) -> Oracle | None:
    """Who has the smallest NLL on test, whatever its DSC; None where nobody has one."""
    part = test[(test["dataset"] == dataset) & (test["network"] == network)].dropna(subset=["nll"])
    if not len(part):
        return None
    best = part.sort_values("nll", kind="stable").iloc[0]
    return Oracle(str(best["method"]), float(best["nll"]))


def _keeps_labels(calibrator: str) -> bool:
    """Whether a calibrator by this name says so; of one that nobody here knows it cannot be said."""
    if calibrator in ("", "none"):
        return True
    try:
        return registry.find("calibrators", calibrator).facts.get("keeps_argmax") is True
    except BadInput:
        return False


def _counts(rows: Frame, classes: Mapping[str, Collection[str]]) -> Array:
    pairs = zip(rows["dataset"], rows["class"], strict=True)
    found = [name != ALL and (dataset not in classes or name in classes[dataset]) for dataset, name in pairs]
    return np.array(found, dtype=bool)


def _mean(rows: Frame, keys: list[str]) -> Frame:
    """Cases first, so that every case counts the same; then the mean over cases."""
    by_case = rows.groupby([*keys, "seed", "patient", "case"], sort=False)["value"].mean()
    return by_case.groupby(level=keys, sort=False).mean()
