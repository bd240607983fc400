"""Figures about scores: reliability, over- and under-confidence, distance to the boundary, noise, radar, shares.

Each function takes the tidy table that figure_data/scores.py makes and returns a matplotlib Figure.
"""

from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from calibseg.analysis.columns import Frame
from calibseg.analysis.headline import VOXELS
from calibseg.core.types import BadInput
from calibseg.report.figure_data.scores import curve_error
from calibseg.report.matplotlib.reliability import draw_reliability
from calibseg.report.matplotlib.style import (
    COLUMN,
    FAINT,
    GREY,
    PAGE,
    legend_below,
    method_legend,
    panels,
    styled,
    titled,
)
from calibseg.report.palette import OVER, UNDER, method_styles, shown_metric

FILLS = ("full", "none", "left", "right")  # datasets within one panel


@styled
def reliability(curves: Frame, voxels: str = "predicted") -> Figure:
    """A panel per method: the pooled curve, the 10th to 90th percentile of cases, and where the voxels are."""
    groups = list(curves.groupby(["dataset", "method"], sort=False))
    if not groups:
        raise BadInput(
            f"no voxel counts under the voxel rule {voxels!r}, so there is no curve to draw; try --voxels all"
        )
    several = curves["dataset"].nunique() > 1
    styles = method_styles(curves["method"])
    columns = len(groups) if len(groups) <= 2 else _columns(len(groups), 5)
    width = 2.3 if len(groups) == 1 else COLUMN / 2 if len(groups) == 2 else PAGE / columns
    figure, axes = panels(len(groups), columns, (width, min(width * 1.08, 1.95)), sharex=True, sharey=True)
    for axis, ((dataset, method), curve) in zip(axes, groups, strict=True):
        draw_reliability(axis, curve, styles[method].colour)
        axis.text(0.05, 0.95, f"ECE {curve_error(curve):.3f}", transform=axis.transAxes, va="top", fontsize=6.5)
        axis.set(xticks=[0, 0.5, 1], yticks=[0, 0.5, 1])
        axis.set_title(titled(dataset, styles[method].label) if several else styles[method].label)
    for axis in axes:
        spec = axis.get_subplotspec()
        if spec is not None and spec.is_first_col():
            axis.set_ylabel("accuracy")
        if spec is not None and (spec.is_last_row() or axes.index(axis) + columns >= len(axes)):
            axis.set_xlabel("confidence")
            axis.tick_params(labelbottom=True)
    figure.supxlabel(f"voxels: {_rule(voxels)}", fontsize=6, color=GREY)
    return figure


@styled
def signed(balance: Frame, voxels: str = "predicted") -> Figure:
    """Bars of over- and under-confidence, whose lengths add up to the ECE, and the net gap with its interval."""
    datasets = list(dict.fromkeys(balance["dataset"]))
    rows = max(balance.groupby("dataset", sort=False).size())
    figure, axes = panels(len(datasets), 2, (COLUMN, 0.19 * rows + 0.45), sharex=True)
    for axis, dataset in zip(axes, datasets, strict=True):
        part = balance[balance["dataset"] == dataset].reset_index(drop=True)
        place = np.arange(len(part))
        axis.barh(place, -part["under"], 0.62, color=UNDER, linewidth=0)
        axis.barh(place, part["over"], 0.62, color=OVER, linewidth=0)
        axis.hlines(place, part["gap_low"], part["gap_high"], color="black", linewidth=0.9)
        axis.plot(part["gap"], place, linestyle="", marker="D", color="black", markersize=2.8)
        axis.axvline(0, color=GREY, linewidth=0.7)
        styles = method_styles(part["method"])
        axis.set_yticks(place, [styles[method].label for method in part["method"]])
        axis.invert_yaxis()
        axis.tick_params(axis="y", length=0)
        axis.spines["left"].set_visible(False)
        axis.set_xlabel(f"confidence − accuracy ({_rule(voxels)})")
        axis.set_title(titled(dataset) if len(datasets) > 1 else "")
    reach = 1.08 * max(balance[["over", "under"]].to_numpy().max(), balance[["gap_low", "gap_high"]].abs().max().max())
    axes[0].set_xlim(-reach, reach)
    handles: list[Any] = [
        Patch(color=UNDER),
        Patch(color=OVER),
        Line2D([], [], color="black", marker="D", markersize=3),
    ]
    legend_below(figure, handles, ["too unsure", "too sure", "net, 95 % interval"])
    return figure


