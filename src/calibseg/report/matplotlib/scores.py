"""Figures about scores: reliability, over- and under-confidence, distance to the boundary, noise, networks, shares.

Each function takes the tidy table that figure_data/scores.py makes and returns a matplotlib Figure.
"""

import textwrap
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from calibseg.analysis.columns import Frame
from calibseg.analysis.failure_detection import Detection
from calibseg.analysis.headline import VOXEL_RULES
from calibseg.core.types import BadInput
from calibseg.report.figure_data.scores import curve_error
from calibseg.report.matplotlib.reliability import draw_reliability
from calibseg.report.matplotlib.style import (
    COLUMN,
    FAINT,
    GREY,
    PAGE,
    even_columns,
    is_better,
    legend_below,
    method_legend,
    panels,
    places,
    styled,
    titled,
)
from calibseg.report.palette import OVER, UNDER, class_colour, method_styles, shown_metric

FILLS = ("full", "none", "left", "right")  # datasets and networks within one panel


@styled
def reliability(curves: Frame, voxels: str = "predicted") -> Figure:
    """A panel per method: the pooled curve, the 10th to 90th percentile of cases, and where the voxels are."""
    order = list(dict.fromkeys(curves["method"]))
    bases = list(dict.fromkeys(method.partition("+")[0] for method in order))
    by_loss = {method: (bases.index(method.partition("+")[0]), order.index(method)) for method in order}
    groups = [
        (titled(title, method), method, curve)
        for title, part in places(curves)
        for method, curve in sorted(part.groupby("method", sort=False, observed=True), key=lambda one: by_loss[one[0]])
    ]
    if not groups:
        raise BadInput(
            f"no voxel counts under the voxel rule {voxels!r}, so there is no curve to draw; try --voxels all"
        )
    styles = method_styles(curves["method"])
    columns = len(groups) if len(groups) <= 2 else even_columns(len(groups), 5)
    width = 2.3 if len(groups) == 1 else COLUMN / 2 if len(groups) == 2 else PAGE / columns
    figure, axes = panels(len(groups), columns, (width, min(width * 1.08, 1.95)), sharex=True, sharey=True)
    for axis, (title, method, curve) in zip(axes, groups, strict=True):
        draw_reliability(axis, curve, styles[method].colour)
        axis.text(0.05, 0.95, f"pooled ECE {curve_error(curve):.3f}", transform=axis.transAxes, va="top", fontsize=6.5)
        axis.set(xticks=[0, 0.5, 1], yticks=[0, 0.5, 1])
        axis.set_title(_lines(title.removesuffix(method) + styles[method].label, "+" in method, width))
    for axis in axes:
        spec = axis.get_subplotspec()
        if spec is not None and spec.is_first_col():
            axis.set_ylabel("accuracy")
        if spec is not None and (spec.is_last_row() or axes.index(axis) + columns >= len(axes)):
            axis.set_xlabel("confidence")
            axis.tick_params(labelbottom=True)
    figure.supxlabel(f"voxels: {_rule(voxels)}", fontsize=6, color=GREY)
    return figure


def _lines(title: str, calibrated: bool, inches: float) -> str:
    """A title no wider than its panel, the calibrator on a line of its own."""
    name, _, calibrator = title.rpartition("+") if calibrated else (title, "", "")
    lines = [name, f"+{calibrator}"] if calibrated else [name]
    return "\n".join(textwrap.fill(line, int(15 * inches), break_long_words=False) for line in lines)


@styled
def signed(balance: Frame, voxels: str = "predicted") -> Figure:
    """Bars of over- and under-confidence, whose lengths add up to the ECE, and the net gap with its interval."""
    groups = places(balance)
    rows = max(len(part) for _, part in groups)
    figure, axes = panels(len(groups), 2, (COLUMN, 0.19 * rows + 0.45), sharex=True)
    for axis, (title, part) in zip(axes, groups, strict=True):
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
        axis.set_title(title)
    reach = 1.08 * np.nanmax(balance[["over", "under", "gap_low", "gap_high"]].abs().to_numpy(), initial=1e-9)
    axes[0].set_xlim(-reach, reach)
    handles: list[Any] = [
        Patch(color=UNDER),
        Patch(color=OVER),
        Line2D([], [], color="black", marker="D", markersize=3),
    ]
    legend_below(figure, handles, ["under-confident", "over-confident", "net, 95 % interval"])
    return figure


