"""The rules that decisions made, for every structure: from cases, on new cases, and in a file that a person can read.

    rules.json    decisions, options, the numbers, on which cases and patients        format calibseg-rules/1

A patient's cases follow each other, so that only one patient's scores are in memory and what is kept does not grow with
the number of cases.
"""

import hashlib
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypedDict

from calibseg.core import files, registry
from calibseg.core.ids import check_id
from calibseg.core.types import Activation, Array, BadInput
from calibseg.decisions import Decision, Evidence
from calibseg.decisions.maths.findings import CasePass, Findings, Part, Structure

KIND = "rules"
Source = Literal["probabilities", "masks"]  # what a rule was fitted on, and is applied to


class StructureRule(NamedTuple):
    """One decision about one structure."""

    decision: Decision
    structure: str
    numbers: dict[str, Any]
    patients: int
    absent: int
    alpha: float


class FoundCase(NamedTuple):
    """What one pass found in a labelled case, and whose it is."""

    case: str
    patient: str
    findings: Mapping[str, Findings]


@dataclass(frozen=True)
class Rules:
    """Every rule, the structures they are about, and the cases they were fitted on."""

    rules: tuple[StructureRule, ...]
    structures: tuple[Structure, ...]
    source: Source
    activation: Activation = "softmax"
    joint: bool = False
    fitted_on: Mapping[str, Any] = field(default_factory=dict)
    names: Mapping[str, str] = field(default_factory=dict)  # label -> where the decision is found, if it is a file

    @property
    def decisions(self) -> list[Decision]:
        """Each decision once."""
        return list({id(rule.decision): rule.decision for rule in self.rules}.values())

    @property
    def thresholds(self) -> dict[tuple[str, str], float]:
        """(decision, structure) -> the least probability of a voxel in its mask."""
        wanted = [rule for rule in self.rules if rule.decision.makes == "threshold"]
        return {(rule.decision.label, rule.structure): rule.decision.threshold(rule.numbers) for rule in wanted}

    def masks(self, passed: CasePass, spacing_mm: tuple[float, float, float]) -> dict[tuple[str, str], Array]:
        """(decision, structure) -> mask, bool [z y x], of a case that was passed over with `thresholds`."""
        made = dict(passed.above)
        for rule in self.rules:
            if rule.decision.makes == "grown":
                predicted = passed.predicted[rule.structure]
                made[rule.decision.label, rule.structure] = rule.decision.grown(rule.numbers, predicted, spacing_mm)
        return made

    def numbers(self, findings: Mapping[str, Findings]) -> dict[str, dict[str, dict[str, float]]]:
        """structure -> decision -> what it says about a case, and where labels are known its loss."""
        by_structure: dict[str, dict[str, dict[str, float]]] = {one.name: {} for one in self.structures}
        for rule in self.rules:
            own = findings[rule.structure]
            numbers = rule.decision.numbers(rule.numbers, own)
            if own.true is not None:
                numbers = {**numbers, "loss": rule.decision.loss(rule.numbers, own)}
            by_structure[rule.structure][rule.decision.label] = numbers
        return by_structure

    def apply(self, scores: Any, *, kind: str | None = None, spacing_mm: Any = None, **further: Any) -> list[Any]:
        """What the rules say about cases in memory: a `Decided` of each; see `calibseg.decisions.fit`."""
        from calibseg.decisions.fitted.arrays import apply_arrays

        return apply_arrays(self, scores, kind, {"spacing_mm": spacing_mm, **further})

    def save(self, path: Path | str) -> Path:
        """Write them as JSON."""
        path = Path(path)
        rows = [
            {
                "decision": self.names.get(rule.decision.label, rule.decision.name),
                "options": rule.decision.options,
                "structure": rule.structure,
                "promise": rule.decision.promise(rule.structure),
                "patients": rule.patients,
                "absent": rule.absent,
                "alpha": rule.alpha,
                "numbers": rule.numbers,
            }
            for rule in self.rules
        ]
        content = {
            "source": self.source,
            "activation": self.activation,
            "joint": self.joint,
            "structures": [one._asdict() for one in self.structures],
            "rules": rows,
            "fitted_on": dict(self.fitted_on),
        }
        files.write_json(path, KIND, {**content, "mark": _mark(content)})
        return path


def parts_of(decisions: Iterable[Decision]) -> set[Part]:
    """What a pass over a labelled case must count for them."""
    return {part for one in decisions for part in one.parts}


def check_decisions(decisions: Sequence[Decision], source: Source) -> None:
    """Refuse no decision, the same twice, and one that needs probabilities where there are masks only."""
    if not decisions:
        raise BadInput("nothing is to be decided: name a risk, a margin, a volume or another decision")
    labels = [one.label for one in decisions]
    for label in labels:
        if labels.count(label) > 1:
            raise BadInput(f"the decision {label!r} is asked for twice")
    for one in decisions:
        if source == "masks" and one.needs == "probabilities":
            raise BadInput(f"{one.label} needs probabilities, and masks alone have none: leave it out, or give those")


