"""Metrics of several raters and of an ensemble's members, against plain loops over voxels and known values."""

from math import exp, isnan, nan, pi, sqrt
from statistics import NormalDist

import numpy as np
import pytest

from calibseg.core.registry import members
from calibseg.core.types import BadInput
from calibseg.metrics import (
    ConsensusConfidence,
    ConsensusDSC,
    EnergyDistance,
    InteriorConfidence,
    PairwiseDSC,
    RaterDSC,
    RaterECE,
    ThresholdedDSC,
    VolumeCRPS,
)
from calibseg.metrics.ece import ECE
from calibseg.metrics.statistics.binning import calibration_statistics
from calibseg.metrics.statistics.depth import DepthStatistics
from calibseg.metrics.statistics.members import MemberStatistics
from calibseg.metrics.statistics.overlap import OverlapStatistics
from calibseg.metrics.statistics.votes import Votes, VoteStatistics, thousandths

IGNORED, K, SPACING = 255, 3, (2.0, 1.5, 0.5)
ROWS = {1: (1,), 2: (2,), "both": (1, 2)}
RATERS = {"rater_calibration", "rater_overlap", "votes", "members", "depth"}
CASES = [
    (key, number)
    for key, member in members("metrics").items()
    if member.load().needs == "votes"
    for number in range(len(member.load().contract_options))
]


def example(seed=0, raters=5, shape=(3, 5, 6)):
    """Probabilities [k z y x], among them shares of raters and exact levels, and raters' labels; some are ignored."""
    rng = np.random.default_rng(seed)
    p = rng.dirichlet([0.5] * K, shape).transpose(3, 0, 1, 2).astype(np.float32)
    p[:, 0, 0] = np.array([0.2, 0.8, 0.0], np.float32)[:, None]
    p[:, 0, 1] = np.array([0.4, 0.1, 0.5], np.float32)[:, None]
    likely = rng.integers(0, K, shape)
    labels = np.where(rng.random((raters, *shape)) < 0.6, likely, rng.integers(0, K, (raters, *shape))).astype(np.uint8)
    labels[1, 2, 0] = IGNORED
    return p, labels


def votes_of(p, labels, **options):
    structures = {row: (ids, ids) for row, ids in ROWS.items()}
    return VoteStatistics.of(
        p, labels, structures, kind="probabilities", ignore_label=IGNORED, spacing_mm=SPACING, **options
    )


class Loop:
    """One row of a case: of every voxel that no rater ignores its probability, votes and whether it is predicted."""

    def __init__(self, p, labels, ids):
        self.raters, self.voxels, self.sizes = len(labels), [], [0] * len(labels)
        for at in np.ndindex(labels.shape[1:]):
            said = [int(labels[(r, *at)]) for r in range(self.raters)]
            if IGNORED in said:
                continue
            own = [float(p[(k, *at)]) for k in range(K)]
            called = [label in ids for label in said]
            self.sizes = [size + one for size, one in zip(self.sizes, called, strict=True)]
            self.voxels.append((sum(own[k] for k in ids), sum(called), own.index(max(own)) in ids))

    def agreed(self, all_say):
        return [(p, inside) for p, votes, inside in self.voxels if votes == (self.raters if all_say else 0)]


def consensus_dsc(loop):
    yes, no = loop.agreed(True), loop.agreed(False)
    predicted = sum(inside for _, inside in yes + no)
    return 2 * sum(inside for _, inside in yes) / (len(yes) + predicted) if yes or predicted else nan


def consensus_confidence(loop):
    yes, no = loop.agreed(True), loop.agreed(False)
    return (sum(p for p, _ in yes) / len(yes) + 1 - sum(p for p, _ in no) / len(no)) / 2 if yes and no else nan


def thresholded_dsc(loop, levels=tuple(i / 10 for i in range(1, 10)), empty="nan"):
    found = []
    for level in levels:
        cut = float(np.float32(level))
        masks = [(p > cut, 1000 * votes > round(1000 * level) * loop.raters) for p, votes, _ in loop.voxels]
        both, size = sum(a and b for a, b in masks), sum(a + b for a, b in masks)
        found.append(2 * both / size if size else (1.0 if empty == "released" else nan))
    found = [value for value in found if not isnan(value)]
    return sum(found) / len(found) if found else nan


