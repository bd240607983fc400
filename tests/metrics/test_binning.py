"""The calibration statistics against independent calculations, and the properties that make them trustworthy."""

import itertools

import numpy as np
import pytest
import torch

from calibseg.core.types import BadInput
from calibseg.metrics import ACE, CECE, ECE, MCE, NLL, TCECE, Brier, SignedGap
from calibseg.metrics.statistics.binning import Bins, CalibrationStatistics, calibration_statistics, numba_is_here
from calibseg.metrics.statistics.distance_bands import distance_bands, signed_distance_mm

ROUTES = ["torch", pytest.param("numba", marks=pytest.mark.skipif(not numba_is_here(), reason="numba not installed"))]
SHAPE = (6, 11, 13)


def example(classes=4, shape=SHAPE, seed=0, scale=3.0):
    rng = np.random.default_rng(seed)
    logits = rng.normal(scale=scale, size=(classes, *shape)).astype(np.float32)
    return logits, rng.integers(0, classes, shape)


def softmax64(logits):
    return torch.softmax(torch.as_tensor(np.asarray(logits, np.float64)), 0).numpy()


def choose(voxels, p, y):
    predicted = p.argmax(0)
    masks = {
        "truth": y > 0,
        "predicted": predicted > 0,
        "union": (y > 0) | (predicted > 0),
        "all": np.ones(y.shape, bool),
    }
    return p[:, masks[voxels]], y[masks[voxels]]


def gap_sum(p, hit, bins=15, norm=None):
    """Sum over (lo, hi] bins of |sum p - sum hit| over n, in float64 with plain loops."""
    edges = (np.arange(bins + 1) / bins).astype(np.float32)
    total = 0.0
    for lo, hi in itertools.pairwise(edges):
        inside = (p.astype(np.float32) > lo) & (p.astype(np.float32) <= hi) if lo > 0 else p.astype(np.float32) <= hi
        total += abs(p[inside].astype(np.float64).sum() - hit[inside].sum())
    return total / (norm or len(p))


@pytest.mark.parametrize("route", ROUTES)
def test_the_golden_image_has_the_published_ece_on_its_label_foreground(route):
    k, i, j = np.meshgrid(np.arange(3), np.arange(4), np.arange(4), indexing="ij")
    logits = (((3 * i + 5 * j + 7 * k) % 11) - 5) / 2
    labels = np.array([[1, 1, 1, 1], [1, 1, 2, 0], [0, 0, 2, 2], [0, 0, 0, 2]])
    statistics = calibration_statistics(logits, labels, kind="logits", route=route)
    assert ECE().value(statistics.on("truth"))[None] == pytest.approx(0.542597532, abs=1e-9)
    assert NLL().value(statistics.on("all"))[None] == pytest.approx(1.985171102, abs=1e-9)  # the cross-entropy


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("voxels", ["truth", "predicted", "union", "all"])
def test_every_metric_agrees_with_plain_float64_sums(route, voxels):
    logits, labels = example()
    curves = calibration_statistics(logits, labels, kind="logits", route=route).on(voxels)
    p, y = choose(voxels, softmax64(logits), labels)
    n, top = len(y), p.argmax(0)
    assert curves.number == n
    assert ECE().value(curves)[None] == pytest.approx(gap_sum(p.max(0), top == y), abs=1e-9)
    for k in range(4):
        mine = top == k
        expected = gap_sum(p.max(0)[mine], (top == y)[mine]) if mine.any() else np.nan
        assert ECE().value(curves)[k] == pytest.approx(expected, abs=1e-9, nan_ok=True)
    classwise = [gap_sum(p[k], y == k) for k in range(4)]
    assert CECE().value(curves) == pytest.approx({**dict(enumerate(classwise)), None: np.mean(classwise)}, abs=1e-9)
    kept = [p[k] > np.float32(1e-3) for k in range(4)]
    thresholded = [gap_sum(p[k][kept[k]], (y == k)[kept[k]]) for k in range(4)]
    assert TCECE().value(curves)[None] == pytest.approx(np.mean(thresholded), abs=1e-9)
    signed = p.max(0).mean(dtype=np.float64) - (top == y).mean()
    assert SignedGap().value(curves)[None] == pytest.approx(signed, abs=1e-9)
    one_hot = np.arange(4)[:, None] == y
    assert Brier().value(curves)[None] == pytest.approx(((p - one_hot) ** 2).sum(0).mean(), abs=1e-9)


