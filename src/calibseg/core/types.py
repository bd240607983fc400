"""The types that stages exchange (Case, Split, Prediction) and the one error a user sees (BadInput).

Arrays are RAS+ transposed to (z, y, x); `c` channels, `k` classes, `r` raters. Nothing here imports torch or numpy.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from numpy import ndarray as Array
else:
    Array = Any  # a name for annotations: importing numpy here would double the time of `calibseg --help`

ScoreKind = Literal["logits", "log_probabilities", "probabilities"]
Activation = Literal["softmax", "sigmoid"]
IGNORED = 255  # the label of an ignored voxel, in every Case and Prediction
IGNORE_INDEX = -100  # the same in a batch of a training: torch's own default
TOLERANCE = 1e-3  # how far probabilities or soft labels may sum from 1: float16 storage of many classes stays below
LEAST_PROBABILITY = 2.0**-24  # a smaller p counts as this in every NLL, whatever type it is stored in
FileFormat = Literal["nnunet", "nifti", "npz"]
VoxelRule = Literal["truth", "predicted", "union", "all", "boundary"]  # which voxels a calibration metric counts
Empty = Literal["nan", "worst", "released"]  # what a shape metric says where a class has no voxel
Units = Literal["mm", "voxel"]  # of distances
VoxelName = Callable[[tuple[int, ...]], str]  # an index [*space] in words
Progress = Callable[[int, int, str], None]  # is told how many are done, of how many, and which


class BadInput(ValueError):
    """What the user gave cannot be used. The message states the fact, the value and the choices, in one sentence."""


def voxel_name(place: tuple[int, ...]) -> str:
    """A voxel of an array with its axes.

    >>> voxel_name((4, 0, 7)), voxel_name((0, 7))
    ('voxel (z 4, y 0, x 7)', 'voxel (y 0, x 7)')
    """
    axes = {2: ("y ", "x "), 3: ("z ", "y ", "x ")}.get(len(place), [""] * len(place))
    return f"voxel ({', '.join(f'{axis}{i}' for axis, i in zip(axes, place, strict=True))})"


@dataclass(frozen=True)
class Case:
    """One study: an image, what raters drew on it, and where it lies in the patient."""

    id: str
    patient: str
    image: Array  # [c z y x] float32
    channels: tuple[str, ...]
    labels: Array | None  # [r z y x] int, usually r = 1
    spacing_mm: tuple[float, float, float]
    classes: tuple[str, ...]
    affine: Array
    regions: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    ignore_label: int | None = None
    true_p: Array | None = None  # [k z y x], known for the phantom only
    header: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Split:
    """Which cases train, select, test and (optionally) calibrate. Built per patient; `seed` never changes it."""

    train: tuple[str, ...]
    validation: tuple[str, ...]
    test: tuple[str, ...]
    split_seed: int
    calibration: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        from calibseg.core.ids import check_id

        for id in (*self.train, *self.validation, *self.test, *self.calibration):
            check_id(id)


@dataclass(frozen=True)
class Prediction:
    """What a network said about one case. `scores` may be a memory map: read it chunk by chunk."""

    case_id: str
    patient: str
    scores: Any  # array-like [k z y x]
    kind: ScoreKind
    spacing_mm: tuple[float, float, float]
    activation: Activation = "softmax"
    labels: Array | None = None  # int [z y x]; raters' int [r z y x]; soft float [k z y x]; 255: ignored
    image: Any = None  # array-like [c z y x], read only when a calibrator asks for it
    slice_axis: int | None = None  # of (z, y, x): along which a 2-D method takes its slices; None: nobody said
    voxel_name: VoxelName | None = None  # (z, y, x) in words, as the file counts


def __getattr__(name: str) -> Any:
    """`Array` exists for those who import it, and costs numpy's import only them."""
    if name == "Array":
        from numpy import ndarray

        return ndarray
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
