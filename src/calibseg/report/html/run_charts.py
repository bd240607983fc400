"""The figures of a report about training runs: curves over epochs, multipliers, logits, sensitivity.

They have the form that charts.py describes; what they show is read from the run folders.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from calibseg.analysis.run_records import Run
from calibseg.core.types import BadInput
from calibseg.report.figure_data import runs as figure_runs
from calibseg.report.html.charts import Figure, Panel, figure, interval_point
from calibseg.report.html.groups import ComparisonGroup
from calibseg.report.html.tables import label
from calibseg.report.palette import class_colour

LOGGED = {
    "train_loss": "training loss",
    "val_dsc": "validation DSC",
    "val_nll": "validation NLL",
    "val_ece_predicted": "validation ECE on predicted foreground",
    "val_ece_truth": "validation ECE on true foreground",
}
Panels = dict[tuple[str, str], list[dict[str, Any]]]


def training(groups: Iterable[ComparisonGroup]) -> Figure | None:
    """What the logs say over epochs."""
    panels: Panels = {}
    for group, run in _logged(groups):
        log = figure_runs.with_training_loss(run.log)
        for column, name in LOGGED.items():
            if column in log.columns:
                series = _series(run, log, column, run.method)
                panels.setdefault((group, name), []).append(series | {"mark": run.info.best_epoch})
    caption = (
        "What was logged after each epoch; the ring marks the epoch that was kept. Several seeds are a line, their"
        " mean, and a band from the smallest to the largest."
    )
    chart = _over_epochs("training", "Curves over epochs", caption, {at: _banded(many) for at, many in panels.items()})
    return chart and chart | {"bands": True}


def _banded(series: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Seeds of one method as one line: mean, smallest and largest of every epoch that all of them have."""
    methods: dict[str, list[dict[str, Any]]] = {}
    for one in series:
        methods.setdefault(one["method"], []).append(one)
    lines = []
    for method, seeds in methods.items():
        if len(seeds) == 1:
            lines += seeds
            continue
        points = []
        for some in zip(*(one["points"] for one in seeds), strict=False):
            values = [point["y"] for point in some]
            points.append({"x": some[0]["x"], "y": float(np.mean(values)), "low": min(values), "high": max(values)})
        lines.append({"method": method, "name": f"{method}, {len(seeds)} seeds", "points": points})
    return lines


def multipliers(groups: Iterable[ComparisonGroup]) -> Figure | None:
    """lambda and rho over epochs, of the losses that learn them."""
    panels: Panels = {}
    for group, run in _logged(groups):
        for one in figure_runs.multiplier_columns(run.log, run.info.classes):
            series = _series(run, run.log, one.column, f"{run.method}, {one.class_name}, seed {run.seed}")
            title = f"{figure_runs.SYMBOLS[one.multiplier]} {figure_runs.REGIONS[one.region]}"
            looks = {"end": one.class_name, "width": max(1.2, 5.0 - 1.2 * one.id), "colour": class_colour(one.id)}
            panels.setdefault((group, title), []).append(series | looks)
    caption = (
        "Lagrange multipliers λ and penalty weights ρ, learnt on validation data, one line for each class; each is"
        " narrower than the one before, so that lines that lie on each other are all seen."
    )
    return _over_epochs("multipliers", "Multipliers", caption, panels)


def interior(groups: Iterable[ComparisonGroup]) -> Figure | None:
    """How sure and how right the network is away from boundaries."""
    panels: Panels = {}
    for group, run in _logged(groups):
        for column, name in (("interior_confidence", "confidence"), ("interior_accuracy", "accuracy")):
            if column in run.log.columns:
                series = _series(run, run.log, column, f"{name}, seed {run.seed}")
                panels.setdefault((group, run.method), []).append(series | {"dashed": name == "accuracy", "end": name})
    caption = "Mean confidence and (dashed) accuracy of validation voxels whose neighbours all share their label."
    return _over_epochs("interior", "Confidence inside organs", caption, panels)