def fit_rules(
    decisions: Sequence[Decision],
    cases: Iterable[FoundCase],
    structures: Sequence[Structure],
    source: Source = "probabilities",
    joint: bool = False,
) -> Rules:
    """Rules from what passes over labelled cases found; the cases of a patient must follow each other."""
    check_decisions(decisions, source)
    names = [structure.name for structure in structures]
    if twice := [name for name in names if names.count(name) > 1]:
        raise BadInput(f"two structures are called {twice[0]!r}: give the region a name of its own")
    share = len(structures) if joint else 1
    kept = {
        (one.label, structure.name): Evidence(structure.name, Fraction(repr(one.alpha)) / share, share)
        for one in decisions
        for structure in structures
    }
    ids: list[str] = []
    patients: dict[str, None] = {}
    scores: dict[tuple[str, str], list[Any]] = {}

    def end_patient() -> None:
        for one in decisions:
            for structure in structures:
                one.add(kept[one.label, structure.name], scores.get((one.label, structure.name), []))
        scores.clear()

    for case in cases:
        if case.patient not in patients:
            if patients:
                end_patient()
            patients[case.patient] = None
        elif case.patient != next(reversed(patients)):
            raise BadInput(f"the cases of patient {case.patient!r} do not follow each other: sort them by patient")
        ids.append(case.case)
        for one in decisions:
            for structure in structures:
                findings, key = case.findings[structure.name], (one.label, structure.name)
                kept[key].present |= bool(findings.true)
                score = one.score(findings)
                if score is not None:
                    scores.setdefault(key, []).append(score)
    if patients:
        end_patient()
    rules = []
    for one in decisions:
        for structure in structures:
            evidence = kept[one.label, structure.name]
            counts = (evidence.patients, evidence.absent, float(evidence.alpha))
            rules.append(StructureRule(one, structure.name, one.choose(evidence), *counts))
    fitted_on = {"cases": ids, "patients": list(patients)}
    return Rules(tuple(rules), tuple(structures), source, joint=joint, fitted_on=fitted_on)


class _Structure(TypedDict):
    name: str
    channels: list[int]
    labels: list[int]


class _Row(TypedDict):
    decision: str
    options: dict[str, Any]
    structure: str
    patients: int
    absent: int
    alpha: float
    numbers: dict[str, Any]


class _FittedOn(TypedDict):
    cases: list[str]
    patients: list[str]


class _File(TypedDict):
    source: Source
    activation: Activation
    joint: bool
    structures: list[_Structure]
    rules: list[_Row]
    fitted_on: _FittedOn
    mark: str


def read_rules(path: Path) -> Rules:
    """What `Rules.save` wrote; anything else, and what was changed since, is refused."""
    content = files.read_json(path, KIND, _File)
    mark = content.pop("mark")
    if mark != _mark(content):
        raise BadInput(f"{path}: the rules were changed after they were written; fit them again")
    for one in content["structures"]:
        check_id(one["name"], "name of a structure", path)
        if not (one["channels"] and one["labels"]) or min(*one["channels"], *one["labels"]) < 0:
            raise BadInput(f"{path}: the structure {one['name']!r} has no channels or labels, or negative ones")
    if not (content["rules"] and content["structures"]):
        raise BadInput(f"{path}: holds no rules")
    structures = tuple(
        Structure(one["name"], tuple(one["channels"]), tuple(one["labels"])) for one in content["structures"]
    )
    built: dict[str, Decision] = {}
    names: dict[str, str] = {}
    rules = []
    for row in content["rules"]:
        key = json.dumps([row["decision"], row["options"]], sort_keys=True)
        one = built.setdefault(key, registry.build("decisions", row["decision"], row["options"], path))
        names[one.label] = row["decision"]
        held = row["numbers"].get(one.holds)
        if row["structure"] not in {known.name for known in structures} or not _is_finite(held, 0):
            raise BadInput(f"{path}: a rule of {one.label} is about no known structure or holds no {one.holds}")
        for name in one.lists:
            values = row["numbers"].get(name)
            if not values or not isinstance(values, list) or not all(_is_finite(value, -math.inf) for value in values):
                raise BadInput(f"{path}: a rule of {one.label} holds no numbers as its {name}")
        numbers = (row["numbers"], row["patients"], row["absent"], row["alpha"])
        rules.append(StructureRule(built[key], row["structure"], *numbers))
    circumstances = (content["source"], content["activation"], content["joint"], content["fitted_on"], names)
    return Rules(tuple(rules), structures, *circumstances)


def _is_finite(value: Any, least: float) -> bool:
    return isinstance(value, int | float) and least <= value < math.inf and abs(value) < 1e300


def _mark(content: Mapping[str, Any]) -> str:
    """A hash of the rules."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]
