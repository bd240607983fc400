"""Whether an .npz of nnU-Net and the segmentation beside it lie the same way round.

An .npz has no geometry. nnU-Net's reader NibabelIOWithReorient turns images before the network sees them and leaves the
.npz turned, while the segmentation is turned back: without plans.json nobody can tell from the file. So the most likely
class is compared with the segmentation, as it is and with axes reversed or swapped.
"""

import itertools
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from numpy import ndarray as Array

from calibseg.core.score_kind import EVEN
from calibseg.core.types import Activation, BadInput, ScoreKind
from calibseg.io.file_matching import REORIENTS


def check_orientation(
    scores: Any, labels: Array, kind: ScoreKind, activation: Activation, path: Path, segmentation: Path
) -> None:
    """Refuse scores [k z y x] that fit the segmentation [z y x] better some other way round; else count differences."""
    predicted = (scores.argmax(0) if activation == "softmax" else (scores > EVEN[kind]).any(0)).astype(np.uint8)
    drawn = labels if activation == "softmax" else labels > 0
    wrong = int((predicted != drawn).sum())
    if wrong == 0:
        return
    best, how = min((int((view != drawn).sum()), how) for how, view in _views(predicted) if view.shape == drawn.shape)
    if best < wrong:
        raise BadInput(
            f"{path} does not lie as {segmentation.name} beside it: {wrong} voxels differ, and {best} where its"
            f" axes (z, y, x) are taken as {how}; such files come from nnU-Net's reader {REORIENTS}: put the model's"
            " plans.json beside them"
        )
    warnings.warn(
        f"{path}: the most likely class is another than {segmentation.name} beside it says at {wrong} of"
        f" {int((drawn > 0).sum())} labelled voxels; postprocessing or regions may have changed labels",
        stacklevel=2,
    )


def _views(labels: Array) -> list[tuple[str, Array]]:
    """Every other way to lay the three axes."""
    views = []
    for order in itertools.permutations(range(3)):
        for signs in itertools.product((1, -1), repeat=3):
            if order != (0, 1, 2) or min(signs) < 0:
                names = ", ".join(
                    f"{'-' if sign < 0 else ''}{'zyx'[axis]}" for axis, sign in zip(order, signs, strict=True)
                )
                views.append((names, labels.transpose(order)[tuple(slice(None, None, sign) for sign in signs)]))
    return views
