"""The curves of penalties: the formulas of the losses, and their derivatives."""

import numpy as np
import pytest

from calibseg.core.types import BadInput
from calibseg.report.figure_data.penalties import penalty_curves, penalty_slope, penalty_value


@pytest.mark.parametrize("name", ["linear", "margin", "phr", "p2", "p3"])
def test_a_slope_is_the_derivative_of_its_penalty(name):
    z = np.linspace(-3, 3, 50)  # the kinks are not among them
    step = 1e-6
    numeric = (penalty_value(name, z + step) - penalty_value(name, z - step)) / (2 * step)
    np.testing.assert_allclose(penalty_slope(name, z), numeric, atol=1e-5)


def test_penalty_curves_are_those_of_the_paper():
    found = penalty_curves().set_index(["penalty", "z"])
    assert found.loc[("margin", 15.0)].tolist() == [5.0, 1.0]
    assert found.loc[("margin", 5.0)].tolist() == [0.0, 0.0]
    assert found.loc[("linear", 5.0)].tolist() == [5.0, 1.0]


def test_an_unknown_penalty_is_named():
    with pytest.raises(BadInput, match=r"no penalty named 'phl'. Did you mean 'phr'"):
        penalty_value("phl", np.zeros(1))
