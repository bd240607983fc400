r"""Penalties and their derivatives as curves: those of MbLS Fig. 1, and the augmented Lagrangians of CRaC.

- linear, $d_k$, whose derivative is 1 everywhere: what label smoothing, focal loss and the entropy penalty amount to;
- margin, $\max(0, d_k - m)$, whose derivative is 0 until the distance exceeds the margin;
- `phr`, `p2`, `p3` of $(z, \rho, \lambda)$: the equations are in losses/maths/penalties.py, which the loss uses too.

>>> [value_and_slope(name, np.array([2.0, -2.0]), rho=1.0, lam=0.5)[0].tolist() for name in ("phr", "margin")]
[[3.0, -0.125], [1.0, 0.0]]
"""

from collections.abc import Sequence

import numpy as np
import pandas as pd
from numpy import ndarray as Array

from calibseg.analysis.columns import Frame
from calibseg.core import registry
from calibseg.core.types import BadInput


def value_and_slope(
    name: str, z: Array, rho: float = 1.0, lam: float = 1.0, margin: float = 1.0
) -> tuple[Array, Array]:
    """P(z) and P'(z): of a logit distance (linear, margin), or of a constraint (phr, p2, p3).

    At the kink of the margin the derivative is that from the left.
    """
    if name == "linear":
        return z.astype(float), np.ones_like(z, dtype=float)
    if name == "margin":
        return np.maximum(z - margin, 0.0), (z > margin).astype(float)
    import torch  # only this figure waits for it

    from calibseg.losses.maths.penalties import PENALTIES

    if name not in PENALTIES:
        raise BadInput(registry.unknown("penalty", name, ["linear", "margin", *PENALTIES]))
    numbers = [torch.as_tensor(number, dtype=torch.float64) for number in (z, rho, lam)]
    value, slope = (part(*numbers).numpy() for part in PENALTIES[name])
    return value, slope


def penalty_curves(
    names: Sequence[str] = ("linear", "margin"), low: float = 0.0, high: float = 20.0, margin: float = 10.0
) -> Frame:
    """Columns: penalty, z, value, slope; rho and lambda are 1."""
    z = np.linspace(low, high, 401)
    parts = []
    for name in names:
        value, slope = value_and_slope(name, z, margin=margin)
        parts.append(pd.DataFrame({"penalty": name, "z": z, "value": value, "slope": slope}))
    return pd.concat(parts, ignore_index=True)
