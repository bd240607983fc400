"""The figures of a report about scores, as small JSON objects, which script.js draws as SVG.

A figure is `{id, kind, title, caption, ...}`; kinds are `scatter`, `lines`, `balance`, `heat`, `differences` (critical
differences) and `radar`. Its panels carry the group (dataset and network) and its series the method, so that the page
can filter. A figure whose data are not there is not made.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from calibseg.analysis.case_values import method_names
from calibseg.analysis.headline import headline
from calibseg.analysis.ranking import Ranked
from calibseg.core.types import BadInput
from calibseg.report.figure_data import ranks as figure_ranks
from calibseg.report.figure_data import scores as figure_scores
from calibseg.report.html.groups import ComparisonGroup
from calibseg.report.html.tables import label, where
from calibseg.report.palette import shown_method

RULE = "predicted"  # the voxels of reliability diagrams and of over- and under-confidence
SHOWN = 6  # methods whose single cases are drawn
RADAR = 12  # methods on one radar
Figure = dict[str, Any]
Panel = dict[str, Any]


def figure(kind: str, id: str, title: str, caption: str, panels: Sequence[Panel], **more: Any) -> Figure | None:
    """A figure, or nothing where there is no panel."""
    if not panels:
        return None
    return {"id": id, "kind": kind, "title": title, "caption": caption, **more, "panels": list(panels)}


def interval_point(x: float, row: Mapping[str, Any]) -> dict[str, Any]:
    """A mean over cases with its interval, at x."""
    return {"x": x, "y": row["mean"], "low": row["low"], "high": row["high"], "cases": int(row["cases"])}


def trade_off(groups: Iterable[ComparisonGroup]) -> Figure | None:
    """Every method as a point: how well it segments, and how well it knows how well."""
    panels = []
    for group in groups:
        table = group.means
        if table is None or not {"dsc", "ece@predicted"} <= set(group.keys):
            continue
        shape, calibration = (table[table["metric"] == key].set_index("method") for key in ("dsc", "ece@predicted"))
        series = []
        for method, y in shape.iterrows():
            x = calibration.loc[method]
            point = {"x": x["mean"], "x_low": x["low"], "x_high": x["high"],
                     "y": y["mean"], "low": y["low"], "high": y["high"]}  # fmt: skip
            series.append({"method": method, "points": [point]})
        panels.append({"place": group.name, "title": group.name, "series": series})
    return figure(
        "lines", "trade-off", "Segmentation against calibration",
        "Up and to the left is better. Crosses are 95 % intervals over patients; they are left out where more than 16"
        " methods are shown.",
        panels, x={"label": "ECE on predicted foreground, case mean"}, y={"label": "DSC"}, wide=True, scatter=True,
    )  # fmt: skip


def reliability(groups: Iterable[ComparisonGroup]) -> Figure | None:
    """One panel for each trained network, a line for each calibrator; bars show where the voxels are."""
    panels: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for group in groups:
        bins = group.bins
        if bins is None or RULE not in set(bins["voxels"]):
            continue
        base = dict(zip(method_names(bins), method_names(bins.assign(calibrator="")), strict=True))
        for method, curve in figure_scores.reliability(bins, RULE).groupby("method", sort=False):
            points = [
                {"x": row["confidence"], "y": row["accuracy"], "low": row["case_low"], "high": row["case_high"],
                 "share": row["share"], "from": row["low"], "to": row["high"], "cases": row["cases"],
                 "count": int(row["count"])}
                for row in curve.to_dict("records")
            ]  # fmt: skip
            series = {"method": method, "note": f"{figure_scores.curve_error(curve):.3f}", "points": points}
            panels.setdefault((group.name, base[method]), []).append(series)
    several = len({group for group, _ in panels}) > 1
    return figure(
        "lines", f"reliability-{RULE}", f"Reliability {where(RULE)}",
        "Mean confidence of a bin against the share of its voxels that is right, pooled over cases. Below the diagonal"
        " a network is over-confident, above it under-confident. The band holds the middle 80 % of the cases (among"
        " three lines or more, those of the network as trained); bars show where the voxels are. The number is the"
        " ECE of the pooled voxels; tables show the mean of the cases' own ECE, which is usually larger.",
        [{"place": group, "title": f"{shown_method(name)} · {group}" if several else name, "series": series}
         for (group, name), series in panels.items()],
        x={"label": "confidence", "min": _floor(panels), "max": 1}, y={"label": "accuracy", "min": 0, "max": 1},
        diagonal=True, histogram=True,
    )  # fmt: skip


def balance(groups: Iterable[ComparisonGroup]) -> Figure | None:
    """How much of the ECE is claiming too much and how much too little."""
    panels = []
    for group in groups:
        try:
            table = figure_scores.confidence_balance(group.table, RULE).drop(columns=["dataset", "network"])
        except BadInput:  # the table was scored without these metrics
            continue
        panels.append({"place": group.name, "title": group.name, "rows": table.to_dict("records")})
    return figure(
        "balance", "balance", f"Over- and under-confidence {where(RULE)}",
        "The part of the ECE from bins whose confidence exceeds their accuracy (right) and from those where it falls"
        " short (left); both add up to the ECE. The diamond is their difference with its 95 % interval over patients.",
        panels, left="under-confident", right="over-confident",
    )  # fmt: skip


def distance(groups: Iterable[ComparisonGroup]) -> Figure | None:
    """ECE by the signed distance to the true boundary."""
    panels = []
    for group in groups:
        defined = group.table.rows.dropna(subset=["value"])  # no voxel may lie that far from a boundary
        try:
            table = figure_scores.by_distance(replace(group.table, rows=defined))
        except BadInput:  # the table was scored without the rule `boundary`
            continue
        steps = sorted(set(zip(table["low_mm"], table["high_mm"], strict=True)))
        at = {ends: index for index, ends in enumerate(steps)}
        series = []
        for method, part in table.groupby("method", sort=False):
            rows = part.to_dict("records")
            points = [interval_point(at[row["low_mm"], row["high_mm"]], row) for row in rows]
            series.append({"method": method, "points": points})
        ticks = [_band(*ends) for ends in steps]
        panels.append({"place": group.name, "title": group.name, "series": series, "ticks": ticks})
    return figure(
        "lines", "distance", "Calibration error over the distance to the boundary",
        "ECE of the voxels in each band of distance to the true surface; negative is inside the organ. Bars are 95 %"
        " intervals over patients.",
        panels, x={"label": "signed distance to the true boundary (mm)"}, y={"label": "ECE", "min": 0}, wide=True,
    )  # fmt: skip


def heat(ranked: Mapping[str, Ranked], kind: figure_ranks.Heat) -> Figure | None:
    """Ranks of methods by metrics."""
    panels = []
    for group, one in ranked.items():
        if len(one.data.methods) < 2:
            continue
        wide = figure_ranks.rank_heat(one, kind)
        rows = [{"method": method, "values": values.tolist()} for method, values in wide.iterrows()]
        names = [label(name) if name != "all" else "together" for name in wide.columns]
        panels.append({"place": group, "title": group, "columns": names, "rows": rows})
    if kind == "sum-rank":
        title = "Ranks of the means"
        caption = "Rank of each method's mean in each metric, 1 is best; together: their sum (sum-rank)."
    else:
        title = "Mean rank within a case"
        caption = (
            "Each case ranks the methods; shown is the mean over cases. A method that is often best wins here even"
            " where a few cases ruin its mean."
        )
    return figure("heat", kind.replace(" ", "-"), title, caption, panels)


def differences(ranked: Mapping[str, Ranked]) -> Figure | None:
    """Critical-difference diagrams: which methods a test over patients cannot tell apart."""
    panels = []
    for group, one in ranked.items():
        for metric in one.tests if len(one.data.methods) > 2 else ():
            diagram = figure_ranks.critical_difference(one, metric)
            title = f"{label(metric)} · {group}" if len(ranked) > 1 else label(metric)
            panels.append(
                {"place": group, "title": title, "methods": list(diagram.methods), "ranks": diagram.mean_ranks.tolist(),
                 "difference": diagram.critical_difference, "groups": [list(pair) for pair in diagram.groups],
                 "p": diagram.p, "patients": diagram.patients}
            )  # fmt: skip
    return figure(
        "differences", "differences", "Statistical significance",
        "Mean rank over patients, best on the left. Methods joined by a bar lie within the critical difference (CD):"
        " Nemenyi's test at 5 % does not tell them apart.",
        panels,
    )  # fmt: skip


def radar(groups: Iterable[ComparisonGroup]) -> Figure | None:
    """Every headline metric as a share of the best method's value."""
    panels = []
    for group in groups:
        keys = [key for key in (*headline(), "ece@truth", "cece@truth") if key in group.keys]
        if len(keys) < 3 or len(group.methods) < 2 or group.means is None:
            continue
        table = figure_scores.radar(group.means[group.means["metric"].isin(keys)])
        series = []
        for method, part in table.groupby("method", sort=False):
            values = part.set_index("metric").reindex(keys)
            series.append({"method": method, "values": values["score"].tolist(), "means": values["mean"].tolist()})
        ends = table.groupby("metric", sort=False)[["worst", "best"]].first().reindex(keys)
        panels.append(
            {"place": group.name, "title": group.name, "series": series[:RADAR], "axes": [label(key) for key in keys],
             "worst": ends["worst"].tolist(), "best": ends["best"].tolist()}
        )  # fmt: skip
    return figure(
        "radar", "radar", "All metrics at once",
        "Each spoke has its own scale, from the worst method (inner ring) to the best (rim), whichever way is good; the"
        f" two values stand at its end. At most {RADAR} methods, in the order of the table.", panels,
    )  # fmt: skip


