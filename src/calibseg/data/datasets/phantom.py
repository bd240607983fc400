r"""Phantom: organs that are made, not measured, so that the true probability of every label is known.

Structure j has a smooth level function f_j (an ellipsoid with a wandering surface, positive inside, in voxels) and a
border of width w(x): q_j = Phi(f_j / w). Structures take their share of what those before them left:

$$ p_j(x) = q_j(x) \prod_{i<j} (1 - q_i(x)), \qquad p_0 = 1 - \sum_j p_j $$

with small structures before the large ones that hold or touch them. A rater draws the label

$$ y(x) = \min \{ k : \sum_{j \le k} p_j(x) \ge u(x) \}, \qquad u = \Phi(g) $$

where g is a smooth Gaussian field, one per rater, with mean 0 and variance 1 at every voxel. So u is uniform, a label
has exactly the probability p, and neighbours agree: borders wander as raters' borders do. p is kept in `Case.true_p`;
the same seed makes the same case, however many are made. The image shows each structure's own grey, mixed by p, under
a smooth field and noise: a border is blurred where raters disagree.

>>> case = next(Phantom(cases=1, size=(8, 32, 32)).cases())
>>> case.labels.shape, case.true_p.shape, round(float(case.true_p.sum(0).max()), 6)
((4, 8, 32, 32), (4, 8, 32, 32), 1.0)
"""

import math
from pathlib import Path
from typing import Any

import numpy as np
from numpy import ndarray as Array
from scipy.fft import irfftn, rfftn
from scipy.ndimage import gaussian_filter
from scipy.special import ndtr

from calibseg.core.memory import require_memory
from calibseg.core.options import seed_number
from calibseg.core.types import BadInput, Case
from calibseg.data.datasets import Dataset
from calibseg.data.study import Study

RATERS = 4
WANDER = 3.0  # voxels over which a rater keeps to an opinion: the Gaussian filter's sigma


class Phantom(Dataset):
    """Procedural cases with known label probabilities.

    cases: how many
    size: voxels along (z, y, x)
    classes: background included; structures come in threes: one holds a second and touches a third
    ambiguity: how wide borders are, in voxels, on average; 0 makes raters agree everywhere
    noise: standard deviation of the image's noise, where greys run from 0 to 1; raise it for a distribution shift
    seed: makes the cases; it is no part of a training run's seed
    """

    title = "Phantom (embedded)"
    licence = "made on the spot: nobody's"
    how_to_get = "Nothing to get: it is made in seconds."
    layout = "no folder"
    citation = "calibseg"
    classes = ("background", "organ", "core", "neighbour")
    channels = ("grey",)
    protocol = {"slice_axis": "axial", "intensity": "keep"}
    split = {"sizes": (60, 15, 25)}
    needs_root = False

    def __init__(
        self,
        cases: int = 60,
        size: tuple[int, int, int] = (16, 64, 64),
        classes: int = 4,
        ambiguity: float = 1.0,
        noise: float = 0.1,
        seed: int = 0,
        **common: Any,
    ):
        super().__init__(**common)
        if not 1 <= cases <= 1_000_000:
            raise BadInput(f"a phantom has 1 to 1000000 cases, cases={cases}")
        if len(size) != 3 or min(size) < 4:
            raise BadInput(f"a phantom's size is three numbers (z, y, x) of at least 4, size={size}")
        seed_number("a phantom's seed", seed)
        if not 2 <= classes <= 32:
            raise BadInput(f"a phantom has 2 to 32 classes, background included, classes={classes}")
        if not (0 <= ambiguity < 1e6 and 0 <= noise < 1e6):
            raise BadInput(f"ambiguity and noise are numbers of at least 0, ambiguity={ambiguity}, noise={noise}")
        require_memory(16 * (classes + 4) * math.prod(size), f"a phantom of size={size} needs")
        self.count, self.size, self.seed = cases, tuple(int(n) for n in size), seed
        self.ambiguity, self.noise = ambiguity, noise
        self.names = tuple(_name(index) for index in range(classes))

    def find(self, root: Path) -> list[Study]:
        del root
        ids = [f"phantom_{number:04d}" for number in range(self.count)]
        return [self.study(id, id, [], [], classes=self.names, item=number) for number, id in enumerate(ids)]

    def read(self, study: Study) -> Case:
        # Truth and raters have streams of their own: more noise must not move a border.
        shape_rng, rater_rng, noise_rng = (np.random.default_rng([self.seed, study.item, part]) for part in range(3))
        p = _probabilities(shape_rng, self.size, len(study.classes), self.ambiguity)
        image = _image(shape_rng, p) + self.noise * noise_rng.standard_normal(self.size)
        labels = np.stack([draw_labels(p, smooth_field(rater_rng, self.size, WANDER)) for _ in range(RATERS)])
        return self.case(study, image[None], labels, _made(study.id, self.size), true_p=p)


def draw_labels(p: Array, field: Array) -> Array:
    """One rater: the smallest k with p_0 + ... + p_k >= Phi(field). p is [k z y x]."""
    u, total = ndtr(field), np.zeros(field.shape)
    label = np.zeros(field.shape, np.uint8)
    for share in p[:-1]:
        total += share
        label += total < u
    return label


