"""The worst cases as small pictures: image, truth, and what each network said and how sure it was, slice by slice.

A case's slices stand below each other in one grey PNG (a sprite); the page cuts them out, colours them and lays them
over each other, so that one set of pictures serves five views. Truth and prediction hold class numbers, confidence is
the probability of the predicted class from 0 to 255; where the run has a calibrator, both again after it. Pictures are
cropped to the organ, thinned to at most `SIDE` pixels and `SLICES` slices, and cases are added until `BYTES` are spent.
"""

import base64
import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy import ndarray as Array
from PIL import Image

from calibseg.analysis.case_values import case_values, evaluated_classes
from calibseg.analysis.run_records import Run
from calibseg.core.types import IGNORED, BadInput, Prediction
from calibseg.data import prepared
from calibseg.io.stored_logits import open_logits, slabs
from calibseg.report.figure_data.slices import worst_cases
from calibseg.report.html.calibrated import CalibratedMaps, calibrated_maps, calibrator_of
from calibseg.report.html.groups import ComparisonGroup
from calibseg.report.html.run_charts import first_seeds

SIDE, SLICES = 128, 20
BYTES = 6_000_000  # of base64 text, all cases together
NUMBERS = 1_500_000_000  # of stored logits that are read, all cases together: about a minute
EACH = 3  # cases by each metric and group
METRICS = (("dsc", "lowest DSC"), ("nll@all", "highest NLL"))
SHOWN = ("dsc", "nll@all", "ece@predicted")


@dataclass(frozen=True)
class Window:
    """The part of a volume [n h w] that is shown: slices, rows and columns."""

    slices: Array
    rows: Array
    columns: Array

    def of(self, volume: Array) -> Array:
        """Its pictures, the top of the body at the top: [slices rows columns]."""
        return volume[np.ix_(self.slices, self.rows, self.columns)]


def cases(groups: Sequence[ComparisonGroup], first: Mapping[str, str]) -> tuple[list[dict[str, Any]], list[str]]:
    """The worst cases of each group by DSC and NLL of its `first` method, with every method's pictures; and notes."""
    pictures: list[dict[str, Any]] = []
    left_out, spent, read, notes = 0, 0, 0, {}
    for group in groups:
        runs = [run for run in first_seeds(group.runs) if run.logits() is not None]
        if not runs:
            continue
        subject = first.get(group.name, runs[0].method)
        runs.sort(key=lambda run: run.method != subject and not subject.startswith(f"{run.method}+"))
        for case, reasons in _worst(group, subject):
            opened = [stored for run in runs if (stored := _open(run, case)) is not None]
            needed = sum(int(np.prod(stored.scores.shape)) for stored in opened)
            if spent > BYTES or read + needed > NUMBERS:
                left_out += 1
                continue
            shown = _pictures(group, runs, case, {run.path: _after(run, case, subject, notes) for run in runs})
            if shown is None:
                continue
            size = sum(len(text) for text in _texts(shown))
            if spent + size > BYTES and pictures:
                left_out += 1
                continue
            spent, read = spent + size, read + needed
            pictures.append({"place": group.name, "case": case, "why": reasons, **shown})
    more = f"{left_out} further worst cases are not shown: the pictures would make this file too large"
    return pictures, [*([more] if left_out else []), *notes.values()]


def grey_png(picture: Array) -> bytes:
    """An 8-bit grey PNG of uint8 [h w]; it carries no date, so the same picture gives the same bytes."""
    written = io.BytesIO()
    Image.fromarray(picture).save(written, "PNG", optimize=True)
    return written.getvalue()


def _worst(group: ComparisonGroup, subject: str) -> list[tuple[str, str]]:
    """The cases where the subject is worst, each once, with the reasons."""
    reasons: dict[str, list[str]] = {}
    for metric, reason in METRICS:
        if metric not in group.keys:
            continue
        try:
            rows = worst_cases(group.core, metric, EACH, subject)
        except BadInput:  # the subject has no value of this metric, or other cases than the rest
            continue
        for case in rows["case"]:
            reasons.setdefault(case, []).append(reason)
    return [(case, " and ".join(why)) for case, why in reasons.items()]


def _stored(run: Run, case: str) -> Path | None:
    folder = run.logits()
    path = None if folder is None else folder / f"{case}.npz"
    return path if path is not None and path.is_file() else None


def _open(run: Run, case: str) -> Prediction | None:
    path = _stored(run, case)
    return None if path is None else open_logits(path)


def _after(run: Run, case: str, subject: str, notes: dict[str, str]) -> CalibratedMaps | None:
    """The case after a calibrator of the run; why there is none is noted once for each run."""
    calibrator, path = calibrator_of(run, subject), _stored(run, case)
    if calibrator is None or path is None:
        return None
    try:
        return calibrated_maps(run, path, calibrator)
    except BadInput as error:
        notes.setdefault(run.method, f"No maps of {run.method} after calibration: {error}")
        return None


