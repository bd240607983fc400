"""Hard overlap: counts by hand, sums of parts, absent objects, and input that cannot be counted."""

from math import isnan, nan

import numpy as np
import pytest

from calibseg.core.types import BadInput
from calibseg.metrics import DSC, IoU, VolumeError
from calibseg.metrics.statistics.label_maps import refuse_unknown_labels
from calibseg.metrics.statistics.overlap import Overlap, OverlapStatistics

BRATS = {"ET": (3,), "TC": (1, 3), "WT": (1, 2, 3)}


def random_maps(seed: int, shape: tuple[int, ...] = (5, 6, 7), num_classes: int = 4) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    truth = rng.integers(0, num_classes, shape).astype(np.uint8)
    return truth, np.where(rng.random(shape) < 0.6, truth, rng.integers(0, num_classes, shape)).astype(np.uint8)


def test_every_voxel_is_counted_at_its_true_and_its_predicted_class():
    truth = np.array([[[0, 0, 1, 1, 2, 2, 2]]])
    predicted = np.array([[[0, 1, 1, 2, 2, 2, 0]]])
    assert OverlapStatistics.of(truth, predicted, 3).counts.tolist() == [[1, 1, 0], [0, 1, 1], [1, 0, 2]]


def test_chunks_add_up_to_the_volume_in_any_order():
    truth, predicted = random_maps(0)
    whole = OverlapStatistics.of(truth, predicted, 4, BRATS)
    chunks = [OverlapStatistics.of(truth[z : z + 1], predicted[z : z + 1], 4, BRATS) for z in (3, 0, 4, 1, 2)]
    parts = sum(chunks[1:], chunks[0])
    assert np.array_equal(parts.counts, whole.counts)
    assert parts.rows == whole.rows


def test_a_region_is_the_class_one_gets_by_merging_its_members():
    truth, predicted = random_maps(1)
    rows = OverlapStatistics.of(truth, predicted, 4, BRATS).rows
    for name, members in BRATS.items():
        merged = OverlapStatistics.of(np.isin(truth, members), np.isin(predicted, members), 2).rows[1]
        assert rows[name] == merged
    assert rows["ET"] == rows[3]


def test_counts_stay_exact_beyond_the_last_whole_number_of_float32():
    voxels = 2**24 + 3
    truth = np.ones(voxels, np.uint8)
    assert OverlapStatistics.of(truth, truth, 2).rows[1] == Overlap(voxels, voxels, voxels)


@pytest.mark.parametrize("num_classes", [2, 16, 17, 300])
def test_any_number_of_classes_is_counted_as_one_by_one(num_classes):
    truth, predicted = random_maps(4, num_classes=min(num_classes, 256))
    truth, predicted = truth.astype(int), predicted.astype(int)
    truth[0, 0], predicted[0, 0] = num_classes - 1, num_classes - 1
    counts = np.zeros((num_classes, num_classes), int)
    np.add.at(counts, (truth, predicted), 1)
    assert np.array_equal(OverlapStatistics.of(truth, predicted, num_classes).counts, counts)


def test_ignored_voxels_count_for_nobody():
    truth = np.array([[[1, 1, 255, 255, 0]]])
    predicted = np.array([[[1, 0, 1, 0, 0]]])
    statistics = OverlapStatistics.of(truth, predicted, 2, ignore_index=255)
    assert statistics.counts.sum() == 3
    assert statistics.rows[1] == Overlap(true=2, predicted=1, common=1)
    negative = OverlapStatistics.of(np.where(truth == 255, -100, truth), predicted, 2, ignore_index=-100)
    assert np.array_equal(negative.counts, statistics.counts)


def test_iou_follows_from_dice():
    statistics = OverlapStatistics.of(*random_maps(2), 4, BRATS)
    iou = IoU().value(statistics)
    for row, dice in DSC().value(statistics).items():
        assert iou[row] == pytest.approx(dice / (2 - dice), rel=1e-12)


def test_exchanging_truth_and_prediction_leaves_overlap_unchanged():
    truth, predicted = random_maps(3)
    there, back = OverlapStatistics.of(truth, predicted, 4), OverlapStatistics.of(predicted, truth, 4)
    assert DSC().value(there) == DSC().value(back)
    assert IoU().value(there) == IoU().value(back)


