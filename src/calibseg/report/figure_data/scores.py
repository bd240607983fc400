r"""What the figures about scores show, as small tables: nothing is drawn here, so a report can draw them its own way.

Every function takes a score table (or its reliability rows) and returns a tidy frame with the columns `dataset`,
`network`, `method` and what its docstring names: what two networks say is never pooled. A method is its loss,
calibrator and variant (case_values.py); seeds are averaged within a case, and intervals are 95 % patient-bootstrap
intervals.

Predictions on noisy images carry `noiseSIGMA` in the variant (`noise0.05-seed0`): `shift_of` reads it, and
`unshifted` leaves such rows out, for figures that compare methods on images as they are.
"""

import re
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pandas as pd
from numpy import ndarray as Array

from calibseg.analysis import bootstrap
from calibseg.analysis.case_values import Undefined, case_values, evaluated_classes, method_names
from calibseg.analysis.columns import ALL, Frame
from calibseg.analysis.friedman import ranks
from calibseg.analysis.table import ScoreTable
from calibseg.analysis.variants import noisy, shift_of
from calibseg.core import registry
from calibseg.core.types import BadInput

DISTANCE = re.compile(r"^(?P<low>-?inf|-?[0-9.e+-]+) to (?P<high>-?inf|-?[0-9.e+-]+) mm$")
LEAST = 20  # voxels that a case must have in a bin to count for the spread of cases there
PLACE = ["dataset", "network", "subset"]  # methods are compared within one of these


def unshifted(table: ScoreTable) -> ScoreTable:
    """The scores on images as they are."""
    return replace(table, rows=unshifted_rows(table.rows))


def unshifted_rows(rows: Frame) -> Frame:
    """Rows of scores or bins on images as they are; where there are no others, all of them."""
    kept = rows[~noisy(rows)]
    return kept if len(kept) else rows


def means(table: ScoreTable, metrics: Sequence[str], undefined: Undefined = "worst") -> Frame:
    """The mean over cases of each metric, dataset, network, subset and method, with its interval.

    Columns: dataset, network, subset, method, metric (`ece@truth`), mean, low, high, cases, defined (of them, those
    where the method has a value of its own), filled (undefined values that took the worst), higher_is_better, place
    (1: best; ties share the smallest; none for a method that is undefined in more cases than a rival).
    """
    blocks = []
    cases = table.rows[table.rows["scope"] == "case"]  # what was pooled over a fold has a subset of its own
    for (dataset, network, subset), rows in cases.groupby(PLACE, sort=False):
        data = case_values(rows, metrics, undefined, evaluated_classes(table.rules))
        patients = data.cases["patient"].tolist()
        for m, metric in enumerate(data.metrics):
            defined = ~np.isnan(data.values[m]).any(axis=1)
            number = int(defined.sum())
            mean = data.values[m][defined].mean(axis=0) if number else np.full(len(data.methods), np.nan)
            low, high = bootstrap.interval(data.values[m], patients)
            bigger = bool(data.higher_is_better[m])
            block = pd.DataFrame({"method": data.methods, "mean": mean, "low": low, "high": high})
            block["filled"], lacking = data.filled[m], data.lacking[m]
            block["defined"] = np.maximum(number - lacking, 0)
            block["place"] = places(-mean if bigger else mean, lacking)
            blocks.append(
                block.assign(
                    dataset=dataset,
                    network=network,
                    subset=subset,
                    metric=metric,
                    cases=number,
                    higher_is_better=bigger,
                )
            )
    columns = [*PLACE, "method", "metric", "mean", "low", "high", "cases", "defined", "filled", "higher_is_better"]
    columns.append("place")
    return pd.concat(blocks, ignore_index=True)[columns] if blocks else pd.DataFrame(columns=columns)


def places(small_is_good: Array, lacking: Array) -> Array:
    """1 for the best, ties share the smallest; NaN for who is undefined in more cases than a rival with a value.

    >>> places(np.array([0.1, 0.2, 0.2, 0.3]), np.array([3, 0, 0, 0])).tolist()
    [nan, 1.0, 1.0, 3.0]
    """
    result = np.full(len(small_is_good), np.nan)
    known = ~np.isnan(small_is_good)
    if known.any():
        fair = known & (lacking <= lacking[known].min())
        result[fair] = ranks(small_is_good[fair][None])[0]
    return result


