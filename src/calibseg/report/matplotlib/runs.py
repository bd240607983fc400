"""Figures about training runs: curves over epochs, multipliers, logits per true class, sensitivity, penalties."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from calibseg.analysis.columns import Frame
from calibseg.core.types import BadInput
from calibseg.report.figure_data.runs import REGIONS, SYMBOLS
from calibseg.report.figure_options import Logits
from calibseg.report.matplotlib.style import (
    COLUMN,
    FAINT,
    GREY,
    PAGE,
    legend_below,
    method_legend,
    panels,
    places,
    styled,
)
from calibseg.report.palette import class_colour, method_styles, shown_metric

QUANTITIES = {
    "train_loss": "training loss",
    "val_dsc": "DSC, validation",
    "val_nll": "NLL, validation",
    "val_miou": "mIoU, validation",
}
PENALTY_COLOURS = ("#8c8c8c", "#009e73", "#d55e00", "#0072b2", "#cc79a7")
PENALTY_NAMES = {"phr": "PHR", "p2": "P2", "p3": "P3"}
PENALTY_DASHES = ("solid", (0, (4, 1.5)), "solid", (0, (4, 1.5)), (0, (1, 1)))
LOGITS = {
    "signed": "mean logit of each class",
    "absolute": "mean |logit| of each class",
    "distance": "mean distance to largest",
    "raw": "mean raw logit",
    "magnitude": "mean |raw logit|",
}


@styled
def training(curves: Frame) -> Figure:
    """A panel per quantity, a line per run; the dot is the epoch that was kept."""
    quantities = list(dict.fromkeys(curves["quantity"]))
    styles = method_styles(curves["method"])
    columns = 2 if len(quantities) <= 4 else 3
    figure, axes = panels(len(quantities), columns, ((COLUMN if columns == 2 else PAGE) / columns, 1.35), sharex=True)
    for number, (axis, quantity) in enumerate(zip(axes, quantities, strict=True)):
        for method, one in curves[curves["quantity"] == quantity].groupby("method", sort=False):
            style = styles[str(method)]
            axis.plot(one["epoch"], one["value"], color=style.colour, linestyle=style.dash, linewidth=1.0)
            kept = one[one["epoch"] == one["best"]]
            axis.plot(kept["epoch"], kept["value"], linestyle="", marker=style.marker, color=style.colour,
                      markerfacecolor=style.face)  # fmt: skip
        axis.set_title(_quantity(quantity))
        axis.locator_params(axis="x", integer=True, nbins=5)
        axis.locator_params(axis="y", nbins=5)
        if number + columns >= len(quantities):
            axis.set_xlabel("epoch")
            axis.tick_params(labelbottom=True)
    method_legend(figure, styles)
    return figure


@styled
def multipliers(curves: Frame) -> Figure:
    """lambda and rho over epochs, inside organs and at boundaries apart; a line per class, the first the widest.

    Lines that lie on each other are all seen, as each is narrower than the one before. The scale is logarithmic where
    the values span more than a factor of 20.
    """
    names = list(dict.fromkeys(curves["method"]))
    classes = list(dict.fromkeys(curves["class"]))
    shown = curves.groupby(["method", "multiplier", "region"], sort=False)
    figure, axes = panels(len(shown), 2, (COLUMN / 2, 1.35), sharex=True)
    for number, (axis, ((name, key, region), part)) in enumerate(zip(axes, shown, strict=True)):
        for one_class, one in part.groupby("class", sort=False):
            k = classes.index(one_class)
            width = 0.8 + 3.0 * (1 - k / max(1, len(classes) - 1))
            axis.plot(one["epoch"], one["value"], color=class_colour(k), linewidth=width, solid_capstyle="round")
        if part["value"].max() > 20 * part["value"].min() > 0:
            axis.set_yscale("log")
            axis.yaxis.set_major_formatter("{x:g}")
        title = f"{SYMBOLS[key]} {REGIONS[region]}"
        axis.set_title(f"{title}, {method_styles([name])[name].label}" if len(names) > 1 else title)
        axis.locator_params(axis="x", integer=True, nbins=5)
        if number >= len(axes) - 2:
            axis.set_xlabel("epoch")
    handles: list[Any] = [Line2D([], [], color=class_colour(k)) for k in range(len(classes))]
    legend_below(figure, handles, classes)
    return figure


@styled
def interior(curves: Frame) -> Figure:
    """Confidence (full line) and accuracy (dotted) where a window holds one class; the gap is shaded."""
    names = list(dict.fromkeys(curves["method"]))
    styles = method_styles(names)
    figure, axes = panels(len(names), 2, (COLUMN if len(names) == 1 else COLUMN / 2, 1.7), sharex=True, sharey=True)
    for axis, name in zip(axes, names, strict=True):
        one, style = curves[curves["method"] == name], styles[name]
        axis.fill_between(one["epoch"], one["confidence"], one["accuracy"], color=style.colour, alpha=0.15, linewidth=0)
        axis.plot(one["epoch"], one["confidence"], color=style.colour)
        axis.plot(one["epoch"], one["accuracy"], color=style.colour, linestyle=(0, (1, 1.2)))
        axis.set(xlabel="epoch", title=style.label)
        axis.locator_params(axis="x", integer=True, nbins=6)
    axes[0].set_ylim(top=1.0)  # of all panels, once every curve is there
    handles: list[Any] = [Line2D([], [], color=GREY), Line2D([], [], color=GREY, linestyle=(0, (1, 1.2)))]
    legend_below(figure, handles, ["confidence inside", "accuracy inside"])
    return figure


@styled
def logits(means: Mapping[str, Frame], show: Logits = "signed") -> Figure:
    """A panel per method: for each true class (groups) the mean logit of every class (bars); centred unless raw."""
    for method, table in means.items():
        if table[show].isna().all():
            raise BadInput(
                f"{method}: its logits were stored without each voxel's largest, so their size is unknown; remove them"
                f" and run calibseg predict again, or show signed, absolute or distance"
            )
    classes = list(dict.fromkeys(next(iter(means.values()))["class"]))
    columns = min(len(means), 3) if len(means) != 4 else 2
    width = COLUMN if len(means) == 1 else COLUMN / 2 if columns == 2 else PAGE / 3
    figure, axes = panels(len(means), columns, (width, 1.8), sharey=True)
    styles = method_styles(means)
    place, wide = np.arange(len(classes)), 0.8 / len(classes)
    for number, (axis, (method, table)) in enumerate(zip(axes, means.items(), strict=True)):
        wide_table = table.pivot(index="true", columns="class", values=show).reindex(index=classes, columns=classes)
        for k, name in enumerate(classes):
            axis.bar(place + (k - (len(classes) - 1) / 2) * wide, wide_table[name], wide * 0.92,
                     color=class_colour(k), linewidth=0)  # fmt: skip
        axis.axhline(0, color=GREY, linewidth=0.6)
        axis.set_xticks(place, classes, rotation=0 if _fits(classes, width) else 30,
                        ha="center" if _fits(classes, width) else "right")  # fmt: skip
        axis.tick_params(axis="x", length=0)
        axis.set_title(styles[method].label)
        if number % columns == 0:
            axis.set_ylabel(LOGITS[show])
        if number + columns >= len(means):
            axis.set_xlabel("true class")
    handles: list[Any] = [Patch(color=class_colour(k)) for k in range(len(classes))]
    legend_below(figure, handles, classes)
    return figure


@styled
def sensitivity(curves: Frame, option: str) -> Figure:
    """A row per metric, a column per dataset: the mean over cases and its interval as the option changes."""
    metrics = list(dict.fromkeys(curves["metric"]))
    groups = places(curves)
    styles = method_styles(curves["method"])
    if len(groups) == 1:
        columns, width = len(metrics), COLUMN / 2 if len(metrics) == 2 else COLUMN if len(metrics) == 1 else PAGE / 3
    else:
        columns, width = len(groups), PAGE / max(3, len(groups))
    panes = [(title, whole[whole["metric"] == metric]) for metric in metrics for title, whole in groups]
    figure, axes = panels(len(panes), min(columns, 6), (width, 1.5), sharex=True)
    for axis, (title, part) in zip(axes, panes, strict=True):
        for method, one in part.groupby("method", sort=False):
            style = styles[str(method)]
            axis.fill_between(one["value"], one["low"], one["high"], color=style.colour, alpha=0.12, linewidth=0)
            axis.plot(one["value"], one["mean"], **style.line)
        axis.set_xticks(sorted(curves["value"].unique()))
        axis.set_xlabel(option)
        axis.set_ylabel(shown_metric(part["metric"].iloc[0], bool(part["higher_is_better"].iloc[0])))
        axis.set_title(title)
    method_legend(figure, styles)
    return figure


@styled
def penalties(curves: Frame) -> Figure:
    """Penalties (left) and their derivatives (right)."""
    names = list(dict.fromkeys(curves["penalty"]))
    figure, axes = panels(2, 2, (COLUMN / 2, 1.6), sharex=True)
    for axis, column, title in zip(axes, ("value", "slope"), ("penalty P", "derivative P′"), strict=True):
        for name, colour, dash in zip(names, PENALTY_COLOURS, PENALTY_DASHES, strict=False):
            one = curves[curves["penalty"] == name]
            y = one[column].to_numpy().copy()
            if column == "slope" and name == "margin":
                y[:-1][np.diff(y) > 0] = np.nan  # a jump is no steep line
            axis.plot(one["z"], y, color=colour, linestyle=dash, label=PENALTY_NAMES.get(name, name))
        axis.set_title(title)
        axis.set_xlabel("logit distance" if set(names) <= {"linear", "margin"} else "constraint z")
        axis.axhline(0, color=FAINT, linewidth=0.6, zorder=0)
        axis.axvline(0, color=FAINT, linewidth=0.6, zorder=0)
    handles, labels = axes[0].get_legend_handles_labels()
    legend_below(figure, list(handles), labels)
    return figure


def _quantity(name: str) -> str:
    if name.startswith("val_ece_"):
        return f"ECE, {name.removeprefix('val_ece_')}, validation"
    return QUANTITIES.get(name, name.replace("_", " "))


def _fits(words: list[str], width: float) -> bool:
    """Whether words fit beside each other below an axis of so many inches."""
    return sum(len(word) + 2 for word in words) * 0.052 < width - 0.35