@styled
def distance(bands: Frame) -> Figure:
    """ECE over the signed distance to the true boundary; bands are drawn equally wide, their edges are the ticks."""
    groups = places(bands[bands["cases"] > 0])
    if not groups:
        raise BadInput("no case has a voxel at any distance from a boundary, so there is no curve to draw")
    styles = method_styles(bands["method"])
    figure, axes = panels(len(groups), 2, (COLUMN, 2.1))
    for axis, (title, part) in zip(axes, groups, strict=True):
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
            axis.plot(x, one["mean"], **style.line)
        edges = [limits[0][0], *(high for _, high in limits)]
        axis.set_xticks(range(len(edges)), [_edge(edge) for edge in edges])
        axis.set(xlim=(0, len(limits)), xlabel="signed distance to the true boundary (mm)", ylabel="ECE, every voxel")
        axis.set_ylim(bottom=0)
        axis.annotate("inside", (0.01, 1.0), xycoords="axes fraction", fontsize=6, color=GREY, va="top")
        axis.annotate("outside", (0.99, 1.0), xycoords="axes fraction", fontsize=6, color=GREY, va="top", ha="right")
        axis.set_title(title)
    method_legend(figure, styles)
    return figure


@styled
def noise(shift: Frame) -> Figure:
    """Segmentation against calibration; a larger circle is less noise, as in the paper."""
    groups = places(shift)
    styles = method_styles(shift["method"])
    sigmas = sorted(shift["sigma"].unique())
    size = dict(zip(sigmas, np.linspace(70, 8, len(sigmas)), strict=True))
    figure, axes = panels(len(groups), 2, (COLUMN, 2.4))
    for axis, (title, part) in zip(axes, groups, strict=True):
        for method, one in part.groupby("method", sort=False):
            one = one.sort_values("sigma")
            style = styles[str(method)]
            axis.plot(one["shape"], one["calibration"], color=style.colour, linestyle=style.dash, linewidth=0.9)
            axis.scatter(one["shape"], one["calibration"], s=[size[sigma] for sigma in one["sigma"]],
                         color=style.colour, alpha=0.75, linewidths=0.4, edgecolors="white", zorder=3)  # fmt: skip
        axis.set_xlabel(shown_metric(part["shape_metric"].iloc[0], bool(part["shape_better"].iloc[0])))
        axis.set_ylabel(shown_metric(part["calibration_metric"].iloc[0], bool(part["calibration_better"].iloc[0])))
        axis.set_title(title)
    circles = [Line2D([], [], linestyle="", marker="o", color=GREY, markersize=np.sqrt(size[s])) for s in sigmas]
    look = {"title": "noise σ", "fontsize": 6, "title_fontsize": 6, "labelspacing": 0.6}
    figure.legend(circles, [f"{s:g}" for s in sigmas], loc="outside right upper", **look)  # beside: it hides no curve
    figure.set_figwidth(figure.get_figwidth() + 0.5)
    method_legend(figure, styles, markers=False)
    return figure


@styled
def risk_coverage(detections: Sequence[Detection], confidence: str, quality: str) -> Figure:
    """Selective risk over coverage, a panel per dataset and network; the legend says AURC, AUGRC and Spearman."""
    groups = list(dict.fromkeys((one.dataset, one.network) for one in detections))
    styles = method_styles([one.method for one in detections])
    figure, axes = panels(len(groups), 2, (COLUMN, 2.6))
    for axis, group in zip(axes, groups, strict=True):
        for one in (one for one in detections if (one.dataset, one.network) == group):
            style = styles[one.method]
            label = f"{style.label}: {1000 * one.aurc:.1f}, {1000 * one.augrc:.1f}, {one.spearman:.2f}"
            axis.plot(one.curve.coverage, one.curve.selective_risk, color=style.colour, linestyle=style.dash,
                      label=label)  # fmt: skip
        axis.set_xlabel(f"coverage by {confidence.replace('_', ' ')}")
        axis.set_ylabel(f"selective risk, 1 - {quality.upper()}")
        axis.set_xlim(0, 1)
        axis.set_ylim(bottom=0)
        axis.set_title(titled(*group) if len(groups) > 1 else "")
        axis.legend(fontsize=6, title="1000 AURC, 1000 AUGRC, Spearman", title_fontsize=6)
    return figure


@styled
def networks(rows: Frame) -> Figure:
    """A row per dataset, a panel per metric: for every network a bar per method, with its interval (MbLS Fig. 7)."""
    metrics, methods = (list(dict.fromkeys(rows[column])) for column in ("metric", "method"))
    datasets = list(dict.fromkeys(rows["dataset"]))
    styles, wide = method_styles(methods), 0.8 / len(methods)
    figure, axes = panels(len(datasets) * len(metrics), len(metrics), (max(COLUMN / 2, PAGE / len(metrics) / 2), 1.7))
    pairs = [(dataset, metric) for dataset in datasets for metric in metrics]
    for axis, (dataset, metric) in zip(axes, pairs, strict=True):
        part = rows[(rows["dataset"] == dataset) & (rows["metric"] == metric)]
        names = list(dict.fromkeys(part["network"]))
        for number, method in enumerate(methods):
            one = part[part["method"] == method]
            at = [names.index(name) + (number - (len(methods) - 1) / 2) * wide for name in one["network"]]
            axis.bar(at, one["mean"], wide * 0.92, color=styles[method].colour, linewidth=0)
            axis.vlines(at, one["low"], one["high"], color=GREY, linewidth=0.7)
        axis.set_xticks(range(len(names)), [name or "network" for name in names])
        axis.tick_params(axis="x", length=0)
        shown = shown_metric(metric, is_better(rows, metric))
        axis.set_title(titled(dataset, shown) if len(datasets) > 1 else shown)
    handles: list[Any] = [Patch(color=style.colour) for style in styles.values()]
    legend_below(figure, handles, [style.label for style in styles.values()])
    return figure


