"""Equal-mass bins against a plain sort, and the stated bound of the pooled value."""

import itertools
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from calibseg.core.types import BadInput
from calibseg.metrics import AECE, TACE
from calibseg.metrics.statistics.binning import Bins, all_statistics, numba_is_here
from calibseg.metrics.statistics.binning.equal_mass import EqualMassStatistics
from calibseg.metrics.statistics.binning.equal_mass.histogram import bucket_index, bucket_ranges, first_of_bucket

ROUTES = ["torch", pytest.param("numba", marks=pytest.mark.skipif(not numba_is_here(), reason="numba not installed"))]


def equal_mass_statistics(*arrays, **options):
    return all_statistics(*arrays, **options)[1]


def example(seed=0, classes=4, voxels=6000, sharp=0.3, levels=None):
    rng = np.random.default_rng(seed)
    p = rng.dirichlet([sharp] * classes, voxels).T
    if levels:
        p = np.floor(p * levels) / levels
        p[0] += 1 - p.sum(0)
    return p.astype(np.float32), rng.integers(0, classes, voxels)


def by_sorting(p, y, bins=15):
    """Sum over equal-mass bins of |sum p - sum y| / n, voxels with the same p sharing their labels."""
    order = np.argsort(p, kind="stable")
    p, y = p[order].astype(np.float64), y[order].astype(np.float64)
    _, group, size = np.unique(p, return_inverse=True, return_counts=True)
    y = (np.bincount(group, weights=y) / size)[group]
    cuts = [j * len(p) // bins for j in range(bins + 1)]
    return sum(abs(p[a:b].sum() - y[a:b].sum()) for a, b in itertools.pairwise(cuts)) / len(p)


def brute(p, labels, voxels, bins=15):
    top = p.argmax(0)
    keep = {"truth": labels > 0, "predicted": top > 0, "union": (labels > 0) | (top > 0), "all": labels >= 0}[voxels]
    p, labels, top = p[:, keep], labels[keep], top[keep]
    above = [p[k] > np.float32(1e-3) for k in range(len(p))]
    tace = [by_sorting(p[k][above[k]], (labels == k)[above[k]], bins) for k in range(len(p))]
    return by_sorting(p.max(0), top == labels, bins), np.mean(tace)


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("voxels", ["truth", "predicted", "union", "all"])
@pytest.mark.parametrize("options", [{}, {"sharp": 0.05}, {"sharp": 5.0}, {"levels": 20}, {"classes": 2, "voxels": 31}])
def test_one_case_is_exact(route, voxels, options):
    p, labels = example(**options)
    curves = equal_mass_statistics(p, labels, kind="probabilities", route=route).on(voxels)
    aece, tace = brute(p, labels, voxels)
    assert AECE().value(curves)[None] == pytest.approx(aece, abs=1e-9)
    assert TACE().value(curves)[None] == pytest.approx(tace, abs=1e-9)
    assert AECE().error_bound(curves) == 0


@pytest.mark.parametrize("bins", [1, 2, 10, 64])
def test_any_number_of_bins_is_exact(bins):
    p, labels = example(3)
    curves = equal_mass_statistics(p, labels, kind="probabilities", bins=Bins(bins)).on("all")
    assert AECE().value(curves)[None] == pytest.approx(brute(p, labels, "all", bins)[0], abs=1e-9)
    sizes = curves.count[-1]
    assert sizes.max() - sizes.min() <= 1


@pytest.mark.parametrize("options", [{}, {"sharp": 0.05}, {"sharp": 5.0}, {"levels": 20}])
def test_many_cases_keep_within_the_stated_bound(options):
    cases = [example(seed, voxels=2000, **options) for seed in range(5)]
    pooled = EqualMassStatistics(4)
    for p, labels in cases:
        pooled = pooled + equal_mass_statistics(p, labels, kind="probabilities")
    together = [np.concatenate(parts, axis=-1) for parts in zip(*cases, strict=True)]
    for voxels in ("truth", "predicted", "all"):
        curves = pooled.on(voxels)
        for metric, exact in zip((AECE(), TACE()), brute(*together, voxels), strict=True):
            assert abs(metric.value(curves)[None] - exact) <= metric.error_bound(curves)


def test_the_bound_is_small_where_probabilities_are_spread():
    cases = [example(seed, voxels=50_000, sharp=2.0) for seed in range(2)]
    pooled = sum((equal_mass_statistics(p, y, kind="probabilities") for p, y in cases), EqualMassStatistics(4))
    assert 0 < AECE().error_bound(pooled.on("all")) < 0.03
    exact = brute(*(np.concatenate(parts, axis=-1) for parts in zip(*cases, strict=True)), "all")[0]
    assert AECE().value(pooled.on("all"))[None] == pytest.approx(exact, abs=1e-3)


def test_soft_labels_and_sigmoid_are_exact_too():
    p, labels = example()
    soft = np.random.default_rng(5).dirichlet([1.0] * 4, labels.size).T
    top = np.take_along_axis(soft, p.argmax(0)[None], 0)[0]
    curves = equal_mass_statistics(p, soft, kind="probabilities").on("all")
    assert AECE().value(curves)[None] == pytest.approx(by_sorting(p.max(0), top), abs=1e-9)
    multi = np.random.default_rng(6).integers(0, 2, p.shape)
    curves = equal_mass_statistics(p, multi, kind="probabilities", activation="sigmoid").on("all")
    each = [by_sorting(p[k], multi[k]) for k in range(4)]
    assert AECE().value(curves) == pytest.approx({**dict(enumerate(each)), None: np.mean(each)}, abs=1e-9)


def test_buckets_grow_with_p_and_hold_what_they_say():
    rng = np.random.default_rng(0)
    tiny = 10 ** -rng.uniform(0, 8, 5000)
    p = np.sort(np.concatenate([rng.random(5000), tiny, [0.5] * 3, 1 - tiny]))
    p = np.concatenate([[0], p, [1]]).astype(np.float32)
    bucket = bucket_index(torch.from_numpy(p), 1e-3).numpy()
    low, high, single = bucket_ranges(1e-3)
    assert (np.diff(bucket) >= 0).all()
    assert bucket.min() == 0
    assert bucket.max() == len(low) - 1
    assert (bucket[p <= np.float32(1e-3)] == 0).all()
    assert (bucket[p > np.float32(1e-3)] > 0).all()
    assert (low[bucket] <= p).all()
    assert (p <= high[bucket] + 1e-10).all()
    for g in np.unique(bucket).tolist():
        first = np.int32(first_of_bucket(g, 1e-3)).view(np.float32)
        assert np.searchsorted(p, first) == np.searchsorted(bucket, g)
    for g in np.unique(bucket[single[bucket]]):
        assert len(np.unique(p[bucket == g])) == 1


def test_statistics_survive_a_round_trip_through_plain_arrays(tmp_path):
    before = equal_mass_statistics(*example(), kind="probabilities")
    np.savez(tmp_path / "case.npz", **before.to_arrays())
    with np.load(tmp_path / "case.npz", allow_pickle=False) as stored:
        after = EqualMassStatistics.from_arrays(dict(stored))
    assert TACE().value(after.on("truth")) == TACE().value(before.on("truth"))
    assert TACE().value((after + after).on("all")) == TACE().value((before + before).on("all"))


def test_a_rule_that_is_not_known_is_refused():
    with pytest.raises(BadInput, match="equal-mass bins know no voxel rule 'boundary'"):
        EqualMassStatistics(3).on("boundary")
    with pytest.raises(BadInput, match=r"threshold is 0\.001 in one"):
        equal_mass_statistics(*example(), kind="probabilities") + EqualMassStatistics(4, threshold=0.01)


@pytest.mark.skipif(not numba_is_here(), reason="numba not installed")
@pytest.mark.parametrize("kind", ["logits", "probabilities"])
def test_both_routes_and_any_number_of_threads_fill_the_same_histogram(kind):
    rng = np.random.default_rng(1)
    scores = rng.normal(scale=4, size=(3, 9, 100, 110)).astype(np.float32)
    labels = rng.integers(0, 3, (9, 100, 110))
    labels[0] = 9
    if kind == "probabilities":
        scores = torch.softmax(torch.from_numpy(scores), 0).numpy()
    options = {"kind": kind, "ignore_label": 9}
    one = equal_mass_statistics(scores, labels, route="torch", threads=1, **options)
    two = equal_mass_statistics(scores, labels, route="numba", threads=3, **options)
    for name in one.sums:
        assert np.array_equal(one.sums[name], two.sums[name]), name
    assert np.array_equal(one.exact, two.exact)


def test_the_error_bound_is_the_mean_over_classes_that_keep_a_voxel():
    counts = np.array([[0, 0], [1, 0], [3, 2], [9, 9]])  # of three classes, and of the top label
    curves: Any = SimpleNamespace(classes=3, count=counts, bound=np.array([0.4, 0.2, 0.1, 0.9]))
    assert TACE().error_bound(curves) == pytest.approx((0.2 + 0.1) / 2)
