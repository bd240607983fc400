"""Surface distances: every route against brute force, the geometry of surfaces, absent objects and bad input."""

from math import hypot, inf, nan

import numpy as np
import pytest
from scipy.ndimage import gaussian_filter
from scipy.spatial.distance import cdist

from calibseg.core.types import BadInput
from calibseg.metrics import ASD, ASSD, HD, HD95, NSD
from calibseg.metrics.statistics import surface_distances
from calibseg.metrics.statistics.surface_distances import Distances
from calibseg.metrics.statistics.surfaces import SurfaceStatistics

SPACINGS = [(1.0, 1.0, 1.0), (3.0, 0.7, 0.7), (0.5, 2.0, 1.3), (50.0, 0.5, 0.4)]


def blobs(seed: int, shape: tuple[int, ...], smooth: float, share: float) -> np.ndarray:
    field = gaussian_filter(np.random.default_rng(seed).normal(size=shape), smooth)
    return np.digitize(field, np.quantile(field, [1 - 2 * share, 1 - share])).astype(np.uint8)


def surface_points(mask: np.ndarray, spacing) -> np.ndarray:
    """Voxel by voxel, straight from the definition."""
    points = []
    steps = [step for step, size in zip(np.eye(3, dtype=int), mask.shape, strict=True) if size > 1 or mask.size == 1]
    for point in np.argwhere(mask):
        neighbours = [point + sign * step for step in steps for sign in (-1, 1)]
        inside = [all(0 <= n < size for n, size in zip(p, mask.shape, strict=True)) for p in neighbours]
        if not all(ok and mask[tuple(p)] for p, ok in zip(neighbours, inside, strict=True)):
            points.append(point * np.asarray(spacing))
    return np.array(points)


def expanded(distances: Distances) -> np.ndarray:
    return np.repeat(distances.values, distances.counts)


def same(one: SurfaceStatistics, other: SurfaceStatistics) -> bool:
    return one.rows.keys() == other.rows.keys() and all(
        np.allclose(expanded(a), expanded(b), rtol=1e-6, atol=0)
        for row in one.rows
        for a, b in zip(one.rows[row], other.rows[row], strict=True)
    )


@pytest.mark.parametrize("route", ["tree", "transform"])
@pytest.mark.parametrize("spacing", SPACINGS)
@pytest.mark.parametrize("smooth", [0.0, 1.5])
def test_every_route_finds_the_distances_of_brute_force(monkeypatch, route, spacing, smooth):
    monkeypatch.setattr(surface_distances, "TREE_QUERY_NS", 0 if route == "tree" else 10**9)
    monkeypatch.setattr(surface_distances, "TREE_POINT_NS", 0)
    monkeypatch.setattr(surface_distances, "OFFSETS", 20)  # so that many voxels are far
    shape = (9, 14, 12)
    truth, predicted = blobs(1, shape, smooth, 0.03), blobs(2, shape, smooth, 0.03)
    rows = SurfaceStatistics.of(truth, predicted, 3, {"both": (1, 2)}, spacing).rows
    for row, members in ((1, (1,)), (2, (2,)), ("both", (1, 2))):
        true, guess = (surface_points(np.isin(labels, members), spacing) for labels in (truth, predicted))
        between = cdist(guess, true)
        assert np.allclose(expanded(rows[row].to_truth), np.sort(between.min(1)), rtol=1e-6)
        assert np.allclose(expanded(rows[row].to_predicted), np.sort(between.min(0)), rtol=1e-6)


@pytest.mark.parametrize("seed", range(40))
def test_small_volumes_of_any_shape_give_the_distances_of_brute_force(seed):
    rng = np.random.default_rng(seed)
    shape, spacing = rng.integers(1, 8, 3), tuple(rng.uniform(0.3, 4, 3))
    truth, predicted = rng.random(shape) < rng.random(), rng.random(shape) < rng.random()
    pair = SurfaceStatistics.of(truth, predicted, 2, spacing_mm=spacing).rows[1]
    assert pair.truth_absent == (not truth.any())
    assert pair.predicted_absent == (not predicted.any())
    if truth.any() and predicted.any():
        between = cdist(surface_points(predicted, spacing), surface_points(truth, spacing))
        assert np.allclose(expanded(pair.to_truth), np.sort(between.min(1)))
        assert np.allclose(expanded(pair.to_predicted), np.sort(between.min(0)))


