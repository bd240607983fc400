"""The short way for sure background gives every bit that the full way gives."""

import numpy as np
import pytest
import torch

from calibseg.core.types import BadInput
from calibseg.metrics.statistics.binning import Bins, all_statistics, calibration_statistics
from calibseg.metrics.statistics.binning.background import Background
from calibseg.metrics.statistics.binning.reader import VoxelReader
from calibseg.metrics.statistics.binning.torch_pass import TorchRoute

VOXELS, IGNORE = 40_000, 250  # two chunks at least


def volume(unsure, classes=4, dtype=np.float32, seed=0):
    """Logits and labels of sure background, a share of which is made unsure: in p, in the label or in both."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(scale=0.8, size=(classes, VOXELS))
    logits[0] += 13
    labels = np.zeros(VOXELS, np.uint8)
    changed = rng.random(VOXELS) < unsure
    in_p, in_label = changed & (rng.random(VOXELS) < 0.7), changed & (rng.random(VOXELS) < 0.7)
    logits[0, in_p] -= rng.uniform(0, 20, in_p.sum())
    labels[in_label] = rng.integers(1, classes, in_label.sum())
    logits[1:, :300] = -900  # p is 0 and 1
    return logits.astype(dtype), labels


def softmax(logits, dtype):
    return torch.softmax(torch.from_numpy(logits).double(), 0).numpy().astype(dtype)


def words(scores, labels, **options):
    """Every integer and float that the torch route finds, in one call and in the call without equal-mass bins."""
    calibration, equal_mass = all_statistics(scores, labels, route="torch", **options)
    alone = calibration_statistics(scores, labels, route="torch", **options)
    return [*calibration.sums.values(), *equal_mass.sums.values(), equal_mass.exact, *alone.sums.values()]


def same_both_ways(monkeypatch, scores, labels, **options):
    taken = []
    take = Background.take

    def noted(self, chunk):
        number = len(chunk.y)
        rest = take(self, chunk)
        taken.append(number - (0 if rest is None else len(rest.y)))
        return rest

    monkeypatch.setattr(Background, "take", noted)
    short = words(scores, labels, **options)
    monkeypatch.setattr(Background, "applies", staticmethod(lambda reader: False))
    number = len(taken)
    full = words(scores, labels, **options)
    assert len(taken) == number
    for ours, theirs in zip(short, full, strict=True):
        assert np.array_equal(ours, theirs)
    return sum(taken) // 2


@pytest.mark.parametrize("kind", ["probabilities", "logits", "log_probabilities"])
@pytest.mark.parametrize("unsure", [0.0, 0.001, 0.4, 1.0])
def test_whole_partly_and_hardly_sure_spans_give_the_same_words(monkeypatch, unsure, kind):
    logits, labels = volume(unsure)
    scores = {"logits": logits, "probabilities": softmax(logits, np.float32)}.get(kind)
    if scores is None:
        scores = torch.log_softmax(torch.from_numpy(logits).double(), 0).numpy()
    taken = same_both_ways(monkeypatch, scores, labels, kind=kind)
    p = softmax(logits, np.float32)
    sure = (labels == 0) & (p[1:].max(0) <= np.float32(1e-3)) & (p[0] > 14 / 15)
    assert taken == (sure.sum() if unsure < 1 else 0)  # a few sure voxels are not worth the trouble
    assert (unsure == 0) == sure.all()


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("classes", [2, 15])
@pytest.mark.parametrize("bins", [Bins(), Bins(1, 0.3), Bins(100, 9e-3), Bins(1000, 1e-6)])
def test_types_classes_and_bins_change_nothing(monkeypatch, dtype, classes, bins):
    logits, labels = volume(0.3, classes)
    same_both_ways(monkeypatch, softmax(logits, dtype), labels, kind="probabilities", bins=bins)


@pytest.mark.parametrize(("bins", "sure"), [(Bins(20, 0.005), 0), (Bins(15, 0.005), VOXELS)])
def test_the_background_is_sure_only_in_the_last_bin(monkeypatch, bins, sure):
    p = np.full((15, VOXELS), 0.004, np.float32)  # each at most the threshold
    p[0] = 1 - 14 * np.float32(0.004)  # 14/15 < 0.944 < 19/20
    assert same_both_ways(monkeypatch, p, np.zeros(VOXELS, int), kind="probabilities", bins=bins) == sure


@pytest.mark.parametrize("share", [0.02, 0.5, 1.0])
def test_ignored_voxels_count_for_nobody_also_where_their_scores_are_nan(monkeypatch, share):
    logits, labels = volume(0.2)
    ignored = np.random.default_rng(1).random(VOXELS) < share
    labels[ignored], logits[:, ignored] = IGNORE, np.nan
    same_both_ways(monkeypatch, logits, labels, kind="logits", ignore_label=IGNORE)
    found = all_statistics(logits, labels, kind="logits", ignore_label=IGNORE, route="torch")[0]
    assert found.on("all").number == VOXELS - ignored.sum()


@pytest.mark.parametrize("kind", ["probabilities", "logits"])
def test_nan_and_impossible_labels_in_sure_background_are_named(kind):
    logits, labels = volume(0.0)
    scores = softmax(logits, np.float32) if kind == "probabilities" else logits
    wrong = labels.copy()
    wrong[37_000] = 9
    with pytest.raises(BadInput, match=r"label 9 at voxel \(37000\)"):
        all_statistics(scores, wrong, kind=kind, route="torch")
    scores[2, 36_999] = np.nan
    with pytest.raises(BadInput, match=r"NaN.*voxel \(36999\)"):
        all_statistics(scores, labels, kind=kind, route="torch")


def test_probabilities_a_little_outside_are_clamped(monkeypatch):
    p = softmax(volume(0.2)[0], np.float32)
    p[0, :500] += np.float32(9e-4)
    p[1] -= np.float32(1e-4)
    same_both_ways(monkeypatch, p, volume(0.2)[1], kind="probabilities")


def test_slices_that_are_not_contiguous_and_longer_than_a_span(monkeypatch):
    logits, labels = volume(0.3)
    scores = np.asfortranarray(logits.reshape(4, 1, 200, 200))
    same_both_ways(monkeypatch, scores, labels.reshape(1, 200, 200), kind="logits")


def test_unsure_voxels_that_wait_for_each_other_are_counted_beyond_what_one_integer_holds():
    p = np.empty((2, 300_000), np.float32)
    p[:, ::2], p[:, 1::2] = np.array([[1.0], [0.0]]), np.array([[0.7], [0.3]])  # every other voxel is sure
    count = calibration_statistics(p, np.zeros(p.shape[1], int), kind="probabilities", route="torch").on("all").count
    assert count[0, [10, 14]].tolist() == [150_000, 150_000]  # 10/15 < 0.7 < 11/15


def test_what_the_caller_gave_is_left_as_it_was():
    p = torch.from_numpy(softmax(volume(0.3)[0], np.float32))
    labels = torch.from_numpy(volume(0.3)[1])
    before, labels_before = p.clone(), labels.clone()
    all_statistics(p.requires_grad_(), labels, kind="probabilities", route="torch")
    assert torch.equal(p, before)
    assert torch.equal(labels, labels_before)


def test_soft_labels_sigmoid_and_zones_take_the_full_way():
    p = torch.full((2, 8), 0.5)
    labels = torch.zeros(8, dtype=torch.int64)
    assert Background.applies(VoxelReader(p, labels, "probabilities", "softmax"))
    assert not Background.applies(VoxelReader(p, p, "probabilities", "softmax"))
    assert not Background.applies(VoxelReader(p, p, "probabilities", "sigmoid"))
    assert TorchRoute(VoxelReader(p, p, "probabilities", "softmax"), Bins()).background is None
