"""The curves of penalties: the formulas of the losses, and their derivatives."""

import numpy as np
import pytest

from calibseg.core.types import BadInput
from calibseg.report.figure_data.penalties import penalty_curves, value_and_slope


@pytest.mark.parametrize("name", ["linear", "margin", "phr", "p2", "p3"])
def test_a_slope_is_the_derivative_of_its_penalty(name):
    z = np.linspace(-3, 3, 50)  # the kinks are not among them
    step = 1e-6
    numeric = (value_and_slope(name, z + step)[0] - value_and_slope(name, z - step)[0]) / (2 * step)
    np.testing.assert_allclose(value_and_slope(name, z)[1], numeric, atol=1e-5)


def test_penalty_curves_are_those_of_the_paper():
    found = penalty_curves().set_index(["penalty", "z"])
    assert found.loc[("margin", 15.0)].tolist() == [5.0, 1.0]
    assert found.loc[("margin", 5.0)].tolist() == [0.0, 0.0]
    assert found.loc[("linear", 5.0)].tolist() == [5.0, 1.0]


def test_an_unknown_penalty_is_named():
    with pytest.raises(BadInput, match=r"no penalty named 'phl'. Did you mean 'phr'"):
        value_and_slope("phl", np.zeros(1))