def test_near_and_far_search_agree_whatever_the_number_of_offsets(monkeypatch):
    truth, predicted = blobs(3, (12, 30, 30), 2.0, 0.1), blobs(4, (12, 30, 30), 2.0, 0.1)
    usual = SurfaceStatistics.of(truth, predicted, 3, spacing_mm=(3.0, 0.7, 0.7))
    for offsets in (1, 7, 2000):
        monkeypatch.setattr(surface_distances, "OFFSETS", offsets)
        assert same(SurfaceStatistics.of(truth, predicted, 3, spacing_mm=(3.0, 0.7, 0.7)), usual)


def test_the_surface_of_a_cube_is_its_hull_and_the_image_border_is_surface_too():
    cube, full = np.zeros((9, 9, 9), int), np.ones((9, 9, 9), int)
    cube[2:7, 2:7, 2:7] = 1
    assert SurfaceStatistics.of(cube, cube, 2).rows[1].to_truth.number == 5**3 - 3**3
    assert SurfaceStatistics.of(full, full, 2).rows[1].to_truth.number == 9**3 - 7**3


def test_the_surface_in_a_single_slice_is_the_outline():
    image = np.zeros((1, 9, 9), int)
    image[0, 2:7, 2:7] = 1
    for labels in (image, image.reshape(9, 1, 9), image.reshape(9, 9, 1)):
        assert SurfaceStatistics.of(labels, labels, 2).rows[1].to_truth.number == 5**2 - 3**2
    line = np.ones((1, 1, 7), int)
    assert SurfaceStatistics.of(line, line, 2).rows[1].to_truth.number == 2


def test_a_flat_object_in_a_thick_image_is_all_surface():
    labels = np.zeros((3, 9, 9), int)
    labels[1, 2:7, 2:7] = 1
    assert SurfaceStatistics.of(labels, labels, 2).rows[1].to_truth.number == 25


def test_two_points_lie_as_far_apart_as_their_spacing_says():
    truth, predicted = np.zeros((20, 30, 40), int), np.zeros((20, 30, 40), int)
    truth[1, 2, 3] = predicted[18, 20, 35] = 1
    spacing = (3.0, 0.5, 0.8)
    far = hypot(17 * 3.0, 18 * 0.5, 32 * 0.8)
    for metric in (HD(), HD95(), HD95("max_directed"), ASD(), ASSD()):
        assert metric.value(SurfaceStatistics.of(truth, predicted, 2, spacing_mm=spacing))[1] == pytest.approx(far)
    voxels = SurfaceStatistics.of(truth, predicted, 2, spacing_mm=spacing, units="voxel")
    assert HD().value(voxels)[1] == pytest.approx(hypot(17, 18, 32))
    assert voxels.units == "voxel"


def test_a_region_is_the_class_one_gets_by_merging_its_members():
    truth, predicted = blobs(5, (8, 20, 20), 1.5, 0.15), blobs(6, (8, 20, 20), 1.5, 0.15)
    rows = SurfaceStatistics.of(truth, predicted, 3, {"both": (1, 2)}).rows
    merged = SurfaceStatistics.of(truth > 0, predicted > 0, 2).rows[1]
    assert np.array_equal(expanded(rows["both"].to_truth), expanded(merged.to_truth))
    assert np.array_equal(expanded(rows["both"].to_predicted), expanded(merged.to_predicted))


@pytest.mark.parametrize("num_classes", [12, 300])
def test_any_number_of_classes_gives_what_each_gives_alone(num_classes):
    rng = np.random.default_rng(7)
    used = [1, 2, 8, 9, num_classes - 1]
    truth = rng.choice([0, *used], (5, 9, 9)).astype(np.uint16)
    predicted = rng.choice([0, *used], (5, 9, 9)).astype(np.uint16)
    together = SurfaceStatistics.of(truth, predicted, num_classes)
    assert len(together.rows) == num_classes - 1
    for class_id in used:
        alone = SurfaceStatistics.of(truth == class_id, predicted == class_id, 2).rows[1]
        assert np.array_equal(expanded(together.rows[class_id].to_truth), expanded(alone.to_truth))
    assert together.rows[3].truth_absent
    assert together.rows[3].predicted_absent


