"""Penalty functions: their derivatives, their conditions, their values by hand."""

import pytest
import torch

from calibseg.losses.maths.penalties import PENALTIES, phr_of_distance, value_and_slope

every_penalty = pytest.mark.parametrize("name", list(PENALTIES))
Z = torch.linspace(-6, 6, 97, dtype=torch.float64)


@every_penalty
@pytest.mark.parametrize(("rho", "lam"), [(0.1, 1e-6), (1.0, 0.5), (10.0, 3.0)])
def test_the_slope_is_the_derivative(name, rho, lam):
    value, slope = PENALTIES[name]
    z = Z.clone().requires_grad_()
    rho, lam = torch.tensor(rho).double(), torch.tensor(lam).double()
    value(z, rho, lam).sum().backward()
    torch.testing.assert_close(z.grad, slope(Z, rho, lam))


@every_penalty
def test_value_and_slope_together_are_what_they_are_apart(name):
    rho, lam = torch.full_like(Z, 0.7), torch.full_like(Z, 0.4)
    apart = tuple(part(Z, rho, lam) for part in PENALTIES[name])
    torch.testing.assert_close(value_and_slope(name, Z, rho, lam), apart)


def test_phr_of_a_distance_is_that_of_its_size_and_flat_at_zero():
    rho, lam = torch.full_like(Z, 0.7), torch.full_like(Z, 0.4)
    value, slope = (part(Z.abs(), rho, lam) for part in PENALTIES["phr"])
    assert (Z == 0).any()
    torch.testing.assert_close(phr_of_distance(Z, rho, lam), (value, slope * Z.sign()))


@every_penalty
def test_the_slope_at_zero_is_lambda_and_never_negative(name):
    rho, lam = torch.tensor(0.7), torch.tensor(0.4)
    slope = PENALTIES[name][1]
    assert slope(torch.zeros(()), rho, lam).item() == pytest.approx(0.4)
    assert (slope(Z, rho, lam) >= 0).all()
    assert (slope(Z, rho, lam).diff() >= -1e-12).all()


def test_values_by_hand():
    z, rho, lam = torch.tensor([2.0, -1.0]).double(), torch.tensor(0.5).double(), torch.tensor(3.0).double()
    # P2(2) = 6 + 3 * 0.5 * 4 + 0.25 * 8 / 6; P3(2) = 6 + 6; both (-1) = -3 / 1.5; PHR = 3 z + 0.25 z^2
    assert PENALTIES["p2"][0](z, rho, lam).tolist() == pytest.approx([12 + 1 / 3, -2.0])
    assert PENALTIES["p3"][0](z, rho, lam).tolist() == pytest.approx([12.0, -2.0])
    assert PENALTIES["phr"][0](z, rho, lam).tolist() == pytest.approx([7.0, -2.75])
