r"""The Brier score of each class and its parts.

With c_b the mean probability, a_b the mean label, n_b the number of voxels of bin b, and a the mean label of all:

    score        mean (p - y)^2
    reliability  sum_b n_b/n (c_b - a_b)^2
    resolution   sum_b n_b/n (a_b - a)^2
    uncertainty  a (1 - a)
    within       score - (reliability - resolution + uncertainty): what bins do not resolve (Stephenson et al., 2008)

With soft labels `within` also holds the label variance that `uncertainty` counts too much.
"""

from typing import Literal

import numpy as np

from calibseg.metrics import Values
from calibseg.metrics._gaps import class_curves, mean
from calibseg.metrics.statistics.calibration import ReliabilityCurves

Part = Literal["score", "reliability", "resolution", "uncertainty", "within"]


def brier_parts(curves: ReliabilityCurves, k: int) -> dict[Part, float]:
    """The Brier score of one class and its decomposition."""
    count, confidence, hits = class_curves(curves)[k]
    n = count.sum()
    if n == 0:
        return {part: float("nan") for part in ("score", "reliability", "resolution", "uncertainty", "within")}
    filled = count > 0
    share, mean_p, mean_y = count[filled] / n, confidence[filled] / count[filled], hits[filled] / count[filled]
    base = hits.sum() / n
    score = curves.squares[k] / n
    reliability = np.sum(share * (mean_p - mean_y) ** 2)
    resolution = np.sum(share * (mean_y - base) ** 2)
    uncertainty = base * (1 - base)
    return {
        "score": float(score),
        "reliability": float(reliability),
        "resolution": float(resolution),
        "uncertainty": float(uncertainty),
        "within": float(score - (reliability - resolution + uncertainty)),
    }


def brier_values(curves: ReliabilityCurves, part: Part) -> Values:
    """One part per class; None: the sum of the classes (softmax) or the mean of the channels (sigmoid)."""
    values: Values = {k: brier_parts(curves, k)[part] for k in range(curves.classes)}
    every = list(values.values())
    return values | {None: mean(every) if curves.activation == "sigmoid" else float(np.sum(every))}
