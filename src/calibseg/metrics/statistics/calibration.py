r"""Additive calibration statistics: what one pass over a volume leaves behind, and the curves it holds.

Every (voxel, class) pair falls into one cell of a table: its zone (a distance band, or the one zone there is), whether
the truth there is foreground, whether the prediction there is foreground, whether this class is the predicted one, the
class, and the bin of its probability. A cell holds a count and the sums of probability and label. Each rule about which
voxels count is then a sum over cells, so one pass answers all of them:

    truth      the label is foreground: the papers' rule
    predicted  the prediction is foreground
    union      either is foreground
    all        every voxel that is not ignored
    boundary   the zones within a stated distance of the true surface (needs bands)

Conditioning on the truth is not a measure of calibration: even a predictor that states the exact probabilities does not
score 0 on `truth`, `union` or `boundary`, because choosing voxels by their label changes how often the label occurs.
Only on `predicted` and `all` does a perfect predictor score 0.

Sums are two int64 words (whole part, then fraction in units of 2^-32; NLL: 2^-40), carried after every addition, so
the words depend on what was added and not on the order or on how it was cut into chunks, cases, workers or ranks.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Self, get_args

import numpy as np

from calibseg.core.options import whole_number
from calibseg.core.types import Activation, Array, BadInput, Units, VoxelRule
from calibseg.metrics.statistics.curve import Curve

VOXELS: tuple[VoxelRule, ...] = get_args(VoxelRule)
HONEST: tuple[VoxelRule, ...] = ("predicted", "all")  # the rules on which a perfect predictor scores 0
FRACTION_BITS = {"confidence": 32, "hits": 32, "squares": 32, "nll": 40}
ACTIVATIONS: tuple[Activation, ...] = ("softmax", "sigmoid")


@dataclass(frozen=True)
class Bins:
    """Equal bins (lo, hi] of [0, 1]; 0 belongs to the first. `threshold` splits the first bin, for `tcece`."""

    number: int = 15
    threshold: float = 1e-3

    def __post_init__(self) -> None:
        if not 1 <= whole_number("the number of bins", self.number, 0) <= 1000:
            raise BadInput(f"the number of bins must lie between 1 and 1000, not {self.number}")
        if not 0 < self.threshold < 1 / self.number:
            edge = f"the first edge of {self.number} bins"
            raise BadInput(f"the threshold must lie between 0 and {edge}, not {self.threshold}")

    @property
    def edges(self) -> Array:
        """The float32 numbers that a float32 probability is compared with: number + 1 of them, from 0 to 1."""
        return (np.arange(self.number + 1) / self.number).astype(np.float32)

    @property
    def stored(self) -> int:
        """Bins as they are stored: the first is stored as two, at most `threshold` and above it."""
        return self.number + 1

    @property
    def scale(self) -> float | None:
        """A float64 c for which ceil(c p) is the bin of every float32 p, counted from 1; None where there is none.

        ceil(c p) grows with p, so it is right everywhere if it is right on both sides of each edge e_b:
        c e_b <= b < c e_b+, with e_b+ the float32 after e_b, and c <= number.
        """
        b = np.arange(1, self.number + 1)
        edge = self.edges[1:].astype(np.float64)
        after = np.nextafter(self.edges[1:], np.float32(2)).astype(np.float64)
        scale = float(((b / after).max() + (b / edge).min()) / 2)
        right = (np.ceil(edge * scale) == b) & (np.ceil(after * scale) == b + 1)
        return scale if right.all() else None


@dataclass(frozen=True)
class Bands:
    """Zones of signed distance to the true surface: `edges` in mm, negative inside; `within_mm` makes `boundary`.

    unit: "voxel" where nobody said how large voxels are, and what is called mm counts them
    """

    edges: tuple[float, ...] = ()
    within_mm: float | None = None
    unit: Units = "mm"

    @property
    def number(self) -> int:
        return len(self.edges) + 1

    @property
    def limits(self) -> list[tuple[float, float]]:
        return list(zip((-np.inf, *self.edges), (*self.edges, np.inf), strict=True))

    @property
    def near(self) -> Array:
        """Which zones lie within `within_mm` of the surface."""
        if self.within_mm is None:
            raise BadInput("the voxel rule 'boundary' needs distance bands: give bands= when taking the statistics")
        return np.array([-self.within_mm <= lo and hi <= self.within_mm for lo, hi in self.limits])


@dataclass(frozen=True)
class ReliabilityCurves:
    """The reliability curves of one choice of voxels: float64 sums that every calibration metric is a function of.

    Axis k is the class, b the bin. `top_*` holds each voxel's predicted class only: row k are the voxels predicted k.
    """

    count: Array  # [k b] int64
    confidence: Array  # [k b] sum of probabilities
    hits: Array  # [k b] sum of (soft) labels
    top_count: Array  # [k b] int64
    top_confidence: Array  # [k b]
    top_hits: Array  # [k b]
    kept: tuple[Array, Array, Array]  # count, confidence, hits without the pairs at or below the threshold
    squares: Array  # [k] sum of (p - y)^2
    nll: Array  # [k] sum of -y log max(p, 2^-24)
    clipped: Array  # [k] voxels of class k whose probability of it is below 2^-24
    bins: Bins
    activation: Activation
    voxels: VoxelRule | None
    highest_label: int  # that occurs in the labels of all voxels, -1 where there is none

    @property
    def number(self) -> int:
        """How many voxels count. With sigmoid the foreground is each channel's own, so this is the largest of them."""
        return int(self.count.sum(1).max(initial=0))

    @property
    def classes(self) -> int:
        return len(self.count)

    def class_curves(self) -> list[Curve]:
        """Each class's probability against whether the label is that class, over every voxel that is not ignored."""
        return [Curve(*rows) for rows in zip(self.count, self.confidence, self.hits, strict=True)]

    def top_curve(self) -> Curve:
        """The probability of the predicted class against whether it is right."""
        return Curve(self.top_count.sum(0), self.top_confidence.sum(0), self.top_hits.sum(0))

    def confidence_curves(self) -> dict[int | None, Curve]:
        """k: the top-label curve of the voxels predicted k; None: of all. With sigmoid, k: channel k's own curve."""
        if self.activation == "sigmoid":
            return dict(enumerate(self.class_curves()))
        rows = zip(self.top_count, self.top_confidence, self.top_hits, strict=True)
        return {**{k: Curve(*row) for k, row in enumerate(rows)}, None: self.top_curve()}

    def rows(self) -> Iterator[dict[str, Any]]:
        """One row per class and bin of the reliability diagram; class None is the top-label curve."""
        curves: dict[int | None, Curve] = dict(enumerate(self.class_curves()))
        if self.activation == "softmax":
            curves = {None: self.top_curve()} | curves
        for k, curve in curves.items():
            for b, n in enumerate(curve.count.tolist()):
                yield {
                    "voxels": self.voxels,
                    "class": k,
                    "bin": b,
                    "low": b / self.bins.number,
                    "high": (b + 1) / self.bins.number,
                    "count": n,
                    "confidence": float(curve.confidence[b]) / n if n else float("nan"),
                    "accuracy": float(curve.hits[b]) / n if n else float("nan"),
                }


