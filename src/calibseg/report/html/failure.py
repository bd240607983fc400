"""Failure detection in a report: risk-coverage curves of every method, and the areas below them as a table.

The convention is that of analysis/failure_detection.py, and the page names it.
"""

import math
from collections.abc import Sequence

import numpy as np

from calibseg.analysis.failure_detection import QUALITY, Detection, failure_detection
from calibseg.core.types import BadInput
from calibseg.report.figure_data.scores import places
from calibseg.report.html.charts import figure
from calibseg.report.html.groups import ComparisonGroup, available
from calibseg.report.html.tables import Cell, Head, Row, Section

SCORES = ("soft_dice_confidence", "mean_confidence")  # of a case, as a score table holds them
CONVENTION = (
    "Risk is 1 - DSC of a case. Cases are accepted from the most to the least confident; equal confidences are accepted"
    " together, every point up to full coverage counts, and the curve begins at the risk of the most confident cases"
    " (fd-shifts' convention)."
)


def failure(groups: Sequence[ComparisonGroup]) -> Section:
    """Curves and areas of each group by each score that it has."""
    detections = {group.name: {score: _detections(group, score) for score in SCORES} for group in groups}
    scores = [score for score in SCORES if any(by_score[score] for by_score in detections.values())]
    panels, rows = [], []
    for place, by_score in detections.items():
        for score in scores:
            lines = sorted(by_score[score], key=lambda one: one.aurc)
            title = f"by {shown(score)}" + (f" · {place}" if len(groups) > 1 else "")
            series = [{"method": one.method, "points": _points(one)} for one in lines]
            panels += [{"place": place, "title": title, "series": series}] if series else []
        rows += _rows(place, [by_score[score] for score in scores])
    made = figure(
        "lines", "risk-coverage", "Risk and coverage",
        f"Selective risk: the mean risk of the accepted share of the cases. The lower and the flatter towards the"
        f" left, the better the confidence tells good cases from bad ones. {CONVENTION}",
        panels, x={"label": "coverage: share of cases accepted", "min": 0, "max": 1},
        y={"label": "selective risk, 1 - DSC"}, wide=True, best=True,
    )  # fmt: skip
    columns = tuple(Head(name, f"by {shown(score)}") for score in scores for name in ("AURC", "AUGRC"))
    return Section(made, columns, tuple(rows))


def shown(score: str) -> str:
    """`soft_dice_confidence` -> `soft Dice confidence`."""
    return score.replace("_", " ").replace("dice", "Dice")


def _detections(group: ComparisonGroup, score: str) -> list[Detection]:
    if len(available(group.table.rows, (score, QUALITY))) < 2:
        return []
    try:
        return failure_detection(group.table, score)
    except BadInput:  # methods that were scored on different cases do not compare
        return []


def _points(one: Detection) -> list[dict[str, float]]:
    curve = one.curve
    triples = zip(curve.coverage, curve.selective_risk, curve.generalised_risk, strict=True)
    return [{"x": float(x), "y": float(y), "generalised": float(g)} for x, y, g in triples]


def _rows(place: str, columns: Sequence[Sequence[Detection]]) -> list[Row]:
    """A row for each method, in the order of the table, with AURC and AUGRC by each score."""
    cells: dict[str, list[Cell | None]] = {one.method: [] for detections in columns for one in detections}
    for detections in columns:
        most = max((one.cases for one in detections), default=0)
        lacking = np.array([most - one.cases for one in detections])
        for area in ("aurc", "augrc"):
            values = np.array([getattr(one, area) for one in detections])
            ranks = places(values, lacking) if len(detections) > 1 else np.zeros(len(detections))
            made = {}
            for one, value, rank in zip(detections, values.tolist(), ranks.tolist(), strict=True):
                low, high = getattr(one, f"{area}_interval")
                made[one.method] = Cell(value, low, high, int(rank) if math.isfinite(rank) else 0, most, one.cases)
            for method, row in cells.items():
                row.append(made.get(method))
    return [Row(place, method, tuple(row)) for method, row in cells.items()]