def logits(groups: Iterable[ComparisonGroup]) -> Figure | None:
    """How far apart the logits of the classes are, in the voxels of each true class."""
    panels: Panels = {}
    ticks: dict[str, list[str]] = {}
    for group in groups:
        for run in first_seeds(group.runs):
            if run.logits() is None:
                continue
            means = figure_runs.logit_means(run.path)
            classes = ticks[group.name] = list(dict.fromkeys(means["class"]))
            for true, part in means.groupby("true", sort=False):
                points = [
                    {
                        "x": classes.index(row["class"]),
                        "y": row["signed"],
                        "what": f"{row['class']}; {row['distance']:.2f} below the largest",
                    }
                    for row in part.to_dict("records")
                    if math.isfinite(row["signed"])
                ]
                if points:
                    series = {"method": run.method, "points": points}
                    panels.setdefault((group.name, f"true class: {true}"), []).append(series)
    several = len(ticks) > 1
    return figure(
        "lines", "logits", "Logits by true class",
        "Mean logit of each class, relative to the mean of all classes, in the voxels of one true class: the wider the"
        " spread, the more confident the network.",
        [{"place": group, "title": f"{title} · {group}" if several else title, "series": series, "ticks": ticks[group]}
         for (group, title), series in panels.items()],
        x={"label": "class of the logit"}, y={"label": "mean centred logit"}, dodge=True,
    )  # fmt: skip


def sensitivity(groups: Iterable[ComparisonGroup]) -> list[Figure]:
    """How scores move with an option of the loss, wherever runs of one loss differ in that option alone."""
    figures = []
    for group in groups:
        losses: dict[str, list[Run]] = {}
        for run in group.runs:
            losses.setdefault(run.info.loss, []).append(run)
        for loss, runs in losses.items():
            for option in runs[0].info.table("loss"):
                some = _differ_in(runs, option)
                panels = _sensitivity(some, group.name, loss, option) if some else []
                made = figure(
                    "lines", f"sensitivity-{len(figures)}", f"{loss}: {option}",
                    f"Means over the cases of {group.name}, with 95 % intervals over patients.",
                    panels, x={"label": option}, y={"label": ""}, own_scales=True,
                )  # fmt: skip
                figures += [made] if made else []
    return figures


def first_seeds(runs: Iterable[Run]) -> Iterator[Run]:
    """One run of each method: that with the first seed."""
    seen = set()
    for run in sorted(runs, key=lambda run: int(run.seed)):
        if run.method not in seen:
            seen.add(run.method)
            yield run


def _logged(groups: Iterable[ComparisonGroup]) -> Iterator[tuple[str, Any]]:
    for group in groups:
        for run in group.runs:
            if run.log is not None and "epoch" in run.log.columns:
                yield group.name, run


def _series(run: Run, log: Any, column: str, name: str) -> dict[str, Any]:
    points = [{"x": x, "y": y} for x, y in zip(log["epoch"].tolist(), log[column].tolist(), strict=True)]
    return {"method": run.method, "name": name, "points": points}


def _over_epochs(id: str, title: str, caption: str, panels: Panels) -> Figure | None:
    several = len({group for group, _ in panels}) > 1
    made = [
        {"place": group, "title": f"{what} · {group}" if several else what, "series": series}
        for (group, what), series in panels.items()
    ]
    return figure("lines", id, title, caption, made, x={"label": "epoch"}, y={"label": ""}, own_scales=True)


def _sensitivity(runs: Sequence[Run], group: str, loss: str, option: str) -> list[Panel]:
    try:
        table = figure_runs.sensitivity([run.path for run in runs], f"loss.{option}", ("dsc", "ece@predicted"))
    except BadInput:  # not all of these runs are scored yet
        return []
    panels = []
    for metric, part in table.groupby("metric", sort=False):
        points = [interval_point(row["value"], row) for row in part.to_dict("records")]
        panels.append({"place": group, "title": label(metric), "series": [{"name": loss, "points": points}]})
    return panels


def _differ_in(runs: Sequence[Run], option: str) -> list[Run]:
    """The largest group of runs that differ in this number and nothing else but the seed."""
    groups: dict[str, list[Run]] = {}
    for run in runs:
        recipe = run.info.recipe
        value = recipe["loss"].get(option)
        if isinstance(value, int | float) and not isinstance(value, bool):
            others = {**recipe, "seed": 0, "loss": {**recipe["loss"], option: None}}
            groups.setdefault(repr(sorted(others.items())), []).append(run)
    largest = max(groups.values(), key=len, default=[])
    return largest if len({run.info.table("loss")[option] for run in largest}) > 1 else []
