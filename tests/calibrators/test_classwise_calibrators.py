"""Histogram binning and isotonic regression: against sklearn and by hand."""

import numpy as np
import pytest

from calibseg.calibrators import Histogram, Isotonic
from calibseg.calibrators.isotonic import BINS
from calibseg.calibrators.solvers.reliability import bin_of
from calibseg.core.types import BadInput, Prediction

MM = (1.0, 1.0, 1.0)


def example(seed=0, k=3, size=(4, 20, 30)):
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=(k, *size)) * 3
    labels = (logits / 3 + rng.gumbel(size=logits.shape)).argmax(0)
    return Prediction(f"case {seed}", f"case {seed}", logits, "logits", MM, labels=labels)


def probabilities(logits):
    p = np.exp(logits - logits.max(0))
    return p / p.sum(0)


def test_a_rising_curve_is_sklearns_up_to_the_width_of_a_bin():
    sklearn = pytest.importorskip("sklearn.isotonic")
    cases = [example(seed) for seed in range(3)]
    calibrator = Isotonic().fit_predictions(cases)
    p = np.concatenate([probabilities(case.scores).reshape(3, -1) for case in cases], 1)
    y = np.concatenate([case.labels.reshape(-1) for case in cases])
    for k in range(3):
        theirs = sklearn.IsotonicRegression().fit(p[k], y == k)
        ours = calibrator.table[k][bin_of(np.log(p[k]), BINS, "logit", "softmax")]
        assert np.abs(ours - theirs.predict(p[k])).mean() < 2e-3
        # pooling adjacent violators keeps the number of hits; ours adds a hit to 7200 voxels
        assert ours.sum() == pytest.approx(np.sum(y == k), abs=1.5)


def test_distinct_probabilities_give_the_textbooks_curve():
    """Frequencies 0.5, 0.25, 0.75 at rising probabilities: the first two are pooled to 0.375."""
    p = np.repeat([0.2, 0.4, 0.9], 4000)
    y = np.concatenate([np.arange(4000) % 4 < n for n in (2, 1, 3)]).astype(int)
    logits = np.log(np.stack([1 - p, p])).reshape(2, 1, 1, -1)
    case = Prediction("a", "a", logits, "logits", MM, labels=y.reshape(1, 1, -1))
    found = Isotonic().fit_predictions([case]).transform(logits)[1, 0, 0, ::4000]
    assert found == pytest.approx([0.375, 0.375, 0.75], abs=3e-4)


@pytest.mark.parametrize("method", [Histogram, Isotonic])
def test_it_makes_each_class_as_often_right_as_it_says(method):
    cases = [example(seed, size=(6, 40, 40)) for seed in range(3)]
    before = np.concatenate([probabilities(case.scores).reshape(3, -1) for case in cases], 1)
    calibrator = method().fit_predictions(cases)
    after = np.concatenate([calibrator.transform(case.scores).reshape(3, -1) for case in cases], 1)
    y = np.concatenate([case.labels.reshape(-1) for case in cases])

    def gap(p):
        place = np.minimum((p * 10).astype(int), 9)
        hit = y == np.arange(3)[:, None]
        sums = [np.bincount(place[k], hit[k] - p[k], 10) for k in range(3)]
        return np.abs(sums).sum() / y.size / 3

    assert gap(after) < gap(before) / 3
    assert (before.argmax(0) != after.argmax(0)).any()  # it says that labels may move, and they do


@pytest.mark.parametrize("method", [Histogram, Isotonic])
def test_a_curve_never_reaches_0_or_1(method):
    logits = np.random.default_rng(0).normal(size=(2, 2, 20, 20)) * 5
    case = Prediction("a", "a", logits, "logits", MM, labels=logits.argmax(0))
    p = method().fit_predictions([case]).transform(logits, batch=False)
    assert p.min() > 0
    assert p.max() < 1


@pytest.mark.parametrize("method", [Histogram, Isotonic])
def test_a_class_that_never_occurs_keeps_its_own_probability(method):
    case = example()
    absent = Prediction("a", "a", case.scores, "logits", MM, labels=np.minimum(case.labels, 1))
    calibrator = method().fit_predictions([absent])
    assert calibrator.facts["fallbacks"][0] == "class 2 never occurs in the labels: it keeps the identity"
    p = calibrator.transform(case.scores)
    share = p[2] / (1 - p[2])  # q2 / (q0 + q1)
    own = probabilities(case.scores)[2]
    assert np.corrcoef(np.log(share).reshape(-1), np.log(own).reshape(-1))[0, 1] > 0.99


def test_histogram_bins_are_the_hits_with_a_voxel_of_the_bins_own_mean():
    case = example(k=2)
    p, y = probabilities(case.scores).reshape(2, -1), case.labels.reshape(-1)
    calibrator = Histogram(bins=4).fit_predictions([case])
    for k in range(2):
        for b in range(4):
            inside = (p[k] >= b / 4) & (p[k] < (b + 1) / 4)
            expected = (np.sum(y[inside] == k) + p[k][inside].mean()) / (inside.sum() + 1)
            assert calibrator.table[k, b] == pytest.approx(expected, rel=1e-9)


def test_an_empty_bin_leaves_the_probability_as_it_is():
    logits = np.log(np.array([[0.45] * 50, [0.55] * 50])).reshape(2, 1, 1, 50)
    case = Prediction("a", "a", logits, "logits", MM, labels=(np.arange(50) % 2).reshape(1, 1, 50))
    calibrator = Histogram(bins=10).fit_predictions([case])
    assert calibrator.facts["fallbacks"] == [
        f"class {k}: 9 of 10 bins are empty and keep the identity" for k in range(2)
    ]
    sure = np.log(np.array([0.03, 0.97])).reshape(2, 1, 1, 1)
    assert calibrator.transform(sure, batch=False)[:, 0, 0, 0] == pytest.approx([0.03, 0.97])


@pytest.mark.parametrize("method", [Histogram, Isotonic])
def test_sigmoid_channels_stand_for_themselves(method):
    rng = np.random.default_rng(0)
    z = rng.normal(size=(2, 4, 30, 30)) * 3
    labels = (rng.random(z.shape) < 1 / (1 + np.exp(-z / 3))).astype(np.uint8)
    both = method().fit_predictions([Prediction("a", "a", z, "logits", MM, "sigmoid", labels)]).transform(z)
    alone = (
        method().fit_predictions([Prediction("a", "a", z[1:], "logits", MM, "sigmoid", labels[1:])]).transform(z[1:])
    )
    assert (both[1] == alone[0]).all()
    truth = 1 / (1 + np.exp(-z / 3))
    assert np.abs(both - truth).mean() < 0.05 < np.abs(1 / (1 + np.exp(-z)) - truth).mean()


def test_bins_must_be_at_least_one():
    with pytest.raises(BadInput, match="bins must be at most 1000000, not 1000001"):
        Histogram(bins=1_000_001)
    with pytest.raises(BadInput, match="bins must be a whole number of at least 1, not 0"):
        Histogram(bins=0)
