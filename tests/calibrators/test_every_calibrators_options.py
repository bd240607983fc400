"""Every calibrator with each set of options that its file declares, and with those that all share."""

from dataclasses import replace

import numpy as np
import pytest
from scipy.optimize import minimize, minimize_scalar

from calibseg.calibrators.fitted.files import load_calibrator, save_calibrator
from calibseg.core.types import IGNORED
from support.calibration_cases import MEMBERS, equal, example, made, shown

COMMON = ({"fit_on": "foreground"}, {"sample": 60, "seed": 3})
SETS = [
    pytest.param(key, options, id=f"{key}-{number}")
    for key in sorted(MEMBERS)
    for number, options in enumerate((*MEMBERS[key].load().contract_options, *COMMON))
]
OPTIMAL = {"temperature", "class_temperature", "region_temperature", "image_temperature", "vector", "dirichlet"}


def nll(calibrator, cases):
    """Mean of -log p of the true class, in a plain loop over cases; 2^-24 at least."""
    total = [-np.log(np.maximum(np.take_along_axis(p, case.labels[None].astype(int), 0), 2.0**-24)).mean()
             for case in cases for p in [shown(calibrator, case).astype(np.float64)]]  # fmt: skip
    return float(np.mean(total))


def own_nll(cases):
    found = []
    for case in cases:
        p = np.exp(case.scores - case.scores.max(0))
        found.append(-np.log(np.take_along_axis(p / p.sum(0), case.labels[None].astype(int), 0)).mean())
    return float(np.mean(found))


@pytest.mark.parametrize(("key", "options"), SETS)
def test_options_are_kept_through_a_file_and_the_fit_is_no_worse_than_none(key, options, tmp_path):
    cases = example()
    fitted = made(key, **options).fit_predictions(cases)
    assert {name: fitted.options[name] for name in options} == options
    save_calibrator(tmp_path, fitted)
    again = load_calibrator(tmp_path)
    assert again.options == fitted.options
    assert equal(fitted, again, example(1, seed=9)[0])
    assert equal(fitted, made(key, **options).fit_predictions(example()), cases[0])  # nothing is drawn unsaid
    if key in OPTIMAL and options not in COMMON:
        assert nll(fitted, cases) <= own_nll(cases) + 1e-9


@pytest.mark.parametrize("key", sorted(MEMBERS))
def test_fitting_on_the_foreground_is_fitting_with_the_background_ignored(key):
    cases = example()
    hidden = [replace(case, labels=np.where(case.labels == 0, IGNORED, case.labels).astype(np.uint8)) for case in cases]
    ours = made(key, fit_on="foreground").fit_predictions(cases)
    theirs = made(key).fit_predictions(hidden)
    assert shown(ours, cases[0]) == pytest.approx(shown(theirs, cases[0]), abs=1e-6)
    assert not equal(ours, made(key).fit_predictions(cases), cases[0])


@pytest.mark.parametrize("key", sorted(key for key in MEMBERS if "shrinkage" in {o.name for o in MEMBERS[key].options}))
def test_shrinkage_draws_groups_to_what_all_share_and_matrices_to_the_identity(key):
    cases = example()
    same = np.exp(cases[0].scores - cases[0].scores.max(0))
    target = shown(made("temperature").fit_predictions(cases), cases[0])
    target = same / same.sum(0) if key in ("vector", "dirichlet") else target
    apart = [
        np.abs(shown(made(key, shrinkage=value).fit_predictions(cases), cases[0]) - target).max()
        for value in (1.0, 1e9)
    ]
    assert apart[1] < apart[0]
    assert apart[1] < 1e-3


@pytest.mark.parametrize("shrinkage", [0.5, 20.0])
def test_image_temperatures_minimise_what_the_docstring_says(shrinkage):
    """NLL + penalty theta^2 / 2 by scipy; the penalty: `shrinkage` times the cases' mean curvature at one common T."""
    cases = [
        replace(case, scores=case.scores * scale) for case, scale in zip(example(5), (0.4, 2, 1, 3, 0.7), strict=True)
    ]
    features = []
    for case in cases:
        p = np.exp(case.scores - case.scores.max(0))
        p /= p.sum(0)
        entropy, front = -(p * np.log(p)).sum(0), p.argmax(0) > 0
        features.append([entropy.mean(), entropy[front].mean(), np.log((front.sum() + 1) / (front.size + 1))])
    x = (np.array(features) - np.mean(features, 0)) / np.std(features, 0)

    def nll_of(case, b):
        scaled = case.scores * b
        scaled = scaled - scaled.max(0)
        right = np.take_along_axis(scaled, case.labels[None].astype(int), 0)[0]
        return (np.log(np.exp(scaled).sum(0)) - right).sum()

    def total(theta):
        return sum(nll_of(case, np.exp(-(theta[0] + row @ theta[1:]))) for case, row in zip(cases, x, strict=True))

    b = 1 / np.exp(minimize_scalar(lambda t: total(np.array([t, 0, 0, 0])), (-1, 1), tol=1e-10).x)
    h, curves = 1e-3 * b, []
    for case in cases:
        low, mid, high = (nll_of(case, b + step) for step in (-h, 0, h))
        slope, curve = (high - low) / (2 * h), (high - 2 * mid + low) / h**2
        curves.append(max(b * b * curve + b * slope, b * b * curve))
    penalty = shrinkage * np.mean(curves)
    best = minimize(lambda t: (total(t) + 0.5 * penalty * (t[1:] ** 2).sum()) / 1000, np.zeros(4), tol=1e-10).x
    found = made("image_temperature", shrinkage=shrinkage).fit_predictions(cases)
    assert [np.log(found.common_temperature), *found.theta] == pytest.approx(best, abs=2e-3)


def test_an_older_file_that_calls_the_option_voxels_is_still_read(tmp_path):
    fitted = made("temperature", fit_on="foreground").fit_predictions(example())
    path = fitted.save(tmp_path)
    path.write_text(path.read_text().replace('"fit_on": "foreground"', '"voxels": "foreground"'))
    assert load_calibrator(tmp_path).options == fitted.options
