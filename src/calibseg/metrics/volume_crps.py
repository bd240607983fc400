r"""Volume CRPS: how far the expected volume lies from the distribution of the volumes that raters drew, in ml.

$$ \mathrm{CRPS}(F, V) = \int (F(x) - 1[x \ge V])^2 dx, \qquad V = \mathrm{voxel} \sum_i p_i $$

F is the Gaussian with mean and (population) standard deviation of the raters' volumes, in closed form; "sample" takes
the volumes themselves. Where all raters agree, and with one, it is the distance.

Paper: CURVAS challenge 2024 and 2025.
Differs: the challenge's code integrates over three standard deviations only, so that every volume beyond costs the same
(raters 95, 100, 111: 16.32 at 130, at 200 and at 1000, where 24.2, 94.2 and 894.2 are right), interpolates F between
its 1 % and 99 % points with 0 and 1 beyond, and has no value where raters agree: form="released".

>>> import numpy as np
>>> from calibseg.metrics.statistics.votes import Votes
>>> votes = Votes(np.zeros((4, 1)), np.array([0.0, 0.0, 0.0, 130.0]), np.zeros(4), np.array([95, 100, 111]))
>>> [round(VolumeCRPS(form).formula(votes, 1.0), 2) for form in ("gaussian", "sample", "released")]
[24.23, 24.44, 16.32]
"""

from math import nan
from typing import Literal

import numpy as np
from scipy.special import ndtr, ndtri

from calibseg.core.options import one_of
from calibseg.metrics import VoteMetric
from calibseg.metrics.statistics.crps import gaussian_crps, sample_crps
from calibseg.metrics.statistics.votes import Votes


class VolumeCRPS(VoteMetric):
    """CRPS of the expected volume in the distribution of the raters' volumes, per class and region.

    form: "gaussian", "sample" or "released"
    """

    acronym = "volume CRPS"
    higher_is_better = False
    unit = "ml"
    contract_options = ({}, {"form": "sample"}, {"form": "released"})

    def __init__(self, form: Literal["gaussian", "sample", "released"] = "gaussian") -> None:
        self.form = one_of("form", form, ("gaussian", "sample", "released"))

    def formula(self, votes: Votes, voxel_ml: float) -> float:
        volumes, expected = votes.sizes * voxel_ml, float(votes.mass.sum()) * voxel_ml
        if self.form == "sample":
            return sample_crps(volumes.tolist(), expected)
        mean, sd = float(volumes.mean()), float(volumes.std())
        return gaussian_crps(mean, sd, expected) if self.form == "gaussian" else _released(mean, sd, expected)


def _released(mean: float, sd: float, observed: float) -> float:
    """The integral over three standard deviations of a Gaussian between 100 points of which F is linear; exact."""
    if sd == 0:
        return nan
    knots = np.linspace(ndtri(0.01), ndtri(0.99), 100)
    z = (observed - mean) / sd

    def to(x: float, values: np.ndarray) -> float:
        """The integral of a squared function from -3 to x: 0 or 1 (its ends) beyond the knots, linear between."""
        inside = np.clip(knots, None, x)
        ends = np.interp(inside, knots, values)
        low, high = ends[:-1], ends[1:]
        middle = (np.diff(inside) * (low * low + low * high + high * high) / 3).sum()
        first, last = round(float(values[0])), round(float(values[-1]))
        return first * (min(x, knots[0]) + 3) + float(middle) + last * max(x - knots[-1], 0)

    below, above = ndtr(knots), 1 - ndtr(knots)
    cut = float(np.clip(z, -3, 3))
    return float(sd * (to(cut, below) + to(3, above) - to(cut, above)))