def shift(groups: Iterable[ComparisonGroup]) -> Figure | None:
    """DSC against ECE as noise is added to the images: a path for each method, circles grow with sigma."""
    panels, top = [], 0.0
    for group in groups:
        rows = group.shifted[(group.shifted["scope"] == "case") & group.shifted["metric"].isin(("dsc", "ece"))]
        try:
            table = figure_scores.noise_shift(replace(group.table, rows=rows))
        except BadInput:  # nobody added noise, or not to all methods' images
            continue
        top = max(top, float(table["sigma"].max()))
        series = []
        for method, part in table.groupby("method", sort=False):
            points = [
                {"x": row["calibration"], "y": row["shape"], "size": row["sigma"], "what": f"σ = {row['sigma']:g}"}
                for row in part.sort_values("sigma").to_dict("records")
            ]
            series.append({"method": method, "points": points})
        panels.append({"place": group.name, "title": group.name, "series": series})
    return figure(
        "lines", "shift", "What noise does",
        "DSC against ECE on predicted foreground as Gaussian noise is added to the images; circles grow with its"
        f" standard deviation, up to {top:g}. Robust methods stay in the upper left.",
        panels, x={"label": "ECE on predicted foreground, case mean"}, y={"label": "DSC"}, wide=True, largest=top,
    )  # fmt: skip


