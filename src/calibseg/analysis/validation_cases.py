"""What validation says of every method, case by case: what a recommendation rests on.

A score table tells what a network is worth on the validation cases, cross-fitting what its calibrators are.
"""

import math
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import numpy as np
import pandas as pd
from numpy import ndarray as Array

from calibseg.analysis.case_values import evaluated_classes, method_names
from calibseg.analysis.columns import ALL, Frame
from calibseg.analysis.table import ScoreTable, plain
from calibseg.core import registry
from calibseg.core.types import BadInput

BY = ("dataset", "network")
KEYS = (*BY, "method")
COLUMNS = (*KEYS, "patient", "case", "dsc", "nll", "found", "keeps_labels", "parameters")


def judged_cases(table: ScoreTable) -> Frame:
    """One row per method and case: DSC and NLL, means over seeds, and what is known of the method.

    DSC is averaged over the foreground classes or regions that the dataset judges, NLL is that of all voxels. found is
    the method's own: of its classes the smallest share of cases in which DSC is above 0, of those that have the class
    (where the table's volume_error tells them; else of those in which DSC is defined).
    """
    rows = table.rows[table.rows["scope"] == "case"]
    rows = plain(rows[rows["metric"].isin(["dsc", "nll", "volume_error"])])
    rows = rows.assign(method=method_names(rows).astype(str))
    nll = rows[(rows["metric"] == "nll") & (rows["voxels"] == "all") & (rows["class"] == ALL)]
    dsc = rows[rows["metric"] == "dsc"]
    dsc = dsc[_counts(dsc, evaluated_classes(table.rules))]
    for name, part in (("dsc", dsc), ("nll@all", nll)):
        if not len(part):
            raise BadInput(f"{table.name} holds no {name}, and a method is recommended by DSC and NLL")
    keys = [*KEYS, "patient", "case"]
    values = pd.concat({name: _mean(part, keys) for name, part in (("dsc", dsc), ("nll", nll))}, axis=1).reset_index()
    order = rows.drop_duplicates(list(KEYS))
    order = order.assign(keeps_labels=[_keeps_labels(name) for name in order["calibrator"]])
    order = order.assign(parameters=[0 if name in ("", "none") else math.inf for name in order["calibrator"]])
    methods = order[[*KEYS, "keeps_labels", "parameters"]].merge(_found(dsc, rows), on=list(KEYS), how="left")
    return methods.merge(values, on=list(KEYS))[list(COLUMNS)]


def case_means(cases: Frame) -> Frame:
    """dataset, network, method and the means of DSC and NLL over cases."""
    return cases.groupby(list(KEYS), sort=False, as_index=False)[["dsc", "nll"]].mean()


def held_out_cases(
    runs: Iterable[tuple[str, str, str, str, Mapping[str, Any]]], measured: Frame | None = None
) -> Frame:
    """The same from what cross-fitting found: dataset, network, method, split and `Run.held_out` of each run.

    A calibrator is fitted on the validation cases, so what it scores there flatters it; cross-fitting does not. A
    calibrator finds the classes that its network finds; that, what the cases are called and whose they are, `measured`
    knows (else each case is a patient). Seeds are averaged, case by case.
    """
    known = [] if measured is None else measured[["dataset", "case", "patient"]].itertuples(index=False, name=None)
    patients = {(dataset, case): patient for dataset, case, patient in known}
    rows = []
    for dataset, network, method, split, calibrators in runs:
        for calibrator, record in calibrators.items():
            name = method if calibrator == "none" else f"{method}+{calibrator}"
            properties = (record["keeps_labels"], record["parameters"])
            for id, values in record["cases"].items():
                of_fold = f"{id} {split}"  # a benchmark's table names the fold, too
                case = of_fold if (dataset, of_fold) in patients else id
                who = (patients.get((dataset, case), case), case)
                rows.append(
                    (dataset, network, name, method, *who, values.get("dsc"), values.get("nll@all"), *properties)
                )
    columns = [*KEYS, "base", "patient", "case", "dsc", "nll", "keeps_labels", "parameters"]
    frame = pd.DataFrame(rows, columns=columns).astype({"dsc": float, "nll": float})
    means_of = {"dsc": "mean", "nll": "mean", "keeps_labels": "all", "parameters": "max"}
    frame = frame.groupby([*KEYS, "base", "patient", "case"], sort=False, as_index=False).agg(means_of)
    share = None if measured is None else measured.drop_duplicates(list(KEYS)).set_index(list(KEYS))["found"]
    bases = zip(frame["dataset"], frame["network"], frame["base"], strict=True)
    return frame.assign(found=[1.0 if share is None else share.get(base, 1.0) for base in bases])[list(COLUMNS)]


def prefer(first: Frame, second: Frame | None) -> Frame:
    """The cases of the first table, and of the second those of methods that the first does not have."""
    if second is None or not len(first):
        return first if second is None else second
    have = set(map(tuple, first[list(KEYS)].to_numpy()))
    new = np.array([key not in have for key in map(tuple, second[list(KEYS)].to_numpy())], bool)
    return pd.concat([first, second[new]], ignore_index=True)


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
    counted = [name != ALL and (dataset not in classes or name in classes[dataset]) for dataset, name in pairs]
    return np.array(counted, dtype=bool)


def _found(dsc: Frame, rows: Frame) -> Frame:
    """Of each method the smallest share, over classes, of the cases that have the class in which it is found."""
    keys = [*KEYS, "seed", "case", "class"]
    volumes = rows.loc[rows["metric"] == "volume_error", [*keys, "value"]].rename(columns={"value": "volume"})
    merged = dsc.merge(volumes, on=keys, how="left")
    told = set(map(tuple, volumes[list(KEYS)].drop_duplicates().to_numpy()))
    untold = [key not in told for key in map(tuple, merged[list(KEYS)].to_numpy())]
    merged.loc[untold, "volume"] = 1.0
    merged = merged[merged["volume"].notna() & merged["value"].notna()]
    share = merged.assign(found=merged["value"] > 0).groupby([*KEYS, "class"], sort=False)["found"].mean()
    return share.groupby(level=list(KEYS), sort=False).min().reset_index()


def _mean(rows: Frame, keys: list[str]) -> Frame:
    """Classes first, so that every seed counts the same; then the mean over seeds."""
    by_seed = rows.groupby([*keys, "seed"], sort=False)["value"].mean()
    return by_seed.groupby(level=keys, sort=False).mean()
