"""What the channels of a prediction stand for, and its labels and predicted label maps as metrics compare them."""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy import ndarray as Array

from calibseg.core.labels import likeliest_class
from calibseg.core.score_kind import EVEN
from calibseg.core.types import IGNORED, Activation, BadInput, Prediction
from calibseg.io.class_names import ClassNames
from calibseg.io.predictions import PredictionFiles
from calibseg.metrics.statistics.label_maps import refuse_unknown_labels


class Channels(NamedTuple):
    """What each channel of the scores stands for: a name, and the label values that belong to it.

    activation: with sigmoid every channel is judged apart
    """

    names: tuple[str, ...]
    members: tuple[tuple[int, ...], ...]
    activation: Activation = "softmax"


def name_channels(pair: PredictionFiles, number: int, class_names: ClassNames) -> Channels:
    """What the channels of a file stand for: the classes, or with sigmoid the regions or the foreground classes."""
    classes, regions = class_names.classes, class_names.regions
    every = [(name, (index,)) for index, name in enumerate(classes or plain_names(max(number, 2)))]
    choices = {len(every): every}
    if pair.activation == "sigmoid":
        if regions:
            choices = {len(regions): [(name, tuple(members)) for name, members in regions.items()]}
        elif classes or number == 1:
            choices[len(every) - 1] = every[1:]
        else:
            raise BadInput(
                f"{pair.files[0]} has {number} sigmoid channels: --classes or --regions must say what they stand for"
            )
    if number not in choices:
        known = " or ".join(", ".join(name for name, _ in choice) for choice in choices.values())
        raise BadInput(f"{pair.files[0]} has {number} channels, which cannot be {known}")
    names, members = zip(*choices[number], strict=True)
    return Channels(names, members, pair.activation)


def plain_names(number: int) -> tuple[str, ...]:
    return ("background", *(str(index) for index in range(1, number)))


def check_labels(pair: PredictionFiles, prediction: Prediction, channels: Channels, class_names: ClassNames) -> None:
    """Refuse a label that stands for no class, with its file and place."""
    known = len(class_names.classes) if pair.activation == "sigmoid" else len(channels.names)
    if known:
        assert prediction.labels is not None
        refuse_unknown_labels(pair.label, prediction.labels, known, class_names.ignore_label, prediction.voxel_name)


def channel_targets(labels: Array, channels: Channels, ignore_label: int | None) -> Array:
    """[k z y x] uint8: for each sigmoid channel, whether it is right there."""
    targets = np.stack([np.isin(labels, members) for members in channels.members]).astype(np.uint8)
    if ignore_label is not None:
        targets[:, labels == ignore_label] = IGNORED
    return targets


def label_maps(
    prediction: Prediction, target: Array, regions: Mapping[str, tuple[int, ...]], ignore_label: int | None
) -> Iterator[tuple[Array, Array, int, Mapping[str, tuple[int, ...]]]]:
    """Truth, prediction, number of classes and regions: once with softmax, once per channel with sigmoid."""
    number = prediction.scores.shape[0]
    if prediction.activation == "softmax":
        yield agreed(target, ignore_label), label_map(prediction.scores), number, regions
        return
    for channel in range(number):
        truth = target[channel] > 0.5 if target.dtype.kind == "f" else target[channel]
        yield (
            truth.astype(np.uint8, copy=False),
            (np.asarray(prediction.scores[channel]) > EVEN[prediction.kind]).astype(np.uint8),
            2,
            {},
        )


def agreed(labels: Array, ignore_label: int | None) -> Array:
    """The label that most raters [r z y x] gave, ties to the smallest, for what needs one label map [z y x].

    Who ignores a voxel has no vote there, as in the raters' share; it is ignored where all do.
    """
    if labels.ndim == 3:
        return labels
    best, most = labels[0].copy(), np.zeros(labels.shape[1:], np.uint8)
    for label in (one for one in np.unique(labels) if one != ignore_label):
        votes = (labels == label).sum(0, dtype=np.uint8)
        np.copyto(best, label, where=votes > most)
        np.maximum(most, votes, out=most)
    return best


def label_map(scores: Any) -> Array:
    """[k z y x] -> the predicted class [z y x], plane by plane; ties take the smallest id."""
    return np.stack([likeliest_class(np.asarray(scores[:, z])) for z in range(scores.shape[1])])
