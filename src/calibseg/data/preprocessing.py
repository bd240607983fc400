r"""Case -> Case on the grid and scale that the network sees, and probabilities back to the grid of the file.

In this order: intensities to [0, 1], resample (to a spacing or to a size), crop or pad about the centre. Resampling is
linear and separable, so along each axis it is one matrix; where it shrinks, the triangle is widened to the step, so
that no voxel is skipped:

$$ W_{ij} \propto \max(0, 1 - |j - c_i| / \max(1, s)), \quad c_i = (i + 1/2) s - 1/2, \quad s = n_{in} / n_{out} $$

Labels go the same way, one class at a time, and the largest share wins (ties: smallest id). Voxels added by padding are
IGNORED in the label and 0 in the image.

>>> interpolation_matrix(4, 2)           # each new voxel sees its two old ones most, and their neighbours
array([[0.42857143, 0.42857143, 0.14285714, 0.        ],
       [0.        , 0.14285714, 0.42857143, 0.42857143]])
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import numpy as np
from nibabel.orientations import io_orientation
from numpy import ndarray as Array

from calibseg.core.coerce import coerce
from calibseg.core.memory import require_memory
from calibseg.core.types import IGNORED, BadInput, Case

SliceAxis = Literal["axial", "coronal", "sagittal", "acquisition"]
AXES: dict[str, int] = {"axial": 0, "coronal": 1, "sagittal": 2}  # of (z, y, x)
ALIKE = 0.01  # spacings that differ by a smaller share are equal
THICK = 1.5  # a spacing so many times as large as the next makes a scan anisotropic

Sizes = tuple[int | None, int | None, int | None]  # along (z, y, x); None leaves an axis as it is
LENGTHS = ("spacing_mm", "resize", "crop")  # fields of the protocol that are such a triple


@dataclass(frozen=True)
class Preprocessing:
    """How a set is prepared; lengths are along (z, y, x), None leaves an axis as it is.

    slice_axis: the plane of the slices; acquisition: of each scan's thickest voxel edge (equal ones: the file's last
        axis), wherever that points in the patient; lengths are then along (slices, rows, columns)
    spacing_mm: resample to this voxel size
    resize: resample to this many voxels
    crop: then crop or pad about the centre to this many voxels
    intensity: percentile clips each channel of each volume to `range` (in percent), window clips to `range`
        (in the file's unit); both then scale to [0, 1]; keep leaves values alone
    range: see intensity
    """

    slice_axis: SliceAxis = "axial"
    spacing_mm: tuple[float | None, float | None, float | None] | None = None
    resize: Sizes | None = None
    crop: Sizes | None = None
    intensity: Literal["percentile", "window", "keep"] = "percentile"
    range: tuple[float, float] = (0.5, 99.5)

    def __post_init__(self) -> None:
        if self.slice_axis not in get_args(SliceAxis):
            raise BadInput(f"no slice axis named {self.slice_axis!r}. Known: {', '.join(get_args(SliceAxis))}")
        if self.intensity not in ("percentile", "window", "keep"):
            raise BadInput(f"no intensity rule named {self.intensity!r}. Known: percentile, window, keep")
        if self.spacing_mm and self.resize:
            raise BadInput("resample to a spacing (spacing_mm) or to a size (resize), not to both")
        for name in LENGTHS:
            value = getattr(self, name)
            if value is not None and (
                len(value) != 3 or any(part is not None and not 0 < part < 1e6 for part in value)
            ):
                raise BadInput(f"{name} is three positive numbers (z, y, x), found {value}")
        low, high = self.range
        if not -math.inf < low < high < math.inf or (self.intensity == "percentile" and not 0 <= low < high <= 100):
            raise BadInput(f"the range of intensities must rise and percentiles lie in 0..100, found {self.range}")


def protocol_field(name: str, value: Any) -> Any:
    """A field of the protocol as files state it: TOML has no null, so that a length of 0 leaves an axis as it is."""
    if not isinstance(value, list | tuple):
        return value
    return tuple(None if name in LENGTHS and part == 0 else part for part in value)


def read_protocol(where: str, fields: Mapping[str, Any]) -> Preprocessing:
    """A protocol as a reader, the command line or a JSON file states it, checked; `where` is whose it is."""
    return coerce(where, {name: protocol_field(name, value) for name, value in fields.items()}, Preprocessing)


def preprocess(case: Case, protocol: Preprocessing) -> Case:
    """The case as the network sees it. `header["geometry"]` keeps the way back."""
    protocol = for_case(protocol, case)
    image = scale_intensity(case.image, protocol)
    shape = image.shape[1:]
    resized = _resampled_shape(shape, case.spacing_mm, protocol)
    require_memory(8 * len(image) * math.prod(resized), f"case {case.id!r}, resampled to {resized} voxels, needs")
    final = tuple(new or old for new, old in zip(protocol.crop or (None,) * 3, resized, strict=True))
    start = tuple((old - new) // 2 for old, new in zip(resized, final, strict=True))
    labels, true_p = case.labels, case.true_p
    image = _cropped(resampled(image, resized), start, final, 0)
    if labels is not None:
        labels = np.stack([resampled_labels(rater, resized, len(case.classes)) for rater in labels])
        labels = _cropped(labels, start, final, IGNORED)
    if true_p is not None:
        true_p = _cropped(resampled(true_p, resized), start, final, 0)
    step = np.array([old / new for old, new in zip(shape, resized, strict=True)])
    padded = any(new > old for new, old in zip(final, resized, strict=True))
    geometry = {"shape": list(shape), "resized": list(resized), "start": list(start), "final": list(final)}
    return replace(
        case,
        image=image,
        labels=labels,
        true_p=true_p,
        spacing_mm=tuple(float(mm) for mm in np.array(case.spacing_mm) * step),
        affine=case.affine @ _index_map(step[::-1], np.array(start[::-1])),
        ignore_label=IGNORED if padded else case.ignore_label,
        header={**case.header, "geometry": geometry, "slice_axis": protocol.slice_axis},
    )


def for_case(protocol: Preprocessing, case: Case) -> Preprocessing:
    """The protocol with the case's own slice axis, and with lengths along (z, y, x)."""
    if protocol.slice_axis != "acquisition":
        return protocol
    name = acquisition_axis(case.spacing_mm, np.array(case.header["original"]["affine"]))
    changes: dict[str, Any] = {"slice_axis": name}
    for field in LENGTHS:
        if (lengths := getattr(protocol, field)) is not None:
            first, *others = lengths
            changes[field] = (*others[: AXES[name]], first, *others[AXES[name] :])
    return replace(protocol, **changes)


def acquisition_axis(spacing_mm: Sequence[float], file_affine: Array) -> str:
    """The slice axis of the thickest spacing along (z, y, x); of equal ones that of the last axis in the file.

    >>> acquisition_axis((1.5, 8.0, 1.5), np.eye(4)), acquisition_axis((1.0, 1.0, 1.0), np.eye(4))
    ('coronal', 'axial')
    """
    stored = [
        2 - int(axis) for axis in io_orientation(file_affine)[::-1, 0]
    ]  # axes of (z, y, x), the file's last first
    axis = next(axis for axis in stored if spacing_mm[axis] >= (1 - ALIKE) * max(spacing_mm))
    return next(name for name, number in AXES.items() if number == axis)


def anisotropic(spacing_mm: Sequence[float]) -> bool:
    """Whether a scan was made of slices: its voxels are thicker along one axis."""
    *_, second, thickest = sorted(spacing_mm)
    return thickest >= THICK * second


def scale_intensity(image: Array, protocol: Preprocessing) -> Array:
    """Intensities to [0, 1], each channel by itself; a constant channel becomes 0."""
    if protocol.intensity == "keep":
        return image
    out = np.empty(image.shape, np.float32)
    for channel, values in enumerate(image):
        if protocol.intensity == "window":
            low, high = protocol.range
        else:
            low, high = (float(value) for value in np.percentile(values, protocol.range))
            if low == high:  # more than the clipped share is one value, e.g. the air around a small object
                low, high = float(values.min()), float(values.max())
        np.clip(values, low, high, out=out[channel])
        out[channel] -= low
        out[channel] /= max(high - low, np.finfo(np.float32).tiny)
    return np.clip(out, 0, 1, out=out)  # rounding may leave 1 + 1e-7


def interpolation_matrix(n_in: int, n_out: int) -> Array:
    """The matrix [n_out n_in] of linear resampling along one axis; every row sums to 1."""
    step = n_in / n_out
    centre = (np.arange(n_out)[:, None] + 0.5) * step - 0.5
    matrix = np.maximum(0, 1 - np.abs(np.arange(n_in) - centre) / max(1.0, step))
    return matrix / matrix.sum(1, keepdims=True)


def resampled(values: Array, shape: tuple[int, ...]) -> Array:
    """[c z y x] -> [c *shape], linear, axis by axis."""
    for axis, n_out in enumerate(shape, start=1):
        n_in = values.shape[axis]
        if n_in != n_out:
            matrix = interpolation_matrix(n_in, n_out).astype(np.float32)
            values = np.moveaxis(np.moveaxis(values, axis, -1) @ matrix.T, -1, axis)
    return np.ascontiguousarray(values)


def resampled_labels(labels: Array, shape: tuple[int, ...], classes: int) -> Array:
    """[z y x] -> [*shape]: the class with the largest share, IGNORED being one of them."""
    if labels.shape == tuple(shape):
        return labels
    best = np.zeros(shape, np.uint8)
    share = np.full(shape, -1.0, np.float32)
    for label in (*range(classes), IGNORED):
        chosen = labels == label
        if chosen.any():
            new = resampled(chosen[None].astype(np.float32), shape)[0]
            wins = new > share + 1e-6  # equal shares differ by rounding
            best[wins] = label
            np.maximum(share, new, out=share)
    return best


def _resampled_shape(shape: tuple[int, ...], spacing_mm: tuple[float, ...], protocol: Preprocessing) -> tuple[int, ...]:
    if protocol.spacing_mm:
        pairs = zip(shape, spacing_mm, protocol.spacing_mm, strict=True)
        return tuple(n if new is None else max(1, round(n * old / new)) for n, old, new in pairs)
    return tuple(new or old for new, old in zip(protocol.resize or (None,) * 3, shape, strict=True))


def crop_overlap(start: Any, final: Any, resized: Any) -> tuple[tuple[slice, ...], tuple[slice, ...]]:
    """Where the crop lies in the resampled grid, and where that part lies in the crop."""
    ends = [min(begin + n, size) for begin, n, size in zip(start, final, resized, strict=True)]
    theirs = tuple(slice(max(begin, 0), end) for begin, end in zip(start, ends, strict=True))
    ours = tuple(slice(part.start - begin, part.stop - begin) for part, begin in zip(theirs, start, strict=True))
    return theirs, ours


def _cropped(values: Array, start: tuple[int, ...], final: tuple[int, ...], fill: int) -> Array:
    if values.shape[1:] == final:
        return values
    out = np.full((len(values), *final), fill, values.dtype)
    theirs, ours = crop_overlap(start, final, values.shape[1:])
    out[:, *ours] = values[:, *theirs]
    return out


def _index_map(step: Array, start: Array) -> Array:
    """New voxel index -> old voxel index: old = (new + start + 1/2) * step - 1/2."""
    affine = np.diag([*step, 1.0])
    affine[:3, 3] = (start + 0.5) * step - 0.5
    return affine
