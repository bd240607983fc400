"""Figures about ranks: heat maps of sum-rank and mean case-rank, and the critical-difference diagram."""

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure

from calibseg.analysis.columns import ALL, Frame
from calibseg.report.figure_data.ranks import CriticalDifference
from calibseg.report.matplotlib.style import COLUMN, GREY, PAGE, styled
from calibseg.report.palette import method_styles, shown_method, shown_metric

# Low is good and dark: one hue, so that it reads in grey too.
GOOD = LinearSegmentedColormap.from_list("good", ["#08519c", "#6baed6", "#deebf7", "#ffffff"])


@styled
def ranks(heats: dict[str, Frame]) -> Figure:
    """Heat maps of ranks, one per kind (`sum-rank`, `mean case-rank`); colours run within a column, best in bold."""
    rows = max(len(heat) for heat in heats.values())
    columns = max(heat.shape[1] for heat in heats.values())
    width = min(PAGE, max(COLUMN, len(heats) * (0.62 * columns + 0.7)))
    figure = Figure(figsize=(width, 0.24 * rows + 0.55), layout="constrained")
    axes = figure.subplots(1, len(heats), squeeze=False)[0]
    for axis, (kind, heat) in zip(axes, heats.items(), strict=True):
        _heat(axis, heat)
        axis.set_title(kind, pad=4)
    return figure


def _heat(axis: Axes, heat: Frame) -> None:
    values = heat.to_numpy(float)
    low, high = values.min(axis=0), values.max(axis=0)
    shade = (values - low) / np.where(high > low, high - low, 1.0)
    axis.imshow(shade, cmap=GOOD, vmin=0, vmax=1.08, aspect="auto")
    for row, line in enumerate(values):
        for column, value in enumerate(line):
            text = f"{value:.2f}".removesuffix(".00")
            weight = "bold" if value == low[column] else "normal"
            ink = "white" if shade[row, column] < 0.38 else "black"
            axis.text(column, row, text, ha="center", va="center", color=ink, fontsize=6.5, fontweight=weight)
    styles = method_styles(heat.index)
    axis.set_yticks(range(len(heat)), [styles[method].label for method in heat.index])
    labels = ["all" if name == ALL else shown_metric(name).replace(", ", "\n") for name in heat.columns]
    axis.set_xticks(range(heat.shape[1]), labels, fontsize=6)
    axis.tick_params(length=0)
    for edge in range(1, heat.shape[1]):
        axis.axvline(edge - 0.5, color="white", linewidth=2.5 if edge == heat.shape[1] - 1 else 0.8)
    for edge in range(1, len(heat)):
        axis.axhline(edge - 0.5, color="white", linewidth=0.8)
    for spine in axis.spines.values():
        spine.set_visible(False)


@styled
def critical_difference(diagrams: list[CriticalDifference]) -> Figure:
    """Demsar's diagram, one below the other: better methods on the left; a bar joins what cannot be told apart."""
    levels = [_levels(diagram.groups) for diagram in diagrams]
    heights = [
        0.74 + 0.115 * (max(level, default=-1) + 1) + 0.15 * (-(-len(diagram.methods) // 2))
        for diagram, level in zip(diagrams, levels, strict=True)
    ]
    longest = max(len(shown_method(method)) for diagram in diagrams for method in diagram.methods)
    width = min(PAGE, max(COLUMN, 1.1 + 2 * 0.055 * (longest + 6)))  # names stand on both sides of the axis
    figure = Figure(figsize=(width, sum(heights)), layout="constrained")
    axes = figure.subplots(len(diagrams), 1, squeeze=False, height_ratios=heights)[:, 0]
    for axis, diagram, level, height in zip(axes, diagrams, levels, heights, strict=True):
        _diagram(axis, diagram, level, height)
    return figure


def _levels(groups: tuple[tuple[int, int], ...]) -> list[int]:
    """A height for each bar, so that bars which overlap do not touch; the lowest that is free.

    >>> _levels(((0, 2), (1, 4), (3, 5)))
    [0, 1, 0]
    """
    ends: list[int] = []  # per level, the last method that a bar there covers
    levels = []
    for first, last in groups:
        level = next((i for i, end in enumerate(ends) if end < first), len(ends))
        ends[level : level + 1] = [last]
        levels.append(level)
    return levels


def _diagram(axis: Axes, diagram: CriticalDifference, levels: list[int], height: float) -> None:
    """Heights are inches below the axis line."""
    number = len(diagram.methods)
    styles = method_styles(diagram.methods)
    axis.set_xlim(0.55 - 0.2 * (number - 1), number + 0.45 + 0.2 * (number - 1))
    axis.set_ylim(-(height - 0.54), 0.54)
    axis.set_axis_off()
    line: dict[str, Any] = {"color": GREY, "linewidth": 0.7, "clip_on": False, "solid_capstyle": "butt"}
    axis.plot([1, number], [0, 0], **line)
    for tick in range(1, number + 1):
        axis.plot([tick, tick], [0, 0.045], **line)
        axis.text(tick, 0.065, str(tick), ha="center", va="bottom", fontsize=6, color=GREY)
    wide = min(diagram.critical_difference, number - 1)
    axis.plot([1, 1 + wide], [0.25, 0.25], color="black", linewidth=0.9, marker="|", markersize=4)
    more = "" if wide == diagram.critical_difference else " (beyond the axis)"
    axis.text(1 + wide + 0.1, 0.25, f"critical difference {diagram.critical_difference:.2f}{more}", fontsize=6,
              va="center")  # fmt: skip
    shown = "< 0.001" if diagram.p < 0.001 else f"= {diagram.p:.3f}"
    title = f"{shown_metric(diagram.metric)}: Friedman p {shown}, {diagram.patients} patients"
    axis.text((number + 1) / 2, 0.5, title, fontsize=7, va="top", ha="center")
    for (first, last), level in zip(diagram.groups, levels, strict=True):
        begin, end = diagram.mean_ranks[first], diagram.mean_ranks[last]
        axis.plot([begin - 0.05, end + 0.05], [-0.08 - 0.115 * level] * 2, color="black", linewidth=2.6,
                  solid_capstyle="round")  # fmt: skip
    below = 0.08 + 0.115 * (max(levels, default=-1) + 1) + 0.04
    half = -(-number // 2)
    for place, (method, rank) in enumerate(zip(diagram.methods, diagram.mean_ranks, strict=True)):
        left = place < half
        turn = place if left else number - 1 - place
        y = -(below + 0.15 * turn)
        x = 0.85 if left else number + 0.15
        axis.plot([rank, rank, x], [0, y, y], color=styles[method].colour, linewidth=0.8, clip_on=False)
        axis.plot(rank, 0, marker=styles[method].marker, color=styles[method].colour, markersize=3, clip_on=False)
        text = f"{styles[method].label}  {rank:.2f}" if left else f"{rank:.2f}  {styles[method].label}"
        axis.text(x - 0.05 if left else x + 0.05, y, text, ha="right" if left else "left", va="center", fontsize=6.5)
