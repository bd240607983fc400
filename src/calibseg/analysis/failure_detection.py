r"""Failure detection: whether the cases that a network is unsure about are those it gets wrong.

A case has a confidence and a risk (1 - DSC). Accept the most confident cases first; of the accepted share c,

    selective risk    r(c) = mean risk of the accepted       AURC: its area over c
    generalised risk  g(c) = risks of the accepted / n       AUGRC: its area over c

One convention, that of fd-shifts' newest version: cases of equal confidence are accepted together, so that the order of
a table never matters; every point counts up to full coverage; r(0) is the selective risk of the most confident cases,
g(0) = 0; areas are trapezoids. E-AURC is what the best order of the same risks would have spared, by the same rule.

AURC and AUGRC carry 95 % intervals over patients: a drawn patient brings all its cases along, and a case that is drawn
twice counts twice.

    AUROC     of a failure (quality below a threshold) against a success; ties count half
    Spearman  rank correlation of confidence and quality; ties take mean ranks

Paper: Zenk et al., Medical Image Analysis 101, 2025, arXiv 2406.03323; AUGRC: Traub et al., NeurIPS 2024, arXiv
2407.01032; Jaeger et al., ICLR 2023 (fd-shifts).
Differs: the benchmark's older code gives a group of ties its point after its first member, which depends on the order,
and leaves out the last 1/n of coverage.

>>> curve = risk_coverage([0.9, 0.8, 0.7, 0.6, 0.5], [0.05, 0.10, 0.30, 0.20, 0.60])
>>> round(curve.aurc, 6), round(curve.augrc, 6)
(0.1175, 0.077)
>>> round(risk_coverage([0.9, 0.8, 0.8, 0.8, 0.5], [0.05, 0.10, 0.30, 0.20, 0.60]).aurc, 6)
0.115
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import nan

import numpy as np
from numpy import ndarray as Array
from scipy.stats import rankdata

from calibseg.analysis import bootstrap
from calibseg.analysis.case_values import case_values, evaluated_classes
from calibseg.analysis.table import ScoreTable
from calibseg.core.types import BadInput

CONFIDENCE, QUALITY, FAILURE = "soft_dice_confidence", "dsc", 0.75


@dataclass(frozen=True)
class RiskCoverage:
    """The points of a curve, from coverage 0 to 1."""

    coverage: Array
    selective_risk: Array
    generalised_risk: Array

    @property
    def aurc(self) -> float:
        return float(np.trapezoid(self.selective_risk, self.coverage))

    @property
    def augrc(self) -> float:
        return float(np.trapezoid(self.generalised_risk, self.coverage))


@dataclass(frozen=True)
class Detection:
    """How well one method's confidence tells its good cases from its bad ones."""

    dataset: str
    network: str
    method: str
    cases: int
    curve: RiskCoverage
    aurc: float
    e_aurc: float
    augrc: float
    auroc: float
    spearman: float
    aurc_interval: tuple[float, float]
    augrc_interval: tuple[float, float]


def risk_coverage(confidence: Sequence[float], risk: Sequence[float]) -> RiskCoverage:
    """The risk of what is accepted, as more and more is accepted; ties are accepted together."""
    sure, lost = np.asarray(confidence, float), np.asarray(risk, float)
    if sure.shape != lost.shape or sure.ndim != 1 or not len(sure):
        raise BadInput(f"there are {sure.size} confidences and {lost.size} risks: one of each per case is needed")
    if not (np.isfinite(sure).all() and np.isfinite(lost).all()):
        raise BadInput("a confidence or a risk is NaN or infinite: leave such cases out first")
    order = np.argsort(-sure, kind="stable")
    sure, sums = sure[order], lost[order].cumsum()
    ends = np.flatnonzero(np.append(np.diff(sure) != 0, True))  # the last case of each group
    accepted = ends + 1
    selective = sums[ends] / accepted
    coverage = np.append(0.0, accepted / len(sure))
    return RiskCoverage(coverage, np.append(selective[0], selective), np.append(0.0, sums[ends] / len(sure)))


