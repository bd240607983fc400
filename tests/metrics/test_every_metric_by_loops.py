"""Every metric, with every set of options that its file declares, against plain loops over voxels in float64."""

import itertools
from math import dist, floor, hypot, isnan, log, nan

import numpy as np
import pytest

from calibseg.core.registry import members
from calibseg.core.types import BadInput
from calibseg.metrics import BrierMetric, CurveMetric, Metric, OverlapMetric, SurfaceMetric
from calibseg.metrics.statistics.binning import all_statistics, numba_is_here
from calibseg.metrics.statistics.overlap import OverlapStatistics
from calibseg.metrics.statistics.surfaces import SurfaceStatistics

BINS, K, IGNORED = 15, 4, 255
EDGES = [float(np.float32(b / BINS)) for b in range(BINS + 1)]
THRESHOLD = float(np.float32(1e-3))
MEMBERS = members("metrics")
CASES = [(key, number) for key, member in MEMBERS.items() for number in range(len(member.load().contract_options))]


def made(key, number):
    kind = MEMBERS[key].load()
    return kind(**kind.contract_options[number]), kind.contract_options[number]


# ------------------------------------------------------------------ calibration


def example(target, seed=0):
    """float32 p [k n] with ties, bin edges, zeros and ones, and a target; class 3 never occurs; some are ignored."""
    rng = np.random.default_rng(seed)
    p = rng.dirichlet([0.5] * K, 150).T
    p[:, :20] = np.array([[3, 5, 4, 3], [15, 0, 0, 0], [0, 15, 0, 0], [5, 5, 5, 0], [0, 7.5, 7.5, 0]] * 4).T / BINS
    p[:, 20:30] = np.array([[0.9985, THRESHOLD, 0.0005, 0.0], [0.0005, 0.9985, THRESHOLD, 0.0]] * 5).T
    p[:, 30:36] = np.array([0.6, 0.4, 0.0, 0.0])[:, None]
    p = p.astype(np.float32)
    labels = rng.integers(0, 3, p.shape[1])
    labels[20:30] = 1, 0, 0, 1, 1, 2, 0, 1, 0, 1
    if target == "labels":
        labels[40:47] = IGNORED
        keep = labels != IGNORED
        y = (np.arange(K)[:, None] == labels).astype(float)
        return p, labels, p[:, keep], y[:, keep]
    if target == "sigmoid":
        channels = (rng.random((K, p.shape[1])) < p).astype(np.uint8)
        channels[3] = 0
        p[1, 50] = 0.5
        return p, channels, p, channels.astype(float)
    soft = np.zeros((K, p.shape[1]))
    for i in range(p.shape[1]):
        for k in rng.integers(0, 3, 4):
            soft[k, i] += 0.25
    return p, soft, p, soft


def first_largest(values):
    best = 0
    for k in range(1, len(values)):
        if values[k] > values[best]:
            best = k
    return best


def bins_of(pairs):
    """[voxels, sum of p, sum of labels] of each bin (lo, hi]; 0 is in the first."""
    table = [[0, 0.0, 0.0] for _ in range(BINS)]
    for p, hit in pairs:
        row = table[next(b for b in range(BINS) if p <= EDGES[b + 1])]
        row[0], row[1], row[2] = row[0] + 1, row[1] + float(p), row[2] + float(hit)
    return [row for row in table if row[0]]


def weighted(pairs, part=abs):
    return sum(part(c - h) for _, c, h in bins_of(pairs)) / len(pairs) if pairs else nan


def equal_mass(pairs):
    """ECE in bins of equally many voxels; voxels of equal p share their hits."""
    if not pairs:
        return nan
    pairs = sorted((float(p), float(hit)) for p, hit in pairs)
    shared = []
    for p, group in itertools.groupby(pairs, key=lambda pair: pair[0]):
        hits = [hit for _, hit in group]
        shared += [(p, sum(hits) / len(hits))] * len(hits)
    n, total = len(shared), 0.0
    for j in range(BINS):
        inside = shared[floor(j * n / BINS) : floor((j + 1) * n / BINS)]
        total += abs(sum(p for p, _ in inside) - sum(hit for _, hit in inside))
    return total / n


def mean_of(values):
    values = [value for value in values if not isnan(value)]
    return sum(values) / len(values) if values else nan


