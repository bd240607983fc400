"""Figures on spokes: metrics as shares of the best method's, and DSC against ECE around the datasets (MbLS Fig. 2)."""

from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from calibseg.analysis.columns import Frame
from calibseg.core.types import BadInput
from calibseg.report.matplotlib import style
from calibseg.report.matplotlib.style import COLUMN, FAINT, GREY, PAGE, even_columns, is_better, panels, places, styled
from calibseg.report.palette import method_styles, shown_metric

INNER = 0.15  # the ring of the worst value: a point would say nothing about who has it


@styled
def radar(shares: Frame) -> Figure:
    """A spoke per metric with a scale of its own: the rim is the best method's value, the inner ring the worst's."""
    groups = places(shares)
    styles = method_styles(shares["method"])
    metrics = list(dict.fromkeys(shares["metric"]))
    figure, axes = panels(len(groups), 2, (COLUMN, 3.0), subplot_kw={"projection": "polar"})
    for axis, (title, part) in zip(axes, groups, strict=True):
        lines = [
            (
                INNER + (1 - INNER) * one.set_index("metric")["score"].reindex(metrics).to_numpy(),
                styles[str(method)].line,
            )
            for method, one in part.groupby("method", sort=False, observed=True)
        ]
        ends = part.groupby("metric", sort=False)[["worst", "best"]].first()
        spokes = [
            f"{shown_metric(metric)}\n{ends.loc[metric, 'worst']:.3g} to {ends.loc[metric, 'best']:.3g}"
            for metric in metrics
        ]
        _spokes(axis, lines, spokes)
        axis.set_yticks([INNER, 1.0], ["worst", "best"], color=GREY, fontsize=5.5)
        axis.set_title(title)
    style.method_legend(figure, styles)
    return figure


@styled
def compromise(means: Frame) -> Figure:
    """A panel per method, a spoke per dataset and network: discrimination against calibration error (MbLS Fig. 2).

    The wider the gap between the lines, the better the compromise.
    """
    methods, metrics = (list(dict.fromkeys(means[column])) for column in ("method", "metric"))
    if [is_better(means, metric) for metric in metrics] != [True, False]:
        raise BadInput(
            "compromise sets a metric of which more is better against one of which less is, like dsc,ece@truth:"
            f" not {', '.join(metrics)}"
        )
    styles, colours = method_styles(methods), ("#009e73", "#0072b2")
    width = COLUMN if len(methods) == 1 else PAGE / even_columns(len(methods), 4)
    figure, axes = panels(
        len(methods), even_columns(len(methods), 4), (width, width), subplot_kw={"projection": "polar"}
    )
    spokes = [title or str(part["dataset"].iloc[0]) or "all" for title, part in places(means)]
    for axis, method in zip(axes, methods, strict=True):
        one = means[means["method"] == method]
        lines = []
        for metric, colour in zip(metrics, colours, strict=True):
            at = one[one["metric"] == metric].set_index(["dataset", "network"])["mean"]
            keys = [(part["dataset"].iloc[0], part["network"].iloc[0]) for _, part in places(means)]
            lines.append((at.reindex(keys).to_numpy(), {"color": colour, "marker": "o"}))
        _spokes(axis, lines, spokes)
        axis.set_title(styles[method].label)
    handles: list[Any] = [Line2D([], [], color=colour, marker="o") for colour in colours]
    style.legend_below(figure, handles, [shown_metric(metric, is_better(means, metric)) for metric in metrics])
    return figure


def _spokes(axis: Any, lines: list[tuple[Any, dict[str, Any]]], names: list[str]) -> None:
    """Closed lines over spokes from 0 to 1, the first spoke at the top."""
    angles = np.linspace(0, 2 * np.pi, len(names), endpoint=False)
    for values, look in lines:
        axis.plot(np.append(angles, angles[:1]), np.append(values, values[:1]), markersize=2.8, clip_on=False, **look)
    axis.set_theta_offset(np.pi / 2)
    axis.set_theta_direction(-1)
    axis.set_xticks(angles, names)
    axis.set_ylim(0, 1.0)
    axis.set_yticks([0.25, 0.5, 0.75, 1.0], ["", "0.5", "", "1"], color=GREY, fontsize=5.5)
    axis.set_rlabel_position(180 / max(len(names), 1))
    axis.grid(color=FAINT, linewidth=0.5)
    axis.spines["polar"].set(color=GREY, linewidth=0.6)
    axis.tick_params(axis="x", pad=4)
    for text, side in zip(axis.get_xticklabels(), np.sin(angles).round(6), strict=True):
        text.set_horizontalalignment("left" if side > 0 else "right" if side < 0 else "center")
