"""The first screen of a report: the recommended method and why, what was checked, failures first, class by class.

Which method is recommended is decided in analysis/recommendation.py; here stands what the page says about it.

A check states a fact with its numbers and is passed, a warning or a failure. A method that misses a class is never
recommended silently: a failed check about the recommended method stands above its name.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from calibseg.analysis import bootstrap
from calibseg.analysis.case_values import evaluated_classes, method_names
from calibseg.analysis.columns import Frame, rows_of_key, split_key
from calibseg.analysis.evidence import Evidence
from calibseg.analysis.recommendation import MARGIN, Recommendation
from calibseg.report.html.groups import ComparisonGroup
from calibseg.report.html.tables import Cell, Head, head_of, number
from calibseg.report.palette import shown_method

Status = Literal["fail", "warn", "pass"]
ORDER: tuple[Status, ...] = ("fail", "warn", "pass")
PER_CLASS = ("dsc", "hd95", "ece@predicted", "volume_error")
FEW, TOO_FEW = 20, 5  # patients whose scores choose a method
LARGE = 0.1  # an ECE on predicted foreground that a reader must not overlook
NAMED = 4  # methods that a sentence names, before it counts


@dataclass(frozen=True)
class Check:
    """One fact that a reader must know before believing the rest."""

    status: Status
    name: str
    says: str


@dataclass(frozen=True)
class ClassRow:
    """How one method does in one class: in how many predictions it finds it, and means over cases."""

    name: str
    found: int
    of: int
    cells: tuple[Cell | None, ...]

    @property
    def status(self) -> Status:
        return "fail" if 2 * self.found < self.of else "warn" if self.found < self.of else "pass"


@dataclass(frozen=True)
class Verdict:
    """What the first screen says about one dataset and network."""

    place: str
    method: str  # the recommended one, else the best ranked: whom checks and classes are about
    alone: bool  # no other method to choose from
    checks: tuple[Check, ...]
    columns: tuple[Head, ...]
    classes: tuple[ClassRow, ...]

    @property
    def failed(self) -> tuple[Check, ...]:
        return tuple(check for check in self.checks if check.status == "fail")


def verdict(group: ComparisonGroup, method: str, choice: Recommendation | None, evidence: Evidence) -> Verdict:
    """The checks of one group, failures first, and its method of choice class by class."""
    columns, classes = class_rows(group, method)
    alone = len(group.methods) == 1
    checks = [
        *_classes_found(group, method, classes),
        _seeds(group),
        *([_validation(group, choice, evidence)] if choice or not alone else []),
        _complete(group, evidence),
        _calibration(group, method),
    ]
    ordered = sorted(checks, key=lambda check: ORDER.index(check.status))
    return Verdict(group.name, method, alone, tuple(ordered), columns, classes)


def why(choice: Recommendation) -> str:
    """The sentence below the name of the recommended method: how validation chose it."""
    own_nll, own_dsc = number(choice.nll), number(choice.dsc)
    if len(choice.candidates) == 1:
        return (
            f"Every other method's validation DSC is shown to be more than {MARGIN} below its own ({own_dsc});"
            f" its validation NLL is {own_nll}."
        )
    first = f"Smallest validation NLL ({own_nll})"
    if len(choice.equals) > 1:
        first = (
            f"The fewest learnt parameters of the {len(choice.equals)} methods that share the smallest validation NLL"
            f" (its own: {own_nll})"
        )
    return (
        f"{first} among the {len(choice.candidates)} methods whose validation DSC is not shown to be more than {MARGIN}"
        f" below the best ({number(choice.best_dsc)}; its own: {own_dsc})."
    )


def class_rows(group: ComparisonGroup, method: str) -> tuple[tuple[Head, ...], tuple[ClassRow, ...]]:
    """DSC, HD95, ECE and volume error of each class that counts, and in how many predictions it is found."""
    rows = _by_class(group)
    mine = rows[rows["method"] == method]
    columns = [head for key in PER_CLASS if (head := head_of(key, mine)) is not None]
    classes = []
    for name in dict.fromkeys(mine.loc[mine["metric"] == "dsc", "class"]):
        part = mine[mine["class"] == name]
        dsc = _where_present(part)
        cells = tuple(_cell(part, column.key) for column in columns)
        classes.append(ClassRow(str(name), int((dsc > 0).sum()), len(dsc), cells))
    return tuple(columns), tuple(classes)


def _where_present(part: Frame) -> Frame:
    """The DSC of the cases that have the class, as volume_error tells them; without it of those that have a DSC."""
    keys = ["seed", "case"]
    dsc, volumes = (part.loc[part["metric"] == name, [*keys, "value"]].dropna() for name in ("dsc", "volume_error"))
    return (dsc.merge(volumes[keys], on=keys) if len(volumes) else dsc)["value"]


def _by_class(group: ComparisonGroup) -> Frame:
    """Case rows of the metrics shown, in the classes or regions that the dataset judges."""
    metrics = [split_key(key)[0] for key in PER_CLASS]
    rows = group.table.rows
    rows = rows[(rows["scope"] == "case") & rows["metric"].isin(metrics) & (rows["class"] != "all")]
    judged = evaluated_classes(group.table.rules).get(group.dataset)
    rows = rows[rows["class"].isin(list(judged))] if judged else rows
    return rows.assign(method=method_names(rows).astype(str))


def _cell(part: Frame, key: str) -> Cell | None:
    """The mean over cases and its interval; `defined` of `cases` where some value is undefined."""
    rows = rows_of_key(part, key)
    if not len(rows):
        return None
    by_case = rows.groupby(["patient", "case"], sort=False, observed=True)["value"].mean()
    values = by_case.to_numpy()
    known = ~np.isnan(values)
    if not known.any():
        return Cell(float("nan"), cases=len(values))
    low, high = bootstrap.interval(values[:, None], list(by_case.index.get_level_values(0)))
    return Cell(float(values[known].mean()), float(low[0]), float(high[0]), cases=len(values), defined=int(known.sum()))


def _classes_found(group: ComparisonGroup, method: str, classes: Sequence[ClassRow]) -> list[Check]:
    """The classes that the method of choice finds, and who else misses one."""
    if not classes:
        return [Check("warn", "Every class is found", "there are no DSC values of single classes to tell")]
    counts = ", ".join(f"{_class(row.name)} in {row.found} of {row.of}" for row in classes)
    worst: Status = next(status for status in ORDER if status in {row.status for row in classes})
    named = shown_method(method)
    missed = [_class(row.name) for row in classes if row.status == "fail"]
    text = f"{named} misses {' and '.join(missed)}: " if missed else f"{named} finds "
    checks = [Check(worst, "Every class is found", f"{text}{counts} predictions (DSC above 0)")]
    parts = _by_class(group).groupby(["method", "class"], sort=False, observed=True)
    missing = [name for (name, _), part in parts if (_where_present(part) > 0).mean() < 0.5]
    others = [str(name) for name in dict.fromkeys(missing) if name != method]
    if others:
        says = f"{_some(others)} find a class in under half of the predictions that have it"
        checks.append(Check("warn", "Other methods find every class", says))
    return checks


def _class(name: str) -> str:
    return f"class {name}" if name.isdecimal() else name


def _some(methods: Sequence[str]) -> str:
    named = ", ".join(map(shown_method, methods[:NAMED]))
    return named if len(methods) <= NAMED else f"{named} and {len(methods) - NAMED} more"


def _seeds(group: ComparisonGroup) -> Check:
    rows = group.table.rows[["loss", "calibrator", "variant", "seed"]].drop_duplicates()
    counts = rows.assign(method=method_names(rows).astype(str)).groupby("method", sort=False)["seed"].nunique()
    most, name = int(counts.max()), "Equal seeds per method"
    fewer = [f"{shown_method(str(who))} {count}" for who, count in counts.items() if count < most]
    if fewer:
        shown = ", ".join(fewer[:NAMED]) + (", ..." if len(fewer) > NAMED else "")
        return Check("fail", name, f"most have {most}, but {shown}: an average over fewer seeds is a noisier one")
    if most == 1:
        return Check("warn", name, "one seed each: a difference may be that of two trainings of the same method")
    return Check("pass", name, f"{most} seeds for each of {len(counts)} methods")


def _validation(group: ComparisonGroup, choice: Recommendation | None, evidence: Evidence) -> Check:
    name, patients, unit = "Enough validation cases for the choice", 0, "patients"
    if evidence.validation is not None:
        rows = evidence.validation.rows
        rows = rows[(rows["dataset"] == group.dataset) & (rows["network"] == group.network)]
        patients = int(rows.loc[rows["scope"] == "case", "patient"].nunique())
    if not patients and choice is not None:  # cross-fitting alone tells of them, and does not say whose they are
        patients, unit = choice.patients, "cases"
    if not patients:
        return Check("fail", name, "no scores of validation cases: a choice by test cases would flatter itself")
    among = f" among {len(group.methods)} methods" if choice else ""
    status: Status = "fail" if patients < TOO_FEW else "warn" if patients < FEW else "pass"
    more = "" if status == "pass" else f"; with fewer than {FEW} another draw of patients may choose another method"
    return Check(status, name, f"{patients} validation {unit}{among}{more}")


def _complete(group: ComparisonGroup, evidence: Evidence) -> Check:
    name = "Score tables are complete"
    if group.means is None:
        return Check("fail", name, "methods were scored on different cases, so they are neither compared nor ranked")
    faults = len(evidence.warnings)
    lacking = group.means[group.means["defined"] < group.means["cases"]]
    if faults or len(lacking):
        sentences = [f"{faults} tables or runs left out or unfinished (see Caveats)"] if faults else []
        if len(lacking):
            who = _some(list(dict.fromkeys(map(str, lacking["method"]))))
            sentences.append(f"{who} are undefined in cases where others have a value")
        return Check("warn", name, "; ".join(sentences))
    who = "1 method on" if len(group.methods) == 1 else f"{len(group.methods)} methods on the same"
    return Check("pass", name, f"{who} {int(group.means['cases'].max())} cases")


def _calibration(group: ComparisonGroup, method: str) -> Check:
    """The calibration error where the method predicts something, and on which side it errs."""
    name = "Calibration on predicted voxels"
    if group.means is None or "ece@predicted" not in group.keys:
        return Check("fail", name, "not measured: score with --voxels predicted, which is what a user of a mask sees")
    rows = group.means[(group.means["metric"] == "ece@predicted") & (group.means["method"] == method)]
    value = float(rows["mean"].iloc[0]) if len(rows) else float("nan")
    signed = rows_of_key(group.table.rows, "signed_gap@predicted")
    signed = signed[signed["class"] == "all"]
    gap = signed.loc[(method_names(signed) == method).to_numpy() & (signed["scope"] == "case").to_numpy(), "value"]
    side = "" if gap.isna().all() else ", over-confident" if gap.mean() > 0 else ", under-confident"
    shown = f"ECE {number(value)} (case mean) on predicted foreground{side}"
    return Check("pass" if value <= LARGE else "warn", name, f"{shown_method(method)}: {shown}")


def reasons(verdicts: Iterable[Verdict]) -> list[str]:
    """The failed checks as sentences, for whoever reads no page."""
    return [f"{one.place}: {check.name}: {check.says}" for one in verdicts for check in one.failed]
