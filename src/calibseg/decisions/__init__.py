r"""Decisions: from probabilities to masks, margins and intervals that keep a promise, one file each.

    rules = decisions.fit([decisions.FNR(alpha=0.05)], validation_p, validation_labels, kind="probabilities")
    decided = rules.apply(test_p)[0]                            # one for each case
    decided.masks["fnr 0.05", "1"]                              # of which at most 5 % is missed, on average
    rules.save("rules.json")                                    # calibseg.decisions.load reads it back

The promise is about a new patient and holds for a finite number of labelled ones, as long as all of them come from the
same source (`maths/conformal`). The patient is the unit: what a patient's cases say counts once. Rules are made per
structure; `joint=True` makes all of them hold at once, each at its share of the level.

A decision is a file with one class. It reads what one pass over a case found (`maths/findings`), never the case itself:

    score(findings)          what a labelled case says: a loss at every threshold, or one number; None: nothing
    choose(evidence)         the rule from all patients, as numbers that a JSON file holds
    loss(rule, findings)     what the rule costs on a labelled case: what the promise is about
    numbers(rule, findings)  what the rule says about a new case
    threshold, grown         the mask that it makes, where it makes one
"""

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from math import nan
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

from calibseg.core.registry import lazy
from calibseg.core.types import Array, BadInput, ScoreKind
from calibseg.decisions.maths.conformal import (
    conformal_quantile,
    patients_needed,
    probability,
    tightest_in_mean,
    tightest_with_confidence,
)
from calibseg.decisions.maths.findings import Findings, Part
from calibseg.decisions.maths.thresholds import CELLS, cells, threshold

if TYPE_CHECKING:
    from calibseg.decisions._members import *
    from calibseg.decisions.fitted.rules import Rules
else:
    __getattr__, __dir__ = lazy(__name__)

Rule = Mapping[str, Any]  # the numbers that `choose` found


@dataclass
class Evidence:
    """What labelled patients say about one structure: a sum of losses, or one number of each."""

    structure: str
    alpha: Fraction  # of this structure: with joint rules, its share
    share: int = 1  # of how many structures it is one, with joint rules
    present: bool = False  # whether any case has the structure
    absent: int = 0  # patients in whom the structure says nothing
    patients: int = 0
    total: Any = 0.0
    values: list[float] = field(default_factory=list)
    signed: list[float] = field(default_factory=list)  # the same with their signs


