"""Two label maps of one image: what may be compared, the rows a comparison has, and what an absent row scores.

A row is a class (its id, an int) or a region (its name): a set of class ids that is measured as one object, like the
whole tumour of BraTS, which is {1, 2, 3}. Background (class 0) is no row.

>>> rows(3, {"whole": (1, 2)})
{1: (1,), 2: (2,), 'whole': (1, 2)}
"""

from collections.abc import Mapping
from math import nan
from typing import Any, Literal, get_args

import numpy as np

from calibseg.core.options import one_of
from calibseg.core.types import Array, BadInput, Empty, VoxelName, voxel_name

Row = int | str
Regions = Mapping[str, tuple[int, ...]]


def rows(num_classes: int, regions: Regions | None = None) -> dict[Row, tuple[int, ...]]:
    """The foreground classes, then the regions, each with the class ids it consists of."""
    if num_classes < 2:
        raise BadInput(f"num_classes is {num_classes}, but background and one object make at least 2")
    members_of: dict[Row, tuple[int, ...]] = {class_id: (class_id,) for class_id in range(1, num_classes)}
    for name, members in (regions or {}).items():
        strange = [member for member in members if not 0 < member < num_classes]
        if strange or not members:
            what = f"holds class {strange[0]}" if strange else "holds no class"
            raise BadInput(f"region {name!r} {what}; the foreground classes are 1 to {num_classes - 1}")
        members_of[name] = tuple(sorted(set(members)))
    return members_of


def checked(truth: Any, predicted: Any, num_classes: int, ignore_index: int | None = None) -> tuple[Array, Array]:
    """Both label maps as integer arrays of one shape, holding class ids and, in the truth, `ignore_index`."""
    truth, predicted = _integers("true", truth), _integers("predicted", predicted)
    if truth.shape != predicted.shape:
        raise BadInput(f"the true label map has shape {truth.shape}, the predicted one {predicted.shape}")
    if truth.size == 0:
        raise BadInput(f"the label maps have shape {truth.shape}: there is no voxel to compare")
    is_class = ignore_index is not None and 0 <= ignore_index < num_classes
    refuse_unknown_labels("the predicted label map", predicted, num_classes, None)
    refuse_unknown_labels("the true label map", truth, num_classes, None if is_class else ignore_index)
    return truth, predicted


def refuse_unknown_labels(
    source: object,
    labels: Array,
    known: int,
    ignore_label: int | None,
    voxel: VoxelName | None = None,
    of: Literal["rater", "channel"] = "rater",
) -> None:
    """Refuse a label that is none of 0 ... known - 1, with its place in `source`; of: whose maps [r z y x] are."""
    if ignore_label is not None and 0 <= ignore_label < known:
        raise BadInput(
            f"the label {ignore_label} is to be ignored, but it is one of the {known} classes 0 to {known - 1}"
        )
    if labels.min(initial=0) >= 0 and labels.max(initial=0) < known:
        return  # the usual case costs two looks
    wrong = (labels < 0) | (labels >= known)
    if ignore_label is not None:
        wrong &= labels != ignore_label
    if wrong.any():
        first = int(wrong.argmax())
        place = tuple(int(i) for i in np.unravel_index(first, labels.shape))
        at = (voxel or voxel_name)(place[-3:]) + (f" of {of} {place[0]}" if len(place) > 3 else "")
        raise BadInput(
            f"{source} holds the label {labels.flat[first]} at {at}, which is none of the {known}"
            f" classes 0 to {known - 1}"
        )


def score_when_absent(
    empty: Empty, truth_absent: bool, predicted_absent: bool, worst: float, released: tuple[float, float]
) -> float:
    """What a metric says where the row has no voxel in the truth, in the prediction, or in both.

    empty: "nan" says undefined. "worst" gives `worst` where one of the two is absent; a row absent from both is
        nobody's mistake and stays undefined. "released" is the papers' evaluator: `released[0]` where the truth is
        absent (also when both are), `released[1]` where only the prediction is; what it never computed is undefined.
    """
    if empty == "released":
        return released[0] if truth_absent else released[1]
    if empty == "worst" and truth_absent != predicted_absent:
        return worst
    return nan


def check_empty(empty: str) -> Empty:
    """`empty` itself when it is a known policy."""
    return one_of("empty", empty, get_args(Empty))


def _integers(name: str, labels: Any) -> Array:
    labels = np.asarray(labels)
    if labels.dtype == bool:
        return labels.view(np.uint8)
    if not np.issubdtype(labels.dtype, np.integer):
        raise BadInput(f"the {name} label map has dtype {labels.dtype}, but class ids are integers")
    return labels