def volume_crps(loop, form="gaussian"):
    """By numerical integration of (F - 1[x >= V])^2."""
    voxel = SPACING[0] * SPACING[1] * SPACING[2] / 1000
    volumes, observed = [size * voxel for size in loop.sizes], sum(p for p, _, _ in loop.voxels) * voxel
    mean = sum(volumes) / len(volumes)
    sd = sqrt(sum((volume - mean) ** 2 for volume in volumes) / len(volumes))
    ends = (mean - 3 * sd, mean + 3 * sd) if form == "released" else (mean - 40 * sd, mean + 40 * sd)
    x = np.linspace(*ends, 400001)
    if form == "sample":
        cdf = np.mean([x >= volume for volume in volumes], axis=0)
    elif form == "gaussian":
        cdf = np.array([NormalDist(mean, sd).cdf(value) for value in x[::100]])
        cdf = np.interp(x, x[::100], cdf)
    else:
        knots = np.linspace(NormalDist(mean, sd).inv_cdf(0.01), NormalDist(mean, sd).inv_cdf(0.99), 100)
        cdf = np.interp(x, knots, [NormalDist(mean, sd).cdf(value) for value in knots], left=0, right=1)
    return float(np.trapezoid((cdf - (x >= observed)) ** 2, x))


LOOPS = {
    "consensus_dsc": consensus_dsc,
    "consensus_confidence": consensus_confidence,
    "thresholded_dsc": thresholded_dsc,
    "volume_crps": volume_crps,
}


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize(("key", "number"), CASES)
def test_a_metric_of_votes_is_what_a_loop_over_voxels_says(key, number, seed):
    kind = members("metrics")[key].load()
    options = kind.contract_options[number]
    p, labels = example(seed)
    found = kind(**options).value(votes_of(p, labels))
    wanted = {row: LOOPS[key](Loop(p, labels, ids), **options) for row, ids in ROWS.items()}
    assert found == pytest.approx(wanted, abs=2e-6, nan_ok=True)


def test_every_metric_of_raters_has_a_test_here():
    ours = {key for key, member in members("metrics").items() if member.load().needs in RATERS}
    others = {"rater_dsc", "rater_ece", "pairwise_dsc", "energy_distance", "interior_confidence"}
    assert ours == {*LOOPS, *others}


def test_votes_do_not_depend_on_how_a_case_is_cut_into_chunks(monkeypatch):
    p, labels = example()
    whole = votes_of(p, labels)
    monkeypatch.setattr("calibseg.metrics.statistics.votes.CHUNK", 1)
    cut = votes_of(p, labels)
    for row in ROWS:
        assert np.array_equal(whole.rows[row].counts, cut.rows[row].counts)
        assert np.allclose(whole.rows[row].mass, cut.rows[row].mass)


def test_four_of_five_raters_are_not_more_than_four_fifths_whatever_a_mean_of_floats_says():
    """0.1 + 0.7 is below 0.8 in floats; votes are whole numbers."""
    counts = np.zeros((6, 1000), np.int64)
    counts[4, 850] = 1
    table = Votes(counts, np.zeros(6), np.zeros(6), np.zeros(5))
    assert ThresholdedDSC(levels=(0.8,)).formula(table, 1.0) == 0.0  # predicted above 0.8, and no rater's share is
    assert ThresholdedDSC(levels=(0.799,)).formula(table, 1.0) == 1.0
    assert isnan(ThresholdedDSC(levels=(0.9,)).formula(table, 1.0))  # nobody, nowhere
    assert ThresholdedDSC(levels=(0.9,), empty="released").formula(table, 1.0) == 1.0


@pytest.mark.parametrize("level", [0.0, 1.0, -0.1, 0.12345, nan])
def test_a_level_that_is_no_thousandth_between_0_and_1_is_refused(level):
    with pytest.raises(BadInput, match="thousandths between 0 and 1"):
        ThresholdedDSC(levels=(level,))
    assert [thousandths(level) for level in (0.001, 0.24, 0.999)] == [1, 240, 999]


