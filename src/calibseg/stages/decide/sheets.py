"""What the rules say, for people: a sheet of each case and of all, the cases to look at first on top.

The order is that of the lowest soft Dice confidence of a case's structures; a structure that is not predicted at all
counts as 0. Masks without probabilities have no confidence and no order.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict

import numpy as np

from calibseg.core import files
from calibseg.core.types import Array
from calibseg.decisions.fitted.rules import Rules
from calibseg.decisions.maths.findings import CasePass, Findings
from calibseg.io.predictions import PredictionFiles
from calibseg.runs.folders import DecisionFolder

KIND = "decided"


@dataclass(frozen=True)
class Sheet:
    """Every case, the first to look at first, and what the rules cost where labels are known.

    observed: a row for each rule: decision, structure, patients, mean loss, the level that was promised
    """

    output: Path
    cases: list[dict[str, Any]]
    observed: list[dict[str, Any]]
    rules: Rules

    def for_page(self, title: str) -> tuple[list[str], dict[str, Any]]:
        """The promises in words, and what a page says about the rules."""
        promises = [rule.decision.promise(rule.structure) for rule in self.rules.rules]
        facts = {"title": title, "joint": self.rules.joint, "patients": len(self.rules.fitted_on["patients"])}
        return promises, facts


class _CaseSheet(TypedDict):
    """What a reader needs of a case's own sheet."""

    key: str
    case: str
    patient: str
    structures: dict[str, dict[str, Any]]
    masks: list[str]


def case_sheet(
    rules: Rules, one: PredictionFiles, passed: CasePass, masks: Mapping[tuple[str, str], Array]
) -> dict[str, Any]:
    """What was found in a case and what the rules say about it; None where a number is undefined."""
    by_structure = rules.numbers(passed.findings)
    for (label, structure), mask in masks.items():
        voxels, findings = int(np.count_nonzero(mask)), passed.findings[structure]
        by_structure[structure][label]["mask_ml"] = voxels * findings.voxel_ml
        if findings.predicted:
            by_structure[structure][label]["stretch"] = voxels / findings.predicted
    structures = {
        name: {**_plain(findings), "rules": {label: _finite(numbers) for label, numbers in by_structure[name].items()}}
        for name, findings in passed.findings.items()
    }
    return {"case": one.case, "patient": one.patient, "structures": structures}


def _plain(findings: Findings) -> dict[str, Any]:
    numbers = {
        "voxels": findings.predicted,
        "volume_ml": findings.predicted * findings.voxel_ml,
        "expected_volume_ml": findings.mass * findings.voxel_ml,
        "mean_confidence": findings.inside / findings.predicted if findings.predicted else math.nan,
        "soft_dice_confidence": findings.soft_dice_confidence,
        "uncertain_share": findings.uncertain / findings.possible if findings.possible else math.nan,
    }
    if findings.true is not None:
        numbers["true_volume_ml"] = findings.true * findings.voxel_ml
    return _finite(numbers)


def _finite(numbers: Mapping[str, float]) -> dict[str, float | None]:
    return {name: value if math.isfinite(value) else None for name, value in numbers.items()}


def write_case_sheet(output: Path, sheet: Mapping[str, Any]) -> None:
    files.write_json(DecisionFolder(output).case(sheet["case"]), KIND, sheet)


def read_case_sheet(output: Path, case: str) -> dict[str, Any] | None:
    """What an earlier call said about a case; None where there is nothing, or nothing that can be read."""
    path = DecisionFolder(output).case(case)
    if not path.is_file():
        return None
    try:
        return files.read_json(path, KIND, _CaseSheet)
    except ValueError:
        return None


def write_sheet(output: Path, rules: Rules, sheets: Sequence[dict[str, Any]]) -> Sheet:
    """All cases in one JSON and one CSV file."""
    ordered = sorted(sheets, key=lambda sheet: (_confidence(sheet), sheet["case"]))
    cases = [
        {"look_first": place if _confidence(sheet) < math.inf else None, **sheet}
        for place, sheet in enumerate(ordered, start=1)
    ]
    observed = _observed(rules, cases)
    promises = [
        {"decision": rule.decision.label, "structure": rule.structure, "promise": rule.decision.promise(rule.structure)}
        for rule in rules.rules
    ]
    kept = [{name: value for name, value in case.items() if name != "key"} for case in cases]
    folder = DecisionFolder(output)
    files.write_json(folder.sheet, KIND, {"promises": promises, "observed": observed, "cases": kept})
    _write_table(folder.table, cases)
    return Sheet(output, cases, observed, rules)


def _confidence(sheet: Mapping[str, Any]) -> float:
    """The lowest of a case's structures; infinite where there are no probabilities."""
    confidences = [structure["soft_dice_confidence"] for structure in sheet["structures"].values()]
    known = [structure["expected_volume_ml"] is not None for structure in sheet["structures"].values()]
    return min((0.0 if value is None else value for value in confidences), default=math.inf) if any(known) else math.inf


def _observed(rules: Rules, cases: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The mean loss over patients, each of whom counts once, where labels are known."""
    rows = []
    for rule in rules.rules:
        losses: dict[str, list[float]] = {}
        for case in cases:
            loss = case["structures"][rule.structure]["rules"][rule.decision.label].get("loss")
            if loss is not None:
                losses.setdefault(case["patient"], []).append(loss)
        if losses:
            join = np.mean if rule.decision.makes == "threshold" else np.max
            mean = float(np.mean([join(values) for values in losses.values()]))
            row = {"decision": rule.decision.label, "structure": rule.structure, "patients": len(losses)}
            rows.append({**row, "mean_loss": mean, "promised": rule.alpha})
    return rows


def _write_table(path: Path, cases: Sequence[Mapping[str, Any]]) -> None:
    """One row for each case and structure; the columns of a rule begin with its name."""
    rows = []
    for case in cases:
        for name, structure in case["structures"].items():
            row = {key: case[key] for key in ("look_first", "case", "patient")} | {"structure": name}
            row |= {key: value for key, value in structure.items() if key != "rules"}
            for label, numbers in structure["rules"].items():
                row |= {f"{label} {key}": value for key, value in numbers.items()}
            rows.append(row)
    columns = list(dict.fromkeys(key for row in rows for key in row))
    files.write_csv(path, columns, ([row.get(column) for column in columns] for row in rows))
