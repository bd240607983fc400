"""One slice of one case as a network saw it: image, truth, prediction, confidence and error.

The slice that stands for a case is the one with the largest true foreground, the first of equals; where nothing is
labelled, the one with the largest predicted foreground, else the middle one. Slices lie along the axis that the network
was given, in the array's own order (RAS+): rows and columns grow towards the patient's superior or anterior and
towards the right, so a picture is drawn with its origin below.

An error is 1 where the label is wrong. With several raters the truth is the first one's.
"""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import pandas as pd
from numpy import ndarray as Array

from calibseg.analysis.case_values import case_values, evaluated_classes, method_names
from calibseg.analysis.columns import Frame
from calibseg.analysis.run_names import run_names
from calibseg.analysis.table import ScoreTable
from calibseg.core.types import IGNORED, BadInput, Prediction, VoxelRule
from calibseg.data.prepared import open_case
from calibseg.io.stored_logits import open_logits
from calibseg.runs.folders import RunFolder
from calibseg.runs.info import prepared_dir, read_run


@dataclass(frozen=True)
class SliceView:
    """What is shown of one slice; arrays are [h w]."""

    index: int
    image: Array  # float32 [c h w], as the network saw it
    truth: Array  # uint8, 255 where nothing counts
    prediction: Array  # uint8
    confidence: Array  # float32, of the predicted class
    error: Array  # bool
    aspect: float  # height of a voxel over its width, in mm


@dataclass(frozen=True)
class CaseView:
    """A stored prediction beside its prepared image; slices are read when asked for."""

    method: str
    case: str
    patient: str
    classes: tuple[str, ...]
    run: Path
    work: Path
    stored: Prediction

    @property
    def axis(self) -> int:
        """Along which the slices lie."""
        return self.stored.slice_axis or 0

    @property
    def slices(self) -> int:
        return self.stored.scores.shape[1 + self.axis]

    @cached_property
    def labels(self) -> Array:
        """The first rater's labels, slices first: [n h w]."""
        labels = self.stored.labels
        if labels is None:
            raise BadInput(f"{self.case}: was predicted without labels, and there is no truth to show")
        return np.moveaxis(labels[0] if labels.ndim == 4 else labels, self.axis, 0)

    @cached_property
    def scores(self) -> Array:
        """Stored logits, slices first: [n k h w]."""
        return np.moveaxis(np.asarray(self.stored.scores), 1 + self.axis, 0)

    def chosen(self) -> int:
        """The slice that stands for the case: see the head of this file."""
        for areas in (_areas(self.labels), _areas(self.scores.argmax(1))):
            if areas.any():
                return int(areas.argmax())
        return self.slices // 2

    def slice(self, index: int | None = None) -> SliceView:
        """One slice, by default the one that stands for the case."""
        index = self.chosen() if index is None else index
        if not 0 <= index < self.slices:
            raise BadInput(f"{self.case} has the slices 0 to {self.slices - 1}, not {index}")
        scores = self.scores[index].astype(np.float64)
        p = np.exp(scores - scores.max(0))
        p /= p.sum(0)
        prediction = p.argmax(0).astype(np.uint8)
        truth = self.labels[index]
        height, width = (mm for axis, mm in enumerate(self.stored.spacing_mm) if axis != self.axis)
        return SliceView(
            index=index,
            image=open_case(self.work, self.case).read("image", index),
            truth=truth,
            prediction=prediction,
            confidence=p.max(0).astype(np.float32),
            error=(prediction != truth) & (truth != IGNORED),
            aspect=height / width,
        )


def open_view(
    run: Path | str, case: str, subset: str = "test", method: str = "", work: Path | str | None = None
) -> CaseView:
    """A case of a run; work: the folder of prepared cases, by default the one of the recipe."""
    run = Path(run)
    path = RunFolder(run).logits / subset / f"{case}.npz"
    if not path.is_file():
        raise BadInput(
            f"{path}: {case!r} is not predicted; run calibseg predict {run} --subset {subset.partition('-')[0]}"
        )
    stored = open_logits(path)
    classes = read_run(run).classes
    folder = prepared_dir(run, work)
    return CaseView(method or run_names([run])[0], case, stored.patient, classes, run, folder, stored)


def worst_cases(table: ScoreTable, metric: str = "dsc", number: int = 5, method: str | None = None) -> Frame:
    """The cases with the worst value of a metric: dataset, method, patient, case, metric, value; worst first.

    method: of one method; default: the worst of any method, each case once.
    """
    known = list(dict.fromkeys(method_names(table.rows)))
    if method is not None and method not in known:
        raise BadInput(f"no method named {method!r} in the table. Known: {', '.join(known)}")
    parts = []
    for _, rows in table.rows.groupby(["dataset", "network", "subset"], sort=False):
        data = case_values(rows, [metric], "worst", evaluated_classes(table.rules))
        wide = pd.concat([data.cases, pd.DataFrame(data.values[0], columns=list(data.methods))], axis=1)
        tidy = wide.melt(id_vars=list(data.cases.columns), var_name="method", value_name="value")
        parts.append(tidy.assign(metric=data.metrics[0], better=bool(data.higher_is_better[0])))
    tidy: Frame = pd.concat(parts, ignore_index=True)
    tidy = tidy[tidy["value"].notna() & (tidy["method"] == method if method is not None else True)]
    tidy = tidy.sort_values("value", ascending=bool(tidy["better"].all()), kind="stable")
    tidy = tidy.drop_duplicates(["dataset", "network", "case"]).head(number)
    return tidy[["dataset", "network", "method", "patient", "case", "metric", "value"]].reset_index(drop=True)


def case_curve(view: CaseView, voxels: VoxelRule = "predicted") -> Frame:
    """The reliability curve of one case on these voxels, over all its slices, by the first rater.

    Columns: bin, low, high, count, confidence, accuracy, share; empty bins are left out.
    """
    from calibseg.metrics.statistics.binning.volume import calibration_statistics  # brings torch

    labels = np.moveaxis(view.labels, 0, view.axis)
    curves = calibration_statistics(view.stored.scores, labels, kind="logits", ignore_label=IGNORED).on(voxels)
    rows = [row for row in curves.rows() if row["class"] is None and row["count"]]
    curve = pd.DataFrame(rows, columns=["bin", "low", "high", "count", "confidence", "accuracy"])
    return curve.assign(share=curve["count"] / max(curve["count"].sum(), 1))


def _areas(labels: Array) -> Array:
    """Foreground voxels in each slice of [n h w]."""
    return ((labels > 0) & (labels != IGNORED)).sum((1, 2))