@pytest.mark.parametrize("route", ROUTES)
def test_nll_is_the_float64_cross_entropy_to_1e_12(route):
    logits, labels = example(scale=8.0)
    value = NLL().value(calibration_statistics(logits, labels, kind="logits", route=route).on("all"))
    loss = torch.nn.functional.cross_entropy(
        torch.tensor(logits, dtype=torch.float64)[None], torch.tensor(labels)[None], reduction="none"
    )[0].numpy()
    loss = np.minimum(loss, 24 * np.log(2))  # p counts as at least 2^-24
    assert value[None] == pytest.approx(loss.mean(), abs=1e-12)
    for k in range(4):
        assert value[k] == pytest.approx(loss[labels == k].mean(), abs=1e-12)


def test_the_worst_and_the_average_bin_by_hand():
    p = np.array([0.9, 0.9, 0.6, 0.7], np.float32)  # accuracies of the three bins: 1/2, 1, 0
    curves = calibration_statistics(np.stack([p, 1 - p]), np.array([0, 1, 0, 1]), kind="probabilities").on("all")
    assert MCE().value(curves)[None] == pytest.approx(0.7, abs=1e-7)
    assert ACE().value(curves)[None] == pytest.approx((0.4 + 0.4 + 0.7) / 3, abs=1e-7)
    assert ECE().value(curves)[None] == pytest.approx((2 * 0.4 + 0.4 + 0.7) / 4, abs=1e-7)


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("bins", [1, 2, 10, 15, 20, 37, 100])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_an_edge_belongs_to_the_bin_below_and_zero_and_one_have_a_bin(route, bins, dtype):
    edges = (np.arange(bins + 1) / bins).astype(dtype)
    p = np.stack([edges, 1 - edges])
    curves = calibration_statistics(
        p, np.zeros(bins + 1, int), kind="probabilities", bins=Bins(bins, 1e-4), route=route
    ).on("all")
    expected = np.ones(bins, int)
    expected[0] = 2  # 0 and the first edge
    assert curves.count[0].tolist() == expected.tolist()


def test_the_papers_bins_are_found_by_a_product_and_others_by_search():
    assert [Bins(n).scale for n in (1, 2, 15)] == pytest.approx([1, 2, 15], rel=1e-6)
    assert Bins(10).scale is None  # no float64 is right on both sides of each edge


@pytest.mark.parametrize("bins", [10, 15, 23])
def test_the_scale_that_finds_bins_is_right_next_to_every_edge(bins):
    edges = Bins(bins, 1e-4).edges[1:-1]
    near = np.concatenate([edges, np.nextafter(edges, np.float32(0)), np.nextafter(edges, np.float32(1))])
    p = np.stack([near, 1 - near])
    counts = calibration_statistics(
        p, np.zeros(len(near), int), kind="probabilities", bins=Bins(bins, 1e-4), route="torch"
    )
    expected = np.bincount(np.searchsorted(edges, near), minlength=bins)
    assert counts.on("all").count[0].tolist() == expected.tolist()


@pytest.mark.skipif(not numba_is_here(), reason="numba not installed")
@pytest.mark.parametrize("classes", [2, 5])
@pytest.mark.parametrize("bins", [10, 15])
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_both_routes_give_the_same_bits_for_the_same_probabilities(classes, bins, dtype):
    logits, labels = example(classes, (7, 40, 50))
    p = softmax64(logits).astype(dtype)
    labels[0, :5] = 255
    distance = signed_distance_mm(labels % 255, (1.0, 1.0, 1.0))
    options = {"kind": "probabilities", "bins": Bins(bins), "ignore_label": 255, "distance_mm": distance}
    by = {
        route: calibration_statistics(p, labels, route=route, bands=distance_bands(1.5), **options)
        for route in ("torch", "numba")
    }
    for name in ("count", "confidence", "hits", "squares", "clipped"):
        assert np.array_equal(by["torch"].sums[name], by["numba"].sums[name]), name
    assert by["torch"].on("all").nll == pytest.approx(by["numba"].on("all").nll, rel=1e-14)


@pytest.mark.skipif(not numba_is_here(), reason="numba not installed")
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("kind", ["logits", "log_probabilities"])
def test_both_routes_give_the_same_ece_from_scores(dtype, kind):
    logits, labels = example(5, (9, 50, 60), scale=6.0)
    if kind == "log_probabilities":
        logits = np.log(softmax64(logits))
    ece = [
        ECE().value(calibration_statistics(logits.astype(dtype), labels, kind=kind, route=route).on("all"))[None]
        for route in ("torch", "numba")
    ]
    assert ece[0] == pytest.approx(ece[1], abs=1e-7)