def test_threads_dtype_memory_order_and_surroundings_change_nothing():
    truth, predicted = blobs(8, (10, 24, 24), 2.0, 0.1), blobs(9, (10, 24, 24), 2.0, 0.1)
    frame = np.pad(np.ones((8, 22, 22), bool), 1)
    truth, predicted = truth * frame, predicted * frame
    usual = SurfaceStatistics.of(truth, predicted, 3)
    assert same(SurfaceStatistics.of(truth, predicted, 3, workers=4), usual)
    assert same(SurfaceStatistics.of(truth.astype(np.int64), np.asfortranarray(predicted), 3), usual)
    assert same(SurfaceStatistics.of(truth[::-1, :, ::-1], predicted[::-1, :, ::-1], 3), usual)
    around = ((0, 9), (3, 1), (2, 2))
    assert same(SurfaceStatistics.of(np.pad(truth, around), np.pad(predicted, around), 3), usual)


def test_the_arrays_given_are_left_as_they_were():
    truth, predicted = blobs(8, (6, 12, 12), 1.0, 0.1), blobs(9, (6, 12, 12), 1.0, 0.1)
    truth[0, 0] = 7
    copies = truth.copy(), predicted.copy()
    SurfaceStatistics.of(truth, predicted, 3, ignore_index=7)
    assert np.array_equal(truth, copies[0])
    assert np.array_equal(predicted, copies[1])


def test_ignored_voxels_are_background_in_both_maps():
    truth, predicted = blobs(1, (6, 12, 12), 1.0, 0.1), blobs(2, (6, 12, 12), 1.0, 0.1)
    hidden = np.zeros(truth.shape, bool)
    hidden[:, :4] = True
    usual = SurfaceStatistics.of(np.where(hidden, 0, truth), np.where(hidden, 0, predicted), 3)
    ignoring = SurfaceStatistics.of(np.where(hidden, 255, truth), predicted, 3, ignore_index=255)
    assert same(ignoring, usual)
    negative = SurfaceStatistics.of(np.where(hidden, -1, truth.astype(int)), predicted, 3, ignore_index=-1)
    assert same(negative, usual)


@pytest.mark.parametrize("q", [0.0, 0.5, 0.9, 0.95, 1.0])
@pytest.mark.parametrize("number", [1, 2, 3, 20, 21, 997])
def test_quantile_mean_and_maximum_are_those_of_the_listed_distances(q, number):
    listed = np.random.default_rng(number).integers(0, 9, number) * 0.7
    distances = Distances(*np.unique(listed, return_counts=True))
    assert distances.number == number
    assert distances.quantile(q) == pytest.approx(np.quantile(listed, q), abs=1e-12)
    assert distances.mean() == pytest.approx(listed.mean())
    assert distances.max() == listed.max()
    other = Distances(np.array([0.7, 9.0]), np.array([3, 1]))
    assert np.array_equal(np.sort([*listed, 0.7, 0.7, 0.7, 9.0]), expanded(distances + other))


def test_three_steps_of_a_tenth_are_within_a_tolerance_of_three_tenths():
    truth, predicted = np.zeros((1, 1, 9), int), np.zeros((1, 1, 9), int)
    truth[0, 0, 1] = predicted[0, 0, 4] = 1
    statistics = SurfaceStatistics.of(truth, predicted, 2, spacing_mm=(1, 1, 0.1))
    assert statistics.rows[1].to_truth.max() > 0.3  # 3 * 0.1 is 0.30000000000000004
    assert NSD(tolerance_mm=0.3).value(statistics)[1] == 1.0
    assert NSD(tolerance_mm=0.2999).value(statistics)[1] == 0.0


