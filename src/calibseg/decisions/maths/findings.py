r"""What one pass over a case finds of each structure: all that decisions are made of.

A structure is a class other than background, a region (its probability is the sum of its classes') or a sigmoid
channel. With its probability p, the predicted voxels M, the true ones T where labels are known, and voxels that are not
ignored:

    predicted, true          |M|, |T|
    mass, inside, spread     sums of p over all voxels, of p over M, of p (1 - p) over all voxels
    possible, uncertain      voxels with p above 0.1, and those of them with p below 0.9
    in_truth, in_rest        how many voxels inside and outside T lie in each cell of `thresholds`
    outward                  mm from the voxels of T to M, 0 inside it; infinite where M is empty
    inward                   mm from the voxels of M that are not in T to the nearest voxel outside M

Masks that come without probabilities give all but the sums of p. Only what is asked for is counted.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from math import nan
from typing import Literal, NamedTuple

import numpy as np
from scipy.ndimage import distance_transform_edt

from calibseg.core.scores import ScoreReader
from calibseg.core.types import Array, BadInput, Prediction
from calibseg.decisions.maths.thresholds import CELLS, cells
from calibseg.metrics.statistics.binning.reader import chunk_probabilities
from calibseg.metrics.statistics.surface_distances import Distances

Part = Literal["in_truth", "in_rest", "outward", "inward"]  # what costs time, and is counted on demand
CHUNK = 1 << 18  # numbers read at a time: they stay in the cache
POSSIBLE, SURE = np.float32(0.1), np.float32(0.9)


class Structure(NamedTuple):
    """What is decided about: the channels whose probabilities it sums, and the labels that are it."""

    name: str
    channels: tuple[int, ...]
    labels: tuple[int, ...]


class Counts(NamedTuple):
    """Cells that hold voxels, ascending, and how many each holds."""

    cells: Array  # int32
    counts: Array  # int64

    @classmethod
    def of(cls, counts: Array) -> "Counts":
        filled = np.flatnonzero(counts)
        return cls(filled.astype(np.int32), counts[filled])

    def below(self) -> Array:
        """How many voxels lie below each of the thresholds 0 ... CELLS: float64."""
        every = np.zeros(CELLS + 1)
        every[self.cells + 1] = self.counts
        return every.cumsum()


@dataclass(frozen=True)
class Findings:
    """One structure of one case. NaN or None: not known, or not asked for."""

    voxel_ml: float
    predicted: int
    true: int | None = None
    voxels: int = 0  # that are not ignored
    mass: float = nan
    inside: float = nan
    spread: float = nan
    possible: int = 0
    uncertain: int = 0
    in_truth: Counts | None = None
    in_rest: Counts | None = None
    outward: Distances | None = None
    inward: Distances | None = None

    @property
    def volume_ml(self) -> float:
        """What is expected: of the probabilities, or of the mask where there are none."""
        return (self.predicted if np.isnan(self.mass) else self.mass) * self.voxel_ml

    @property
    def soft_dice_confidence(self) -> float:
        """2 sum_M p / (sum p + |M|): 0 where nothing is predicted but some probability is left; NaN without any."""
        whole = self.mass + self.predicted
        return 2 * self.inside / whole if whole else nan


@dataclass
class CasePass:
    """One pass over a case: the findings of every structure, the predicted masks, and masks above thresholds."""

    findings: dict[str, Findings]
    predicted: dict[str, Array] = field(default_factory=dict)  # bool [z y x]
    above: dict[tuple[str, str], Array] = field(default_factory=dict)  # (rule, structure) -> bool [z y x]


def pass_over(
    prediction: Prediction,
    structures: Collection[Structure],
    parts: Collection[Part] = (),
    ignore_label: int | None = None,
    thresholds: Mapping[tuple[str, str], float] | None = None,
) -> CasePass:
    """Read a case once.

    prediction: scores [k z y x], or somebody's label map [z y x], which has no probabilities; its labels [z y x], where
        there are any, hold the values that structures name
    thresholds: (rule, structure) -> the least probability of a mask that is wanted
    """
    targets = {one.name: _Target.of(prediction.labels, one, ignore_label) for one in structures}
    if prediction.scores.ndim == 3:
        return _pass_over_mask(prediction, structures, targets, parts)
    reader = ScoreReader(prediction.scores, prediction.kind, prediction.activation, voxel=prediction.voxel_name)
    masks = {one.name: np.zeros(reader.space, bool) for one in structures}
    above = {key: np.zeros(reader.space, bool) for key in thresholds or {}}
    tallies = {one.name: _Tally(parts, prediction.labels is not None) for one in structures}
    for at in reader.chunks(CHUNK // reader.classes):
        p, top = chunk_probabilities(reader, at)
        rows = slice(*at)
        space = (rows.stop - rows.start, *reader.space[1:])
        for one in structures:
            own = p[one.channels[0]] if len(one.channels) == 1 else p[list(one.channels)].sum(0).clip(max=np.float32(1))
            inside = own > 0.5 if top is None else _member(top, one.channels)
            masks[one.name][rows] = inside.reshape(space)
            for key, least in (thresholds or {}).items():
                if key[1] == one.name:
                    above[key][rows] = (own >= np.float32(least)).reshape(space)
            tallies[one.name].add(own, inside, *targets[one.name].rows(rows))
    findings = {}
    for one in structures:
        plain = tallies[one.name].findings(_voxel_ml(prediction.spacing_mm))
        findings[one.name] = _with_distances(plain, masks[one.name], targets[one.name], prediction.spacing_mm, parts)
    return CasePass(findings, masks, above)


def _pass_over_mask(
    prediction: Prediction, structures: Collection[Structure], targets: Mapping[str, "_Target"], parts: Collection[Part]
) -> CasePass:
    if {"in_truth", "in_rest"} & set(parts):
        raise BadInput("masks alone have no probabilities, which this decision needs")
    findings, masks = {}, {}
    for one in structures:
        mask, target = _member(prediction.scores, one.labels), targets[one.name]
        masks[one.name] = mask
        number = None if target.truth is None else int(target.truth.sum())
        inside, voxels = (mask, mask.size) if target.keep is None else (mask & target.keep, int(target.keep.sum()))
        plain = Findings(_voxel_ml(prediction.spacing_mm), int(inside.sum()), number, voxels)
        findings[one.name] = _with_distances(plain, mask, target, prediction.spacing_mm, parts)
    return CasePass(findings, masks)


class _Target(NamedTuple):
    """Where a structure really is, and which voxels are not ignored (None: no labels; every voxel)."""

    truth: Array | None  # bool [z y x]
    keep: Array | None

    @classmethod
    def of(cls, labels: Array | None, one: Structure, ignore_label: int | None) -> "_Target":
        """labels: [z y x], or of sigmoid channels [k z y x], whether each is right there."""
        if labels is None:
            return cls(None, None)
        own, members = (labels, one.labels) if labels.ndim == 3 else (labels[one.channels[0]], (1,))
        keep = None if ignore_label is None else own != ignore_label
        return cls(_member(own, members), None if keep is None or keep.all() else keep)

    def rows(self, at: slice) -> tuple[Array | None, Array | None]:
        truth = None if self.truth is None else self.truth[at].ravel()
        return truth, None if self.keep is None else self.keep[at].ravel()


class _Tally:
    """Sums over the chunks of a case."""

    def __init__(self, parts: Collection[Part], labelled: bool) -> None:
        self.sums = np.zeros(3)
        self.numbers = np.zeros(5, np.int64)
        self.labelled = labelled
        self.histograms = {name: np.zeros(CELLS, np.int64) for name in ("in_truth", "in_rest") if name in parts}

    def add(self, p: Array, inside: Array, truth: Array | None, keep: Array | None) -> None:
        if keep is not None and truth is not None:
            p, inside, truth = p[keep], inside[keep], truth[keep]
        wide = p.astype(np.float64)
        self.sums += (wide.sum(), wide[inside].sum(), wide.sum() - wide @ wide)
        possible = p > POSSIBLE
        true = 0 if truth is None else np.count_nonzero(truth)
        uncertain = np.count_nonzero(possible & (p < SURE))
        self.numbers += np.array([np.count_nonzero(inside), true, len(p), np.count_nonzero(possible), uncertain])
        if truth is None:
            return
        for name, counts in self.histograms.items():
            counts += np.bincount(cells(p[truth if name == "in_truth" else ~truth]), minlength=CELLS)

    def findings(self, voxel_ml: float) -> Findings:
        predicted, true, voxels, possible, uncertain = self.numbers.tolist()
        mass, inside, spread = self.sums.tolist()
        known = true if self.labelled else None
        counted = {name: Counts.of(one) for name, one in self.histograms.items()} if self.labelled else {}
        sums = (voxels, mass, inside, max(spread, 0.0), possible, uncertain)
        return Findings(voxel_ml, predicted, known, *sums, counted.get("in_truth"), counted.get("in_rest"))


def _member(labels: Array, members: tuple[int, ...]) -> Array:
    return labels == members[0] if len(members) == 1 else np.isin(labels, members)


def _voxel_ml(spacing_mm: tuple[float, float, float]) -> float:
    return float(np.prod(spacing_mm)) / 1000


def _with_distances(
    findings: Findings, predicted: Array, target: _Target, spacing_mm: tuple[float, ...], parts: Collection[Part]
) -> Findings:
    truth, keep = target
    if truth is None:
        return findings
    if "outward" in parts:
        findings = replace(findings, outward=_distances(truth, predicted, box_around(truth | predicted), spacing_mm))
    if "inward" in parts:
        false = predicted & ~truth if keep is None else predicted & ~truth & keep
        # A voxel beyond the box is never the nearest: the one on the box's face before it is outside the mask too.
        findings = replace(findings, inward=_distances(false, ~predicted, box_around(predicted, (1, 1, 1)), spacing_mm))
    return findings


def _distances(of: Array, to: Array, box: tuple[slice, ...], spacing_mm: tuple[float, ...]) -> Distances:
    """From the voxels of one mask to the nearest of another, all of which a box holds."""
    of, to = of[box], to[box]
    number = int(of.sum())
    if not number or not to.any():
        ends = ([np.inf], [number]) if number else ([], [])
        return Distances(np.array(ends[0], float), np.array(ends[1], np.int64))
    values, counts = np.unique(distance_in_mm(to, spacing_mm)[of], return_counts=True)
    return Distances(values, counts)


def box_around(mask: Array, grown: tuple[int, ...] = (0, 0, 0)) -> tuple[slice, ...]:
    """The smallest box that holds a mask [z y x], grown by so many voxels along each axis; empty for an empty mask."""
    box = []
    for axis, more in enumerate(grown):
        used = np.flatnonzero(mask.any(tuple(other for other in range(3) if other != axis)))
        box.append(slice(max(int(used[0]) - more, 0), int(used[-1]) + 1 + more) if len(used) else slice(0, 0))
    return tuple(box)


def distance_in_mm(to: Array, spacing_mm: tuple[float, ...]) -> Array:
    """Of every voxel to the nearest voxel of a mask that is not empty; 0 inside."""
    return np.asarray(distance_transform_edt(~to, sampling=spacing_mm))
