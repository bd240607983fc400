r"""A temperature for each predicted class, near its predicted border and away from it.

$$ p_i = \mathrm{softmax}(l_i / T_{c(i),\,z(i)}), \qquad c = \arg\max_k l_k, \qquad
   z = \begin{cases} \text{band} & \delta_i \le \text{band\_mm} \\ \text{interior (background for } c = 0) & \text{else}
   \end{cases} $$

where delta is the distance in mm from the voxel's centre to the nearest one with another predicted class. Networks err
at borders; inside an organ and far from it they are right almost always. One temperature has to serve both, so that
what suits the millions of sure background voxels is wrong at the border, and the ECE of the voxels inside organs and
that of all voxels cannot be low together. Only what the network itself predicts is used, so labels stay as they are.
With sigmoid scores every channel has four: outside and inside of where it is predicted, each in the band and away.

Paper: ours. Ding et al. (ICCV 2021) give every voxel its own temperature by a small network; Frenkel and Goldberger
    (EUSIPCO 2021) one to each predicted class.
Differs: temperatures are drawn to the common one by `shrinkage` voxels, see class_temperature; a region without voxels
    takes the common temperature. Along the finest axis, voxels side by side with another class are in the band however
    coarse the grid is. Works on log-softmax scores.

>>> import numpy as np
>>> near_border(np.array([[[0, 0, 0, 1, 1, 2]]]), spacing_mm=(1.0, 1.0, 2.0), reach_mm=4.0).tolist()
[[[False, True, True, True, True, True]]]
"""

import math
from collections.abc import Mapping
from typing import Any, Self

import numpy as np
import torch
from scipy.ndimage import distance_transform_edt
from torch import Tensor, nn
from torch.nn.functional import conv3d

from calibseg.calibrators import Calibrator, ScoreChunk, VoxelStream
from calibseg.calibrators.fitted.module import Formula, predicted
from calibseg.calibrators.solvers.log_scores import LogScores, probability, softmax
from calibseg.calibrators.solvers.temperatures import Part, fit_temperatures, sigmoid_parts, softmax_part
from calibseg.core.options import at_least
from calibseg.core.types import Array

BAND, AWAY = 0, 1
MARKS_PER_VOXEL = 80  # marking so many costs what distance transforms cost: 28 took 0.33 s and 61 0.80 s, those 1.1 s


class RegionTemperature(Calibrator):
    """Temperature scaling by predicted class and distance to the predicted border.

    band_mm: > 0, how far the band at the predicted border reaches to both sides, in mm.
    shrinkage: >= 0, how many voxels draw each region to the common temperature.
    """

    keeps_argmax = True
    contract_options = ({"band_mm": 1.0, "shrinkage": 5.0}, {"band_mm": 4.0, "shrinkage": 0.0})
    reach = "volume"
    uses_spacing = True
    activations = ("softmax", "sigmoid")

    def __init__(self, band_mm: float = 2.0, shrinkage: float = 100.0, **common: Any):
        super().__init__(**common)
        self.band_mm = float(at_least("band_mm", band_mm, 0, above=True))
        self.shrinkage = float(at_least("shrinkage", shrinkage, 0))
        # [class, (band, interior or background)]; class 2 c + 1 is inside channel c
        self.temperatures = np.zeros((0, 2))

    def _fit(self, stream: VoxelStream) -> None:
        sigmoid = stream.activation == "sigmoid"
        stream.normalised = sigmoid
        groups, parts = (4, _sigmoid_parts) if sigmoid else (2, _softmax_parts)
        fit = fit_temperatures(stream, groups * stream.classes, parts, self.shrinkage)
        self.temperatures = fit.temperature.reshape(-1, 2)
        self.activation = stream.activation  # for the names
        self.facts = {"voxels_per_region": {self._name(r): round(number) for r, number in enumerate(fit.number)}}
        self.facts |= fit.record(self._name, empty="has no voxel")

    def case_context(self, scores: LogScores, image: Any, spacing_mm: tuple[float, ...], slice_axis: int) -> Array:
        """The region of each voxel, flat: 2 * predicted class + (0 in the band, 1 away); with sigmoid by channel."""
        if scores.activation == "softmax":
            return self._regions(scores.labels(), spacing_mm)
        inside = np.empty((scores.classes, math.prod(scores.space)), np.uint8)
        for where, z in scores.stream():
            inside[:, where] = z > 0
        regions = [self._regions(channel_labels.reshape(scores.space), spacing_mm) for channel_labels in inside]
        return np.stack([4 * channel + channel_labels for channel, channel_labels in enumerate(regions)])

    def _regions(self, labels: Array, spacing_mm: tuple[float, ...]) -> Array:
        regions = labels.astype(np.uint16)
        regions *= 2
        regions += ~near_border(labels, spacing_mm, self._reach_mm(spacing_mm))
        return regions.reshape(-1)

    def apply(self, scores: Array, case_context: Array, where: slice | Array) -> Array:
        scores /= self.temperatures.reshape(-1).astype(scores.dtype)[case_context[..., where]]
        return softmax(scores) if self.activation == "softmax" else probability(scores, "sigmoid")

    def _module(self, spacing_mm: Any) -> nn.Module:
        reach = self._reach_mm(spacing_mm)
        sizes = [int(reach / step) for step in spacing_mm]
        ball = np.zeros([2 * size + 1 for size in sizes], np.float32)
        ball[tuple((_offsets(spacing_mm, reach) + sizes).T)] = 1
        scaled = _scaled if self.activation == "softmax" else _scaled_channels
        return Formula(scaled, temperatures=self.temperatures.reshape(-1).astype(np.float32), ball=ball)

    def _name(self, region: int) -> str:
        group, away = region // 2, "background" if region // 2 == 0 else "interior"
        if self.activation == "sigmoid":
            group, away = f"{group // 2} {'inside' if group % 2 else 'outside'}", "away"
        kind = "channel" if self.activation == "sigmoid" else "class"
        return f"{kind} {group}, {'band' if region % 2 == BAND else away}"

    def _reach_mm(self, spacing_mm: tuple[float, ...]) -> float:
        return max(self.band_mm, min(spacing_mm)) * (1 + 1e-6)  # equal up to rounding is equal

    def state(self) -> tuple[dict[str, Any], dict[str, Array]]:
        table = {self._name(r): float(value) for r, value in enumerate(self.temperatures.reshape(-1))}
        return {"temperatures": table, **self.facts}, {}

    def load_state(self, facts: Mapping[str, Any], arrays: Mapping[str, Array]) -> Self:
        self.facts = dict(facts)
        table = self.facts.pop("temperatures")
        self.temperatures = np.array([table[self._name(r)] for r in range(len(table))], np.float64).reshape(-1, 2)
        return self