@styled
def distance(bands: Frame) -> Figure:
    """ECE over the signed distance to the true boundary; bands are drawn equally wide, their edges are the ticks."""
    datasets = list(dict.fromkeys(bands["dataset"]))
    styles = method_styles(bands["method"])
    figure, axes = panels(len(datasets), 2, (COLUMN, 2.1))
    for axis, dataset in zip(axes, datasets, strict=True):
        part = bands[(bands["dataset"] == dataset) & (bands["cases"] > 0)]
        limits = sorted(set(zip(part["low_mm"], part["high_mm"], strict=True)))
        at = {limit: place + 0.5 for place, limit in enumerate(limits)}
        for low, high in limits:
            if low < 0 < high:
                axis.axvspan(at[low, high] - 0.5, at[low, high] + 0.5, color=FAINT, alpha=0.5, linewidth=0)
        border = sum(high <= 0 for _, high in limits)
        if not any(low < 0 < high for low, high in limits):
            axis.axvline(border, color=GREY, linewidth=0.7, linestyle=(0, (4, 3)))
        for method, one in part.groupby("method", sort=False):
            style = styles[str(method)]
            x = [at[limit] for limit in zip(one["low_mm"], one["high_mm"], strict=True)]
            axis.fill_between(x, one["low"], one["high"], color=style.colour, alpha=0.12, linewidth=0)
            axis.plot(x, one["mean"], color=style.colour, linestyle=style.dash, marker=style.marker)
        edges = [limits[0][0], *(high for _, high in limits)]
        axis.set_xticks(range(len(edges)), [_edge(edge) for edge in edges])
        axis.set(xlim=(0, len(limits)), xlabel="signed distance to the true boundary (mm)", ylabel="ECE, every voxel")
        axis.set_ylim(bottom=0)
        axis.annotate("inside", (0.01, 1.0), xycoords="axes fraction", fontsize=6, color=GREY, va="top")
        axis.annotate("outside", (0.99, 1.0), xycoords="axes fraction", fontsize=6, color=GREY, va="top", ha="right")
        axis.set_title(titled(dataset) if len(datasets) > 1 else "")
    method_legend(figure, styles)
    return figure


@styled
def noise(shift: Frame) -> Figure:
    """Segmentation against calibration; a larger circle is less noise, as in the paper."""
    datasets = list(dict.fromkeys(shift["dataset"]))
    styles = method_styles(shift["method"])
    sigmas = sorted(shift["sigma"].unique())
    size = dict(zip(sigmas, np.linspace(70, 8, len(sigmas)), strict=True))
    figure, axes = panels(len(datasets), 2, (COLUMN, 2.4))
    for axis, dataset in zip(axes, datasets, strict=True):
        part = shift[shift["dataset"] == dataset]
        for method, one in part.groupby("method", sort=False):
            one = one.sort_values("sigma")
            style = styles[str(method)]
            axis.plot(one["shape"], one["calibration"], color=style.colour, linestyle=style.dash, linewidth=0.9)
            axis.scatter(one["shape"], one["calibration"], s=[size[sigma] for sigma in one["sigma"]],
                         color=style.colour, alpha=0.75, linewidths=0.4, edgecolors="white", zorder=3)  # fmt: skip
        axis.set_xlabel(shown_metric(part["shape_metric"].iloc[0], bool(part["shape_better"].iloc[0])))
        axis.set_ylabel(shown_metric(part["calibration_metric"].iloc[0], bool(part["calibration_better"].iloc[0])))
        axis.set_title(titled(dataset) if len(datasets) > 1 else "")
    circles = [Line2D([], [], linestyle="", marker="o", color=GREY, markersize=np.sqrt(size[s])) for s in sigmas]
    told = {"title": "noise σ", "fontsize": 6, "title_fontsize": 6, "labelspacing": 0.6}
    figure.legend(circles, [f"{s:g}" for s in sigmas], loc="outside right upper", **told)  # beside: it hides no curve
    figure.set_figwidth(figure.get_figwidth() + 0.5)
    method_legend(figure, styles, markers=False)
    return figure


@styled
def radar(shares: Frame) -> Figure:
    """A spoke per metric, 1 the best method's value; a method that is best everywhere is the outer ring."""
    datasets = list(dict.fromkeys(shares["dataset"]))
    styles = method_styles(shares["method"])
    metrics = list(dict.fromkeys(shares["metric"]))
    angles = np.linspace(0, 2 * np.pi, len(metrics), endpoint=False)
    columns = min(len(datasets), 2)
    figure, axes = panels(
        len(datasets), 2, (COLUMN if columns == 1 else PAGE / 2, 3.0),
        subplot_kw={"projection": "polar"},
    )  # fmt: skip
    for axis, dataset in zip(axes, datasets, strict=True):
        polar: Any = axis
        part = shares[shares["dataset"] == dataset]
        for method, one in part.groupby("method", sort=False):
            style = styles[str(method)]
            value = one.set_index("metric")["score"].reindex(metrics).to_numpy()
            around = np.append(angles, angles[:1])
            polar.plot(around, np.append(value, value[:1]), color=style.colour, linestyle=style.dash,
                       marker=style.marker, markersize=2.8, clip_on=False)  # fmt: skip
        polar.set_theta_offset(np.pi / 2)
        polar.set_theta_direction(-1)
        polar.set_xticks(angles, [shown_metric(metric).replace(", ", "\n") for metric in metrics])
        polar.set_ylim(0, 1.0)
        polar.set_yticks([0.25, 0.5, 0.75, 1.0], ["", "0.5", "", "1"], color=GREY, fontsize=5.5)
        polar.set_rlabel_position(180 / max(len(metrics), 1))
        polar.grid(color=FAINT, linewidth=0.5)
        polar.spines["polar"].set(color=GREY, linewidth=0.6)
        polar.tick_params(axis="x", pad=4)
        axis.set_title(titled(dataset) if len(datasets) > 1 else "")
    method_legend(figure, styles)
    return figure


