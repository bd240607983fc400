"""The search for b = 1 / T on functions whose least point is known in a closed form."""

import numpy as np
import pytest

from calibseg.calibrators.solvers.search import BOUND, Search

A, C = np.array([2.0, 5.0, 0.4]), np.array([3.0, 1.0, 0.7])


def evaluate(b):
    """F = A b - C log b, and its three derivatives."""
    return np.array([A * b - C * np.log(b), A - C / b, C / b**2, -2 * C / b**3])


@pytest.mark.parametrize("shrinkage", [0.0, 0.5, 40.0])
def test_it_finds_the_least_point_of_the_function_and_what_draws_it_to_the_common_one(shrinkage):
    """The derivative of F + S (b / c - 1 - log(b / c)) is 0 at b = (C + S) / (A + S / c)."""
    search = Search(3, common=0.3, shrinkage=shrinkage)
    passes = search.run(evaluate)
    least = (C + shrinkage) / (A + shrinkage / 0.3)
    assert search.best == pytest.approx(least, rel=1e-6)
    assert search.nll == pytest.approx(evaluate(least)[0], abs=1e-6)  # without what draws
    assert 1 < passes <= 5  # what is left of the distance is about its third power


def test_unless_said_it_starts_from_a_temperature_of_1_and_nothing_draws_it_there():
    search = Search(3)
    assert search.b.tolist() == [1.0, 1.0, 1.0]
    search.run(evaluate)
    assert search.best == pytest.approx(C / A, rel=1e-6)


def test_a_function_that_falls_for_ever_ends_at_the_bound():
    search = Search(1)
    search.run(lambda b: np.array([-b, -np.ones(1), np.full(1, 1e-9), np.zeros(1)]))
    assert np.log(search.best) == pytest.approx(BOUND, abs=1e-3)
