"""The NLL against plain loops in float64: p counts as at least 2^-24, whatever type or kind of score says it."""

from math import exp, log

import numpy as np
import pytest
import torch

from calibseg.metrics import NLL
from calibseg.metrics.statistics.binning import calibration_statistics, numba_is_here
from calibseg.metrics.statistics.monitor import CalibrationMonitor

ROUTES = ["torch", pytest.param("numba", marks=pytest.mark.skipif(not numba_is_here(), reason="numba not installed"))]
LEAST = 2.0**-24
EDGES = [0.0, 2.0**-149, 2.0**-30, 2.0**-25, 2.0**-24, 3 * 2.0**-25, 2.0**-23, 1e-3, 0.5, 1.0]  # p of the truth


def loop_nll(p, truth):
    """Mean -log max(p, 2^-24) of the true class, all and per class, and how many were clipped, voxel by voxel."""
    surprises, clipped = {}, {}
    for i, k in enumerate(truth):
        surprises.setdefault(k, []).append(-log(max(float(p[k][i]), LEAST)))
        clipped[k] = clipped.get(k, 0) + (float(p[k][i]) < LEAST)
    every = [one for own in surprises.values() for one in own]
    return {None: sum(every) / len(every), **{k: sum(own) / len(own) for k, own in surprises.items()}}, clipped


def check(scores, truth, p, kind, route="torch"):
    curves = calibration_statistics(scores, np.asarray(truth), kind=kind, route=route).on("all")
    expected, clipped = loop_nll(p, truth)
    values = NLL().value(curves)
    for k, value in expected.items():
        assert values[k] == pytest.approx(value, rel=1e-11)
    assert curves.clipped.tolist() == [clipped.get(k, 0) for k in range(len(p))]


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_a_probability_of_zero_costs_the_same_in_every_type_of_file(dtype, route):
    p = np.array([EDGES, [1 - value for value in EDGES]], dtype)
    for truth in ([0] * len(EDGES), [1] * len(EDGES), [0, 1] * (len(EDGES) // 2)):
        check(p, truth, p, "probabilities", route)
    for mixed in (1, 700):  # blocks of one class and cell are summed by another way than mixed ones
        p = np.array([[0, 0, 1], [1, 1, 0]], dtype).repeat(mixed, 1)
        curves = calibration_statistics(p, np.zeros(3 * mixed, int), kind="probabilities", route=route).on("all")
        assert NLL().value(curves)[0] == pytest.approx(2 / 3 * 24 * log(2), rel=1e-12)
        assert curves.clipped.tolist() == [2 * mixed, 0]


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("kind", ["logits", "log_probabilities"])
def test_logits_are_clipped_where_their_softmax_is(kind, route):
    distances = [-np.inf, -1000.0, -87.5, -17.0, -16.7, -16.6, -16.0, -1.0, 0.0, 3.0, 40.0]
    logits = np.array([distances, [0.0] * len(distances)])
    p = np.array(
        [[0.0 if d == -np.inf else exp(d - max(d, 0)) for d in distances], [exp(-max(d, 0)) for d in distances]]
    )
    p /= p.sum(0)
    if kind == "log_probabilities":
        logits = logits - np.logaddexp(logits[0], logits[1])
    for truth in ([0] * len(distances), [1] * len(distances), ([0, 1] * len(distances))[: len(distances)]):
        check(logits, truth, p, kind, route)


def test_soft_labels_count_a_clipped_class_by_their_share():
    p, y = np.array([[1.0, 0.7], [0.0, 0.3]]), np.array([[0.75, 0.5], [0.25, 0.5]])
    curves = calibration_statistics(p, y, kind="probabilities").on("all")
    expected = sum(-y[k, i] * log(max(p[k, i], LEAST)) for k in range(2) for i in range(2)) / 2
    assert NLL().value(curves)[None] == pytest.approx(expected, rel=1e-11)
    assert curves.clipped.tolist() == [0, 1]
    sure = calibration_statistics(p, np.array([[1.0, 0.5], [0.0, 0.5]]), kind="probabilities").on("all")
    assert sure.clipped.tolist() == [0, 0]  # nothing of the label lies where p is 0


@pytest.mark.parametrize("kind", ["logits", "log_probabilities", "probabilities"])
@pytest.mark.parametrize("share", [0.0, 0.25, 0.75, 1.0])
def test_a_sigmoid_is_clipped_on_both_sides(kind, share):
    logits = [-np.inf, -800.0, -20.0, -16.0, -1.0, 0.5, 16.0, 20.0, 800.0, np.inf]
    p = [0.0 if z < -700 else 1 / (1 + exp(-z)) for z in logits]
    rest = [0.0 if z > 700 else 1 / (1 + exp(z)) for z in logits]
    scores = {"logits": logits, "probabilities": p, "log_probabilities": [log(q) if q else -np.inf for q in p]}[kind]
    y = np.full((1, len(logits)), share)
    curves = calibration_statistics(np.array([scores]), y, kind=kind, activation="sigmoid").on("all")
    if kind != "logits":
        rest = [1 - q for q in p]
    each = [-share * log(max(q, LEAST)) - (1 - share) * log(max(r, LEAST)) for q, r in zip(p, rest, strict=True)]
    assert NLL().value(curves)[None] == pytest.approx(sum(each) / len(each), rel=1e-9)
    both = sum((q < LEAST and share > 0) or (r < LEAST and share < 1) for q, r in zip(p, rest, strict=True))
    assert curves.clipped.tolist() == [both]


def test_the_monitor_clips_as_the_metric_does():
    monitor = CalibrationMonitor(2, ("nll",), ("all",))
    monitor.update(torch.tensor([[[-1000.0, 0.0], [0.0, 0.0]]]), torch.tensor([[0, 1]]))
    assert monitor.compute()["all/nll"] == pytest.approx((24 * log(2) + log(2)) / 2, rel=1e-12)
