"""One reliability diagram on given axes: the diagonal, where the voxels are, the spread of cases, and the curve."""

import numpy as np
from matplotlib.axes import Axes

from calibseg.analysis.columns import Frame
from calibseg.report.matplotlib.style import FAINT, GREY

SPARSE = 0.005  # the share of voxels below which a bin is drawn faintly
HISTOGRAM = 0.25  # height of the fullest bin


def draw_reliability(axis: Axes, curve: Frame, colour: str) -> None:
    """`curve` has low, high, share, confidence, accuracy and, where cases were pooled, case_low and case_high."""
    axis.plot([0, 1], [0, 1], color=GREY, linewidth=0.7, linestyle=(0, (4, 3)), zorder=1)
    axis.set(xlim=(0, 1), ylim=(0, 1), aspect="equal")
    if not len(curve):
        return
    height = HISTOGRAM * curve["share"] / curve["share"].max()
    axis.bar(curve["low"], height, curve["high"] - curve["low"], align="edge", color=FAINT, edgecolor="white",
             linewidth=0.4, zorder=0)  # fmt: skip
    if "case_low" in curve.columns:
        spread = curve[curve["cases"] > 1]
        axis.fill_between(spread["confidence"], spread["case_low"], spread["case_high"], color=colour, alpha=0.18,
                          linewidth=0, zorder=2)  # fmt: skip
    x, y = curve["confidence"].to_numpy(), curve["accuracy"].to_numpy()
    sparse = curve["share"].to_numpy() < SPARSE
    for i in range(len(curve) - 1):  # a bin that hardly any voxel is in must not catch the eye
        axis.plot(x[i : i + 2], y[i : i + 2], color=colour, alpha=0.3 if sparse[i : i + 2].any() else 1.0, zorder=3)
    axis.scatter(x, y, s=3 + 30 * np.sqrt(curve["share"]), color=colour, linewidths=0, zorder=4, clip_on=False)
