"""The phantom's probabilities are the truth: what a metric says about them can be known beforehand."""

import numpy as np
import pytest

from calibseg.core.types import BadInput
from calibseg.data.datasets.phantom import Phantom, draw_labels, smooth_field

CASES, SIZE = 50, (10, 48, 48)


def binned(confidence, correct, bins=15):
    """Mean confidence, mean correctness and share of the equal-width bins (lo, hi], in float64."""
    number = np.clip(np.ceil(confidence * bins).astype(int) - 1, 0, bins - 1)
    count = np.bincount(number, minlength=bins)
    mean = [np.bincount(number, v, bins) / np.maximum(1, count) for v in (confidence, correct)]
    return mean[0], mean[1], count / count.sum()


def ece(confidence, correct):
    mean_confidence, accuracy, share = binned(confidence, correct)
    return float((share * np.abs(mean_confidence - accuracy)).sum())


@pytest.fixture(scope="module")
def cases():
    return list(Phantom(cases=CASES, size=SIZE).cases())


@pytest.fixture(scope="module")
def pooled(cases):
    """Per voxel and rater: p, its class, the drawn label."""
    p = np.concatenate([case.true_p.reshape(4, -1) for case in cases], 1).astype(np.float64)
    labels = np.concatenate([case.labels.reshape(4, -1) for case in cases], 1)
    return p, p.argmax(0), labels


def test_probabilities_are_probabilities(cases):
    for case in cases[:10]:
        assert case.true_p.dtype == np.float32
        assert case.true_p.min() >= 0
        np.testing.assert_allclose(case.true_p.sum(0), 1, atol=3e-7)


def test_every_structure_is_there_and_touches_what_it_should(cases):
    for case in cases[:20]:
        best = case.true_p.argmax(0)
        assert set(np.unique(best)) == {0, 1, 2, 3}
        pairs = {
            tuple(sorted(pair))
            for axis in range(3)
            for pair in zip(np.delete(best, 0, axis).ravel(), np.delete(best, -1, axis).ravel(), strict=True)
        }
        assert (1, 2) in pairs  # the core lies in the organ
        assert (1, 3) in pairs  # the neighbour touches it
        assert (best == 1).sum() > (best == 3).sum() > 0
        assert (best == 1).sum() > (best == 2).sum() > 0


def test_a_label_is_the_smallest_class_whose_cumulated_probability_reaches_u():
    from scipy.special import ndtr

    rng = np.random.default_rng(1)
    p = rng.dirichlet([0.3] * 5, 40).T.reshape(5, 2, 4, 5).astype(np.float32)
    field = rng.standard_normal((2, 4, 5))
    drawn = draw_labels(p, field)
    for place in np.ndindex(field.shape):
        total, label = 0.0, 0
        for label in range(5):
            total += float(p[(label, *place)])
            if total >= ndtr(field[place]) or label == 4:
                break
        assert drawn[place] == label


def test_the_field_has_variance_one_everywhere_and_is_smooth():
    """The field is linear in white noise, so its variance is the sum of its squared answers to every single impulse."""

    class Impulse:
        def __init__(self, place):
            self.place = place

        def standard_normal(self, size):
            noise = np.zeros(size)
            noise[self.place] = 1
            return noise

    size = (6, 10, 12)
    answers = np.stack([smooth_field(Impulse(place), size, 2.0) for place in np.ndindex(size)])  # type: ignore[arg-type]
    np.testing.assert_allclose((answers**2).sum(0), 1, rtol=1e-9)
    neighbours = (answers[..., 1:] * answers[..., :-1]).sum(0)
    np.testing.assert_allclose(neighbours, np.exp(-1 / 16), atol=0.01)  # of a Gaussian filter: exp(-d^2 / (4 sigma^2))


def test_raters_draw_each_class_as_often_as_p_says():
    case = next(Phantom(cases=1, size=(6, 32, 32)).cases())
    rng, raters = np.random.default_rng(5), 300
    labels = np.stack([draw_labels(case.true_p, smooth_field(rng, case.true_p.shape[1:], 3.0)) for _ in range(raters)])
    for label, p in enumerate(case.true_p.astype(np.float64)):
        unsure = (p > 0.05) & (p < 0.95)
        z = ((labels == label).mean(0) - p) / np.sqrt(p * (1 - p) / raters, where=unsure, out=np.ones_like(p))
        assert unsure.sum() > 100
        assert 0.7 < (z[unsure] ** 2).mean() < 1.4


def test_p_against_itself_has_no_calibration_error(pooled):
    """With true_p as the soft target, a voxel is right with the probability that p itself states."""
    p, best, _ = pooled
    confidence = p.max(0)
    assert ece(confidence, np.take_along_axis(p, best[None], 0)[0]) < 1e-6


def test_p_against_drawn_labels_is_calibrated_on_all_and_on_predicted_voxels(pooled):
    p, best, labels = pooled
    confidence = np.broadcast_to(p.max(0), labels.shape)
    correct = labels == best
    foreground = np.broadcast_to(best > 0, labels.shape)
    assert ece(confidence.ravel(), correct.ravel()) < 0.001
    assert ece(confidence[foreground], correct[foreground]) < 0.005