class Chosen:
    """The (p, label) pairs of the voxels that a rule chooses."""

    def __init__(self, p, y, rule, sigmoid):
        self.p, self.y, self.sigmoid = p, y, sigmoid
        self.top = [first_largest(p[:, i]) for i in range(p.shape[1])]
        truth = [first_largest(y[:, i]) for i in range(p.shape[1])]
        self.highest = max(k for k in range(K) if y[k].any())
        self.where = []  # of each class
        for k in range(K):
            own = (
                zip(y[k] > 0.5, p[k] > 0.5, strict=True)
                if sigmoid
                else ((t > 0, m > 0) for t, m in zip(truth, self.top, strict=True))
            )
            rules = [{"truth": t, "predicted": m, "union": t or m, "all": True}[rule] for t, m in own]
            self.where.append([i for i, chosen in enumerate(rules) if chosen])

    def of_class(self, k):
        return [(self.p[k, i], self.y[k, i]) for i in self.where[k]]

    def top_pairs(self, k=None):
        return [(self.p[m, i], self.y[m, i]) for i in self.where[0] for m in [self.top[i]] if k in (None, m)]

    def curves(self, formula):
        """Of the predicted class, all and those predicted k; with sigmoid of each channel, and their mean."""
        if self.sigmoid:
            each = {k: formula(self.of_class(k)) if self.where[k] else nan for k in range(K)}
            return {**each, None: mean_of(each.values())}
        pairs = {k: self.top_pairs(k) for k in (None, *range(K))}
        return {k: formula(some) if some else nan for k, some in pairs.items()}

    def classes(self, formula, together=None, first=0, last=K - 1):
        each = {k: formula(self.of_class(k)) if self.where[k] else nan for k in range(K)}
        if together is None:
            return {**each, None: mean_of(list(each.values())[first : last + 1])}
        return {**each, None: mean_of(each.values()) if self.sigmoid else sum(each.values())}


def gaps(pairs):
    return [(c - h) / n for n, c, h in bins_of(pairs)]


def mean_gap(pairs):
    return sum(abs(gap) for gap in gaps(pairs)) / len(gaps(pairs))


def base_rate(pairs):
    return sum(hit for _, hit in pairs) / len(pairs)


def kept(pairs):
    return [(p, hit) for p, hit in pairs if p > THRESHOLD]


def log_loss(chosen, options):
    floor_p, each, sums, weights = 2.0**-24, {}, [], []
    for k in range(K):
        pairs = [(float(p), float(y)) for p, y in chosen.of_class(k)]
        total = sum(-y * log(max(p, floor_p)) for p, y in pairs)
        if chosen.sigmoid:
            total -= sum((1 - y) * log(max(1 - p, floor_p)) for p, y in pairs)
        weight = len(pairs) if chosen.sigmoid else sum(y for _, y in pairs)
        sums.append(total)
        weights.append(len(pairs))
        each[k] = total / weight if weight else nan
    together = mean_of(each.values()) if chosen.sigmoid else sum(sums) / weights[0] if weights[0] else nan
    return {**each, None: together}


def released_tcece(chosen, options):
    each = chosen.classes(lambda pairs: weighted(kept(pairs)))
    if options.get("classes") == "released":
        some = [each[k] for k in range(chosen.highest + 1)]
        any_voxel = any(chosen.where)
        each[None] = mean_of([0.0 if isnan(value) and any_voxel else value for value in some])
    return each


def squared(pairs):
    return sum((float(p) - float(y)) ** 2 for p, y in pairs) / len(pairs)


