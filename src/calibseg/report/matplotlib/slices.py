"""Qualitative figures: what several methods say about one slice (MbLS Fig. 8, NACL supplement Fig. 3).

Columns are methods; rows are the predicted mask on the image, the confidence, the error weighted by confidence, and the
reliability diagram of the case. The first column holds the image and the truth.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from numpy import ndarray as Array

from calibseg.analysis.columns import Frame
from calibseg.core.types import IGNORED, BadInput, VoxelRule
from calibseg.report.figure_data.scores import curve_error
from calibseg.report.figure_data.slices import CaseView, SliceView, case_curve
from calibseg.report.matplotlib.reliability import draw_reliability
from calibseg.report.matplotlib.style import GREY, PAGE, legend_below, styled
from calibseg.report.palette import class_colour, method_styles

MARGIN = 0.2  # of the box around what is labelled, on every side


@styled
def slices(views: Sequence[CaseView], index: int | None = None, voxels: VoxelRule = "predicted") -> Figure:
    """One slice of one case by several methods; by default the slice with the largest true foreground.

    voxels: those of the case's own reliability diagram, in the last row
    """
    if len({view.case for view in views}) != 1:
        raise BadInput(f"a figure shows one case, not {', '.join(sorted({view.case for view in views}))}")
    index = views[0].chosen() if index is None else index
    seen = [view.slice(index) for view in views]
    box = _box(seen)
    styles = method_styles([view.method for view in views])
    columns = len(views) + 1
    width = min(PAGE, 1.25 * columns)
    tall, wide = (side.stop - side.start for side in box)  # voxels
    cell = width / columns
    ratio = min(max(tall * seen[0].aspect / wide, 0.5), 1.6)
    figure = Figure(figsize=(width, cell * (3 * ratio + 1) + 0.35), layout="constrained")
    axes = figure.subplots(4, columns, squeeze=False, height_ratios=[ratio, ratio, ratio, 1])
    figure.get_layout_engine().set(w_pad=0.01, h_pad=0.01, wspace=0.01, hspace=0.01)  # pyright: ignore[reportOptionalMemberAccess, reportCallIssue]
    first = seen[0]
    grey = _grey(first.image[0])
    _show(axes[0, 0], grey, first, box, cmap="gray", vmin=0, vmax=1)
    _show(axes[1, 0], _masked(grey, first.truth), first, box)
    axes[0, 0].set_title("image")
    axes[1, 0].set_title("truth", pad=2)
    for row in (2, 3):
        axes[row, 0].set_axis_off()
    shown: Any = None
    for column, (view, one) in enumerate(zip(views, seen, strict=True), start=1):
        style = styles[view.method]
        _show(axes[0, column], _masked(grey, one.prediction), one, box)
        shown = _show(axes[1, column], one.confidence, one, box, cmap="viridis", vmin=1 / len(view.classes), vmax=1)
        wrong = np.where(one.error, one.confidence, np.nan)
        _show(axes[2, column], 0.25 * grey + 0.7, one, box, cmap="gray", vmin=0, vmax=1)
        axes[2, column].imshow(wrong, cmap="OrRd", vmin=0.2, vmax=1, origin="lower", aspect=one.aspect)
        axes[0, column].set_title(style.label)
        _curve(axes[3, column], case_curve(view, voxels), style.colour, column == 1)
    for row, text in ((0, "prediction"), (1, "confidence"), (2, "errors, darker\nif more sure")):
        axes[row, 1].set_ylabel(text)
    bar = figure.colorbar(shown, ax=axes[1, -1], fraction=0.06, pad=0.02)
    bar.outline.set_visible(False)  # pyright: ignore[reportCallIssue]
    classes = views[0].classes
    handles: list[Any] = [Patch(color=class_colour(k)) for k in range(1, len(classes))]
    legend_below(figure, handles, list(classes[1:]))
    figure.suptitle(f"{views[0].case}, slice {index + 1} of {views[0].slices}", fontsize=6.5, color=GREY)
    return figure


def _show(axis: Axes, picture: Array, one: SliceView, box: tuple[slice, slice], **how: Any) -> Any:
    shown = axis.imshow(picture, origin="lower", aspect=one.aspect, interpolation="nearest", **how)
    rows, columns = box
    axis.set_ylim(rows.start - 0.5, rows.stop - 0.5)
    axis.set_xlim(columns.start - 0.5, columns.stop - 0.5)
    axis.set(xticks=[], yticks=[])
    for spine in axis.spines.values():
        spine.set_visible(False)
    return shown


def _curve(axis: Axes, curve: Frame, colour: str, labelled: bool) -> None:
    draw_reliability(axis, curve, colour)
    axis.text(0.05, 0.95, f"ECE {curve_error(curve):.3f}", transform=axis.transAxes, va="top", fontsize=5.5)
    axis.set(xticks=[0, 1], yticks=[0, 1], xlabel="confidence")
    axis.xaxis.labelpad = -4
    for text, side in zip(axis.get_xticklabels(), ("left", "right"), strict=False):
        text.set_horizontalalignment(side)
    if labelled:
        axis.set_ylabel("accuracy", labelpad=-3)
    else:
        axis.set_yticklabels([])


def _masked(grey: Array, labels: Array) -> Array:
    """Labels in colour over the image."""
    picture = np.repeat(grey[..., None], 3, axis=-1)
    for k in np.unique(labels):
        if k not in (0, IGNORED):
            chosen = labels == k
            picture[chosen] = 0.4 * picture[chosen] + 0.6 * np.array(to_rgb(class_colour(int(k))))
    return picture


def _grey(image: Array) -> Array:
    """An image between its 1st and 99th percentile, from 0 to 1."""
    low, high = np.percentile(image, [1, 99])
    return np.clip((image - low) / (high - low if high > low else 1.0), 0, 1)


def _box(seen: Sequence[SliceView]) -> tuple[slice, slice]:
    """What is worth showing: the box around everything labelled with a margin, or all of it where that is most."""
    shape = seen[0].truth.shape
    labelled = np.zeros(shape, bool)
    for one in seen:
        labelled |= (one.prediction > 0) | ((one.truth > 0) & (one.truth != IGNORED))
    if not labelled.any():
        return slice(0, shape[0]), slice(0, shape[1])
    sides = []
    for axis in (0, 1):
        where = np.flatnonzero(labelled.any(axis=1 - axis))
        pad = max(4, round(MARGIN * (where[-1] - where[0] + 1)))
        sides.append(slice(max(0, int(where[0]) - pad), min(shape[axis], int(where[-1]) + 1 + pad)))
    return sides[0], sides[1]