@styled
def stacked(parts: Frame) -> Figure:
    """For every metric a bar per method, as long as its mean over datasets, cut into what each dataset adds."""
    metrics, methods = (list(dict.fromkeys(parts[column])) for column in ("metric", "method"))
    labels = method_styles(methods)
    groups = places(parts)
    figure, axes = panels(len(metrics), 1, (COLUMN, 0.2 * len(methods) + 0.45))
    for axis, metric in zip(axes, metrics, strict=True):
        begin = np.zeros(len(methods))
        for number, (_, whole) in enumerate(groups):
            part = whole[whole["metric"] == metric].set_index("method").reindex(methods)
            width, colour = part["part"].fillna(0.0).to_numpy(), class_colour(number + 1)
            axis.barh(range(len(methods)), width, 0.72, left=begin, color=colour, edgecolor="white", linewidth=0.7)
            for row, mean in enumerate(part["mean"]):
                if width[row] > 0.07 * parts.loc[parts["metric"] == metric, "part"].sum() / len(methods):
                    axis.text(begin[row] + width[row] / 2, row, f"{mean:.3f}".lstrip("0"), ha="center", va="center",
                              color=_ink(colour), fontsize=5.5)  # fmt: skip
            begin += width
        axis.set_yticks(range(len(methods)), [labels[method].label for method in methods])
        axis.set(title=shown_metric(metric, is_better(parts, metric)))
        axis.invert_yaxis()
        axis.tick_params(axis="y", length=0)
        axis.spines["left"].set_visible(False)
    axes[-1].set_xlabel("mean over datasets; the numbers are each dataset's")
    handles: list[Any] = [Patch(color=class_colour(number + 1)) for number in range(len(groups))]
    legend_below(figure, handles, [title or str(part["dataset"].iloc[0]) or "all" for title, part in groups])
    return figure


@styled
def means(rows: Frame) -> Figure:
    """A panel per metric: every method's mean over cases with its 95 % interval, best in a filled marker."""
    metrics = list(dict.fromkeys(rows["metric"]))
    groups = places(rows)
    methods = list(dict.fromkeys(rows["method"]))
    styles = method_styles(methods)
    columns = even_columns(len(metrics), 4)
    width = COLUMN if columns == 1 else COLUMN / 2 if columns == 2 else PAGE / columns
    figure, axes = panels(
        len(metrics), columns, (width, 0.17 * len(methods) * (0.6 + 0.4 * len(groups)) + 0.5), sharey=True
    )
    offsets = np.linspace(-0.25, 0.25, len(groups)) if len(groups) > 1 else [0.0]
    for axis, metric in zip(axes, metrics, strict=True):
        for (_, whole), offset, fill in zip(groups, offsets, FILLS * len(groups), strict=False):
            part = whole[whole["metric"] == metric]
            for method, mean, low, high in zip(part["method"], part["mean"], part["low"], part["high"], strict=True):
                style, row = styles[method], methods.index(method) + offset
                axis.hlines(row, low, high, color=style.colour, linewidth=1.0)
                face = style.face if len(groups) == 1 else style.colour
                axis.plot(
                    mean, row, marker=style.marker, color=style.colour, markerfacecolor=face, fillstyle=fill,
                    markersize=4,
                )  # fmt: skip
        axis.set_yticks(range(len(methods)), [styles[method].label for method in methods])
        axis.set_title(shown_metric(metric, is_better(rows, metric)))
        axis.grid(axis="x", color=FAINT, linewidth=0.5)
        axis.set_axisbelow(True)
        axis.tick_params(axis="y", length=0)
        axis.locator_params(axis="x", nbins=4)
    axes[0].set_ylim(len(methods) - 0.5, -0.5)
    if len(groups) > 1:
        marks: list[Any] = [Line2D([], [], color=GREY, marker="o", fillstyle=fill, linestyle="")
                            for _, fill in zip(groups, FILLS * len(groups), strict=False)]  # fmt: skip
        legend_below(figure, marks, [title for title, _ in groups])
    return figure


def _edge(edge: float) -> str:
    return "" if np.isinf(edge) else f"{edge:g}".replace("-", "−")


def _rule(voxels: str) -> str:
    return VOXEL_RULES.get(voxels, voxels).partition(";")[0].removeprefix("paper rule: ")


def _ink(colour: str) -> str:
    """Black or white, whichever reads better on a colour."""
    red, green, blue = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return "white" if 0.299 * red + 0.587 * green + 0.114 * blue < 140 else "black"