CALIBRATION = {
    "ece": lambda c, o: c.curves(weighted),
    "mce": lambda c, o: c.curves(lambda pairs: max(abs(gap) for gap in gaps(pairs))),
    "ace": lambda c, o: c.curves(mean_gap),
    "signed_gap": lambda c, o: c.curves(lambda pairs: weighted(pairs, lambda gap: gap)),
    "overconfidence": lambda c, o: c.curves(lambda pairs: weighted(pairs, lambda gap: max(gap, 0))),
    "underconfidence": lambda c, o: c.curves(lambda pairs: weighted(pairs, lambda gap: max(-gap, 0))),
    "cece": lambda c, o: c.classes(weighted, last=c.highest if o.get("classes") == "released" else K - 1),
    "cace": lambda c, o: c.classes(
        mean_gap, first=1 if o.get("classes") == "foreground" and not c.sigmoid else 0
    ),
    "tcece": released_tcece,
    "nll": log_loss,
    "brier": lambda c, o: c.classes(squared, together=sum),
    "brier_uncertainty": lambda c, o: c.classes(lambda pairs: base_rate(pairs) * (1 - base_rate(pairs)), together=sum),
    "brier_reliability": lambda c, o: c.classes(
        lambda pairs: sum(n / len(pairs) * ((s - h) / n) ** 2 for n, s, h in bins_of(pairs)), together=sum
    ),
    "brier_resolution": lambda c, o: c.classes(
        lambda pairs: sum(n / len(pairs) * (h / n - base_rate(pairs)) ** 2 for n, _, h in bins_of(pairs)), together=sum
    ),
    "tace": lambda c, o: c.classes(lambda pairs: equal_mass(kept(pairs))),
    "aece": lambda c, o: (
        c.classes(equal_mass) if c.sigmoid else {None: equal_mass(c.top_pairs())}
    ),
}  # fmt: skip


@pytest.mark.parametrize("rule", ["truth", "predicted", "union", "all"])
@pytest.mark.parametrize("target", ["labels", "soft", "sigmoid", "numba"])
@pytest.mark.parametrize(("key", "number"), [case for case in CASES if case[0] in CALIBRATION])
def test_a_calibration_metric_is_what_a_loop_over_voxels_says(key, number, target, rule):
    if target == "numba" and not numba_is_here():
        pytest.skip("numba not installed")
    metric, options = made(key, number)
    shape = "labels" if target == "numba" else target
    scores, given, p, y = example(shape)
    activation = "sigmoid" if target == "sigmoid" else "softmax"
    route = "numba" if target == "numba" else "torch"
    calibration, mass = all_statistics(
        scores, given, kind="probabilities", activation=activation, ignore_label=IGNORED, route=route
    )
    found = metric.value((calibration if metric.needs == "calibration" else mass).on(rule))
    wanted = CALIBRATION[key](Chosen(p, y, rule, activation == "sigmoid"), options)
    assert found == pytest.approx(wanted, abs=2e-8, nan_ok=True)


# ------------------------------------------------------------------ shape

SPACING = (3.0, 1.0, 0.5)
REGIONS = {"both": (1, 2), "rare": (3,)}
ROWS = {1: (1,), 2: (2,), 3: (3,), "both": (1, 2), "rare": (3,)}


def maps(seed, shape=(4, 6, 7)):
    """Truth and prediction of four classes; by the seed, class 3 is missing in one of them or in both."""
    rng = np.random.default_rng(seed)
    truth, predicted = rng.integers(0, 3, shape), rng.integers(0, 3, shape)
    truth[:2], predicted[:, :2] = 0, 0
    truth[0, 0, 0] = IGNORED
    if seed in (1, 3):
        truth[3, 5, 4:6] = 3
    if seed in (2, 3):
        predicted[1, 3, 2] = predicted[0, 0, 0] = 3
    return truth, predicted


def inside(labels, ids, ignored):
    return {at for at in np.ndindex(labels.shape) if labels[at] in ids and at not in ignored}


def surface(voxels, shape):
    """Voxels with a neighbour along an axis outside the object; an axis of one voxel has no neighbours."""
    found = []
    for at in voxels:
        steps = [(axis, by) for axis in range(3) if shape[axis] > 1 for by in (-1, 1)]
        if any(tuple(at[a] + by * (a == axis) for a in range(3)) not in voxels for axis, by in steps):
            found.append(tuple(i * s for i, s in zip(at, SPACING, strict=True)))
    return found


def quantile(values, q):
    values = sorted(values)
    place = q * (len(values) - 1)
    low, high = values[int(place)], values[min(int(place) + 1, len(values) - 1)]
    return low + (high - low) * (place - int(place))


