# Written by scripts/stubs.py (make stubs): do not edit.
import inspect
from collections.abc import Mapping as Mapping
from collections.abc import Sequence as Sequence
from dataclasses import dataclass as dataclass
from dataclasses import field as field
from fractions import Fraction as Fraction
from math import nan as nan
from pathlib import Path as Path
from typing import TYPE_CHECKING as TYPE_CHECKING
from typing import Any as Any
from typing import ClassVar as ClassVar
from typing import Literal as Literal
from typing import cast as cast

import numpy as np

from calibseg.core.registry import lazy as lazy
from calibseg.core.types import Array as Array
from calibseg.core.types import BadInput as BadInput
from calibseg.core.types import ScoreKind as ScoreKind
from calibseg.decisions.fitted.rules import Rules as Rules
from calibseg.decisions.maths.conformal import conformal_quantile as conformal_quantile
from calibseg.decisions.maths.conformal import patients_needed as patients_needed
from calibseg.decisions.maths.conformal import probability as probability
from calibseg.decisions.maths.conformal import tightest_in_mean as tightest_in_mean
from calibseg.decisions.maths.conformal import tightest_with_confidence as tightest_with_confidence
from calibseg.decisions.maths.findings import Findings as Findings
from calibseg.decisions.maths.findings import Part as Part
from calibseg.decisions.maths.thresholds import CELLS as CELLS
from calibseg.decisions.maths.thresholds import cells as cells
from calibseg.decisions.maths.thresholds import threshold as threshold

Rule = Mapping[str, Any]

@dataclass
class Evidence:
    """What labelled patients say about one structure: a sum of losses, or one number of each."""

    structure: str
    alpha: Fraction
    present: bool = False
    absent: int = 0
    patients: int = 0
    total: Any = 0.0
    values: list[float] = field(default_factory=list)
    signed: list[float] = field(default_factory=list)

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

    def score(self, found: Findings) -> Any:
        """What one labelled case says: an array over thresholds, or a number; None: nothing, as without the organ."""

    def of_patient(self, scores: Sequence[Any]) -> Any:
        """What several cases of one patient say together."""

    def add(self, evidence: Evidence, scores: Sequence[Any]) -> None:
        """One more patient, of whom there are these scores; none: the patient lacks the structure."""

    def choose(self, evidence: Evidence) -> dict[str, Any]:
        """The rule; refused where there are too few patients."""

    def loss(self, rule: Rule, found: Findings) -> float:
        """What the rule costs on a labelled case, from 0 to 1; NaN where it says nothing."""

    def numbers(self, rule: Rule, found: Findings) -> dict[str, float]:
        """What the rule says about a case, by the name of a column."""

    def threshold(self, rule: Rule) -> float:
        """The least probability of a voxel in the mask (makes = "threshold")."""

    def grown(self, rule: Rule, predicted: Array, spacing_mm: tuple[float, float, float]) -> Array:
        """The mask, bool [z y x], from the predicted one (makes = "grown")."""

    def promise(self, structure: str) -> str:
        """What is promised, in a sentence."""

    @property
    def name(self) -> str:
        """The decision's key: its file's name."""

    @property
    def label(self) -> str:
        """How columns and files call it: `fnr 0.05`."""

    @property
    def options(self) -> dict[str, Any]:
        """Every option with its value."""

    def refuse_few(self, evidence: Evidence, needed: int) -> None:
        """Too few patients for the level: the sentence says how many are needed."""

class RiskDecision(Decision):
    """A mask above the threshold that keeps an expected loss at most alpha (conformal risk control).

    alpha: the largest expected loss, between 0 and 1
    confidence: with which probability over the labelled patients the risk is at most alpha; None: on average over them
    """

    makes = "threshold"
    holds = "threshold"
    tight: ClassVar[Literal["high", "low"]]
    promised: ClassVar[str]
    contract_options = ({"alpha": 0.3}, {"alpha": 0.3, "confidence": 0.8})
    alpha: float
    confidence: float | None

    def __init__(self, alpha: float = 0.05, confidence: float | None = None) -> None: ...
    def of_patient(self, scores: Sequence[Any]) -> Any:
        """The mean over the patient's cases."""

    def add(self, evidence: Evidence, scores: Sequence[Any]) -> None: ...
    def choose(self, evidence: Evidence) -> dict[str, Any]: ...
    def loss(self, rule: Rule, found: Findings) -> float: ...
    def threshold(self, rule: Rule) -> float: ...
    def promise(self, structure: str) -> str: ...

class QuantileDecision(Decision):
    """A number that is large enough for a new patient with probability 1 - alpha (split conformal)."""

    holds = "quantile"

    def size(self, score: float) -> float:
        """How bad a score is; scores that have a sign say so here."""

    def of_patient(self, scores: Sequence[Any]) -> float:
        """The worst of the patient's cases: the promise is about all of them."""

    def add(self, evidence: Evidence, scores: Sequence[Any]) -> None: ...
    def choose(self, evidence: Evidence) -> dict[str, Any]: ...
    def loss(self, rule: Rule, found: Findings) -> float: ...

def cell_of(least: float) -> int:
    """The number of a threshold."""

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
) -> Rules:
    """Rules from labelled predictions in memory: arrays or tensors, one case, a batch or a list of cases.

    kind: what the scores are: logits, log_probabilities or probabilities; masks: label maps [*space], a list of them
    spacing_mm: size of a voxel (z, y, x), or a list of one for each case; None: 1 mm
    patients: whose each case is; unless said, each case is a patient of its own
    regions: structures made of several classes, by name
    joint: all structures and decisions together: each gets its share of the level
    further: activation, ignore_label, batch as in `calibseg.measure`
    """

def load(path: Path | str) -> Rules:
    """The rules that `Rules.save`, or `calibseg decide fit`, wrote."""

from calibseg.decisions.fnr import FNR as FNR
from calibseg.decisions.fpr import FPR as FPR
from calibseg.decisions.inner import Inner as Inner
from calibseg.decisions.margin import Margin as Margin
from calibseg.decisions.volume import Volume as Volume