def smooth_field(rng: np.random.Generator, size: tuple[int, ...], sigma: float) -> Array:
    """A smooth Gaussian field of mean 0 and variance exactly 1 at every voxel.

    White noise filtered on a torus by a Gaussian, exp(-2 (pi sigma f)^2) at frequency f: no voxel is nearer to a border
    than another, so one factor serves all. The variance is the mean of the squared response (Parseval).
    """
    along = [np.exp(-2 * (np.pi * sigma * np.fft.fftfreq(n)) ** 2) for n in size]
    power = np.prod([(response**2).mean() for response in along])
    along[-1] = along[-1][: size[-1] // 2 + 1]  # rfftn keeps one half of the last axis
    spectrum = rfftn(rng.standard_normal(size))
    for axis, response in enumerate(along):
        spectrum *= response.reshape(-1, *[1] * (len(size) - 1 - axis))
    return irfftn(spectrum, size) / np.sqrt(power)


def _probabilities(rng: np.random.Generator, size: tuple[int, ...], classes: int, ambiguity: float) -> Array:
    """p [k z y x] in float32."""
    extent = np.array(size, float)
    width = np.maximum(ambiguity * np.exp(0.5 * smooth_field(rng, size, float(extent[1:].min()) / 8)), 1e-3)
    groups = -(-(classes - 1) // 3)
    levels = [level for group in range(groups) for level in _group(rng, extent, group, groups)][: classes - 1]
    p = np.empty((classes, *size))
    remaining = np.ones(size)
    for structure in sorted(range(classes - 1), key=lambda index: (index % 3 != 1, index)):  # cores first
        p[structure + 1] = remaining * ndtr(levels[structure] / width)
        remaining -= p[structure + 1]
    p[0] = remaining
    p = np.maximum(p, 0).astype(np.float32)
    return p / p.sum(0)


def _group(rng: np.random.Generator, extent: Array, group: int, groups: int) -> list[Array]:
    """Level functions of an organ, of the core inside it and of the neighbour that touches it."""
    angle = 2 * np.pi * (group / groups + rng.uniform(0, 1 / groups))
    away = 0.0 if groups == 1 else 0.27
    direction = np.array([0.0, np.sin(angle), np.cos(angle)])
    shrink = 1.0 / np.sqrt(groups)
    organ_radius = extent * shrink * rng.uniform([0.32, 0.2, 0.24], [0.42, 0.26, 0.3])
    centre = extent * (0.5 + away * direction + rng.uniform(-0.03, 0.03, 3) - 0.09 * shrink * direction)
    core_radius = organ_radius * rng.uniform(0.35, 0.5)
    core = centre + organ_radius * rng.uniform(-0.3, 0.3, 3)
    beside = organ_radius * rng.uniform(0.5, 0.65)
    toward = rng.uniform(-0.4, 0.4)
    step = np.array([0.0, np.sin(angle + toward), np.cos(angle + toward)])
    # Along `step` the organ ends at 1 / |step / radius|, and the neighbour begins before that.
    distance = 1 / np.linalg.norm(step / organ_radius) + 0.7 / np.linalg.norm(step / beside)
    return [
        _ellipsoid(rng, extent, centre, organ_radius),
        _ellipsoid(rng, extent, core, core_radius),
        _ellipsoid(rng, extent, centre + distance * step, beside),
    ]


def _ellipsoid(rng: np.random.Generator, extent: Array, centre: Array, radius: Array) -> Array:
    """About the distance to a bumpy ellipsoid's surface in voxels, positive inside."""
    size = tuple(int(n) for n in extent)
    offset = [(np.arange(n) - c) / r for n, c, r in zip(size, centre, radius, strict=True)]
    z, y, x = np.meshgrid(*offset, indexing="ij", sparse=True)
    bumps = 0.08 * smooth_field(rng, size, float(extent[1:].min()) / 12)
    return (1 - np.sqrt(z**2 + y**2 + x**2) + bumps) * float(np.min(radius[1:]))


def _image(rng: np.random.Generator, p: Array) -> Array:
    """Every class has its own grey, mixed by p, in a smooth field of brightness."""
    greys = np.array([0.25, *(0.75 if index % 3 == 0 else 0.95 if index % 3 == 1 else 0.5 for index in range(31))])
    greys = greys[: len(p)] + rng.uniform(-0.05, 0.05, len(p))
    grey = np.tensordot(greys, p, 1)
    brightness = 1 + 0.06 * smooth_field(rng, p.shape[1:], p.shape[2] / 6)
    return gaussian_filter(grey, 0.6, mode="nearest") * brightness


def _name(index: int) -> str:
    if index == 0:
        return "background"
    kind, group = Phantom.classes[1 + (index - 1) % 3], (index - 1) // 3
    return kind if group == 0 else f"{kind} {group + 1}"


def _made(id: str, size: tuple[int, ...]) -> dict[str, Any]:
    return {"file": id, "shape": list(size[::-1]), "affine": np.eye(4).tolist(), "orientation": "RAS"}
