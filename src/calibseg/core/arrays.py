r"""Arrays of the caller (numpy or torch; one case, a batch or a list of cases) -> the cases, checked, in numpy.

    one case     scores [k *space]       labels [*space]      space has 2 or 3 axes: (y, x) or (z, y, x)
    a batch      scores [n k *space]     labels [n *space]
    a list       of cases, which may differ in size

Labels are integers; or of several raters [r *space]; or soft, floats [k *space]; a sigmoid's are [k *space], where a
voxel that one channel ignores is ignored in all. Four axes of scores are a volume or a batch of 2-D images: the labels'
shape tells, or the number of classes where there are no labels; where both fit, the caller has to say `batch=`. A
tensor may lie on any device, want gradients or be a MONAI MetaTensor; results made from it are plain tensors on its
device.

>>> scores = np.zeros((4, 3, 8, 8))
>>> len(split_cases(scores, np.zeros((4, 8, 8), int))), len(split_cases(scores, np.zeros((3, 8, 8), int)))
(4, 1)
>>> split_cases(scores[:3], np.zeros((3, 8, 8), int))
Traceback (most recent call last):
calibseg.core.types.BadInput: scores [3, 3, 8, 8] with labels [3, 8, 8] may be one volume or a batch of 3 images: ...
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy import ndarray as Array

from calibseg.core.score_kind import check_kind
from calibseg.core.types import IGNORED, Activation, BadInput, Prediction, ScoreKind

Spacing = tuple[float, float, float]


@dataclass(frozen=True)
class ArrayCases:
    """The cases of the caller's arrays.

    given: what the caller gave, so that `like_given` can give the same form back.
    """

    scores: list[Array]  # [k *space] each
    labels: list[Array] | None
    given: Any
    batch: bool

    def __len__(self) -> int:
        return len(self.scores)

    def like_given(self, results: Sequence[Array]) -> Any:
        """A result [...] of each case as the caller gave the scores: list, batch or one case; tensors for tensors."""
        if isinstance(self.given, list | tuple):
            return [like(result, given) for result, given in zip(results, self.given, strict=True)]
        return like(np.stack(results) if self.batch else results[0], self.given)


def split_cases(
    scores: Any, labels: Any = None, *, classes: int | None = None, batch: bool | None = None
) -> ArrayCases:
    """One case, a batch or a list of cases, told apart by the labels' shape or else by the number of classes."""
    if isinstance(scores, list | tuple):
        return _from_list(scores, labels)
    array, target = to_numpy(scores), None if labels is None else to_numpy(labels)
    batched = _is_batch(array, target, classes, batch)
    if not batched:
        return ArrayCases([array], None if target is None else [target], scores, False)
    if target is not None and len(target) != len(array):
        raise BadInput(f"scores are a batch of {len(array)} cases, and labels {list(target.shape)} of {len(target)}")
    return ArrayCases(list(array), None if target is None else list(target), scores, True)


def predictions(
    cases: ArrayCases,
    kind: ScoreKind,
    activation: Activation = "softmax",
    images: Any = None,
    spacing_mm: Any = None,
    patients: Sequence[str] | None = None,
    ignore_label: int | None = None,
) -> list[Prediction]:
    """A Prediction of each case, named `case 0`, `case 1`, ...; a 2-D case becomes a volume of one plane.

    images: [c *space] of each case, in the form of the scores.
    spacing_mm: for all cases, or a list of one for each; None: 1, so that distances count voxels.
    patients: whose each case is; unless said, each case is a patient of its own.
    ignore_label: a voxel with this label is ignored, as are those labelled 255.
    """
    for index, values in enumerate(cases.scores):
        if not values.size:
            raise BadInput(f"case {index}: scores {list(values.shape)} hold no voxel")
    check_kind(cases.scores, kind, activation)
    number = len(cases)
    if number and ignore_label is not None:
        check_ignore_label(ignore_label, len(cases.scores[0]) if activation == "softmax" else 2)
    names = [f"case {index}" for index in range(number)]
    owners = names if patients is None else _for_each(patients, number, "patients")
    pictures = _pictures(images, cases)
    spacings = spacing_mm if isinstance(spacing_mm, list) else [spacing_mm] * number
    targets = cases.labels or [None] * number
    result = []
    for name, owner, values, target, picture, spacing in zip(
        names, owners, cases.scores, targets, pictures, _for_each(spacings, number, "spacings"), strict=True
    ):
        flat = values.ndim == 3
        if target is not None:
            target = mark_ignored(_volume(target, target.ndim - 2) if flat else target, ignore_label)
            target = _ignored_in_all(target) if activation == "sigmoid" and target.ndim == 4 else target
        result.append(
            Prediction(
                name,
                str(owner),
                _volume(values) if flat else values,
                kind,
                case_spacing(spacing, values.ndim - 1),
                activation,
                target,
                _volume(picture) if flat and picture is not None else picture,
                slice_axis=0 if flat else None,
            )
        )
    return result


def to_numpy(array: Any) -> Array:
    """An array of numpy from one of torch (any device; MONAI's MetaTensor) or numpy; nothing is copied if possible."""
    if hasattr(array, "detach"):
        tensor = array.detach().cpu()
        tensor = tensor.as_tensor() if hasattr(tensor, "as_tensor") else tensor  # a MetaTensor's plain tensor
        return (tensor.float() if str(tensor.dtype) == "torch.bfloat16" else tensor).numpy()
    if isinstance(array, list | tuple):
        raise BadInput("scores and labels are arrays or tensors, or lists of them, not nested lists of numbers")
    if isinstance(array, np.ma.MaskedArray):
        raise BadInput("a masked array's mask would be passed over: mark the voxels in the labels (ignore_label)")
    array = np.asarray(array)
    if array.dtype.kind not in "biuf":
        raise BadInput(f"scores, labels and images hold numbers, not {array.dtype}")
    return array