class Decision:
    """What every decision shares.

    alpha: how much may go wrong: a mean loss, or the probability that a promise is broken
    parts: what it needs of the findings, beside the sums
    needs: whether masks alone are enough
    makes: the mask it makes of a case: probabilities above a threshold, the predicted mask grown, or none
    holds: the number that every rule of it holds
    lists: the lists of numbers that every rule of it holds
    contract_options: sets of options that the contract tests try
    """

    alpha: float
    holds: ClassVar[str]
    lists: ClassVar[tuple[str, ...]] = ()
    needs: Literal["probabilities", "masks"] = "probabilities"
    parts: ClassVar[tuple[Part, ...]] = ()
    makes: ClassVar[Literal["threshold", "grown", "none"]] = "none"
    contract_options: ClassVar[tuple[dict[str, Any], ...]] = ({},)

    def score(self, findings: Findings) -> Any:
        """What one labelled case says: an array over thresholds, or a number; None: nothing, as without the organ."""
        raise TypeError(f"{type(self).__name__} does not say what a case is worth")

    def of_patient(self, scores: Sequence[Any]) -> Any:
        """What several cases of one patient say together."""
        raise TypeError(f"{type(self).__name__} does not say what several cases of a patient are worth")

    def add(self, evidence: Evidence, scores: Sequence[Any]) -> None:
        """One more patient, of whom there are these scores; none: the patient lacks the structure."""
        if scores:
            evidence.patients += 1
            self.keep(evidence, self.of_patient(scores))
        else:
            evidence.absent += 1

    def keep(self, evidence: Evidence, score: Any) -> None:
        """What a patient says."""
        raise TypeError(f"{type(self).__name__} does not say what it keeps of a patient")

    def choose(self, evidence: Evidence) -> dict[str, Any]:
        """The rule; refused where there are too few patients."""
        raise TypeError(f"{type(self).__name__} does not say how it chooses")

    def loss(self, rule: Rule, findings: Findings) -> float:
        """What the rule costs on a labelled case, from 0 to 1; NaN where it says nothing."""
        raise TypeError(f"{type(self).__name__} does not say what a rule costs")

    def numbers(self, rule: Rule, findings: Findings) -> dict[str, float]:
        """What the rule says about a case, by the name of a column."""
        return {}

    def threshold(self, rule: Rule) -> float:
        """The least probability of a voxel in the mask (makes = "threshold")."""
        raise TypeError(f"{type(self).__name__} makes no mask from a threshold")

    def grown(self, rule: Rule, predicted: Array, spacing_mm: tuple[float, float, float]) -> Array:
        """The mask, bool [z y x], from the predicted one (makes = "grown")."""
        raise TypeError(f"{type(self).__name__} makes no mask from the predicted one")

    def promise(self, structure: str) -> str:
        """What is promised, in a sentence."""
        raise TypeError(f"{type(self).__name__} promises nothing")

    @property
    def name(self) -> str:
        """The decision's key: its file's name."""
        return type(self).__module__.rsplit(".", 1)[-1]

    @property
    def label(self) -> str:
        """How columns and files call it: `fnr 0.05`."""
        return " ".join([self.name, *(str(value) for value in self.options.values() if value is not None)])

    @property
    def options(self) -> dict[str, Any]:
        """Every option with its value."""
        return {name: getattr(self, name) for name in inspect.signature(type(self)).parameters}

    def refuse_few(self, evidence: Evidence, needed: int) -> None:
        """Too few patients for the level: the sentence says how many are needed."""
        if not evidence.present:
            raise BadInput(f"{self.label}: no case has {evidence.structure!r}, so nothing can be promised about it")
        if evidence.patients < needed:
            raise BadInput(
                f"{self.label}: {evidence.patients} patient{'' if evidence.patients == 1 else 's'} with"
                f" {evidence.structure!r} cannot keep a promise at level {float(evidence.alpha):.4g}: at least {needed}"
                " are needed, or a larger level"
            )


class RiskDecision(Decision):
    """A mask above the threshold that keeps an expected loss at most alpha (conformal risk control).

    alpha: the largest expected loss, between 0 and 1
    confidence: with which probability over the labelled patients the risk is at most alpha; None: on average over them
    """

    makes = "threshold"
    holds = "threshold"
    tight: ClassVar[Literal["high", "low"]]  # where tight sets are: the loss falls from there to the other end
    promised: ClassVar[str]  # of {alpha} and {structure}
    contract_options = ({"alpha": 0.3}, {"alpha": 0.3, "confidence": 0.8})

    def __init__(self, alpha: float = 0.05, confidence: float | None = None) -> None:
        self.alpha = float(probability(f"{self.name}: alpha", alpha))
        self.confidence = None if confidence is None else float(probability(f"{self.name}: confidence", confidence))

    def of_patient(self, scores: Sequence[Any]) -> Any:
        """The mean over the patient's cases."""
        return sum(scores[1:], scores[0]) / len(scores)

    def keep(self, evidence: Evidence, score: Any) -> None:
        evidence.total = evidence.total + score

    def choose(self, evidence: Evidence) -> dict[str, Any]:
        delta = None if self.confidence is None else (1 - probability("confidence", self.confidence)) / evidence.share
        self.refuse_few(evidence, patients_needed(evidence.alpha, delta))
        n, mean = evidence.patients, evidence.total / evidence.patients
        ordered = mean[::-1] if self.tight == "high" else mean
        if delta is None:
            place = tightest_in_mean(ordered, n, evidence.alpha)
        else:
            place = tightest_with_confidence(ordered, n, evidence.alpha, delta)
        assert place is not None  # the safest set loses nothing, and there are enough patients
        cell = CELLS - place if self.tight == "high" else place
        return {"threshold": float(threshold(cell)), "mean_loss": float(mean[cell])}

    def loss(self, rule: Rule, findings: Findings) -> float:
        curve = self.score(findings)
        return nan if curve is None else float(curve[cell_of(rule["threshold"])])

    def threshold(self, rule: Rule) -> float:
        return rule["threshold"]

    def promise(self, structure: str) -> str:
        sure = "" if self.confidence is None else f", with probability {self.confidence:g} over the labelled patients"
        return f"{self.promised.format(alpha=f'{self.alpha:.3g}', structure=structure)} on average over patients{sure}"