def near_border(labels: Array, spacing_mm: tuple[float, ...], reach_mm: float) -> Array:
    """bool [z y x]: whether a voxel with another label lies within reach, from centre to centre.

    The nearest such voxel lies at a border itself, so each of the few voxels at a border marks those around it whose
    label is another: 10 to 20 ms for 1.1 million voxels, where a distance transform of each class takes 750 ms.
    """
    reach = [int(reach_mm / step) for step in spacing_mm]
    offsets = _offsets(spacing_mm, reach_mm)
    inside = tuple(slice(r, r + size) for r, size in zip(reach, labels.shape, strict=True))
    around = np.pad(labels, [(r, r) for r in reach])  # what is marked in this margin is cut off again
    near = np.zeros(around.shape, bool)
    border = np.zeros(around.shape, bool)
    border[inside] = _border(labels)
    flat, marks, where = around.reshape(-1), near.reshape(-1), np.flatnonzero(border)
    if len(offsets) * where.size > MARKS_PER_VOXEL * labels.size:
        return _border_distance_mm(labels, spacing_mm) <= reach_mm
    labels_there = flat[where]
    for step in offsets @ (np.array(around.strides) // around.itemsize):
        neighbours = where + step
        marks[neighbours[flat[neighbours] != labels_there]] = True
    return near[inside]


def _offsets(spacing_mm: tuple[float, ...], reach_mm: float) -> Array:
    """[m 3]: from a voxel to those within reach, itself left out."""
    reach = [int(reach_mm / step) for step in spacing_mm]
    offsets = np.stack(np.meshgrid(*(np.arange(-r, r + 1) for r in reach), indexing="ij"), -1).reshape(-1, 3)
    return offsets[(((offsets * np.asarray(spacing_mm)) ** 2).sum(1) <= reach_mm**2) & offsets.any(1)]


def _border(labels: Array) -> Array:
    """bool [z y x]: the voxels side by side with another label."""
    border = np.zeros(labels.shape, bool)
    for axis in range(3):
        values, marks = np.moveaxis(labels, axis, 0), np.moveaxis(border, axis, 0)
        differs = values[1:] != values[:-1]
        marks[1:] |= differs
        marks[:-1] |= differs
    return border


def _border_distance_mm(labels: Array, spacing_mm: tuple[float, ...]) -> Array:
    """[z y x]: from each voxel's centre to the nearest one with another label, of which there is one."""
    distance = np.zeros(labels.shape)
    for label in np.unique(labels):
        mine = labels == label
        distance[mine] = np.asarray(distance_transform_edt(mine, sampling=spacing_mm))[mine]
    return distance


def _softmax_parts(chunk: ScoreChunk) -> list[Part]:
    return [softmax_part(chunk, chunk.case_context[chunk.where])]


def _sigmoid_parts(chunk: ScoreChunk) -> list[Part]:
    parts = zip(sigmoid_parts(chunk), chunk.case_context, strict=True)
    return [part._replace(group=regions[chunk.where]) for part, regions in parts]


def _scaled_channels(scores: Tensor, image: Tensor | None, temperatures: Tensor, ball: Tensor) -> Tensor:
    """Every channel is a picture of two classes."""
    pairs = torch.stack([torch.zeros_like(scores), scores], 2).flatten(0, 1)
    region = _region(pairs, ball).unflatten(0, scores.shape[:2])
    first = 4 * torch.arange(scores.shape[1], device=scores.device).view(-1, *[1] * (scores.ndim - 2))
    return torch.sigmoid(scores / temperatures[first + region])


def _scaled(scores: Tensor, image: Tensor | None, temperatures: Tensor, ball: Tensor) -> Tensor:
    return torch.softmax(scores / temperatures[_region(scores, ball)].unsqueeze(1), 1)


def _region(scores: Tensor, ball: Tensor) -> Tensor:
    """A voxel is in the band where the ball around it holds a voxel of another class: a convolution counts them."""
    labels = predicted(scores)
    volume = labels if labels.ndim == 4 else labels.unsqueeze(1)  # a slice is a volume of one plane
    ids = torch.arange(scores.shape[1], device=scores.device).view(1, -1, 1, 1, 1)
    hot = (volume.unsqueeze(1) == ids).to(ball.dtype)
    around = [size // 2 for size in ball.shape]
    kernel = ball.expand(scores.shape[1], 1, *ball.shape)
    counts = conv3d(hot, kernel, padding=around, groups=scores.shape[1])
    near = (counts.sum(1) - (counts * hot).sum(1) > 0.5).view(labels.shape)
    return torch.where(near, 2 * labels + BAND, 2 * labels + AWAY)