@styled
def stacked(shares: Frame) -> Figure:
    """For every metric a bar per dataset, cut into the methods' shares of the sum; the numbers are the values."""
    metrics = list(dict.fromkeys(shares["metric"]))
    styles = method_styles(shares["method"])
    places = list(dict.fromkeys(zip(shares["dataset"], shares["network"], strict=True)))
    several_networks = shares["network"].nunique() > 1
    figure, axes = panels(len(metrics), 1, (COLUMN, 0.26 * len(places) + 0.45), sharex=True)
    for axis, metric in zip(axes, metrics, strict=True):
        for row, (dataset, network) in enumerate(places):
            part = shares[
                (shares["metric"] == metric) & (shares["dataset"] == dataset) & (shares["network"] == network)
            ]
            begin = 0.0
            for method, share, mean in zip(part["method"], part["share"], part["mean"], strict=True):
                if np.isnan(share):
                    continue
                axis.barh(row, share, 0.72, left=begin, color=styles[method].colour, edgecolor="white", linewidth=0.7)
                if share > 0.07:
                    axis.text(begin + share / 2, row, f"{mean:.3f}".lstrip("0"), ha="center", va="center",
                              color=_ink(styles[method].colour), fontsize=5.5)  # fmt: skip
                begin += share
        names = [titled(dataset, network if several_networks else "") or "all" for dataset, network in places]
        axis.set_yticks(range(len(places)), names)
        axis.set(xlim=(0, 1), xticks=[0, 0.25, 0.5, 0.75, 1], title=shown_metric(metric, _better(shares, metric)))
        axis.invert_yaxis()
        axis.tick_params(axis="y", length=0)
        axis.spines["left"].set_visible(False)
    axes[-1].set_xlabel("share of the sum over methods")
    handles: list[Any] = [Patch(color=style.colour) for style in styles.values()]
    legend_below(figure, handles, [style.label for style in styles.values()])
    return figure


@styled
def means(found: Frame) -> Figure:
    """A panel per metric: every method's mean over cases with its 95 % interval, best in a filled marker."""
    metrics = list(dict.fromkeys(found["metric"]))
    datasets = list(dict.fromkeys(found["dataset"]))
    methods = list(dict.fromkeys(found["method"]))
    styles = method_styles(methods)
    columns = _columns(len(metrics), 4)
    width = COLUMN if columns == 1 else COLUMN / 2 if columns == 2 else PAGE / columns
    figure, axes = panels(
        len(metrics), columns, (width, 0.17 * len(methods) * (0.6 + 0.4 * len(datasets)) + 0.5), sharey=True
    )
    offsets = np.linspace(-0.25, 0.25, len(datasets)) if len(datasets) > 1 else [0.0]
    for axis, metric in zip(axes, metrics, strict=True):
        for dataset, offset, fill in zip(datasets, offsets, FILLS * len(datasets), strict=False):
            part = found[(found["metric"] == metric) & (found["dataset"] == dataset)]
            for method, mean, low, high in zip(part["method"], part["mean"], part["low"], part["high"], strict=True):
                style, row = styles[method], methods.index(method) + offset
                axis.hlines(row, low, high, color=style.colour, linewidth=1.0)
                axis.plot(mean, row, marker=style.marker, color=style.colour, fillstyle=fill, markersize=4)
        axis.set_yticks(range(len(methods)), [styles[method].label for method in methods])
        axis.set_title(shown_metric(metric, _better(found, metric)))
        axis.grid(axis="x", color=FAINT, linewidth=0.5)
        axis.set_axisbelow(True)
        axis.tick_params(axis="y", length=0)
        axis.locator_params(axis="x", nbins=4)
    axes[0].set_ylim(len(methods) - 0.5, -0.5)
    if len(datasets) > 1:
        marks: list[Any] = [Line2D([], [], color=GREY, marker="o", fillstyle=fill, linestyle="")
                            for _, fill in zip(datasets, FILLS * len(datasets), strict=False)]  # fmt: skip
        legend_below(figure, marks, datasets)
    return figure


def _better(found: Frame, metric: str) -> bool:
    """Whether more of a metric is better, as the table says."""
    return bool(found.loc[found["metric"] == metric, "higher_is_better"].iloc[0])


def _columns(number: int, most: int) -> int:
    """As few rows as `most` columns allow, then as few columns as those rows need."""
    return -(-number // -(-number // most))


def _edge(edge: float) -> str:
    return "" if np.isinf(edge) else f"{edge:g}".replace("-", "−")


def _rule(voxels: str) -> str:
    return VOXELS.get(voxels, voxels).partition(";")[0].removeprefix("paper rule: ")


def _ink(colour: str) -> str:
    """Black or white, whichever reads better on a colour."""
    red, green, blue = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return "white" if 0.299 * red + 0.587 * green + 0.114 * blue < 140 else "black"