@pytest.mark.parametrize("route", ROUTES)
def test_slabs_in_any_order_give_the_same_bits_as_the_whole(route):
    logits, labels = example(3, (12, 9, 10))
    whole = calibration_statistics(logits, labels, kind="logits", route=route)
    order = np.random.default_rng(3).permutation(12)
    total = CalibrationStatistics(3)
    for group in np.split(order, [1, 4, 5]):
        total = calibration_statistics(logits[:, group], labels[group], kind="logits", route=route) + total
    for name, array in whole.sums.items():
        assert np.array_equal(array, total.sums[name]), name


@pytest.mark.skipif(not numba_is_here(), reason="numba not installed")
def test_the_number_of_threads_changes_no_bit():
    logits, labels = example(3, (5, 200, 200))
    one, two = (calibration_statistics(logits, labels, kind="logits", route="numba", threads=n) for n in (1, 3))
    assert all(np.array_equal(one.sums[name], two.sums[name]) for name in one.sums)


def test_more_voxels_than_an_int64_of_fractions_could_hold_stay_exact():
    p = np.tile(np.array([[0.9375], [0.0625]], np.float32), (1, 1 << 12))
    total = calibration_statistics(p, np.zeros(1 << 12, int), kind="probabilities")
    for _ in range(28):  # 2^40 voxels, 2^9 times what 32 bits of fraction leave room for
        total = total + total
    curves = total.on("all")
    assert curves.number == 1 << 40
    assert curves.top_confidence.sum() == 0.9375 * 2**40
    assert NLL().value(curves)[None] == pytest.approx(-np.log(0.9375), abs=1e-12)


@pytest.mark.parametrize("route", ROUTES)
def test_an_ignored_voxel_counts_for_nobody_whatever_it_holds(route):
    logits, labels = example()
    hole = np.zeros(SHAPE, bool)
    hole[1:3, 4:] = True
    expected = calibration_statistics(logits[:, ~hole], labels[~hole], kind="logits", route=route)
    labels[hole] = -1
    logits[:, hole] = np.nan
    found = calibration_statistics(logits, labels, kind="logits", ignore_label=-1, route=route)
    assert all(np.array_equal(expected.sums[name], found.sums[name]) for name in expected.sums)


def test_one_hot_soft_labels_are_labels():
    logits, labels = example()
    soft = (np.arange(4)[:, None, None, None] == labels).astype(np.float32)
    hard = calibration_statistics(logits, labels, kind="logits", route="torch")
    found = calibration_statistics(logits, soft, kind="logits")
    for name in ("count", "confidence", "hits", "squares", "clipped"):
        assert np.array_equal(hard.sums[name], found.sums[name]), name
    assert found.on("all").nll == pytest.approx(hard.on("all").nll, abs=1e-9)


def test_several_raters_are_the_share_that_votes_for_each_class():
    logits, _ = example(3)
    raters = np.random.default_rng(1).integers(0, 3, (4, *SHAPE))
    raters[0, 0] = 99  # the first rater skipped a slice
    votes = np.stack([(raters == k).sum(0) for k in range(3)])
    soft = votes / votes.sum(0)
    by_votes = calibration_statistics(logits, raters, kind="logits", ignore_label=99)
    by_share = calibration_statistics(logits, soft, kind="logits")
    assert all(np.array_equal(by_votes.sums[name], by_share.sums[name]) for name in by_votes.sums)
    curves = by_share.on("all")
    p, y = softmax64(logits).reshape(3, -1), soft.reshape(3, -1)
    hit = np.take_along_axis(y, p.argmax(0)[None], 0)[0]
    assert ECE().value(curves)[None] == pytest.approx(gap_sum(p.max(0), hit), abs=1e-9)
    assert Brier().value(curves)[None] == pytest.approx(((p - y) ** 2).sum(0).mean(), abs=1e-9)
    assert NLL().value(curves)[None] == pytest.approx(-(y * np.log(softmax64(logits).reshape(3, -1))).sum(0).mean())


def test_the_rows_of_a_diagram_begin_and_end_at_the_edges_of_their_bins():
    p = np.array([0.1, 0.3])[None, None]
    scores, labels = np.stack([1 - p, p]), np.array([[[0, 1]]])
    curves = calibration_statistics(scores, labels, kind="probabilities", bins=Bins(4)).on("all")
    rows = [row for row in curves.rows() if row["class"] == 1]
    assert [(row["bin"], row["low"], row["high"], row["count"]) for row in rows] == [
        (0, 0.0, 0.25, 1), (1, 0.25, 0.5, 1), (2, 0.5, 0.75, 0), (3, 0.75, 1.0, 0)
    ]  # fmt: skip
    assert [row["accuracy"] for row in rows] == pytest.approx([0.0, 1.0, np.nan, np.nan], nan_ok=True)
    assert [row["confidence"] for row in rows] == pytest.approx([0.1, 0.3, np.nan, np.nan], nan_ok=True)


