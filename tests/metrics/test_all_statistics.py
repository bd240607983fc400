"""The fused pass gives what the separate ones give, also where whole blocks are sure and take its short cuts."""

import numpy as np
import pytest
import torch

from calibseg.core.types import BadInput
from calibseg.metrics.statistics.binning import Bins, all_statistics, calibration_statistics, numba_is_here
from calibseg.metrics.statistics.calibration import Bands

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
@pytest.mark.parametrize(
    "bins", [Bins(), Bins(10, 1e-2), Bins(7, 1e-5), Bins(15, 2.0**-9), Bins(1, 1e-3), Bins(100, 4e-3), Bins(900, 1e-4)]
)
def test_both_routes_give_the_same_words_on_a_volume_with_sure_blocks(ignores, classes, bins):
    logits, labels = mostly_sure(classes, ignores=ignores)
    distance = np.random.default_rng(1).normal(size=labels.shape)
    bands = Bands((-1.0, 0.0, 1.0), 1.0)
    asked = {"bins": bins, "ignore_label": IGNORE if ignores else None}
    p = np.nan_to_num(probabilities(logits), nan=7.0)
    for zones in ({}, {"distance_mm": distance, "bands": bands}):
        same_by_both_routes(p, labels, **asked, **zones)


def same_by_both_routes(p, labels, **asked):
    numba, by_torch = (
        all_statistics(p, labels, kind="probabilities", route=route, threads=1, **asked) for route in ("numba", "torch")
    )
    assert all((words == by_torch[0].sums[name]).all() for name, words in numba[0].sums.items() if name != "nll")
    assert numba[0].on("all").nll == pytest.approx(by_torch[0].on("all").nll, rel=1e-14)
    equal(numba[1], by_torch[1])
    assert (numba[1].exact == by_torch[1].exact).all()
    assert numba[1].count.sum() >= labels.size / 2  # ignored voxels are fewer
    return numba


@pytest.mark.skipif(not numba_is_here(), reason="numba not installed")
@pytest.mark.parametrize("dtype", [np.float16, np.float64])
def test_other_types_give_the_same_words_by_both_routes(dtype):
    logits, labels = mostly_sure()
    same_by_both_routes(torch.softmax(torch.from_numpy(logits).double(), 0).numpy().astype(dtype), labels)


@pytest.mark.skipif(not numba_is_here(), reason="numba not installed")
def test_probabilities_a_little_outside_are_taken_as_0_and_1():
    logits, labels = mostly_sure()
    p = probabilities(logits)
    clean = all_statistics(p, labels, kind="probabilities")
    assert (p[1:] < 1e-15).any()
    assert (p[0] == 1).any()
    p[1:][p[1:] < 1e-15] = -1e-6
    p[0][p[0] == 1] = 1 + 1e-6
    p[:, 0, 0][p[:, 0, 0] < 1e-6] = -0.0
    p[0, 2][p[0, 2] < 1e-6] = -0.0
    same_by_both_routes(p, labels)
    assert np.array_equal(all_statistics(p, labels, kind="probabilities")[0].count, clean[0].count)


@pytest.mark.skipif(not numba_is_here(), reason="numba not installed")
def test_a_probability_on_the_threshold_is_below_it():
    p = np.full((2, 2000), 2.0**-9, np.float32)  # from 2^-9 on the numba route sums other bits
    p[0] = 1 - p[1]
    p[:, ::2] = 0.5
    same_by_both_routes(p, np.zeros(2000, int), bins=Bins(15, 2.0**-9))
    same_by_both_routes(p, np.zeros(2000, int), bins=Bins(15, 2.0**-10))


@pytest.mark.parametrize("route", ROUTES)
def test_no_voxel_at_all_is_no_error(route):
    found = all_statistics(np.zeros((3, 0, 5), np.float32), np.zeros((0, 5), int), kind="probabilities", route=route)
    assert found[0].on("all").number == 0
    assert found[1].count.sum() == 0