def expected_shape(key, options, truth, predicted):
    ignored = {at for at in np.ndindex(truth.shape) if truth[at] == IGNORED}
    diagonal = hypot(*(n * s for n, s in zip(truth.shape, SPACING, strict=True)))
    empty, wanted = options.get("empty", "nan"), {}
    released = {"hd": (0, 0), "hd95": (0, 0), "asd": (1, 0)}.get(key, (nan, nan))
    for row, ids in ROWS.items():
        t, p = inside(truth, ids, ignored), inside(predicted, ids, ignored)
        if key in ("dsc", "iou", "volume_error"):
            wanted[row] = overlap_value(key, options, t, p)
        elif not t or not p:
            if empty == "released":
                wanted[row] = released[0] if not t else released[1]
            else:
                wanted[row] = (0.0 if key == "nsd" else diagonal) if empty == "worst" and (t or p) else nan
        else:
            true, guess = surface(t, truth.shape), surface(p, truth.shape)
            there = [min(dist(a, b) for b in true) for a in guess]
            back = [min(dist(a, b) for a in guess) for b in true]
            wanted[row] = distance_value(key, options, there, back)
    return wanted


def overlap_value(key, options, t, p):
    if key == "dsc":
        if options.get("empty") == "released" and not t:
            return 1.0
        return 2 * len(t & p) / (len(t) + len(p)) if t or p else nan
    if key == "iou":
        return len(t & p) / len(t | p) if t or p else nan
    error = (len(p) - len(t)) / len(t) if t else nan
    return error if options.get("sign") == "signed" else abs(error)


def distance_value(key, options, there, back):
    if key == "hd":
        return max(there + back)
    if key == "asd":
        return sum(there) / len(there)
    if key == "assd":
        return sum(there + back) / len(there + back)
    if key == "nsd":
        near = options.get("tolerance_mm", 1.0) + 1e-9
        return sum(d <= near for d in there + back) / len(there + back)
    if options.get("definition") == "max_directed":
        return max(quantile(there, 0.95), quantile(back, 0.95))
    return quantile(there + back, 0.95)


SHAPE = ("dsc", "iou", "volume_error", "hd", "hd95", "asd", "assd", "nsd")


@pytest.mark.parametrize("seed", [0, 1, 2, 3, 4])
@pytest.mark.parametrize(("key", "number"), [case for case in CASES if case[0] in SHAPE])
def test_a_shape_metric_is_what_a_loop_over_voxels_says(key, number, seed):
    metric, options = made(key, number)
    truth, predicted = maps(seed, (1, 6, 7) if seed == 4 else (4, 6, 7))
    if seed == 4:
        truth[0, 2:5, 2:5] = 1
        predicted[0, 3:6, 1:5] = 1
    if metric.needs == "overlap":
        statistics = OverlapStatistics.of(truth, predicted, K, REGIONS, IGNORED)
    else:
        statistics = SurfaceStatistics.of(truth, predicted, K, REGIONS, SPACING, ignore_index=IGNORED)
    wanted = expected_shape(key, options, truth, predicted)
    assert metric.value(statistics) == pytest.approx(wanted, abs=1e-9, nan_ok=True)


def test_every_metric_has_a_loop_of_its_own():
    """Those of how much probability there is are in test_mass_metrics, those of raters in test_rater_metrics."""
    ours = ("calibration", "equal_mass", "overlap", "surface")
    assert {key for key, one in MEMBERS.items() if one.load().needs in ours} == {*CALIBRATION, *SHAPE}


@pytest.mark.parametrize(
    ("key", "options"),
    [
        ("hd95", {"definition": "mean"}),
        ("hd95", {"empty": "zero"}),
        ("dsc", {"empty": "zero"}),
        ("nsd", {"tolerance_mm": -1.0}),
        ("nsd", {"tolerance_mm": nan}),
        ("volume_error", {"sign": "both"}),
        ("cece", {"classes": "some"}),
        ("tcece", {"classes": "some"}),
        ("cace", {"classes": "released"}),
    ],
)
def test_an_option_that_a_metric_does_not_know_is_refused(key, options):
    with pytest.raises(BadInput):
        MEMBERS[key].load()(**options)


def test_a_metric_without_its_formula_says_so():
    overlap = OverlapStatistics.of(*maps(3), K, REGIONS, IGNORED)
    surfaces = SurfaceStatistics.of(*maps(3), K, REGIONS, SPACING, ignore_index=IGNORED)
    scores, given, _, _ = example("labels")
    curves = all_statistics(scores, given, kind="probabilities", ignore_label=IGNORED)[0].on("all")
    bases = [
        (Metric, curves),
        (CurveMetric, curves),
        (BrierMetric, curves),
        (OverlapMetric, overlap),
        (SurfaceMetric, surfaces),
    ]
    for base, statistics in bases:
        with pytest.raises(TypeError, match=f"{base.__name__} does not say"):
            base().value(statistics)