def test_a_voxel_whose_soft_labels_are_all_zero_is_ignored():
    logits, labels = example(3)
    soft = (np.arange(3)[:, None, None, None] == labels).astype(np.float64)
    soft[:, 0] = 0
    assert calibration_statistics(logits, soft, kind="logits").on("all").number == labels[1:].size


@pytest.mark.parametrize("kind", ["logits", "probabilities", "log_probabilities"])
def test_with_sigmoid_each_channel_is_its_own_binary_curve(kind):
    logits, _ = example(3)
    y = np.random.default_rng(2).integers(0, 2, (3, *SHAPE))
    p = 1 / (1 + np.exp(-logits.astype(np.float64)))
    scores = {"logits": logits, "probabilities": p, "log_probabilities": np.log(p)}[kind]
    statistics = calibration_statistics(scores, y, kind=kind, activation="sigmoid")
    curves = statistics.on("all")
    each = [gap_sum(p[k].ravel(), y[k].ravel()) for k in range(3)]
    assert ECE().value(curves) == pytest.approx({**dict(enumerate(each)), None: np.mean(each)}, abs=1e-8)
    assert Brier().value(curves)[None] == pytest.approx(((p - y) ** 2).mean(), abs=1e-9)
    bce = torch.nn.functional.binary_cross_entropy(torch.tensor(p), torch.tensor(y, dtype=torch.float64)).item()
    assert NLL().value(curves)[None] == pytest.approx(bce, abs=1e-10)
    foreground = statistics.on("predicted")
    assert ECE().value(foreground)[1] == pytest.approx(gap_sum(p[1][p[1] > 0.5], y[1][p[1] > 0.5]), abs=1e-8)


def test_a_perfect_predictor_scores_zero_on_predicted_and_all_but_not_on_truth():
    rng = np.random.default_rng(7)
    p = rng.dirichlet([2.0, 0.7, 0.7], 400_000).T
    labels = (rng.random(p.shape[1]) > np.cumsum(p, 0)[:, None]).sum(0)[0]  # drawn from p itself
    statistics = calibration_statistics(p, labels, kind="probabilities")
    ece = {voxels: ECE().value(statistics.on(voxels))[None] for voxels in ("truth", "predicted", "union", "all")}
    assert ece["all"] < 0.005
    assert ece["predicted"] < 0.006
    assert ece["truth"] > 0.1
    assert ece["union"] > 0.02


def test_released_cece_stops_at_the_highest_label_of_the_volume():
    logits, labels = example(4)
    labels %= 3  # class 3 does not occur
    curves = calibration_statistics(logits, labels, kind="logits").on("truth")
    values = CECE().value(curves)
    assert CECE("released").value(curves)[None] == pytest.approx(np.mean([values[k] for k in range(3)]))
    assert CECE().value(curves)[None] == pytest.approx(np.mean([values[k] for k in range(4)]))


def test_a_class_that_keeps_no_voxel_counts_zero_in_the_released_thresholded_cece():
    p = np.array([[0.9999, 0.9999], [0.0001, 0.0001], [0.0, 0.0]])
    curves = calibration_statistics(p, np.array([0, 1]), kind="probabilities").on("all")
    values = TCECE("released").value(curves)
    assert np.isnan(values[1])
    assert values[None] == pytest.approx(values[0] / 2)  # classes 0 and 1
    assert TCECE("all").value(curves)[None] == pytest.approx(values[0])


def test_statistics_survive_a_round_trip_through_plain_arrays(tmp_path):
    logits, labels = example()
    distance = signed_distance_mm(labels, (1.0, 1.0, 1.0))
    before = calibration_statistics(logits, labels, kind="logits", distance_mm=distance, bands=distance_bands(2.0))
    np.savez(tmp_path / "case.npz", **before.to_arrays())
    with np.load(tmp_path / "case.npz", allow_pickle=False) as stored:
        after = CalibrationStatistics.from_arrays(dict(stored))
    assert (after.bins, after.bands, after.activation) == (before.bins, before.bands, before.activation)
    assert all(np.array_equal(before.sums[name], after.sums[name]) for name in before.sums)