def every_case(groups: Iterable[ComparisonGroup], ranked: Mapping[str, Ranked]) -> Figure | None:
    """Every case as a point, by the methods without a calibrator; a click opens its pictures where there are some."""
    panels = []
    for group in groups:
        one = ranked.get(group.name)
        if one is None or not {"dsc", "ece@predicted"} <= set(one.data.metrics):
            continue
        y, x = (one.data.values[one.data.metrics.index(key)] for key in ("dsc", "ece@predicted"))
        series = []
        for number, method in enumerate(one.data.methods):
            cases = zip(one.data.cases["case"], x[:, number], y[:, number], strict=True)
            points = [
                {"x": error, "y": dice, "what": case, "open": case}
                for case, error, dice in cases
                if math.isfinite(error) and math.isfinite(dice)
            ]
            if "+" not in method and points:
                series.append({"method": method, "points": points})
        panels.append({"place": group.name, "title": group.name, "series": series[:SHOWN]})
    return figure(
        "lines", "every-case", "Every case",
        "DSC against ECE on predicted foreground of each case, as trained. Click a point to open its pictures, where"
        " they are in this file.",
        panels, x={"label": "ECE on predicted foreground"}, y={"label": "DSC"}, wide=True, scatter=True, cases=True,
    )  # fmt: skip


def _floor(panels: Mapping[Any, Sequence[Mapping[str, Any]]]) -> float:
    """Where confidence begins: the largest of k probabilities is at least 1 / k, so the left may be empty."""
    lowest = min((p["from"] for lines in panels.values() for s in lines for p in s["points"]), default=0.0)
    return math.floor(lowest * 5) / 5


def _band(low: float, high: float) -> str:
    if math.isinf(low):
        return f"< {high:g}"
    return f"> {low:g}" if math.isinf(high) else f"{low:g} to {high:g}"