@pytest.mark.parametrize(
    ("empty", "both_absent", "missed", "invented"),
    [("nan", nan, 0.0, 0.0), ("worst", nan, 0.0, 0.0), ("released", 1.0, 0.0, 1.0)],
)
def test_dice_of_absent_objects_follows_the_policy(empty, both_absent, missed, invented):
    truth, predicted = np.array([[[2, 0, 0]]]), np.array([[[0, 0, 3]]])
    values = DSC(empty=empty).value(OverlapStatistics.of(truth, predicted, 4))
    assert values == pytest.approx({1: both_absent, 2: missed, 3: invented}, nan_ok=True)


def test_volume_error_of_absent_objects_is_undefined_without_truth_and_whole_without_prediction():
    truth, predicted = np.array([[[2, 0, 0]]]), np.array([[[0, 0, 3]]])
    values = VolumeError(sign="signed").value(OverlapStatistics.of(truth, predicted, 4))
    assert isnan(values[1])
    assert values[2] == -1.0
    assert isnan(values[3])


@pytest.mark.parametrize(
    ("truth", "predicted", "options", "message"),
    [
        (np.zeros((2, 3), int), np.zeros((3, 2), int), {}, r"shape \(2, 3\), the predicted one \(3, 2\)"),
        (np.zeros((2, 2)), np.zeros((2, 2), int), {}, "true label map has dtype float64"),
        (np.zeros((2, 2), int), np.full((2, 2), 7), {}, "predicted label map holds the label 7 at .* none of the 3 cl"),
        (np.full((2, 2), -1), np.zeros((2, 2), int), {}, "true label map holds the label -1"),
        (np.full((2, 2), 9), np.zeros((2, 2), int), {"ignore_index": 255}, "true label map holds the label 9"),
        (np.zeros((2, 2), int), np.full((2, 2), 255), {"ignore_index": 255}, "predicted label map holds the label 255"),
        (np.zeros((0, 2), int), np.zeros((0, 2), int), {}, "no voxel"),
        (np.zeros((2, 2), int), np.zeros((2, 2), int), {"regions": {"WT": (1, 5)}}, "region 'WT' holds class 5"),
        (np.zeros((2, 2), int), np.zeros((2, 2), int), {"regions": {"WT": ()}}, "region 'WT' holds no class"),
    ],
)
def test_maps_that_cannot_be_compared_are_refused_in_one_sentence(truth, predicted, options, message):
    with pytest.raises(BadInput, match=message):
        OverlapStatistics.of(truth, predicted, 3, **options)


def test_counts_of_different_classes_or_regions_do_not_add():
    nothing = np.zeros((2, 1, 1, 1), int)
    with pytest.raises(BadInput, match="does not add"):
        _ = OverlapStatistics.of(*nothing, 3) + OverlapStatistics.of(*nothing, 4)
    with pytest.raises(BadInput, match="does not add"):
        _ = OverlapStatistics.of(*nothing, 4) + OverlapStatistics.of(*nothing, 4, BRATS)


def test_unknown_choices_are_answered_with_the_known_ones():
    with pytest.raises(BadInput, match="empty must be one of 'nan', 'worst', 'released', not 'best'"):
        DSC(empty="best")
    with pytest.raises(BadInput, match="sign must be one of 'absolute', 'signed', not 'both'"):
        VolumeError(sign="both")
    with pytest.raises(BadInput, match="at least 2"):
        OverlapStatistics.of(*np.zeros((2, 1, 1, 1), int), 1)


def test_a_label_of_no_class_is_named_with_its_place_and_its_rater():
    labels = np.array([[[0, 2, 1]]])
    refuse_unknown_labels("a", labels, 3, None)  # the first and the last class are classes
    for wrong in (-1, 3):
        labels[0, 0, 1] = wrong
        with pytest.raises(
            BadInput, match=rf"^a holds the label {wrong} at voxel \(z 0, y 0, x 1\), .* 3 classes 0 to 2$"
        ):
            refuse_unknown_labels("a", labels, 3, None)
        refuse_unknown_labels("a", labels, 3, wrong)
        with pytest.raises(BadInput, match=rf"label {wrong} at voxel \(z 0, y 0, x 1\) of rater 1"):
            refuse_unknown_labels("a", np.stack([np.zeros_like(labels), labels]), 3, None)
    for known in (0, 2):
        with pytest.raises(BadInput, match=f"the label {known} is to be ignored, but it is one of the 3 classes"):
            refuse_unknown_labels("a", labels * 0, 3, known)
