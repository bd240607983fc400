"""Temperatures: hand-derived values, scipy with everything in memory, the phantom's known truth, and bad input."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.ndimage import distance_transform_edt, gaussian_filter
from scipy.optimize import minimize_scalar

from calibseg import calibrators
from calibseg.calibrators import ClassTemperature, ImageTemperature, RegionTemperature, Temperature, region_temperature
from calibseg.calibrators.solvers import scratch_file, temperatures
from calibseg.calibrators.solvers.log_scores import LEAST, LogScores
from calibseg.core.parallel import ordered_map
from calibseg.core.types import LEAST_PROBABILITY, BadInput, Prediction
from calibseg.data.datasets.phantom import Phantom

MM = (1.0, 1.0, 1.0)


def case(scores, labels, id="a", **more):
    return Prediction(id, id, scores, more.pop("kind", "logits"), MM, labels=labels, **more)


def nll(scores, labels, t=1.0):
    """The mean NLL of logits [k ...] at a temperature, everything in memory and in float64."""
    z = np.asarray(scores, np.float64) / t
    z = z - z.max(0)
    log_p = z - np.log(np.exp(z).sum(0))
    y = labels if labels.ndim == z.ndim else (labels == np.arange(len(z)).reshape(-1, *[1] * labels.ndim))
    return float(-(y * log_p).sum() / log_p[0].size)


def drawn(temperature, k=4, shape=(6, 20, 20), seed=0):
    """Logits, and labels drawn as if they were true at a temperature."""
    rng = np.random.default_rng(seed)
    logits = gaussian_filter(rng.normal(size=(k, *shape)), (0, 1, 1, 1)) * 25
    return logits, (logits / temperature + rng.gumbel(size=logits.shape)).argmax(0)


@pytest.fixture(scope="module")
def phantom():
    cases = list(Phantom(cases=2, size=(8, 40, 40)).cases())
    return [(c, np.maximum(c.true_p.astype(np.float64), LEAST_PROBABILITY)) for c in cases]


# ---------------------------------------------------------------- one temperature


@pytest.mark.parametrize("factor", [0.4, 1.0, 3.0, 0.05])
def test_the_phantoms_own_log_probabilities_come_back(phantom, factor):
    cases = [case(np.log(p) / factor, p / p.sum(0), c.id) for c, p in phantom]
    assert Temperature().fit_predictions(cases).temperature[0] == pytest.approx(1 / factor, rel=1e-4)


def test_logits_in_other_units_have_a_temperature_in_other_units():
    logits, labels = drawn(1.7)
    t = Temperature().fit_predictions([case(logits, labels)]).temperature[0]
    assert Temperature().fit_predictions([case(logits / 0.4, labels)]).temperature[0] == pytest.approx(
        2.5 * t, rel=1e-4
    )


@pytest.mark.parametrize("k", [2, 3, 9])
@pytest.mark.parametrize("truth", [0.1, 0.6, 1.0, 4.0, 30.0])
def test_it_is_what_scipy_finds_with_everything_in_memory(k, truth):
    parts = [drawn(truth, k, seed=seed) for seed in range(2)]
    cases = [case(*part, id=str(n)) for n, part in enumerate(parts)]
    everything = np.concatenate([p[0] for p in parts], 1), np.concatenate([p[1] for p in parts])
    best = minimize_scalar(lambda x: nll(*everything, np.exp(x)), bounds=(-4, 4), options={"xatol": 1e-10})
    calibrator = Temperature().fit_predictions(cases)
    assert np.log(calibrator.temperature[0]) == pytest.approx(best.x, abs=2e-6)
    assert calibrator.facts["nll_before"] == pytest.approx(nll(*everything), rel=1e-12)
    assert calibrator.facts["nll_after"] == pytest.approx(best.fun, rel=1e-9)
    assert calibrator.facts["passes"] <= 8


def test_separable_scores_do_not_run_away():
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(2, 4, 16, 16))
    calibrator = Temperature().fit_predictions([case(logits, logits.argmax(0))])
    assert calibrator.temperature[0] == pytest.approx(np.exp(-4))
    assert calibrator.facts["fallbacks"] == ["log T stands at its bound"]
    assert calibrator.facts["passes"] <= 8
    wrong = Temperature().fit_predictions([case(logits, logits.argmin(0))])
    assert wrong.temperature[0] == pytest.approx(np.exp(4))


def test_scores_without_a_preference_keep_the_temperature_1():
    calibrator = Temperature().fit_predictions([case(np.zeros((3, 2, 4, 4)), np.zeros((2, 4, 4), int))])
    assert calibrator.temperature == (1.0,)


def test_a_million_voxels_in_float32_are_summed_in_float64():
    """Sure voxels beside few unsure ones: a float32 sum would lose them."""
    sure = np.zeros((2, 16, 256, 256), np.float32)
    sure[0] = 9.0
    labels = np.zeros(sure.shape[1:], np.uint8)
    labels.reshape(-1)[::1000] = 1  # wrong once in a thousand: log(999) instead of 9
    t = Temperature().fit_predictions([case(sure, labels)]).temperature[0]
    share = np.mean(labels == 0)
    assert t == pytest.approx(9 / np.log(share / (1 - share)), rel=1e-6)


def test_every_sigmoid_channel_has_its_own_temperature():
    """At z = +-4 a channel is right 3 times of 4 (T = 4 / log 3), the other 9 of 10 (T = 4 / log 9)."""
    right = np.stack([np.arange(40) % 4 > 0, np.arange(40) % 10 > 0])
    z = np.where(np.arange(40) % 2, 4.0, -4.0)
    labels = np.where(right, z > 0, z < 0).astype(np.uint8).reshape(2, 1, 1, 40)
    scores = np.stack([z, z]).reshape(2, 1, 1, 40)
    calibrator = Temperature().fit_predictions([case(scores, labels, activation="sigmoid")])
    assert calibrator.temperature == pytest.approx((4 / np.log(3), 4 / np.log(9)), rel=1e-6)
    assert calibrator.transform(scores)[:, 0, 0, 1] == pytest.approx([0.75, 0.9], rel=1e-6)
    assert calibrator.state()[0]["temperature"] == pytest.approx(list(calibrator.temperature))


def test_the_released_solver_hardly_leaves_1():
    logits, labels = drawn(2.0, shape=(32, 12, 12))
    cases = [case(logits, labels)]
    released, newton = Temperature(solver="released").fit_predictions(cases), Temperature().fit_predictions(cases)
    assert newton.temperature[0] == pytest.approx(2.0, rel=0.1)
    assert 1.019 < released.temperature[0] < 1.02  # 100 epochs of 32 / 16 steps of at most 1e-4
    assert newton.facts["nll_after"] < released.facts["nll_after"] < newton.facts["nll_before"]
    with pytest.raises(BadInput, match="solver must be one of 'newton', 'released'"):
        Temperature(solver="adam")  # pyright: ignore[reportArgumentType]


def test_without_a_scratch_file_the_result_is_the_same(monkeypatch):
    cases = [case(*drawn(2.0, seed=seed), id=str(seed)) for seed in range(2)]
    kept = Temperature().fit_predictions(cases).temperature
    monkeypatch.setattr(scratch_file, "LIMIT", 1000)  # outgrown in the first slab
    assert Temperature().fit_predictions(cases).temperature == kept
    monkeypatch.setattr(scratch_file, "LIMIT", 0)
    assert Temperature().fit_predictions(cases).temperature == kept


@pytest.mark.parametrize("method", [Temperature, ClassTemperature, RegionTemperature, ImageTemperature])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_with_and_without_numba_the_result_is_the_same(monkeypatch, method, dtype):
    pytest.importorskip("numba")
    cases = [case(logits.astype(dtype), y, id=str(n)) for n in range(2) for logits, y in [drawn(2.0, 5, seed=n)]]
    kernel = method().fit_predictions(cases)
    monkeypatch.setattr(temperatures, "kernel", None)
    plain = method().fit_predictions(cases)
    assert kernel.transform_prediction(cases[0]) == pytest.approx(plain.transform_prediction(cases[0]), abs=1e-7)
    for name in ("nll_before", "nll_after"):
        assert kernel.facts[name] == pytest.approx(plain.facts[name], rel=1e-10)


def test_the_number_of_threads_changes_no_bit():
    cases = [case(*drawn(2.0, shape=(12, 40, 40), seed=seed), id=str(seed)) for seed in range(7)]
    before, found = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 5):
            torch.set_num_threads(threads)
            found.append(Temperature().fit_predictions(cases).state())
    finally:
        torch.set_num_threads(before)
    assert found[0] == found[1] == found[2]


@pytest.mark.parametrize("threads", [0, 3])
def test_results_of_threads_come_in_order_and_an_error_ends_the_work(threads):
    assert list(ordered_map(lambda part: -part, range(9), threads, 2)) == [-part for part in range(9)]
    with pytest.raises(ZeroDivisionError):
        list(ordered_map(lambda part: 1 / (4 - part), range(9), threads, 2))


@pytest.mark.parametrize("k", [2, 40])
@pytest.mark.parametrize("b", [0.01, 1.0, 60.0])
def test_the_kernels_sums_are_numpys(k, b):
    kernel = pytest.importorskip("calibseg.calibrators.solvers.kernel")
    rng = np.random.default_rng(0)
    scores = rng.normal(size=(k, 5000)).astype(np.float32) * rng.choice([0.1, 3, 400], 5000).astype(np.float32)
    labels = rng.integers(0, k, 5000)
    d, a = kernel.relative(scores, labels)
    away = scores - scores.max(0)
    assert (a == away[labels, np.arange(5000)]).all()
    assert (np.sort(d, 0) == np.sort(away, 0)[:-1]).all()
    theirs = temperatures._block_sums(d.astype(np.float64), b, np.zeros(0))
    assert kernel.sums(d, b) == pytest.approx(theirs, rel=1e-11, abs=1e-12)


def test_a_sample_estimates_what_all_voxels_say():
    cases = [case(*drawn(2.0, shape=(16, 40, 40), seed=seed), id=str(seed)) for seed in range(3)]
    t = Temperature().fit_predictions(cases).temperature[0]
    assert Temperature(sample=1000).fit_predictions(cases).temperature[0] == pytest.approx(t, rel=0.05)


def test_a_sample_of_256_soft_classes_leaves_out_voxels_that_are_ignored():
    """The class of a soft label is a byte, in which -1 would be the last class."""
    scores = np.random.default_rng(0).normal(size=(256, 1, 2, 4))
    labels = np.eye(256)[[[[3, 7, 255, 255], [0, 0, 0, 0]]]].transpose(3, 0, 1, 2)
    labels[:, 0, 1] = 0  # ignored
    fitted = Temperature(sample=9).fit_predictions([case(scores, labels)])
    assert fitted.fitted_on["voxels_counted"] == 4


def test_channels_far_below_0_have_the_probability_0_without_a_warning(recwarn):
    z = np.array([-300.0, 300.0, 0.0, 1.0], np.float32).reshape(1, 1, 1, 4)
    labels = np.array([0, 1, 0, 1]).reshape(1, 1, 1, 4)
    fitted = Temperature().fit_predictions([case(z, labels, activation="sigmoid")])
    assert fitted.transform(z, batch=False).ravel()[[0, 1]].tolist() == [0.0, 1.0]
    assert not recwarn.list


# ---------------------------------------------------------------- several temperatures


def test_each_predicted_class_gets_the_temperature_it_was_made_with():
    logits, _ = drawn(1.0, k=3, shape=(12, 60, 60))
    made_with = np.array([1.0, 2.0, 4.0])
    noise = np.random.default_rng(1).gumbel(size=logits.shape)
    labels = (logits / made_with[logits.argmax(0)] + noise).argmax(0)
    calibrator = ClassTemperature().fit_predictions([case(logits, labels)])
    assert calibrator.temperatures == pytest.approx(made_with, rel=0.1)
    top = logits.argmax(0)
    for k in range(3):
        mine = logits[:, top == k], labels[top == k]
        alone = minimize_scalar(lambda x, mine=mine: nll(*mine, np.exp(x)), bounds=(-4, 4), options={"xatol": 1e-9})
        found = ClassTemperature(shrinkage=0.0).fit_predictions([case(logits, labels)]).temperatures[k]
        assert np.log(found) == pytest.approx(alone.x, abs=1e-5)


def test_a_class_without_an_error_is_drawn_to_the_common_temperature():
    logits, labels = drawn(2.0, k=3)
    top = logits.argmax(0)
    labels = np.where(top == 2, 2, labels)  # never wrong
    free = ClassTemperature(shrinkage=0.0).fit_predictions([case(logits, labels)])
    drawn_in = ClassTemperature(shrinkage=1e9).fit_predictions([case(logits, labels)])
    common = Temperature().fit_predictions([case(logits, labels)]).temperature[0]
    assert free.temperatures[2] == pytest.approx(np.exp(-4))
    assert free.facts["fallbacks"] == ["class 2: log T stands at its bound"]
    assert drawn_in.temperatures == pytest.approx([common] * 3, rel=1e-4)
    assert free.temperatures[2] < ClassTemperature().fit_predictions([case(logits, labels)]).temperatures[2] < common


def test_a_class_that_is_never_predicted_takes_the_common_temperature():
    logits, labels = drawn(2.0, k=3)
    logits[2] = logits.min(0) - 1
    calibrator = ClassTemperature().fit_predictions([case(logits, np.minimum(labels, 1))])
    assert calibrator.temperatures[2] == pytest.approx(calibrator.facts["common_temperature"])
    assert calibrator.facts["fallbacks"][0] == "class 2 is never predicted: it takes the common temperature"


@pytest.mark.parametrize("marks", [0, 1000], ids=["distance transform", "marks"])
@pytest.mark.parametrize("reach", [0.7, 1.1, 1.31, 2.0, 3.0, 6.5])
def test_the_band_at_the_predicted_border_is_brute_force(monkeypatch, marks, reach):
    monkeypatch.setattr(region_temperature, "MARKS_PER_VOXEL", marks)
    labels = gaussian_filter(np.random.default_rng(0).normal(size=(3, 5, 7, 8)), (0, 1, 1, 1)).argmax(0)
    spacing = (3.0, 0.7, 1.1)
    points = np.stack(np.meshgrid(*map(np.arange, labels.shape), indexing="ij"), -1).reshape(-1, 3) * spacing
    far = np.linalg.norm(points[:, None] - points[None], axis=-1)
    far[labels.reshape(-1, 1) == labels.reshape(1, -1)] = np.inf
    near = region_temperature.near_border(labels.astype(np.uint8), spacing, reach * (1 + 1e-6))
    assert (near.reshape(-1) == (far.min(1) <= reach * (1 + 1e-6))).all()
    assert not region_temperature.near_border(np.ones((2, 3, 4), np.uint8), spacing, reach).any()


def test_borders_and_interiors_get_the_temperatures_they_were_made_with():
    z, y, x = np.meshgrid(*(np.arange(n) for n in (40, 60, 60)), indexing="ij")
    inside = 18.0 - np.hypot(y - 29.5, x - 29.5)
    logits = np.stack([-inside, inside]) * 0.6 + 0.01 * np.random.default_rng(0).normal(size=(2, *z.shape))
    top = logits.argmax(0)
    distance = np.where(top == 1, distance_transform_edt(top == 1), distance_transform_edt(top == 0))
    made_with = np.where(distance <= 2, 3.0, 5.0)
    labels = (logits / made_with + np.random.default_rng(1).gumbel(size=logits.shape)).argmax(0)
    calibrator = RegionTemperature(band_mm=2.0, shrinkage=0.0).fit_predictions([case(logits, labels)])
    table = calibrator.state()[0]["temperatures"]
    assert list(table) == ["class 0, band", "class 0, background", "class 1, band", "class 1, interior"]
    assert list(table.values()) == pytest.approx([3.0, 5.0, 3.0, 5.0], rel=0.15)
    regions = calibrator.case_context(LogScores(logits, "logits"), None, MM, 0).reshape(top.shape)
    assert (regions == 2 * top + (distance > 2)).all()
    # a coarser grid: neighbours across the border are in the band although 2 mm do not reach them
    coarse = calibrator.case_context(LogScores(logits, "logits"), None, (5.0, 5.0, 5.0), 0).reshape(top.shape)
    assert (coarse == 2 * top + (distance > 1)).all()


def test_an_image_without_a_border_is_all_interior():
    logits, labels = drawn(2.0, k=2)
    calibrator = RegionTemperature().fit_predictions([case(logits, labels)])
    plain = np.stack([np.full((3, 4, 5), 2.0), np.zeros((3, 4, 5))])
    expected = 1 / (1 + np.exp(-2 / calibrator.temperatures[0, region_temperature.AWAY]))
    assert calibrator.transform(plain, spacing_mm=MM)[0] == pytest.approx(expected, rel=1e-5)


def test_images_get_the_temperatures_their_entropy_foretells():
    """Odd images are twice as sharp as even ones and as often right: their temperature must be twice as high."""
    cases = []
    for n in range(8):
        logits, labels = drawn(2.0, k=3, shape=(4, 24, 24), seed=n)
        cases.append(case(logits * (1 + n % 2), labels, str(n)))
    calibrator = ImageTemperature(shrinkage=1e-3).fit_predictions(cases)
    told = np.array(calibrator.facts["temperature_per_case"])
    assert told[::2] == pytest.approx(2.0, rel=0.25)
    assert told[1::2].mean() / told[::2].mean() == pytest.approx(2.0, rel=0.1)
    for number, one in enumerate(cases):
        features = calibrator.case_context(LogScores(one.scores, "logits"), None, MM, 0)
        assert calibrator.temperature(features) == pytest.approx(told[number], rel=1e-9)
    rigid = ImageTemperature(shrinkage=1e9).fit_predictions(cases)
    assert rigid.facts["temperature_per_case"] == pytest.approx(
        [Temperature().fit_predictions(cases).temperature[0]] * 8, rel=1e-4
    )


@pytest.mark.parametrize("seed", range(4))
def test_more_temperatures_fit_their_own_voxels_at_least_as_well(seed):
    parts = [drawn(1.0 + seed, k=3, shape=(4, 16, 16), seed=10 * seed + n) for n in range(3)]
    cases = [case(*part, id=str(n)) for n, part in enumerate(parts)]

    def own(calibrator):
        total = 0.0
        for one in cases:
            read = LogScores(one.scores, "logits")
            p = calibrator.apply(read.all(), calibrator.case_context(read, None, MM, 0), slice(None))
            total -= np.log(np.take_along_axis(p, one.labels.reshape(1, -1), 0)).sum()
        return total / sum(one.labels.size for one in cases)

    before = np.mean([nll(*part) for part in parts])
    one = own(Temperature().fit_predictions(cases))
    assert one <= before + 1e-12
    for other in (ClassTemperature(), RegionTemperature(), ImageTemperature()):
        calibrator = other.fit_predictions(cases)
        assert own(calibrator) <= one + 1e-12
        assert own(calibrator) == pytest.approx(calibrator.facts["nll_after"], abs=1e-8)
        assert before == pytest.approx(calibrator.facts["nll_before"], abs=1e-12)


def test_the_sums_of_a_pass_are_the_nll_and_its_three_derivatives():
    logits, labels = drawn(2.0, k=5)
    d = logits.reshape(5, -1) - logits.reshape(5, -1).max(0)
    a = np.take_along_axis(d, labels.reshape(1, -1), 0)[0]
    rest = np.sort(d, 0)[:-1]  # without the largest, which is 0
    b, h = 0.7, 1e-4
    value, slope, curve, third = temperatures.voxel_sums(rest, b, np.zeros(0))
    total = [nll(logits, labels, 1 / x) * labels.size for x in (b - h, b, b + h)]
    assert value - b * a.sum() == pytest.approx(total[1], rel=1e-12)
    assert slope - a.sum() == pytest.approx((total[2] - total[0]) / (2 * h), rel=1e-6)
    assert curve == pytest.approx((total[2] - 2 * total[1] + total[0]) / h**2, rel=1e-4)
    curves = [temperatures.voxel_sums(rest, x, np.zeros(0))[2] for x in (b - h, b + h)]
    assert third == pytest.approx((curves[1] - curves[0]) / (2 * h), rel=1e-6)


# ---------------------------------------------------------------- what the numbers are


def test_a_probability_of_0_is_floored_and_a_log_probability_of_minus_infinity_too():
    p = np.array([1.0, 0.0]).reshape(2, 1, 1, 1)
    assert LogScores(p, "probabilities").all()[1, 0] == pytest.approx(np.log(LEAST_PROBABILITY), abs=1e-6)
    with np.errstate(divide="ignore"):
        assert LogScores(np.log(p), "log_probabilities").all()[1, 0] == pytest.approx(LEAST)
    low, high = LogScores(p, "probabilities", "sigmoid").all()[:, 0]
    assert (low, high) == pytest.approx(
        (np.log(1 / LEAST_PROBABILITY - 1), np.log(LEAST_PROBABILITY / (1 - LEAST_PROBABILITY)))
    )


def test_the_kind_is_what_the_caller_says_and_wrong_numbers_are_refused():
    logits, labels = drawn(2.0)
    with pytest.raises(
        BadInput, match=r"case 'a': probabilities are .* expected numbers from 0 to 1; .*say so \(kind logits\)"
    ):
        Temperature().fit_predictions([case(logits, labels, kind="probabilities")])
    half = np.full((3, 2, 2, 2), 0.5)
    with pytest.raises(BadInput, match=r"probabilities sum to 1\.5 instead of 1 at voxel \(z 0, y 0, x 0\)"):
        Temperature().fit_predictions([case(half, np.zeros((2, 2, 2), int), kind="probabilities")])
    with pytest.raises(BadInput, match="scores hold int64; expected float16"):
        Temperature().fit_predictions([case(half.astype(int), np.zeros((2, 2, 2), int))])
    p = np.exp(logits - logits.max(0))
    p /= p.sum(0)
    stated = Temperature().fit_predictions([case(p, labels)])  # probabilities, stated to be logits: taken at their word
    assert stated.temperature[0] < Temperature().fit_predictions([case(logits, labels)]).temperature[0]


def test_sigmoid_channels_have_their_own_labels_and_their_own_foreground():
    rng = np.random.default_rng(0)
    z = rng.normal(size=(2, 3, 8, 8)) * 2
    labels = (rng.random(z.shape) < 0.3).astype(np.uint8)
    given = {"activation": "sigmoid"}
    on = int(labels.any(0).sum())
    assert (
        Temperature(fit_on="foreground").fit_predictions([case(z, labels, **given)]).fitted_on["voxels_counted"] == on
    )
    drawn_few = Temperature(sample=5).fit_predictions([case(z, labels, **given)])
    assert drawn_few.fitted_on["voxels_counted"] == 15  # of neither, of the first, of the second
    one = Temperature().fit_predictions([case(z[:1], labels[0], **given)])
    assert one.temperature == Temperature().fit_predictions([case(z[:1], labels[:1], **given)]).temperature
    with pytest.raises(
        BadInput, match=r"case 'a': the target has the shape .* expected each channel's own labels \(2, 3, 8, 8\)"
    ):
        Temperature().fit_predictions([case(z, labels[0], **given)])


def test_soft_labels_must_be_shares():
    logits, labels = drawn(2.0, k=2)
    shares = np.stack([labels == 0, labels == 1]).astype(float)
    shares[0, 0, 0, 0] += 0.5
    with pytest.raises(BadInput, match=r"case 'a': soft labels are .* expected shares of 1"):
        Temperature().fit_predictions([case(logits, shares)])
    with pytest.raises(BadInput, match="expected integer labels"):
        Temperature().fit_predictions([replace(case(logits, labels), labels=labels.astype(float))])


def test_a_sigmoid_channel_has_the_region_temperatures_of_its_two_class_problem(tmp_path):
    rng = np.random.default_rng(2)
    centre = np.linspace(-4, 4, 12)[:, None, None] + rng.normal(size=(2, 2, 12, 10, 8))
    scores = np.stack([centre[0] * 1.5, 2 - centre[1]], 1)  # two cases of two channels
    targets = rng.random(scores.shape) < 1 / (1 + np.exp(-scores / 2))
    spacing, options = (1.0, 1.0, 2.0), {"shrinkage": 0.0, "band_mm": 1.5}
    together = RegionTemperature(**options).fit(
        [*scores], [*targets], kind="logits", activation="sigmoid", spacing_mm=spacing
    )
    assert together.temperatures.shape == (4, 2)
    for channel in range(2):
        pairs = [np.stack([np.zeros_like(case[channel]), case[channel]]) for case in scores]
        labels = [case[channel].astype(np.uint8) for case in targets]
        alone = RegionTemperature(**options).fit(pairs, labels, kind="logits", spacing_mm=spacing)
        np.testing.assert_allclose(together.temperatures[2 * channel : 2 * channel + 2], alone.temperatures, rtol=1e-4)
        p = together.transform(scores[0], spacing_mm=spacing)[channel]
        np.testing.assert_allclose(p, alone.transform(pairs[0], spacing_mm=spacing)[1], atol=1e-5)
    together.save(tmp_path / "regions")
    again = calibrators.load(tmp_path / "regions")
    np.testing.assert_array_equal(again.temperatures, together.temperatures)  # pyright: ignore
    assert "channel 1 inside, band" in together.facts["voxels_per_region"]