@pytest.mark.parametrize("route", ROUTES)
def test_minus_zero_is_zero(route):
    x = np.linspace(0, 1, 400, dtype=np.float32)
    p = np.stack([1 - x, x])
    clean = all_statistics(p, np.zeros(400, int), kind="probabilities", route=route)
    p[p == 0] = -0.0
    found = all_statistics(p, np.zeros(400, int), kind="probabilities", route=route)
    equal(found[0], clean[0])
    equal(found[1], clean[1])


@pytest.mark.parametrize("route", ROUTES)
def test_the_default_dtype_of_torch_does_not_matter(route):
    logits, labels = mostly_sure()
    clean = all_statistics(logits, labels, kind="logits", route=route)
    torch.set_default_dtype(torch.float64)
    try:
        found = all_statistics(logits, labels, kind="logits", route=route)
    finally:
        torch.set_default_dtype(torch.float32)
    equal(found[0], clean[0])
    equal(found[1], clean[1])


@pytest.mark.parametrize("route", ROUTES)
def test_a_label_beyond_32_bits_is_refused(route):
    logits, labels = mostly_sure()
    labels[4, 2, 1] = 2**32 + 1
    with pytest.raises(BadInput, match=r"4294967297 at voxel \(z 4, y 2, x 1\)"):
        all_statistics(logits, labels, kind="logits", route=route)


def test_a_threshold_above_one_half_is_refused():
    with pytest.raises(BadInput, match=r"threshold of equal-mass bins must lie between 2\^-126 and 1/2, not 0\.6"):
        all_statistics(*mostly_sure(), kind="logits", bins=Bins(1, 0.6))


@pytest.mark.skipif(not numba_is_here(), reason="numba not installed")
def test_a_place_that_takes_every_voxel_has_room():
    p = np.zeros((2, 3 << 20), np.float32)
    p[1] = np.nextafter(np.float32(2.0**-9), np.float32(0))  # the largest number that is summed as it is
    p[0] = 1 - p[1]
    same_by_both_routes(p, np.zeros(p.shape[1], np.uint8))


@pytest.mark.slow
@pytest.mark.skipif(not numba_is_here(), reason="numba not installed")
def test_of_many_classes_the_predicted_one_may_lie_below_the_usual_threshold():
    rng = np.random.default_rng(2)
    p = 1 / 1200 + rng.uniform(-1e-5, 1e-5, (1200, 300))
    p = (p / p.sum(0)).astype(np.float32)
    assert (p.max(0) <= 1e-3).all()
    found = same_by_both_routes(p, rng.integers(0, 1200, 300), bins=Bins(10))
    assert found[1].count.sum() == 300  # each voxel once, as the predicted class


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("kind", ["logits", "probabilities"])
def test_equal_mass_bins_change_nothing_about_the_calibration_statistics(route, kind):
    logits, labels = mostly_sure()
    scores = logits if kind == "logits" else probabilities(logits)
    calibration, _ = all_statistics(scores, labels, kind=kind, route=route)
    equal(calibration, calibration_statistics(scores, labels, kind=kind, route=route))


@pytest.mark.parametrize("route", ROUTES)
def test_threads_and_slices_that_are_not_contiguous_change_nothing(route):
    logits, labels = mostly_sure(shape=(2, 400, 400))  # a slice is longer than a chunk
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
    asked = {"kind": "probabilities", "bins": Bins(5, 0.0095)}
    numba, by_torch = (all_statistics(p, labels, route=route, **asked)[1] for route in ("numba", "torch"))
    equal(numba, by_torch)
    assert (numba.exact == by_torch.exact).all()
    assert numba.count[..., 0].sum() > 0


def test_a_wrong_label_far_into_a_long_slice_is_named():
    logits, labels = mostly_sure(shape=(2, 400, 400))
    labels[1, 350, 7] = 11
    for scores in (logits, np.asfortranarray(logits)):
        with pytest.raises(BadInput, match=r"11.*voxel \(z 1, y 350, x 7\)"):
            all_statistics(scores, labels, kind="logits")
