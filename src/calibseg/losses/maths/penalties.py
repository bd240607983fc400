r"""Penalty functions P(z, rho, lambda) and their derivatives P'(z), for constraints h(x) <= 0.

$$ \mathrm{PHR} = \begin{cases} \lambda z + \tfrac{\rho}{2} z^2 & \lambda + \rho z \ge 0 \\
   -\lambda^2 / 2\rho & \text{otherwise} \end{cases} $$
$$ P_2 = \begin{cases} \lambda z + \lambda\rho z^2 + \tfrac{\rho^2}{6} z^3 & z \ge 0 \\
   \lambda z / (1 - \rho z) & \text{otherwise} \end{cases} $$
$$ P_3 = \begin{cases} \lambda z + \lambda\rho z^2 & z \ge 0 \\
   \lambda z / (1 - \rho z) & \text{otherwise} \end{cases} $$

Papers: PHR is CRaC (MICCAI 2024) Eq. 10; P2 and P3 are in Birgin, Castillo and Martinez, Computational Optimization
and Applications 2005. The derivative of each is positive, which is what makes lambda <- P'(h) a valid multiplier.

>>> import torch
>>> phr(torch.tensor([2.0, -2.0]), torch.tensor(1.0), torch.tensor(0.5)).tolist()   # 0.5 * 2 + 2, then -0.25 / 2
[3.0, -0.125]
"""

from collections.abc import Callable

import torch
from torch import Tensor

Penalty = Callable[[Tensor, Tensor, Tensor], Tensor]


def phr(z: Tensor, rho: Tensor, lam: Tensor) -> Tensor:
    z = torch.maximum(z, -lam / rho)  # below -lambda / rho the penalty stays at its minimum, -lambda^2 / 2 rho
    return z * (lam + rho / 2 * z)


def phr_slope(z: Tensor, rho: Tensor, lam: Tensor) -> Tensor:
    return (lam + rho * z).clamp(min=0)


def p2(z: Tensor, rho: Tensor, lam: Tensor) -> Tensor:
    return torch.where(z >= 0, z * (lam + z * rho * (lam + z * rho / 6)), _rational(z, rho, lam))


def p2_slope(z: Tensor, rho: Tensor, lam: Tensor) -> Tensor:
    up = z.clamp(min=0)
    return _rational_slope(z, rho, lam) + up * rho * (2 * lam + up * rho / 2)


def p3(z: Tensor, rho: Tensor, lam: Tensor) -> Tensor:
    return torch.where(z >= 0, z * lam * (1 + z * rho), _rational(z, rho, lam))


def p3_slope(z: Tensor, rho: Tensor, lam: Tensor) -> Tensor:
    return _rational_slope(z, rho, lam) + 2 * lam * rho * z.clamp(min=0)


def _rational(z: Tensor, rho: Tensor, lam: Tensor) -> Tensor:
    """lambda z / (1 - rho z) below 0, and 0 above."""
    down = z.clamp(max=0)
    return lam * down / (1 - rho * down)


def _rational_slope(z: Tensor, rho: Tensor, lam: Tensor) -> Tensor:
    """lambda / (1 - rho z)^2 below 0, and lambda above: the value at 0 of either branch."""
    return lam / (1 - rho * z.clamp(max=0)).square()


PENALTIES: dict[str, tuple[Penalty, Penalty]] = {"phr": (phr, phr_slope), "p2": (p2, p2_slope), "p3": (p3, p3_slope)}


def value_and_slope(name: str, z: Tensor, rho: Tensor, lam: Tensor) -> tuple[Tensor, Tensor]:
    """P(z) and P'(z) together; PHR's share t = max(lambda + rho z, 0) = P', for P = z (lambda + t) / 2.

    rho and lam, of z's shape, are used up.
    """
    if name != "phr":
        value, slope = PENALTIES[name]
        return value(z, rho, lam), slope(z, rho, lam)
    low = torch.maximum(z, -lam / rho)
    t = torch.addcmul(lam, rho, z, out=rho).clamp_(min=0)
    return torch.lerp(lam, t, 0.5, out=lam).mul_(low), t


def phr_of_distance(x: Tensor, rho: Tensor, lam: Tensor) -> tuple[Tensor, Tensor]:
    """PHR(|x|), which has one branch only, and its derivative by x, lambda sign(x) + rho x. Uses up rho and lam."""
    start = lam.mul_(x.sign())
    slope = torch.addcmul(start, rho, x, out=rho)
    return torch.lerp(start, slope, 0.5, out=start).mul_(x), slope