def test_other_options_that_are_not_known_are_refused():
    for wrong in (
        lambda: ThresholdedDSC(levels=()),
        lambda: VolumeCRPS(form="normal"),  # pyright: ignore[reportArgumentType]
        lambda: InteriorConfidence(17),
    ):
        with pytest.raises(BadInput):
            wrong()


@pytest.mark.parametrize(("observed", "right"), [(130, 24.2), (200, 94.2), (1000, 894.2)])
def test_the_volume_score_does_not_saturate_but_the_released_one_does(observed, right):
    """Raters 95, 100, 111: the challenge's code says 16.32 for each of the three."""
    table = Votes(np.zeros((4, 1)), np.array([0, 0, 0, float(observed)]), np.zeros(4), np.array([95, 100, 111]))
    assert VolumeCRPS().formula(table, 1.0) == pytest.approx(right, abs=0.05)
    assert VolumeCRPS("released").formula(table, 1.0) == pytest.approx(16.32, abs=0.005)


def test_raters_who_agree_make_the_volume_score_a_distance_and_the_released_one_undefined():
    table = Votes(np.zeros((4, 1)), np.array([0, 0, 0, 12.0]), np.zeros(4), np.array([10, 10, 10]))
    assert VolumeCRPS().formula(table, 1.0) == 2.0
    assert VolumeCRPS("sample").formula(table, 1.0) == 2.0
    assert isnan(VolumeCRPS("released").formula(table, 1.0))


def test_the_gaussian_at_its_mean_has_the_known_value():
    """sd * (2 phi(0) - 1 / sqrt(pi))."""
    table = Votes(np.zeros((3, 1)), np.array([0, 0, 10.0]), np.zeros(3), np.array([8, 12]))
    assert VolumeCRPS().formula(table, 1.0) == pytest.approx(2 * (2 / sqrt(2 * pi) * exp(0) - 1 / sqrt(pi)))


def test_the_mean_over_raters_of_the_ece_is_never_below_the_ece_of_their_share():
    for seed in range(5):
        p, labels = example(seed)
        labels[labels == IGNORED] = 0
        of_share = ECE().value(calibration_statistics(p, labels, kind="probabilities").on("all"))
        curves = [calibration_statistics(p, one, kind="probabilities").on("all") for one in labels]
        mean = RaterECE().value(curves)
        assert mean[None] == pytest.approx(np.mean([ECE().value(one)[None] for one in curves]))
        assert all(mean[row] >= of_share[row] - 1e-12 for row in of_share)


def test_a_rater_who_drew_nothing_counts_with_0_and_not_where_nothing_is_predicted():
    predicted, nothing = np.array([[[1, 1, 0]]]), np.zeros((1, 1, 3), int)
    both = [OverlapStatistics.of(truth, predicted, 2) for truth in (predicted, nothing)]
    assert RaterDSC().value(both) == {1: 0.5}
    neither = [OverlapStatistics.of(truth, nothing, 2) for truth in (predicted, nothing)]
    assert RaterDSC().value(neither) == {1: 0.0}


def test_the_energy_distance_has_its_known_value_and_is_0_for_the_same_maps():
    """Y {1100, 1110}, S {1000, 1100}: 2 * 0.375 - 0.25 - 0.16667."""
    members_, raters = (
        [np.array([[list(map(int, row))]]) for row in rows] for rows in (("1000", "1100"), ("1100", "1110"))
    )
    assert EnergyDistance().value(MemberStatistics.of(members_, raters, 2))[1] == pytest.approx(1 / 3)
    assert EnergyDistance().value(MemberStatistics.of(raters, raters, 2))[1] == pytest.approx(0)
    assert EnergyDistance().value(MemberStatistics.of(raters, [], 2)) == {}


