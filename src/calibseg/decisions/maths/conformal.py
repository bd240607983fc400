r"""Promises about a new patient from n labelled ones: quantiles and thresholds that hold for a finite n.

Exchangeable patients, no other assumption. With one number $r_i$ per patient,

$$ q = r_{(\lceil (n + 1)(1 - \alpha) \rceil)} \quad\Rightarrow\quad P(r_{n+1} \le q) \ge 1 - \alpha $$

and with a loss $L_i(t) \in [0, 1]$ that never grows from tight to safe sets, the tightest set whose

$$ \frac{n}{n+1} \hat R(t) + \frac{1}{n+1} \le \alpha \quad\Rightarrow\quad E[L_{n+1}(t)] \le \alpha $$

Both need $n \ge 1/\alpha - 1$ patients. The second promise is about the mean over patients to come and over the
labelled ones that were drawn. Where the risk itself must hold with probability $1 - \delta$ over those, sets are tried
from safe to tight while the p-value of "the risk is above $\alpha$" stays at most $\delta$:

$$ p = \min\left( e^{-n\, h(\min(\hat R, \alpha), \alpha)},\;
   e\, P(\mathrm{Bin}(n, \alpha) \le \lceil n \hat R \rceil) \right),
   \quad h(a, b) = a \log\frac{a}{b} + (1 - a) \log\frac{1 - a}{1 - b} $$

Probabilities are taken as the decimal numbers that were written: (n + 1)(1 - 0.1) of 9 patients is 9, not 9.000...1.

Paper: Angelopoulos, Bates, Fisch, Lei and Schuster, Conformal Risk Control, arXiv 2208.02814; p-value: Bates et al.,
arXiv 2101.02703, and Angelopoulos et al., Learn then Test, arXiv 2110.01052 (Hoeffding and Bentkus).

>>> conformal_quantile([3.0, 1.0, 2.0, 5.0, 4.0, 6.0, 9.0, 8.0, 7.0], probability("alpha", 0.2))
8.0
>>> patients_needed(probability("alpha", 0.05)), patients_needed(probability("alpha", 0.05), probability("delta", 0.1))
(19, 45)
"""

import math
from collections.abc import Sequence
from fractions import Fraction
from numbers import Real

import numpy as np
from scipy.stats import binom

from calibseg.core.types import Array, BadInput

ROUNDING = 1e-12  # of a mean of float64 losses


def probability(name: str, value: object) -> Fraction:
    """A number strictly between 0 and 1, as it is written in decimals."""
    number = _decimal(value)
    if not 0 < number < 1:
        raise BadInput(f"{name} must lie strictly between 0 and 1, not {value!r}")
    return Fraction(repr(number))


def share(name: str, value: object) -> float:
    """A number above 0 and at most 1."""
    number = _decimal(value)
    if not 0 < number <= 1:
        raise BadInput(f"{name} must lie above 0 and be at most 1, not {value!r}")
    return number


def _decimal(value: object) -> float:
    """A number, numpy's as well, as it is written: float32's 0.05 is 0.05. NaN: it is none."""
    return float(str(value)) if isinstance(value, Real) and not isinstance(value, bool) else math.nan


def patients_needed(alpha: Fraction, delta: Fraction | None = None) -> int:
    """The fewest patients of whom a promise at level alpha can be made, with the most careful rule there is."""
    if delta is None:
        return math.ceil(1 / alpha) - 1
    return math.ceil(math.log(delta) / math.log1p(-float(alpha)) - ROUNDING)


def conformal_rank(patients: int, alpha: Fraction) -> int:
    """Which of n ascending numbers is the quantile, counted from 1; n + 1: there are too few."""
    return math.ceil((patients + 1) * (1 - alpha))


def conformal_quantile(values: Sequence[float], alpha: Fraction) -> float:
    """The ceil((n + 1)(1 - alpha))-th smallest number, infinite where there are too few."""
    rank = conformal_rank(len(values), alpha)
    return math.inf if rank > len(values) else float(np.sort(np.asarray(values, float))[rank - 1])


def corrected_risk(mean_loss: Array, patients: int) -> Array:
    """What the mean loss of n patients says about the next one, whose loss may be 1."""
    return (patients * np.asarray(mean_loss) + 1) / (patients + 1)


def tightest_in_mean(mean_loss: Array, patients: int, alpha: Fraction) -> int | None:
    """The first of the sets, ordered from tight to safe, whose expected loss is at most alpha; None: not even the last.

    mean_loss: of the patients, never growing from tight to safe
    """
    good = corrected_risk(mean_loss, patients) <= float(alpha) + ROUNDING
    return int(good.argmax()) if good.any() else None


def tightest_with_confidence(mean_loss: Array, patients: int, alpha: Fraction, delta: Fraction) -> int | None:
    """The tightest set that a walk from the safe end reaches before a p-value exceeds delta; None: not even the last.

    mean_loss: as in `tightest_in_mean`
    """
    accepted = risk_p_value(mean_loss, patients, float(alpha)) <= float(delta) + ROUNDING
    refused = np.flatnonzero(~accepted)
    first = 0 if not len(refused) else int(refused[-1]) + 1
    return first if first < len(accepted) else None


def risk_p_value(mean_loss: Array, patients: int, alpha: float) -> Array:
    """Of the hypothesis that the risk is above alpha, by Hoeffding's and Bentkus' inequalities."""
    risk, back = np.unique(np.clip(np.asarray(mean_loss, float), 0, 1), return_inverse=True)  # steps: few values
    low = np.minimum(risk, alpha)
    with np.errstate(divide="ignore", invalid="ignore"):
        h = np.where(low > 0, low * np.log(low / alpha), 0.0) + (1 - low) * np.log((1 - low) / (1 - alpha))
    bentkus = np.e * binom.cdf(np.ceil(patients * risk - ROUNDING * patients), patients, alpha)
    return np.minimum(np.exp(-patients * h), bentkus)[back]