@dataclass(frozen=True)
class CalibrationStatistics:
    """Counts and exact sums per zone, truth, prediction, top, class and bin. Add them up in any order.

    Axes: z zone, t truth is foreground, p prediction is foreground, m this class is the predicted one, k class, b bin.
    """

    classes: int
    bins: Bins = field(default_factory=Bins)
    activation: Activation = "softmax"
    bands: Bands = field(default_factory=Bands)
    count: Array = None  # pyright: ignore[reportAssignmentType]  # [z t p m k b]
    confidence: Array = None  # pyright: ignore[reportAssignmentType]  # [2 z t p m k b]
    hits: Array = None  # pyright: ignore[reportAssignmentType]  # [2 z t p m k b]
    squares: Array = None  # pyright: ignore[reportAssignmentType]  # [2 z t p k]
    nll: Array = None  # pyright: ignore[reportAssignmentType]  # [2 z t p k]
    clipped: Array = None  # pyright: ignore[reportAssignmentType]  # [z t p k]

    def __post_init__(self) -> None:
        for name, shape in self.shapes.items():
            if getattr(self, name) is None:
                object.__setattr__(self, name, np.zeros(shape, np.int64))
            elif getattr(self, name).shape != shape:
                raise BadInput(f"the statistic {name!r} has the shape {getattr(self, name).shape}, expected {shape}")

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        cells = (self.bands.number, 2, 2)
        full = (*cells, 2, self.classes, self.bins.stored)
        short = (*cells, self.classes)
        return {
            "count": full,
            "confidence": (2, *full),
            "hits": (2, *full),
            "squares": (2, *short),
            "nll": (2, *short),
            "clipped": short,
        }

    @property
    def sums(self) -> dict[str, Array]:
        """The additive int64 arrays: what travels between workers. Add them, then `with_sums`."""
        return {name: getattr(self, name) for name in self.shapes}

    def with_sums(self, sums: dict[str, Array]) -> Self:
        """These rules with other sums; whole parts and fractions are carried."""
        return replace(self, **{name: carried(name, array) for name, array in sums.items()})

    def merge(self, other: Self) -> Self:
        """Both together: exact, commutative and associative."""
        for name in ("classes", "bins", "activation", "bands"):
            if getattr(self, name) != getattr(other, name):
                raise BadInput(
                    f"statistics taken under different rules do not add up: {name} is {getattr(self, name)} "
                    f"in one and {getattr(other, name)} in the other"
                )
        return self.with_sums({name: array + other.sums[name] for name, array in self.sums.items()})

    __add__ = merge

    def on(self, voxels: VoxelRule) -> ReliabilityCurves:
        """The curves of the voxels that a rule chooses."""
        rule = self.bands.near[:, None, None] if voxels == "boundary" else cells_of_rule(voxels)
        return self._curves(np.broadcast_to(rule, (self.bands.number, 2, 2)), voxels)

    def by_distance(self) -> Iterator[tuple[tuple[float, float], ReliabilityCurves]]:
        """The curves of each distance band, all voxels: ECE as a function of the signed distance to the surface."""
        for zone, limits in enumerate(self.bands.limits):
            chosen = np.zeros((self.bands.number, 2, 2), bool)
            chosen[zone] = True
            yield limits, self._curves(chosen, None)

    def to_arrays(self) -> dict[str, Array]:
        """Plain numeric arrays, for safetensors or npz without pickling."""
        within = np.nan if self.bands.within_mm is None else self.bands.within_mm
        rules = {
            "classes": np.array(self.classes),
            "bins": np.array(self.bins.number),
            "threshold": np.array(self.bins.threshold),
            "activation": np.array(ACTIVATIONS.index(self.activation)),
            "band_edges_mm": np.array(self.bands.edges, np.float64),
            "within_mm": np.array(within, np.float64),
        }
        return rules | self.sums

    @classmethod
    def from_arrays(cls, arrays: dict[str, Array]) -> Self:
        """The inverse of `to_arrays`."""
        missing = set(cls(2).to_arrays()) - set(arrays)
        if missing:
            raise BadInput(f"these are not calibration statistics: {', '.join(sorted(missing))} missing")
        within = float(arrays["within_mm"])
        rules = cls(
            int(arrays["classes"]),
            Bins(int(arrays["bins"]), float(arrays["threshold"])),
            ACTIVATIONS[int(arrays["activation"])],
            Bands(tuple(np.asarray(arrays["band_edges_mm"]).tolist()), None if np.isnan(within) else within),
        )
        return replace(rules, **{name: np.asarray(arrays[name], np.int64) for name in rules.shapes})

    def _curves(self, chosen: Array, voxels: VoxelRule | None) -> ReliabilityCurves:
        count = self.count[chosen].sum(0)  # [m k b]
        confidence = as_float("confidence", self.confidence[:, chosen].sum(1))
        hits = as_float("hits", self.hits[:, chosen].sum(1))
        parts = [part.sum(0) for part in (count, confidence, hits)]
        occurs = np.flatnonzero(self.hits.any(axis=(0, 1, 2, 3, 4, 6)))
        return ReliabilityCurves(
            *(_first_bin_whole(part) for part in parts),
            *(_first_bin_whole(part[1]) for part in (count, confidence, hits)),
            kept=(parts[0][:, 1:], parts[1][:, 1:], parts[2][:, 1:]),
            squares=as_float("squares", self.squares[:, chosen].sum(1)),
            nll=as_float("nll", self.nll[:, chosen].sum(1)),
            clipped=self.clipped[chosen].sum(0),
            bins=self.bins,
            activation=self.activation,
            voxels=voxels,
            highest_label=int(occurs.max(initial=-1)),
        )


def cells_of_rule(voxels: VoxelRule) -> Array:
    """Which of [truth is foreground, prediction is foreground] a rule chooses."""
    rules = {
        "truth": [[False, False], [True, True]],
        "predicted": [[False, True], [False, True]],
        "union": [[False, True], [True, True]],
        "all": [[True, True], [True, True]],
    }
    if voxels not in rules:
        raise BadInput(f"no voxel rule named {voxels!r}. Known: {', '.join(VOXELS)}")
    return np.array(rules[voxels])


def _first_bin_whole(part: Array) -> Array:
    """The first bin is stored as two."""
    return np.concatenate([part[:, :1] + part[:, 1:2], part[:, 2:]], axis=1)


def carried(name: str, array: Array) -> Array:
    """Two words with the whole part of the second moved into the first."""
    if name not in FRACTION_BITS:
        return array
    bits = FRACTION_BITS[name]
    return np.stack([array[0] + (array[1] >> bits), array[1] & ((1 << bits) - 1)])


def as_float(name: str, words: Array) -> Array:
    """The float64 number that two words hold."""
    return words[0] + words[1] / 2.0 ** FRACTION_BITS[name]
