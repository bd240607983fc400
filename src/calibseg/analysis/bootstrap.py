r"""Resampling patients: how far a mean could have moved had other patients been scanned.

Cases of one patient are not independent, so patients are drawn with replacement and bring all their cases along. With
s_p the sum and n_p the number of defined values of patient p, and w_p how often p was drawn,

$$ \bar{v}^* = \sum_p w_p s_p \Big/ \sum_p w_p n_p $$

and the interval lies between the 2.5 and 97.5 percentiles of the draws. One draw serves every column of a table, so
columns stay paired. With few patients (say under 20) percentile intervals are somewhat too narrow.

Where the same patients were judged after several trainings (draws of training cases, seeds), trainings are resampled
too, independently of the patients (`crossed_means`): with v_r how often training r was drawn,

$$ \bar{v}^* = \sum_r \sum_p v_r w_p s_{rp} \Big/ \sum_r \sum_p v_r w_p n_{rp} $$

A single training cannot be resampled, so that nothing is then said of others; two or three make intervals too narrow.
Seeds that learnt from the same draw of training cases are not independent either: they come along together.

>>> values = np.array([[0.0], [1.0], [2.0], [3.0]])
>>> low, high = interval(values, ["anna", "anna", "ben", "ben"])       # the draws: anna twice, one each, ben twice
>>> low.tolist(), high.tolist()
([0.5], [2.5])
"""

from collections.abc import Sequence

import numpy as np
from numpy import ndarray as Array

REPEATS = 2000
LEVEL = 0.95


def draws(number: int, repeats: int = REPEATS, seed: int = 0) -> Array:
    """How often each of `number` patients is drawn: int [repeats, number], each row sums to `number`."""
    if not number:  # nothing is defined anywhere: every mean is NaN
        return np.zeros((repeats, 0), np.int64)
    return np.random.default_rng(seed).multinomial(number, np.full(number, 1.0 / number), size=repeats)


def means(values: Array, patients: Sequence[str], repeats: int = REPEATS, seed: int = 0) -> Array:
    """The mean of every column of `values` [cases, columns] in every draw: [repeats, columns]; NaN is left out."""
    sums, counts = _patient_sums(values, patients)
    weights = draws(len(sums), repeats, seed).astype(float)
    with np.errstate(invalid="ignore"):  # a draw without any defined value has no mean
        return (weights @ sums) / (weights @ counts)


def crossed_means(
    values: Array, patients: Sequence[str], together: Sequence[str] | None = None, repeats: int = REPEATS
) -> Array:
    """The mean of every column of `values` [trainings, cases, columns] in every draw of patients and trainings.

    together: a name for each training; those of one name are drawn together. None: each is drawn by itself

    >>> values = np.array([[[0.0], [0.0]], [[1.0], [1.0]]])    # only trainings differ
    >>> sorted(set(crossed_means(values, ["anna", "ben"])[:, 0].tolist()))
    [0.0, 0.5, 1.0]
    >>> sorted(set(crossed_means(values, ["anna", "ben"], together=["draw 0", "draw 0"])[:, 0].tolist()))
    [0.5]
    """
    sums, counts = map(np.stack, zip(*(_patient_sums(training, patients) for training in values), strict=True))
    of_patients = draws(sums.shape[1], repeats, seed=0).astype(float)
    names = [str(number) for number in range(len(values))] if together is None else list(together)
    group = np.unique([names.index(name) for name in names], return_inverse=True)[1]
    of_trainings = draws(group.max() + 1, repeats, seed=1).astype(float)[:, group]
    weighted = (np.einsum("bp,rpc,br->bc", of_patients, part, of_trainings, optimize=True) for part in (sums, counts))
    with np.errstate(invalid="ignore"):
        return np.divide(*weighted)


def _patient_sums(values: Array, patients: Sequence[str]) -> tuple[Array, Array]:
    """The sum and the number of the defined `values` [cases, columns] of each patient: [patients, columns] both."""
    names, owner = np.unique(np.asarray(patients, dtype=str), return_inverse=True)
    defined = ~np.isnan(values)
    sums, counts = np.zeros((2, len(names), values.shape[1]))
    np.add.at(sums, owner, np.where(defined, values, 0.0))
    np.add.at(counts, owner, defined)
    return sums, counts


def ends(drawn: Array) -> tuple[Array, Array]:
    """Lower and upper end of the percentile interval of each column of draws; NaN where nothing is defined."""
    limits = np.full((2, drawn.shape[1]), np.nan)
    defined = ~np.isnan(drawn).all(axis=0)
    tail = 50.0 * (1.0 - LEVEL)
    limits[:, defined] = np.nanpercentile(drawn[:, defined], [tail, 100.0 - tail], axis=0)
    return limits[0], limits[1]


def interval(values: Array, patients: Sequence[str], repeats: int = REPEATS, seed: int = 0) -> tuple[Array, Array]:
    """Lower and upper end of the patient-bootstrap interval of each column's mean; NaN with fewer than two patients."""
    low, high = ends(means(values, patients, repeats, seed))
    _, counts = _patient_sums(values, patients)
    several = (counts > 0).sum(axis=0) > 1
    return np.where(several, low, np.nan), np.where(several, high, np.nan)