def like(result: Array, given: Any) -> Any:
    """A result of numpy as a plain tensor on the device of what was given, where that was a tensor."""
    if not hasattr(given, "detach"):
        return result
    import torch

    return torch.from_numpy(np.ascontiguousarray(result)).to(given.device)


def case_spacing(spacing_mm: Any, axes: int) -> Spacing:
    """Three positive numbers (z, y, x); of a 2-D case two are enough. None: 1 each."""
    if spacing_mm is None:
        return (1.0, 1.0, 1.0)
    try:
        spacing = tuple(float(value) for value in spacing_mm)
    except (TypeError, ValueError):
        spacing = ()
    if len(spacing) == 2 and axes == 2:
        spacing = (max(spacing), *spacing)
    if len(spacing) != 3 or not all(0 < value < float("inf") for value in spacing):
        expected = "(z, y, x), or (y, x) of 2-D cases" if axes == 2 else "(z, y, x)"
        raise BadInput(f"spacing_mm must be positive numbers {expected}, not {spacing_mm!r}")
    return spacing


def check_ignore_label(ignore_label: Any, classes: int) -> None:
    """Refuse a label to be ignored that is no integer, or that stands for a class."""
    if not isinstance(ignore_label, int | np.integer):
        raise BadInput(f"ignore_label must be an integer or None, not {ignore_label!r}")
    if 0 <= int(ignore_label) < classes:
        raise BadInput(f"ignore_label {ignore_label} is one of the {classes} classes 0 to {classes - 1}")


def mark_ignored(labels: Array, ignore_label: int | None) -> Array:
    """Labels with 255 in place of the ignored one; 255 itself must not be a label then."""
    labels = labels.astype(np.uint8) if labels.dtype.kind == "b" else labels
    if ignore_label is None or ignore_label == IGNORED or labels.dtype.kind == "f":
        return labels
    wide = labels.astype(np.int32) if labels.dtype.itemsize < 2 and labels.dtype.kind == "i" else labels
    if (wide == IGNORED).any():
        raise BadInput(f"labels hold {IGNORED}, which is no class, and the ignored label is {ignore_label}: ignore one")
    return np.where(wide == ignore_label, wide.dtype.type(IGNORED), wide)


def _ignored_in_all(channels: Array) -> Array:
    """Sigmoid labels [k *space]: ignored in one channel, a voxel is in all, as in losses and in bins."""
    ignored = (channels == IGNORED).any(0)
    return np.where(ignored, channels.dtype.type(IGNORED), channels) if ignored.any() else channels


def _from_list(scores: Sequence[Any], labels: Any) -> ArrayCases:
    arrays = [to_numpy(case) for case in scores]
    for number, array in enumerate(arrays):
        if array.ndim not in (3, 4):
            raise BadInput(f"case {number} of the list must be [k y x] or [k z y x], not {list(array.shape)}")
    if labels is not None and len(labels) != len(arrays):
        raise BadInput(f"there are {len(arrays)} cases of scores, but {len(labels)} of labels")
    return ArrayCases(arrays, None if labels is None else [to_numpy(case) for case in labels], scores, False)


def _is_batch(scores: Array, labels: Array | None, classes: int | None, batch: bool | None) -> bool:
    shape = scores.shape
    if len(shape) not in (3, 4, 5):
        raise BadInput(
            "scores must be one case [k y x] or [k z y x], a batch [n k y x] or [n k z y x], or a list of cases, not"
            f" {list(shape)}"
        )
    if len(shape) != 4:
        if batch is not None and batch != (len(shape) == 5):
            raise BadInput(f"scores {list(shape)} are {'a batch' if len(shape) == 5 else 'one case'}: batch={batch}")
        return len(shape) == 5
    if batch is not None:
        return batch
    if labels is not None:
        volume = labels.shape[-3:] == shape[1:]
        images = labels.ndim in (3, 4) and (labels.shape[0], *labels.shape[-2:]) == (shape[0], *shape[2:])
        context = f" with labels {list(labels.shape)}"
        if not volume and not images:
            raise BadInput(
                f"labels {list(labels.shape)} fit scores {list(shape)} neither as one volume [k z y x] nor as a batch"
                " of images [n k y x]"
            )
    elif classes is not None:
        volume, images, context = shape[0] == classes, shape[1] == classes, f" of {classes} classes"
    else:
        volume, images, context = True, True, ""
    if volume and images:
        raise BadInput(
            f"scores {list(shape)}{context} may be one volume or a batch of {len(scores)} images: say batch=False or"
            " batch=True"
        )
    return images


def _volume(array: Array, axis: int = 1) -> Array:
    """[c y x] -> [c 1 y x]."""
    return np.expand_dims(array, axis)


def _pictures(images: Any, cases: ArrayCases) -> list[Array | None]:
    if images is None:
        return [None] * len(cases)
    several = images if cases.batch or isinstance(images, list | tuple) else [images]
    return _for_each([to_numpy(image) for image in several], len(cases), "images")


def _for_each(values: Any, number: int, what: str) -> Any:
    if values is not None and (isinstance(values, str) or len(values) != number):
        raise BadInput(f"{what} must be a list of {number}, one for each case, not {values!r:.100}")
    return values
