"""The fused pass gives what the separate ones give, also where whole blocks are sure and take its short cuts."""

import numpy as np
import pytest
import torch

from calibseg.binning import Bins, all_statistics, calibration_statistics, numba_is_here
from calibseg.binning.equal_mass import equal_mass_statistics
from calibseg.curves import Bands
from calibseg.types import BadInput

ROUTES = ["torch", pytest.param("numba", marks=pytest.mark.skipif(not numba_is_here(), reason="numba not installed"))]
IGNORE = 9


def mostly_sure(classes=4, shape=(5, 40, 70), seed=0, ignores=False):
    """Logits of a blob in sure background: some blocks are uniform, some mixed, some saturated to p = 0 and 1."""
    rng = np.random.default_rng(seed)
    z, y, x = np.meshgrid(*(np.linspace(-1, 1, n) for n in shape), indexing="ij")
    radius = np.sqrt(0.2 * z**2 + y**2 + x**2)
    logits = np.zeros((classes, *shape))
    for k in range(1, classes):
        logits[k] = 40 * (0.6 / k - radius) + 2 * k
    labels = (logits + rng.normal(size=logits.shape)).argmax(0)
    logits += 0.4 * rng.normal(size=logits.shape)
    logits[1, -1, :4] = -6.5  # next to 0 for the background: p between the threshold and 2^-9
    if ignores:
        labels[0, :20] = IGNORE
        labels[2, :, ::3] = IGNORE
        logits[:, 0, :5] = np.nan
    return logits.astype(np.float32), labels


def probabilities(logits):
    return torch.softmax(torch.from_numpy(logits), 0).numpy()


def equal(ours, theirs):
    for name, array in ours.sums.items():
        assert (array == theirs.sums[name]).all(), name


@pytest.mark.skipif(not numba_is_here(), reason="numba not installed")
@pytest.mark.parametrize("ignores", [False, True])
@pytest.mark.parametrize("classes", [2, 4])
@pytest.mark.parametrize("bins", [Bins(), Bins(10, 1e-2), Bins(7, 1e-5)])
def test_both_routes_give_the_same_words_on_a_volume_with_sure_blocks(ignores, classes, bins):
    logits, labels = mostly_sure(classes, ignores=ignores)
    distance = np.random.default_rng(1).normal(size=labels.shape)
    bands = Bands((-1.0, 0.0, 1.0), 1.0)
    asked = {"kind": "probabilities", "bins": bins, "ignore_label": IGNORE if ignores else None}
    p = np.nan_to_num(probabilities(logits), nan=7.0)
    for zones in ({}, {"distance_mm": distance, "bands": bands}):
        numba = all_statistics(p, labels, route="numba", threads=1, **asked, **zones)
        by_torch = all_statistics(p, labels, route="torch", threads=1, **asked, **zones)
        counted = {name for name in numba[0].sums if name != "nll"}
        assert all((numba[0].sums[name] == by_torch[0].sums[name]).all() for name in counted)
        equal(numba[1], by_torch[1])
        assert (numba[1].exact == by_torch[1].exact).all()
    assert numba[1].count[..., 1:].sum() > 1000


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("kind", ["logits", "probabilities"])
def test_one_call_gives_what_two_calls_give(route, kind):
    logits, labels = mostly_sure()
    scores = logits if kind == "logits" else probabilities(logits)
    calibration, equal_mass = all_statistics(scores, labels, kind=kind, route=route)
    equal(calibration, calibration_statistics(scores, labels, kind=kind, route=route))
    apart = equal_mass_statistics(scores, labels, kind=kind, route=route)
    equal(equal_mass, apart)
    assert (equal_mass.exact == apart.exact).all()


@pytest.mark.parametrize("route", ROUTES)
def test_threads_and_slices_that_are_not_contiguous_change_nothing(route):
    logits, labels = mostly_sure(shape=(2, 400, 400))  # a slice is longer than a step
    whole = all_statistics(logits, labels, kind="logits", route=route, threads=1)
    turned = np.asfortranarray(logits)
    for scores, threads in ((logits, 3), (turned, 1), (turned, 2)):
        again = all_statistics(scores, labels, kind="logits", route=route, threads=threads)
        equal(again[0], whole[0])
        equal(again[1], whole[1])
        assert (again[1].exact == whole[1].exact).all()


@pytest.mark.skipif(not numba_is_here(), reason="numba not installed")
def test_a_prediction_below_the_threshold_is_counted():
    rng = np.random.default_rng(0)
    p = rng.dirichlet([200.0] * 150, 700).T.astype(np.float32)
    labels = rng.integers(0, 150, 700)
    asked = {"kind": "probabilities", "threshold": 0.0095, "bins": 5}
    numba, by_torch = (equal_mass_statistics(p, labels, route=route, **asked) for route in ("numba", "torch"))
    equal(numba, by_torch)
    assert (numba.exact == by_torch.exact).all()
    assert numba.count[..., 0].sum() > 0


def test_a_wrong_label_far_into_a_long_slice_is_named():
    logits, labels = mostly_sure(shape=(2, 400, 400))
    labels[1, 350, 7] = 11
    for scores in (logits, np.asfortranarray(logits)):
        with pytest.raises(BadInput, match=r"11.*voxel \(1, 350, 7\)"):
            all_statistics(scores, labels, kind="logits")