def test_members_are_compared_as_loops_over_pairs_say():
    rng = np.random.default_rng(0)
    ours, theirs = rng.integers(0, 3, (3, 2, 4, 5)), rng.integers(0, 3, (2, 2, 4, 5))
    theirs[0, 0, 0] = IGNORED
    keep = (theirs != IGNORED).all(0)
    ours[:, keep & (ours == 2).any(0)] = 0  # class 2 is only the raters'
    statistics = MemberStatistics.of(list(ours), list(theirs), 3, {"both": (1, 2)}, (theirs == IGNORED).any(0))

    def distance(a, b, ids):
        a, b = (np.isin(one, ids) & keep for one in (a, b))
        return 1 - (a & b).sum() / (a | b).sum() if (a | b).any() else nan

    def mean(left, right, d):
        return np.mean([[np.nan_to_num(d(a, b)) for b in right] for a in left])

    def energy(d):
        return 2 * mean(ours, theirs, d) - mean(ours, ours, d) - mean(theirs, theirs, d)

    found = EnergyDistance().value(statistics)
    for row, ids in {1: (1,), 2: (2,), "both": (1, 2)}.items():
        assert found[row] == pytest.approx(energy(lambda a, b, ids=ids: distance(a, b, ids)))
    with np.errstate(all="ignore"):
        together = energy(lambda a, b: np.nanmean([distance(a, b, (1,)), distance(a, b, (2,))]))
    assert found[None] == pytest.approx(together)
    pairs = PairwiseDSC().value(statistics)
    dice = [1 - d / (2 - d) for d in (distance(ours[a], ours[b], (1,)) for a, b in ((0, 1), (0, 2), (1, 2)))]
    assert pairs[1] == pytest.approx(np.mean(dice))
    assert pairs[2] == 1.0  # nobody predicts it: they agree
    assert pairs[None] == pairs[1]


@pytest.mark.parametrize("band", [0, 1, 2, 4])
@pytest.mark.parametrize("activation", ["softmax", "sigmoid"])
def test_interior_confidence_is_what_a_loop_over_voxels_says(band, activation):
    rng = np.random.default_rng(1)
    shape = (3, 9, 10)
    truth = np.zeros(shape, int)
    truth[:, 1:8, 1:7] = 1
    truth[1, 0, 9] = 2
    logits = np.stack([truth == k for k in range(K)]) * 3.0 + rng.normal(0, 0.3, (K, *shape))
    p = np.exp(logits - 1) if activation == "softmax" else 1 / (1 + np.exp(2 - logits))
    p = (p / p.sum(0) if activation == "softmax" else p).astype(np.float32)
    found = InteriorConfidence(band).value(DepthStatistics.of(p, kind="probabilities", activation=activation))
    values, every = {}, []
    for k in range(K):
        inside = p[k] > 0.5 if activation == "sigmoid" else p.argmax(0) == k
        outside = [at for at in np.ndindex(shape) if not inside[at]]
        own = [
            (float(p[(k, *at)]), min(sum(abs(a - b) for a, b in zip(at, o, strict=True)) for o in outside))
            for at in np.ndindex(shape)
            if inside[at]
        ]
        every += own
        kept = [value for value, depth in own if depth > band] or [value for value, _ in own]
        values[k] = sum(kept) / len(kept) if kept else nan
    if activation == "softmax":
        del values[0]
        kept = [value for value, depth in every if depth > band] or [value for value, _ in every]
        values[None] = sum(kept) / len(kept)
    else:
        values[None] = np.mean(list(values.values()))
    assert found == pytest.approx(values, abs=1e-6, nan_ok=True)


@pytest.mark.parametrize("activation", ["softmax", "sigmoid"])
@pytest.mark.parametrize("kind", ["logits", "log_probabilities"])
def test_scores_of_any_kind_are_as_sure_as_their_probabilities(activation, kind):
    logits = np.random.default_rng(2).normal(0, 2, (K, 3, 4, 5))
    p = np.exp(logits) / np.exp(logits).sum(0) if activation == "softmax" else 1 / (1 + np.exp(-logits))
    scores = logits if kind == "logits" else np.log(p)
    found = DepthStatistics.of(scores, kind=kind, activation=activation)
    wanted = DepthStatistics.of(p, kind="probabilities", activation=activation)
    assert found.counts.tolist() == wanted.counts.tolist()
    assert found.sums == pytest.approx(wanted.sums, rel=1e-6)