def absent_rows() -> SurfaceStatistics:
    """Class 1 in neither map, class 2 missed, class 3 invented; the image is a BraTS volume's size."""
    truth, predicted = np.zeros((155, 240, 240), np.uint8), np.zeros((155, 240, 240), np.uint8)
    truth[5:7, 5:7, 5:7], predicted[9:11, 9:11, 9:11] = 2, 3
    return SurfaceStatistics.of(truth, predicted, 4)


DIAGONAL = hypot(155, 240, 240)  # 373.13, the BraTS challenge's penalty for a missed tumour


@pytest.mark.parametrize(
    ("metric", "empty", "neither", "missed", "invented"),
    [
        (HD, "nan", nan, nan, nan),
        (HD95, "nan", nan, nan, nan),
        (NSD, "nan", nan, nan, nan),
        (HD, "worst", nan, DIAGONAL, DIAGONAL),
        (HD95, "worst", nan, DIAGONAL, DIAGONAL),
        (ASD, "worst", nan, DIAGONAL, DIAGONAL),
        (ASSD, "worst", nan, DIAGONAL, DIAGONAL),
        (NSD, "worst", nan, 0.0, 0.0),
        (HD, "released", 0.0, 0.0, 0.0),
        (HD95, "released", 0.0, 0.0, 0.0),
        (ASD, "released", 1.0, 0.0, 1.0),
        (ASSD, "released", nan, nan, nan),
        (NSD, "released", nan, nan, nan),
    ],
)
def test_absent_objects_score_as_the_policy_says(metric, empty, neither, missed, invented):
    values = metric(empty=empty).value(absent_rows())
    assert values == pytest.approx({1: neither, 2: missed, 3: invented}, nan_ok=True)


def test_the_distance_to_an_absent_surface_is_infinite_and_images_without_any_object_have_no_distances():
    rows = absent_rows().rows
    assert rows[2].predicted_absent
    assert not rows[2].truth_absent
    assert rows[2].to_predicted.values.tolist() == [inf]
    assert rows[2].to_predicted.number == 8
    nothing = np.zeros((3, 4, 5), int)
    pair = SurfaceStatistics.of(nothing, nothing, 3, {"both": (1, 2)}).rows["both"]
    assert pair.truth_absent
    assert pair.predicted_absent


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"spacing_mm": (1.0, 0.0, 1.0)}, r"spacing_mm is \(1.0, 0.0, 1.0\)"),
        ({"spacing_mm": (1.0, -2.0, 1.0)}, "three positive sizes"),
        ({"spacing_mm": (1.0, nan, 1.0)}, "three positive sizes"),
        ({"spacing_mm": (1.0, 1.0)}, "three positive sizes"),
        ({"units": "cm"}, "no unit named 'cm'. Known: mm, voxel"),
        ({"workers": 0}, "workers is 0"),
        ({"num_classes": 1}, "at least 2"),
    ],
)
def test_options_without_meaning_are_refused_in_one_sentence(options, message):
    labels = np.ones((3, 4, 5), int)
    with pytest.raises(BadInput, match=message):
        SurfaceStatistics.of(labels, labels, **({"num_classes": 2} | options))


def test_label_maps_that_cannot_be_compared_are_refused_in_one_sentence():
    with pytest.raises(BadInput, match=r"\[z y x\], got shape \(4, 5\); a 2-D image is \[1 y x\]"):
        SurfaceStatistics.of(np.ones((4, 5), int), np.ones((4, 5), int), 2)
    with pytest.raises(BadInput, match="the predicted one"):
        SurfaceStatistics.of(np.ones((1, 4, 5), int), np.ones((1, 5, 4), int), 2)
    with pytest.raises(BadInput, match="dtype float32"):
        SurfaceStatistics.of(np.ones((1, 4, 5), np.float32), np.ones((1, 4, 5), int), 2)
    with pytest.raises(BadInput, match=r"holds the label 2 at .*, which is none of the 2 classes 0 to 1"):
        SurfaceStatistics.of(np.full((1, 4, 5), 2), np.ones((1, 4, 5), int), 2)
    with pytest.raises(BadInput, match="Known: pooled, max_directed"):
        HD95(definition="monai")
    with pytest.raises(BadInput, match="tolerance_mm is -1"):
        NSD(tolerance_mm=-1)