def test_selecting_voxels_by_the_label_makes_the_truth_look_uncalibrated(pooled):
    """The papers' rule looks at voxels whose label is foreground: knowing that, p is no longer the probability.

    A false positive never counts and a missed voxel always does, so p itself appears overconfident. By hand, for one
    kind of voxel with p = (0.6, 0.4): its drawn label is foreground in 4 of 10 draws, and in all of these the
    prediction, background at confidence 0.6, is wrong: an error of 0.6 from a perfect prediction.
    """
    p, best, labels = pooled
    truth = labels > 0
    confidence, correct = np.broadcast_to(p.max(0), labels.shape)[truth], (labels == best)[truth]
    found = ece(confidence, correct)
    # What p alone says it must be: a voxel is kept with probability 1 - p0, and is then right with p[best] / (1 - p0)
    keep = 1 - p[0]
    right = np.where(best > 0, p.max(0), 0)
    number = np.clip(np.ceil(p.max(0) * 15).astype(int) - 1, 0, 14)
    kept, said, was = (np.bincount(number, w, 15) for w in (keep, keep * p.max(0), right))
    expected = np.abs(said - was).sum() / kept.sum()
    assert found > 0.025
    assert found == pytest.approx(expected, abs=0.004)


def test_a_sharpened_p_is_overconfident_by_what_p_says(pooled):
    p, best, labels = pooled
    sharp = p**2 / (p**2).sum(0)  # temperature 0.5
    unsure = p.max(0) < 0.95
    expected = (sharp.max(0) - p.max(0))[unsure].mean()
    signed = sharp.max(0)[unsure].mean() - (labels == best)[:, unsure].mean()
    assert expected > 0.08
    assert signed == pytest.approx(expected, abs=0.01)
    assert ece(sharp.max(0), np.take_along_axis(p, best[None], 0)[0]) == pytest.approx(
        (sharp.max(0) - p.max(0)).mean(), abs=1e-9
    )  # every bin errs to the same side


def test_a_case_does_not_depend_on_how_many_are_made(cases):
    alone = Phantom(cases=3, size=SIZE)
    third = alone.read(alone.studies()[2])
    np.testing.assert_array_equal(third.image, cases[2].image)
    np.testing.assert_array_equal(third.labels, cases[2].labels)
    assert not np.array_equal(cases[0].labels, cases[1].labels)
    other = next(Phantom(cases=1, size=SIZE, seed=1).cases())
    assert not np.array_equal(other.labels, cases[0].labels)


def test_noise_is_a_shift_of_the_image_alone(cases):
    noisy = next(Phantom(cases=1, size=SIZE, noise=0.3).cases())
    np.testing.assert_array_equal(noisy.true_p, cases[0].true_p)
    np.testing.assert_array_equal(noisy.labels, cases[0].labels)
    clean = next(Phantom(cases=1, size=SIZE, noise=0.0).cases())
    assert (noisy.image - clean.image).std() == pytest.approx(0.3, rel=0.02)


def test_ambiguity_makes_raters_disagree(cases):
    def disagreement(ambiguity):
        case = next(Phantom(cases=1, size=SIZE, ambiguity=ambiguity).cases())
        return (case.labels != case.labels[0]).any(0).mean()

    assert disagreement(0.0) < 0.001 < disagreement(0.5) < disagreement(1.0) < disagreement(3.0)


def test_the_image_shows_the_structures(cases):
    """Organ and background differ in grey by three times the noise."""
    for case in cases[:10]:
        best, sure = case.true_p.argmax(0), case.true_p.max(0) > 0.9
        background, organ = (case.image[0][(best == k) & sure].mean() for k in (0, 1))
        assert organ - background > 0.3


@pytest.mark.parametrize("classes", [2, 3, 5, 7, 10])
def test_other_numbers_of_classes_are_made(classes):
    case = next(Phantom(cases=1, size=(10, 64, 64), classes=classes).cases())
    assert len(set(case.classes)) == len(case.true_p) == classes
    assert set(np.unique(case.true_p.argmax(0))) == set(range(classes))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"cases": 0}, "1 to 1000000 cases"),
        ({"size": (2, 64, 64)}, "of at least 4"),
        ({"classes": 1}, "2 to 32 classes"),
        ({"ambiguity": -1.0}, "numbers of at least 0"),
        ({"noise": -0.1}, "numbers of at least 0"),
    ],
)
def test_impossible_phantoms_are_refused(options, said):
    with pytest.raises(BadInput, match=said):
        Phantom(**options)


def test_the_packages_own_ece_says_the_same(cases, pooled):
    binning = pytest.importorskip(
        "calibseg.metrics.statistics.binning", reason="the calibration statistics are not there"
    )
    from calibseg.core import registry

    metric = registry.build("metrics", "ece")
    hard = soft = None
    for case in cases:
        mine = binning.calibration_statistics(case.true_p, case.true_p, kind="probabilities")
        soft = mine if soft is None else soft + mine
        for rater in case.labels:
            mine = binning.calibration_statistics(case.true_p, rater, kind="probabilities")
            hard = mine if hard is None else hard + mine
    p, best, labels = pooled
    confidence, correct = np.broadcast_to(p.max(0), labels.shape), labels == best
    rules = {"all": labels >= 0, "predicted": np.broadcast_to(best > 0, labels.shape), "truth": labels > 0}
    assert metric.value(soft.on("all"))[None] < 1e-6
    for rule, kept in rules.items():
        assert metric.value(hard.on(rule))[None] == pytest.approx(ece(confidence[kept], correct[kept]), abs=1e-6)
