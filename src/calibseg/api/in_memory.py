"""Every metric of predictions that are arrays in memory: `measure(logits, labels, kind="logits")`.

    measured = measure(scores, labels, kind="probabilities", spacing_mm=(1.0, 0.8, 0.8))
    measured.values["ece@predicted"]["all"]        # the mean over cases; .pooled: all voxels together
    measured.table                                 # a row for every case, class, voxel rule and metric: pandas
    measured.plot("reliability.png")               # a matplotlib figure

Arrays of numpy or tensors of torch on any device; one case [k *space], a batch [n k *space] or a list of cases, in 2-D
or 3-D. The values are those of `calibseg score` on the same volumes, to the bit: both call `stages.score.case`.

>>> import numpy as np
>>> labels = np.array([[0, 0, 1, 1]])
>>> p = np.array([0.1, 0.1, 0.9, 0.4])[None]
>>> measured = measure(np.stack([1 - p, p]), labels, kind="probabilities", metrics=("dsc", "ece"), voxels=("all",))
>>> round(measured.values["dsc"]["1"], 4), round(measured.values["ece@all"]["all"], 6)
(0.6667, 0.225)
>>> measured
1 case, 2 classes
metric   unit     all  background       1
dsc                 -           -  0.6667
ece@all        0.2250      0.2667  0.1000
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce
from operator import add
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pandas as pd

from calibseg.analysis.columns import ALL, Frame, metric_key
from calibseg.analysis.table import frame
from calibseg.core import arrays
from calibseg.core.types import IGNORED, Activation, BadInput, Prediction, ScoreKind
from calibseg.metrics.statistics.binning import Bands, VoxelRule
from calibseg.metrics.statistics.distance_bands import distance_bands, signed_distance_mm
from calibseg.metrics.statistics.label_maps import refuse_unknown_labels
from calibseg.stages.score.case import Besides, CaseMeasurement, OfCase, measure_target, refuse_without_rows
from calibseg.stages.score.channels import Channels, plain_names
from calibseg.stages.score.options import ScoringOptions
from calibseg.stages.score.rows import BIN_COLUMNS, bin_rows, score_rows

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Values = dict[str, dict[str, float]]  # metric (and @voxel rule) -> class or `all` -> value; NaN: undefined


@dataclass(frozen=True)
class Measured:
    """What `measure` found: `values` by metric and class, `table` row by row, and `plot()` for the reliability."""

    table: Frame  # the columns of a score table (calibseg.analysis.table)
    bins: Frame  # the rows of the reliability diagrams
    cases: int
    classes: tuple[str, ...]

    @property
    def values(self) -> Values:
        """{"ece@predicted": {"all": 0.02, "1": 0.03, ...}}: the mean over the cases in which a value is defined."""
        return self._by_metric(self.table[self.table["scope"] == "case"])

    @property
    def pooled(self) -> Values:
        """The same of all cases as if they were one; distances, which belong to a case, are not among them."""
        return self._by_metric(self.table[self.table["scope"] == "pooled"])

    def plot(self, path: str | Path | None = None, *, voxels: str | None = None, of: str = ALL) -> "Figure":
        """A reliability diagram of all cases; drawn to `path` (.png, .svg, .pdf) where one is given.

        voxels: the rule; default: predicted, or the first that was measured
        of: a class, by name; all: the likeliest class of each voxel
        """
        from calibseg.report.figure_data.scores import reliability as curves
        from calibseg.report.matplotlib.scores import reliability as draw
        from calibseg.report.matplotlib.style import save

        measured = list(dict.fromkeys(self.bins["voxels"]))
        rule = voxels or ("predicted" if "predicted" in measured else measured[0])
        figure = draw(curves(self.bins, rule, of), rule)
        if path is not None:
            save(figure, path)
        return figure

    def __repr__(self) -> str:
        units = dict(zip(_keys(self.table), self.table["unit"], strict=True))
        values = self.values
        present = {name for row in values.values() for name in row}
        columns = [name for name in (ALL, *self.classes) if name in present]
        cells = [["metric", "unit", *columns]]
        for key, row in values.items():
            cells.append([key, units[key], *(f"{row[name]:.4f}" if name in row else "-" for name in columns)])
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        lines = [
            "  ".join([*(cell.ljust(width) for cell, width in zip(row[:2], widths[:2], strict=True)),
                       *(cell.rjust(width) for cell, width in zip(row[2:], widths[2:], strict=True))])
            for row in cells
        ]  # fmt: skip
        number = f"{self.cases} case{'s' if self.cases > 1 else ''}, {len(self.classes)} classes"
        return "\n".join([number + (": the mean over cases" if self.cases > 1 else ""), *lines])

    def _by_metric(self, rows: Frame) -> Values:
        means = rows.assign(key=_keys(rows)).groupby(["key", "class"], sort=False)["value"].mean()
        values: Values = {}
        for (key, name), value in means.items():
            values.setdefault(key, {})[name] = float(value)
        return values


def measure(
    scores: Any,
    labels: Any,
    *,
    kind: ScoreKind,
    spacing_mm: Any = None,
    metrics: Sequence[str] | None = None,
    voxels: Sequence[VoxelRule] = ("truth", "predicted", "all"),
    activation: Activation = "softmax",
    ignore_label: int | None = None,
    batch: bool | None = None,
    options: ScoringOptions | None = None,
) -> Measured:
    """Calibration, overlap and distances of predictions in memory, per case and class.

    scores: one case [k *space], a batch [n k *space], or a list of cases; 2-D or 3-D
    labels: integers [*space], [n *space] or a list; with sigmoid channels [k *space] of 0 and 1; ignored in one, a
        voxel is in all
    kind: what the scores are: nothing is guessed, and what the values disprove is refused
    spacing_mm: size of a voxel (z, y, x) or (y, x), or a list of one for each case; None: distances are in voxels
    metrics: keys (`available("metrics")`); None: all
    voxels: which voxels count for calibration: truth (the papers' rule), predicted, union, all, boundary
    ignore_label: the label of voxels to ignore
    batch: whether scores of four axes are a batch of images, where labels leave it open
    options: the rest of what decides what a number means: bins, empty, ... of `calibseg score`; without spacing_mm its
        boundary_mm counts voxels
    """
    if labels is None:
        raise BadInput("there is nothing to measure by: give the labels")
    if options is not None and (options.metrics or options.voxels != ScoringOptions().voxels):
        raise BadInput("say metrics and voxels as arguments of their own, not in options")
    units = "voxel" if spacing_mm is None else (options or ScoringOptions()).units
    rules = replace(options or ScoringOptions(), voxels=_names(voxels), metrics=_names(metrics or ()),
                    units=units)  # fmt: skip
    if activation == "sigmoid" and "boundary" in rules.voxels:
        raise BadInput("the voxel rule 'boundary' needs one label map, which sigmoid channels do not have")
    cases = arrays.split_cases(scores, labels, batch=batch)
    predictions = arrays.predictions(
        cases, kind=kind, activation=activation, spacing_mm=spacing_mm, ignore_label=ignore_label
    )
    if not predictions:
        raise BadInput("there is no case to measure: the list of scores is empty")
    ignore = None if ignore_label is None else IGNORED
    bands = replace(distance_bands(rules.boundary_mm), unit="voxel" if spacing_mm is None else "mm")
    measured = [(_Whose(p.case_id, p.patient), _measured(p, rules, bands, ignore)) for p in predictions]
    refuse_without_rows(rules, [case for _, case in measured])
    pooled = replace(reduce(add, (case.statistics for _, case in measured)), of_case=OfCase())
    bins = pd.DataFrame(bin_rows(measured, pooled, rules, {}), columns=list(BIN_COLUMNS))
    return Measured(frame(score_rows(measured, pooled, rules, {})), bins, len(measured), measured[0][1].channels.names)


class _Whose(NamedTuple):
    case: str
    patient: str


def _measured(prediction: Prediction, rules: ScoringOptions, bands: Bands, ignore_label: int | None) -> CaseMeasurement:
    scores, labels, number = prediction.scores, prediction.labels, prediction.scores.shape[0]
    assert labels is not None
    softmax = prediction.activation == "softmax"
    if softmax and number < 2:
        raise BadInput(f"{prediction.case_id} has one class; softmax needs two or more (one channel is sigmoid's)")
    if labels.dtype.kind not in "biu" or (labels.shape if softmax else labels.shape[1:]) not in (scores.shape[1:],):
        expected = list(scores.shape[1:] if softmax else scores.shape)
        raise BadInput(
            f"the labels of {prediction.case_id} must be integers {expected} for scores {list(scores.shape)}, not "
            f"{labels.dtype} {list(labels.shape)}"
        )
    refuse_unknown_labels(prediction.case_id, labels, number if softmax else 2, ignore_label, of="channel")
    zones: dict[str, Any] = {}
    if "boundary" in rules.voxels:
        distance = signed_distance_mm(labels, prediction.spacing_mm, ignore_label)
        zones = {"distance_mm": distance, "bands": bands}
    names = plain_names(number) if softmax else tuple(str(index) for index in range(number))
    channels = Channels(names, tuple((index,) for index in range(number)), prediction.activation)
    try:
        return measure_target(
            prediction, labels, channels, rules, ignore_label=ignore_label, regions={}, besides=Besides(zones)
        )
    except BadInput as error:
        raise BadInput(f"{prediction.case_id}: {error}") from error


def _keys(rows: Frame) -> list[str]:
    return [metric_key(*pair) for pair in zip(rows["metric"], rows["voxels"], strict=True)]


def _names(names: str | Sequence[str]) -> tuple[Any, ...]:
    """One name, or several."""
    return (names,) if isinstance(names, str) else tuple(names)