def reliability(bins: Frame, voxels: str = "predicted", of: str = ALL, case: str | None = None) -> Frame:
    """Reliability curves, pooled over cases and seeds, with the spread of the cases around them; or one case's own.

    of: `all` for the top label, or a class's name for its probability. Columns: dataset, network, method, bin, low,
    high, count, share (of all voxels), confidence, accuracy, case_low, case_median, case_high (10th, 50th, 90th
    percentile of the accuracies of cases that have LEAST voxels in the bin), cases (how many have).
    """
    rows = one_voxel_rule(bins, voxels)
    rows = rows[rows["class"] == of]
    if not len(rows):
        known = ", ".join(dict.fromkeys(bins["class"]))
        raise BadInput(f"no reliability rows of the class {of!r}; the table has {known}")
    if case is not None:
        known = [name for name in rows["case"].unique() if name]
        if case not in known:
            raise BadInput(registry.unknown("case", case, known).replace("Known:", "In the table:"))
        rows = rows[rows["case"] == case].assign(scope="pooled")  # the curve itself; there is no spread around it
    rows = rows.assign(method=method_names(rows))
    group = ["dataset", "network", "method", "bin", "low", "high"]
    filled = rows[rows["count"] > 0]
    pooled = filled[filled["scope"] == "pooled"]
    sums = pooled.assign(
        confidence=pooled["confidence"] * pooled["count"], accuracy=pooled["accuracy"] * pooled["count"]
    )
    curve = sums.groupby(group, sort=False)[["count", "confidence", "accuracy"]].sum()
    curve["confidence"] /= curve["count"]
    curve["accuracy"] /= curve["count"]
    curve["share"] = curve["count"] / curve.groupby(level=group[:3], sort=False)["count"].transform("sum")
    cases = filled[(filled["scope"] == "case") & (filled["count"] >= LEAST)].groupby(group, sort=False)["accuracy"]
    spread = cases.quantile([0.1, 0.5, 0.9]).unstack().reindex(columns=[0.1, 0.5, 0.9])  # there may be no such case
    spread.columns = ["case_low", "case_median", "case_high"]
    curve = curve.join(spread).join(cases.size().rename("cases"))
    curve["cases"] = curve["cases"].fillna(0).astype(int)
    columns = [*group, "count", "share", "confidence", "accuracy", "case_low", "case_median", "case_high", "cases"]
    return curve.reset_index()[columns]


def one_voxel_rule(rows: Frame, voxels: str) -> Frame:
    """The rows on these voxels; a rule that the table does not have is named, with those that it has."""
    present = [name for name in rows["voxels"].unique() if name]
    if voxels not in present:
        raise BadInput(registry.unknown("voxel rule", voxels, present).replace("Known:", "In the table:"))
    return rows[rows["voxels"] == voxels]


def curve_error(curve: Frame) -> float:
    """The ECE that a reliability curve shows: its mean gap, weighted by voxels."""
    return float((curve["share"] * (curve["confidence"] - curve["accuracy"]).abs()).sum())


def confidence_balance(table: ScoreTable, voxels: str = "predicted") -> Frame:
    """How much of the calibration error is claiming too much, and how much too little.

    Columns: dataset, network, method, over, under (their sum is the ECE), gap (over - under), gap_low, gap_high, cases.
    """
    balances = []
    wanted = {"overconfidence": "over", "underconfidence": "under", "signed_gap": "gap"}
    rows = table.rows[(table.rows["scope"] == "case") & table.rows["metric"].isin(wanted)]
    if not len(rows):
        raise BadInput(f"{table.name} has no {', '.join(wanted)}: score it with them, or with all metrics")
    rows = one_voxel_rule(rows, voxels)
    rows = rows[rows["class"] == ALL].assign(method=lambda part: method_names(part))
    for (dataset, network, method), part in rows.groupby(["dataset", "network", "method"], sort=False):
        wide = part.groupby(["patient", "case", "metric"], sort=False)["value"].mean().unstack("metric")
        wide = wide.reindex(columns=list(wanted)).dropna()
        low, high = bootstrap.interval(wide.to_numpy(), list(wide.index.get_level_values("patient")))
        means = {short: float(wide[metric].mean()) for metric, short in wanted.items()}
        ends = {"gap_low": float(low[2]), "gap_high": float(high[2]), "cases": len(wide)}
        balances.append({"dataset": dataset, "network": network, "method": method, **means, **ends})
    return pd.DataFrame(balances)