def drawn_areas(confidence: Array, risk: Array, weights: Array) -> tuple[Array, Array]:
    """AURC and AUGRC of every draw, in which case i counts weights[draw, i] times: each [draws].

    >>> sure, lost = np.array([0.9, 0.8, 0.5]), np.array([0.1, 0.2, 0.6])
    >>> aurc, _ = drawn_areas(sure, lost, np.array([[1, 1, 1], [0, 2, 1]]))
    >>> [round(float(area), 4) for area in aurc]                    # the second: 0.8, 0.8, 0.5
    [0.15, 0.2222]
    >>> round(risk_coverage([0.8, 0.8, 0.5], [0.2, 0.2, 0.6]).aurc, 4)
    0.2222
    """
    order = np.argsort(-confidence, kind="stable")
    ends = np.flatnonzero(np.append(np.diff(confidence[order]) != 0, True))
    counts = weights[:, order].astype(float)
    sums = (counts * risk[order]).cumsum(1)[:, ends]
    accepted, total = counts.cumsum(1)[:, ends], counts.sum(1, keepdims=True)
    first = np.argmax(accepted > 0, axis=1)  # the most confident cases that were drawn
    begin = np.take_along_axis(sums / np.maximum(accepted, 1), first[:, None], 1)
    selective = np.where(accepted > 0, sums / np.maximum(accepted, 1), begin)
    coverage = np.pad(accepted / total, ((0, 0), (1, 0)))
    aurc = np.trapezoid(np.hstack([begin, selective]), coverage, axis=1)
    augrc = np.trapezoid(np.pad(sums / total, ((0, 0), (1, 0))), coverage, axis=1)
    return np.asarray(aurc), np.asarray(augrc)


def excess_aurc(confidence: Sequence[float], risk: Sequence[float]) -> float:
    """AURC above that of the best order of the same risks."""
    return risk_coverage(confidence, risk).aurc - risk_coverage([-one for one in risk], risk).aurc


def failure_auroc(confidence: Sequence[float], failed: Sequence[bool]) -> float:
    """The probability that a success is more confident than a failure; NaN where there is only one kind."""
    bad = np.asarray(failed, bool)
    failures, successes = int(bad.sum()), int((~bad).sum())
    if not failures or not successes:
        return nan
    ranks = rankdata(np.asarray(confidence, float))
    return float((ranks[~bad].sum() - successes * (successes + 1) / 2) / (failures * successes))


def spearman(first: Sequence[float], second: Sequence[float]) -> float:
    """Rank correlation; NaN where one of them is constant."""
    one, other = rankdata(first), rankdata(second)
    return float(np.corrcoef(one, other)[0, 1]) if np.ptp(one) and np.ptp(other) else nan


def failure_detection(
    table: ScoreTable, confidence: str = CONFIDENCE, quality: str = QUALITY, failure: float = FAILURE
) -> list[Detection]:
    """Of every method of a score table, on each dataset and network; cases without a value are left out.

    quality: a metric from 0 to 1 of which large is good; the risk is 1 - it
    failure: the quality below which a case has failed
    """
    if not 0 < failure <= 1:
        raise BadInput(f"a failure is a quality below a number above 0 and at most 1, not {failure!r}")
    scores = case_values(table.rows, (confidence, quality), "worst", evaluated_classes(table.rules))
    if len(scores.metrics) != 2:
        raise BadInput(f"the confidence and the quality are the same metric {quality!r}")
    if not scores.higher_is_better.all():
        small = scores.metrics[int(np.argmin(scores.higher_is_better))]
        raise BadInput(f"{small} is small where a case is good: name a confidence and a quality, like {CONFIDENCE},dsc")
    detections = []
    for (dataset, network), group in scores.cases.groupby(["dataset", "network"], sort=False):
        places = group.index.to_numpy()
        for number, method in enumerate(scores.methods):
            sure, good = scores.values[0, places, number], scores.values[1, places, number]
            known = np.isfinite(sure) & np.isfinite(good)
            if not known.any():
                continue
            sure, good, whose = sure[known], good[known], group["patient"].to_numpy()[known]
            if good.min() < 0 or good.max() > 1:
                raise BadInput(
                    f"{quality} is no quality from 0 to 1: it is {float(good.min()):g} to {float(good.max()):g}"
                )
            curve = risk_coverage(sure, 1 - good)
            areas = (curve.aurc, excess_aurc(sure, 1 - good), curve.augrc, failure_auroc(sure, good < failure))
            who = (str(dataset), str(network), method, len(sure))
            detections.append(Detection(*who, curve, *areas, spearman(sure, good), *_intervals(sure, 1 - good, whose)))
    return detections


def _intervals(confidence: Array, risk: Array, patients: Array) -> list[tuple[float, float]]:
    """The ends of AURC's and of AUGRC's interval over patients; NaN with fewer than two of them."""
    names, owner = np.unique(patients.astype(str), return_inverse=True)
    if len(names) < 2:
        return [(nan, nan), (nan, nan)]
    areas = drawn_areas(confidence, risk, bootstrap.draws(len(names))[:, owner])
    low, high = bootstrap.ends(np.stack(areas, 1))
    return [(float(one), float(other)) for one, other in zip(low, high, strict=True)]