def test_any_layout_and_container_gives_the_same_bits(tmp_path):
    logits, labels = example(3, (5, 6, 7))
    expected = calibration_statistics(logits, labels, kind="logits").sums
    np.save(tmp_path / "logits.npy", logits)
    forms = {
        "memory map": (np.load(tmp_path / "logits.npy", mmap_mode="r"), labels),
        "tensor": (torch.from_numpy(logits), torch.from_numpy(labels)),
        "classes last in memory": (np.moveaxis(np.ascontiguousarray(np.moveaxis(logits, 0, -1)), -1, 0), labels),
        "big-endian": (logits.astype(">f4"), labels.astype(">i2")),
        "one rater": (logits, labels[None]),
        "uint16 labels": (logits, labels.astype(np.uint16)),
    }
    for route, (name, (scores, target)) in itertools.product(("torch", "auto"), forms.items()):
        found = calibration_statistics(scores, target, kind="logits", route=route).sums
        for key in ("count", "confidence", "hits", "squares"):
            assert np.array_equal(expected[key], found[key]), (route, name, key)


def test_statistics_under_different_rules_do_not_add_up():
    with pytest.raises(BadInput, match="bins is"):
        CalibrationStatistics(3) + CalibrationStatistics(3, Bins(10))
    with pytest.raises(BadInput, match="needs distance bands"):
        CalibrationStatistics(3).on("boundary")
    with pytest.raises(BadInput, match=r"no voxel rule named 'foreground'\. Known: truth"):
        CalibrationStatistics(3).on("foreground")  # pyright: ignore[reportArgumentType]


def wrong(name):
    logits, labels = example(3, (2, 3, 4))
    p = softmax64(logits).astype(np.float32)
    place = (1, 2, 3)
    cases = {
        "sum": (p.copy(), labels, "probabilities"),
        "nan": (p.copy(), labels, "probabilities"),
        "nan logit": (logits.copy(), labels, "logits"),
        "infinite logit": (logits.copy(), labels, "logits"),
        "negative": (p.copy(), labels, "probabilities"),
        "log sum": (np.log(p), labels, "log_probabilities"),
        "label": (logits, labels.copy(), "logits"),
        "shape": (logits, labels[:, :2], "logits"),
        "type": (labels[None].repeat(3, 0), labels, "logits"),
        "float labels": (logits, labels.astype(float), "logits"),
        "kind": (logits, labels, "scores"),
    }
    scores, target, kind = cases[name]
    at = (slice(None), *place)
    if name == "sum":
        scores[at] = [0.5, 0.4, 0.3]
    elif name in ("nan", "nan logit"):
        scores[(1, *place)] = np.nan
    elif name == "infinite logit":
        scores[(1, *place)] = np.inf
    elif name == "negative":
        scores[at] = [1.5, -0.5, 0.0]
    elif name == "log sum":
        scores[at] -= 1.0
    elif name == "label":
        target[place] = 3
    return scores, target, kind


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "sum",
            r"^probabilities sum to 1.2 instead of 1 at voxel \(z 1, y 2, x 3\): 0.5, 0.4, 0.3; if they are logits",
        ),
        ("nan", r"^scores are NaN or infinite at voxel \(z 1, y 2, x 3\)"),
        ("nan logit", r"^scores are NaN or infinite at voxel \(z 1, y 2, x 3\)"),
        ("infinite logit", r"^scores are NaN or infinite at voxel \(z 1, y 2, x 3\)"),
        ("negative", r"^probabilities are 1.5, -0.5, 0 at voxel \(z 1, y 2, x 3\); expected numbers from 0 to 1"),
        ("log sum", r"^log probabilities sum to 0.36\d+ instead of 1 at voxel \(z 1, y 2, x 3\)"),
        ("label", r"^the label 3 at voxel \(z 1, y 2, x 3\) is none of the 3 classes 0 to 2"),
        ("shape", r"^the target has the shape \(2, 2, 4\) of int64 and the scores cover \(2, 3, 4\) with 3 classes"),
        ("type", r"^scores hold int64; expected float16, float32 or float64"),
        ("float labels", r"^the target has the shape \(2, 3, 4\) of float64"),
        ("kind", r"^scores cannot be of the kind 'scores'. Known: logits"),
    ],
)
def test_bad_input_is_named_with_its_place(route, name, message):
    scores, target, kind = wrong(name)
    with pytest.raises(BadInput, match=message):
        calibration_statistics(scores, target, kind=kind, route=route)