def by_distance(table: ScoreTable) -> Frame:
    """ECE as a function of the signed distance to the true boundary, negative inside (`score --voxels boundary`).

    Columns: dataset, network, method, low_mm, high_mm (infinite at the ends), mean, low, high, cases, pooled. Mean and
    interval are over the cases that have voxels so far from the boundary.
    """
    rows = table.rows[(table.rows["metric"] == "ece") & (table.rows["class"] == ALL)]
    limits = {name: bands for name in rows["voxels"].unique() if (bands := DISTANCE.match(name))}
    if not limits:
        raise BadInput(f"{table.name} has no ECE by distance: score with --voxels predicted,all,boundary")
    rows = rows[rows["voxels"].isin(list(limits))]
    rows = rows.assign(method=method_names(rows))
    bands = []
    for (*whose, voxels), part in rows.groupby(["dataset", "network", "method", "voxels"], sort=False):
        cases = part[part["scope"] == "case"].groupby(["patient", "case"], sort=False)["value"].mean()
        pooled = part[part["scope"] == "pooled"]["value"].mean()
        low, high = bootstrap.interval(cases.to_numpy()[:, None], list(cases.index.get_level_values("patient")))
        ends = {"low_mm": float(limits[voxels]["low"]), "high_mm": float(limits[voxels]["high"])}
        values = {"mean": float(cases.mean()), "low": float(low[0]), "high": float(high[0])}
        values["cases"] = int(cases.notna().sum())
        named = dict(zip(("dataset", "network", "method"), whose, strict=True))
        bands.append({**named, **ends, **values, "pooled": float(pooled)})
    return pd.DataFrame(bands).sort_values("low_mm", kind="stable", ignore_index=True)


def noise_shift(table: ScoreTable, shape: str = "dsc", calibration: str = "ece") -> Frame:
    """Segmentation against calibration as noise grows (MbLS Fig. 5).

    Columns: dataset, network, method, sigma, shape and calibration (means over cases), `shape_metric`,
    `calibration_metric`.
    """
    parts = []
    shifts = table.rows["variant"].map(shift_of)
    rows = table.rows.assign(sigma=[sigma for sigma, _ in shifts], variant=[rest for _, rest in shifts])
    if not (rows["sigma"] > 0).any():
        raise BadInput(f"{table.name} holds no scores on noisy images: calibseg predict RUN --noise 0.05, then score")
    for sigma, part in rows.groupby("sigma"):
        one = means(replace(table, rows=part.drop(columns="sigma")), [shape, calibration])
        names = list(dict.fromkeys(one["metric"]))
        wide = one.pivot(index=[*PLACE, "method"], columns="metric", values="mean")[names].reset_index()
        wide.columns = [*PLACE, "method", "shape", "calibration"]
        better = one.drop_duplicates("metric").set_index("metric")["higher_is_better"]
        for kind, metric in zip(("shape", "calibration"), names, strict=True):
            wide = wide.assign(**{f"{kind}_metric": metric, f"{kind}_better": bool(better[metric])})
        parts.append(wide.assign(sigma=sigma))
    columns = ["dataset", "network", "method", "sigma", "shape", "calibration", "shape_metric", "calibration_metric"]
    columns += ["shape_better", "calibration_better"]
    return pd.concat(parts, ignore_index=True)[columns]


def radar(means: Frame) -> Frame:
    """Of `means`: every metric on a scale of its own, from 0, the worst method's mean, to 1, the best's.

    Where all methods are equal they are all at 1. Columns: dataset, network, method, metric, mean, score, worst, best.
    """
    group = means.groupby([*PLACE, "metric"], sort=False)["mean"]
    low, high = group.transform("min").to_numpy(), group.transform("max").to_numpy()
    best, worst = (np.where(means["higher_is_better"], *ends) for ends in ((high, low), (low, high)))
    with np.errstate(invalid="ignore", divide="ignore"):
        score = np.where(high == low, 1.0, (means["mean"] - worst) / (best - worst))
    columns = ["dataset", "network", "method", "metric", "mean", "score", "worst", "best"]
    return means.assign(score=score, worst=worst, best=best)[columns]


def stacked(means: Frame) -> Frame:
    """Of `means`: what each dataset and network adds to a method's mean over all of them (MbLS Fig. 9).

    A part is the mean there, divided by the number of datasets and networks that have one, so that the parts of a
    method add up to its mean over them. Columns: dataset, network, metric, method, mean, part, higher_is_better.
    """
    number = means.groupby(["metric", "method"], sort=False)["mean"].transform("count")
    return means.assign(part=means["mean"] / number)[
        ["dataset", "network", "metric", "method", "mean", "part", "higher_is_better"]
    ]