def _pictures(
    group: ComparisonGroup, runs: Sequence[Run], case: str, after: Mapping[Path, CalibratedMaps | None]
) -> dict[str, Any] | None:
    said: list[tuple[Run, Array, Array]] = []
    labels, axis, spacing = None, 0, (1.0, 1.0, 1.0)
    for run in runs:
        stored = _open(run, case)
        if stored is None or stored.labels is None:
            continue
        if labels is None:
            axis, spacing = stored.slice_axis or 0, stored.spacing_mm
            labels = np.moveaxis(stored.labels[0] if stored.labels.ndim == 4 else stored.labels, axis, 0)
        prediction, confidence = (np.moveaxis(array, axis, 0) for array in _decided(stored))
        if prediction.shape == labels.shape:
            said.append((run, prediction, confidence))
    if labels is None or not said:
        return None
    organ = (labels > 0) & (labels != IGNORED)
    for _, prediction, _ in said:
        organ |= prediction > 0
    window = _window(organ, axis)
    truth = window.of(labels)
    area = ((truth > 0) & (truth != IGNORED)).sum((1, 2))
    image, true_p = _prepared(runs, case)
    height, width = (mm for number, mm in enumerate(spacing) if number != axis)
    values = _values(group, case)
    return {
        "classes": list(runs[0].info.classes),
        "slices": window.slices.tolist(),
        "start": int(area.argmax()),
        "rows": len(window.rows),
        "columns": len(window.columns),
        "aspect": round(height / width, 4),
        "image": None if image is None else _sprite(_grey(window.of(image))),
        "truth": _sprite(truth.astype(np.uint8)),
        "methods": [
            {
                "method": run.method,
                "prediction": _sprite(window.of(prediction)),
                "confidence": _sprite(window.of(confidence)),
                "possible": None if true_p is None else _sprite(window.of(_deserved(true_p, prediction))),
                "scores": values.get(run.method, {}),
                "after": _told_after(run, after[run.path], prediction, axis, window, values),
            }
            for run, prediction, confidence in said
        ],
    }


def _told_after(
    run: Run,
    after: CalibratedMaps | None,
    before: Array,
    axis: int,
    window: Window,
    values: Mapping[str, dict[str, float]],
) -> dict[str, Any] | None:
    """The pictures after calibration; the prediction only where a label has changed."""
    if after is None:
        return None
    prediction, confidence = (np.moveaxis(array, axis, 0) for array in (after.prediction, after.confidence))
    return {
        "calibrator": after.calibrator,
        "prediction": None if (prediction == before).all() else _sprite(window.of(prediction)),
        "confidence": _sprite(window.of(confidence)),
        "scores": values.get(f"{run.method}+{after.calibrator}", {}),
    }


def _decided(stored: Prediction) -> tuple[Array, Array]:
    """The predicted class and its probability in 255ths, both uint8 [z y x], slab by slab."""
    prediction, confidence = (np.zeros(stored.scores.shape[1:], np.uint8) for _ in range(2))
    for part, slab in slabs(stored.scores):
        prediction[part] = slab.argmax(0)
        confidence[part] = np.rint(255.0 / np.exp(slab - slab.max(0)).sum(0))
    return prediction, confidence


def _window(organ: Array, axis: int) -> Window:
    """Where the organ is, with a margin, thinned evenly; rows and columns as one looks at a patient.

    Arrays grow towards superior, anterior and right. Rows are turned so that superior (anterior in axial slices) is at
    the top; columns that grow to the right are turned as radiologists look: the patient's right is on the left.
    """
    spans = []
    for number in range(3):
        touched = np.flatnonzero(organ.any(axis=tuple(other for other in range(3) if other != number)))
        low, high = (touched[0], touched[-1]) if len(touched) else (0, organ.shape[number] - 1)
        margin = 1 if number == 0 else max(6, (high - low) // 3)
        spans.append((max(0, low - margin), min(organ.shape[number] - 1, high + margin)))
    slices, rows, columns = (np.arange(low, high + 1) for low, high in spans)
    if len(slices) > SLICES:
        slices = slices[np.linspace(0, len(slices) - 1, SLICES).round().astype(int)]
    step = -(-max(len(rows), len(columns)) // SIDE)
    rows, columns = rows[::step][::-1], columns[::step]
    return Window(slices, rows, columns if axis == 2 else columns[::-1])


def _prepared(runs: Sequence[Run], case: str) -> tuple[Array | None, Array | None]:
    """The first channel of the prepared image, and the true probabilities where data are made; None if not at hand."""
    for run in runs:
        folder = run.prepared_dir()
        if folder is not None and prepared.case_path(folder, case).is_file():
            opened = prepared.open_case(folder, case)
            return opened.read("image")[:, 0], opened.read("true_p") if "true_p" in opened.tensors else None
    return None, None


def _deserved(true_p: Array, prediction: Array) -> Array:
    """The true probability of the predicted class in 255ths: [n k h w], [n h w] -> [n h w]."""
    return np.rint(255.0 * np.take_along_axis(true_p, prediction[:, None].astype(np.int64), 1)[:, 0]).astype(np.uint8)


def _grey(image: Array) -> Array:
    low, high = np.percentile(image, [0.5, 99.5])
    return np.rint(np.clip((image - low) / max(float(high - low), 1e-12), 0, 1) * 255).astype(np.uint8)


def _sprite(pictures: Array) -> str:
    """[n h w] -> a data URI of all of them below each other."""
    png = grey_png(np.ascontiguousarray(pictures.reshape(-1, pictures.shape[-1])))
    return "data:image/png;base64," + base64.b64encode(png).decode("ascii")


def _values(group: ComparisonGroup, case: str) -> dict[str, dict[str, float]]:
    """By method, what it scored in one case; nothing where methods were scored on different cases."""
    keys = [key for key in SHOWN if key in group.keys]
    if group.means is None or not keys:
        return {}
    rows = group.core.rows
    data = case_values(rows[rows["case"] == case], keys, "drop", evaluated_classes(group.core.rules))
    return {
        method: dict(zip(keys, data.values[:, 0, number].tolist(), strict=True))
        for number, method in enumerate(data.methods)
    }


def _texts(shown: Mapping[str, Any]) -> Iterator[str]:
    yield from (text for text in (shown["image"], shown["truth"]) if text)
    for one in shown["methods"]:
        after = one["after"] or {}
        texts = (
            one["prediction"],
            one["confidence"],
            one["possible"],
            *(after.get(k) for k in ("prediction", "confidence")),
        )
        yield from (text for text in texts if text)