class QuantileDecision(Decision):
    """A number that is large enough for a new patient with probability 1 - alpha (split conformal)."""

    holds = "quantile"
    beyond: ClassVar[str] = "not predicted at all"  # what a structure is for which no number is large enough

    def size(self, score: float) -> float:
        """How bad a score is; scores that have a sign say so here."""
        return score

    def of_patient(self, scores: Sequence[Any]) -> float:
        """The worst of the patient's cases: the promise is about all of them."""
        return max(scores, key=self.size)

    def keep(self, evidence: Evidence, score: Any) -> None:
        evidence.values.append(float(self.size(score)))
        evidence.signed.append(float(score))

    def choose(self, evidence: Evidence) -> dict[str, Any]:
        self.refuse_few(evidence, patients_needed(evidence.alpha))
        quantile = conformal_quantile(evidence.values, evidence.alpha)
        if not np.isfinite(quantile):
            number = sum(not np.isfinite(value) for value in evidence.values)
            raise BadInput(
                f"{self.label}: no finite number is large enough for {evidence.structure!r}, which is {self.beyond} in"
                f" {number} of {evidence.patients} patients that have it: leave this decision out, or allow more"
            )
        return {"quantile": quantile}

    def loss(self, rule: Rule, findings: Findings) -> float:
        score = self.score(findings)
        return nan if score is None else float(self.size(score) > rule["quantile"] * (1 + 1e-9))


def cell_of(least: float) -> int:
    """The number of a threshold."""
    return CELLS if least > 1 else int(cells(np.array([least], np.float32))[0]) if least > 0 else 0


def fit(
    decisions: Sequence[Decision],
    scores: Any,
    labels: Any,
    *,
    kind: ScoreKind | Literal["masks"],
    spacing_mm: Any = None,
    patients: Sequence[str] | None = None,
    regions: Mapping[str, tuple[int, ...]] | None = None,
    joint: bool = False,
    **further: Any,
) -> "Rules":
    """Rules from labelled predictions in memory: arrays or tensors, one case, a batch or a list of cases.

    kind: what the scores are: logits, log_probabilities or probabilities; masks: label maps [*space], a list of them
    spacing_mm: size of a voxel (z, y, x), or (y, x) of a picture, which is then 1 mm thick; or a list of one for each
        case; None: 1 mm
    patients: whose each case is; unless said, each case is a patient of its own
    regions: structures made of several classes, by name
    joint: each decision's promises about all structures hold at once: each structure gets its share of the level
    further: activation, ignore_label, batch as in `calibseg.measure`
    """
    from calibseg.decisions.fitted.arrays import fit_arrays

    options = {"spacing_mm": spacing_mm, "patients": patients, **further}
    return fit_arrays(decisions, scores, labels, kind, regions or {}, joint, options)


def load(path: Path | str) -> "Rules":
    """The rules that `Rules.save`, or `calibseg decide fit`, wrote."""
    from calibseg.decisions.fitted.rules import read_rules

    return read_rules(Path(path))