def test_what_is_said_where_raters_disagree_about_a_class_does_not_change_its_consensus():
    p, labels = example()
    changed = p.copy()
    votes = (labels == 1).sum(0)
    changed[:, (votes > 0) & (votes < len(labels))] = np.array([0.0, 1.0, 0.0])[:, None]
    for metric in (ConsensusDSC(), ConsensusConfidence()):
        before, after = (metric.value(votes_of(one, labels)) for one in (p, changed))
        assert before[1] == pytest.approx(after[1])
        assert before[2] != pytest.approx(after[2])


@pytest.mark.parametrize("activation", ["softmax", "sigmoid"])
def test_an_ignored_voxel_counts_for_no_confidence_whatever_is_predicted_there(activation):
    p, raters = example()
    labels = np.stack([raters[0] == k for k in range(K)]).astype(np.uint8) if activation == "sigmoid" else raters[0]
    labels[..., 1, 2:4, 1:3] = IGNORED
    rules = {"kind": "probabilities", "activation": activation, "ignore_label": IGNORED}
    found = [DepthStatistics.of(p, labels, **rules)]
    for value in (np.nan, 0.0, 1.0):
        p[:, 1, 2:4, 1:3] = value
        found.append(DepthStatistics.of(p, labels, **rules))
    assert found[0].counts[:, 0].sum() == 0
    for other in found[1:]:
        assert other.counts.tolist() == found[0].counts.tolist()
        assert other.sums.tolist() == found[0].sums.tolist()
    if activation == "softmax":
        assert found[0].counts.sum() == labels.size - 4
        interior, mean = InteriorConfidence(0).value(found[1])[None], calibration_statistics(p, labels, **rules)
        assert interior == pytest.approx(mean.on("all").top_confidence.sum() / (labels.size - 4))


def test_an_ignored_voxel_is_no_boundary_and_none_is_seen_through_it():
    p = np.array([0.9, 0.9, 0.9, 0.9, 0.1], np.float32).reshape(1, 1, 1, 5)
    labels = np.array([1, 1, IGNORED, 1, 0]).reshape(1, 1, 5)
    depth = DepthStatistics.of(np.concatenate([1 - p, p]), labels, kind="probabilities", ignore_label=IGNORED)
    assert depth.counts[1].tolist() == [0, 1, 0, 0, 0, 0, 0, 0, 0, 2]  # the first two see no other class anywhere


def test_where_nothing_can_be_ignored_the_target_is_not_read(monkeypatch):
    p, raters = example()
    rules = {"kind": "probabilities", "ignore_label": None}
    expected = DepthStatistics.of(p, kind="probabilities")
    monkeypatch.setattr("calibseg.metrics.statistics.binning.reader.VoxelReader._target", None)
    assert DepthStatistics.of(p, raters[0], **rules).counts.tolist() == expected.counts.tolist()


def test_votes_do_not_look_at_voxels_that_a_rater_ignores(monkeypatch):
    p, labels = example()
    before = votes_of(p, labels)
    p[:, 2, 0] = np.nan
    p, labels = (np.concatenate([part, part[:, :1]], 1) for part in (p, labels))
    p[:, 3], labels[:, 3] = np.nan, IGNORED  # a whole chunk
    monkeypatch.setattr("calibseg.metrics.statistics.votes.CHUNK", 1)
    after = votes_of(p, labels)
    for row in ROWS:
        assert np.array_equal(before.rows[row].counts, after.rows[row].counts)
    p[:, 1, 0, 0] = np.nan
    with pytest.raises(BadInput, match=r"NaN or infinite at voxel \(z 1, y 0, x 0\)"):
        votes_of(p, labels)


def test_one_member_agrees_with_nobody_and_nothing_is_warned_of(recwarn):
    assert np.isnan(list(PairwiseDSC().value(MemberStatistics.of([np.array([[[1, 0]]])], [], 2)).values())).all()
    assert not recwarn.list
