r"""Which method to recommend, chosen without looking at the test cases.

1. A method is dropped if its validation DSC is worse than the best one's by more than the margin 0.005 with 95 %
   confidence, or if in more than 10 % of the cases that have a class it never finds it. With $\bar d$ the mean paired
   difference to the best and $q_{0.05}$ the 5th percentile over draws of patients (paired patient bootstrap), it is
   dropped where $q_{0.05}(\bar d) > 0.005$: noise alone drops nobody.
2. Of the others the smallest mean NLL of all voxels leads. Those whose paired difference to it is at most one standard
   error are its equals. Of equals the one that learnt the fewest parameters after training is recommended (the network
   itself learnt none), then the one with the smaller NLL.

NLL is a proper score over every voxel: over- and under-confidence both raise it. What the chosen method scores on test
is the honest headline. The best value on test is the *oracle's*: nobody could have chosen it beforehand.

Where validation shows neither that the recommended method is within the margin nor that it is not, that is said with
the number of patients that would: $n (1.645\, s / |0.005 - \bar d|)^2$, s the paired standard error with n patients.
A single patient shows nothing: then plain means decide.

Some calibrators may change labels. Where one of them is recommended, the best that keeps them is named as well, by the
same rule: a network with a calibrator that keeps every label, or without one.

>>> import pandas as pd
>>> from calibseg.analysis.validation_cases import KEYS
>>> cases = pd.DataFrame([("heart", "unet", method, f"p{i}", f"p{i}", dsc + i / 100, nll)
...                       for method, dsc, nll in (("ce", 0.90, 0.08), ("mbls", 0.897, 0.06), ("ls", 0.88, 0.05))
...                       for i in range(3)], columns=[*KEYS, "patient", "case", "dsc", "nll"])
>>> choice = recommend(cases)[0]                    # ls has the best NLL, but its DSC is 0.020 below the best
>>> choice.method, round(choice.best_dsc, 3), choice.candidates, choice.patients
('mbls', 0.91, ('ce', 'mbls'), 3)
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy import ndarray as Array

from calibseg.analysis.bootstrap import means
from calibseg.analysis.columns import Frame
from calibseg.analysis.validation_cases import BY

MARGIN = 0.005  # of DSC, below the best
CONFIDENCE = 0.95  # one-sided
Z = 1.6448536269514722  # the normal quantile of it
FOUND = 0.9  # of the cases that have a class


@dataclass(frozen=True)
class Recommendation:
    """The method that validation recommends for one dataset and network. All values are of validation.

    best_dsc: the largest mean
    candidates: whom DSC does not drop, in the order of the table
    equals: whose NLL is the smallest or within one standard error of it, fewest parameters first: the first is chosen
    lost: who was dropped because a class was not found, and in which share of its cases it was
    patients: how many there are
    patients_needed: where that is too few to tell whether the method's DSC is within the margin, how many would do
    keeping: the best of those that keep the network's labels: often the method itself
    """

    dataset: str
    network: str
    method: str
    dsc: float
    nll: float
    best_dsc: float
    candidates: tuple[str, ...]
    equals: tuple[str, ...]
    lost: Mapping[str, float]
    patients: int
    patients_needed: int | None = None
    keeping: str | None = None
    keeping_nll: float = math.nan

    @property
    def keeps_labels(self) -> bool:
        return self.method == self.keeping

    @property
    def remarks(self) -> list[str]:
        """What a reader must know about the choice, in sentences."""
        where = f"{self.dataset}, {self.network}: "
        sentences = []
        if others := [name for name in self.equals if name != self.method]:
            sentences.append(
                f"{where}on validation NLL {', '.join(others)} cannot be told from {self.method} (one paired standard "
                "error), which learnt no more parameters than they did."
            )
        for name, share in self.lost.items():
            sentences.append(f"{where}{name} was not considered: it finds a class in only {share:.0%} of its cases.")
        if self.patients < 2:
            sentences.append(f"{where}a single validation patient shows no difference: plain means decided.")
        elif self.patients_needed:
            sentences.append(
                f"{where}{self.patients} validation patients are too few to show whether the DSC of {self.method} is "
                f"within {MARGIN} of the best; about {self.patients_needed:,} would."
            )
        return sentences


@dataclass(frozen=True)
class Oracle:
    """The method with the smallest NLL on test: a bound, no recommendation."""

    method: str
    nll: float


def recommend(cases: Frame, margin: float = MARGIN) -> list[Recommendation]:
    """One choice for each dataset and network of such cases; columns that say nothing may be left out.

    A method whose DSC or NLL is defined nowhere is not chosen. Where cases have no patient, a method's rows are one.
    """
    blank = {"patient": "", "case": "", "found": 1.0, "keeps_labels": True, "parameters": 0.0}
    cases = cases.assign(**{name: value for name, value in blank.items() if name not in cases})
    recommendations = []
    for (dataset, network), part in cases.groupby(list(BY), sort=False):
        chosen = _Comparison.of(part).recommended(str(dataset), str(network), margin)
        recommendations += [chosen] if chosen else []
    return recommendations


@dataclass(frozen=True)
class _Method:
    """One method beside others: its values of the same cases, NaN where it lacks one, and what is known of it."""

    name: str
    dsc: Array
    nll: Array
    found: float
    keeps_labels: bool
    parameters: float

    @property
    def rank(self) -> tuple[float, float]:
        """Smaller NLL first, then higher DSC."""
        return float(np.nanmean(self.nll)), -float(np.nanmean(self.dsc))


@dataclass(frozen=True)
class _Comparison:
    """Methods side by side on the same cases."""

    methods: list[_Method]  # in the order of the table
    patients: Array  # whose each case is

    @classmethod
    def of(cls, part: Frame) -> "_Comparison":
        by_case = part.groupby(["patient", "case", "method"], observed=True)
        wide = {name: by_case[name].mean().unstack("method") for name in ("dsc", "nll")}
        methods = []
        for row in part.drop_duplicates("method").to_dict("records"):
            name = row["method"]
            dsc, nll = (np.asarray(wide[value].get(name, math.nan), float) for value in ("dsc", "nll"))
            if np.isfinite(dsc).any() and np.isfinite(nll).any():
                properties = float(row["found"]), bool(row["keeps_labels"]), float(row["parameters"])
                methods.append(_Method(str(name), dsc, nll, *properties))
        return cls(methods, np.array([str(patient) for patient, _ in wide["dsc"].index]))

    def recommended(self, dataset: str, network: str, margin: float) -> Recommendation | None:
        lost = [method for method in self.methods if method.found < FOUND - 1e-12]
        lost = lost if len(lost) < len(self.methods) else []  # if everybody loses a class, the rest decides
        considered = [method for method in self.methods if method not in lost]
        if not considered:
            return None
        best = max(considered, key=lambda method: float(np.nanmean(method.dsc)))
        near = [method for method in considered if not self._is_worse(best.dsc - method.dsc, margin)]
        equals, keeping = self._equals(near), self._equals([method for method in near if method.keeps_labels])
        chosen = equals[0]
        return Recommendation(
            dataset,
            network,
            chosen.name,
            -chosen.rank[1],
            chosen.rank[0],
            -best.rank[1],
            tuple(method.name for method in near),
            tuple(method.name for method in equals),
            {method.name: method.found for method in lost},
            len(set(self.patients)),
            self._needed(best.dsc - chosen.dsc, margin),
            keeping[0].name if keeping else None,
            keeping[0].rank[0] if keeping else math.nan,
        )

    def _is_worse(self, gap: Array, margin: float) -> bool:
        """Whether a method's DSC lies below the best by more than the margin, with confidence."""
        if self._error(gap) is None:
            return bool(np.nanmean(gap) > margin + 1e-12)
        drawn = means(gap[:, None], self.patients.tolist())
        return bool(np.nanpercentile(drawn, 100 * (1 - CONFIDENCE)) > margin + 1e-12)

    def _equals(self, methods: list[_Method]) -> list[_Method]:
        """The smallest NLL and what is within one paired standard error of it, fewest parameters first."""
        if not methods:
            return []
        first = min(methods, key=lambda method: method.rank)
        gaps = [method.nll - first.nll for method in methods]
        near = [m for m, gap in zip(methods, gaps, strict=True) if np.nanmean(gap) <= (self._error(gap) or 0.0)]
        return sorted(near, key=lambda method: (method.parameters, *method.rank))

    def _needed(self, gap: Array, margin: float) -> int | None:
        """How many patients would show on which side of the margin a method lies; None where there are enough."""
        error, away = self._error(gap), abs(margin - float(np.nanmean(gap)))
        if error is None or Z * error <= away:
            return None
        return math.ceil(len(set(self.patients)) * (Z * error / max(away, margin / 10)) ** 2)

    def _error(self, gap: Array) -> float | None:
        """The standard error of a mean over cases whose patients are independent; None of fewer than two patients."""
        defined = np.isfinite(gap)
        if len(set(self.patients[defined])) < 2:
            return None
        _, owner = np.unique(self.patients[defined], return_inverse=True)
        sums = np.bincount(owner, gap[defined] - gap[defined].mean())
        return math.sqrt(float((sums**2).sum()) * len(sums) / (len(sums) - 1)) / int(defined.sum())


def oracle(test: Frame, dataset: str, network: str) -> Oracle | None:
    """Who has the smallest mean NLL on test, whatever its DSC; None where nobody has one."""
    part = test[(test["dataset"] == dataset) & (test["network"] == network)].dropna(subset=["nll"])
    if not len(part):
        return None
    best = part.sort_values("nll", kind="stable").iloc[0]
    return Oracle(str(best["method"]), float(best["nll"]))
