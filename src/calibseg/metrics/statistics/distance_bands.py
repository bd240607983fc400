r"""Signed distance of every voxel to the true boundary, and bands of it: calibration as a function of distance.

The distance of a foreground voxel is minus the distance in mm from its centre to the nearest background voxel's centre;
of a background voxel, the distance to the nearest foreground voxel's. So no voxel has the distance 0, and neighbours
across the boundary have opposite signs and the voxel spacing as their size.

>>> import numpy as np
>>> signed_distance_mm(np.array([[[0, 0, 1, 1, 1]]]), (1.0, 1.0, 2.0)).tolist()
[[[4.0, 2.0, -2.0, -4.0, -6.0]]]
>>> distance_bands(2.0, (5.0,)).edges
(-5.0, -2.0, 2.0, 5.0)
"""

import numpy as np
from scipy.ndimage import distance_transform_edt

from calibseg.core.types import Array, BadInput
from calibseg.metrics.statistics.calibration import Bands


def signed_distance_mm(labels: Array, spacing_mm: tuple[float, ...], ignore_label: int | None = None) -> Array:
    """float32 [*space]: negative where the label is foreground. Infinite where there is no other side.

    An ignored voxel counts as background for the distance; it is left out of every statistic anyway.
    """
    labels = np.asarray(labels)
    if len(spacing_mm) != labels.ndim:
        raise BadInput(f"{len(spacing_mm)} spacings do not fit labels with {labels.ndim} axes")
    foreground = labels > 0
    if ignore_label is not None:
        foreground &= labels != ignore_label
    if not foreground.any():
        return np.full(labels.shape, np.inf, np.float32)
    if foreground.all():
        return np.full(labels.shape, -np.inf, np.float32)
    distance = np.asarray(distance_transform_edt(~foreground, sampling=spacing_mm), np.float32)
    distance -= np.asarray(distance_transform_edt(foreground, sampling=spacing_mm), np.float32)
    return distance


def distance_bands(within_mm: float = 5.0, further_mm: tuple[float, ...] = (1.0, 2.0, 3.0, 10.0, 20.0)) -> Bands:
    """Symmetric bands: edges at plus and minus `within_mm`, which makes the rule `boundary`, and further ones."""
    distances = sorted({float(within_mm), *map(float, further_mm)})
    wrong = [distance for distance in distances if not 0 < distance < np.inf]
    if wrong:
        raise BadInput(f"band edges must be positive distances in mm, not {wrong[0]}")
    return Bands((*(-d for d in reversed(distances)), *distances), float(within_mm))
