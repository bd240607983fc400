"""The stage that decides: rules fitted on labelled cases, then masks, margins and intervals for new ones.

    rules.json                            what was promised, the numbers, and on which patients they were fitted
    OUT/sheet.csv, OUT/sheet.json         a row for each case and structure; the cases to look at first come first
    OUT/cases/CASE.json                   the same of one case
    OUT/masks/DECISION/STRUCTURE/CASE.nii.gz   where the case lies (of a run: where its prepared case lies)

Rules are refused on the patients that they were fitted on, and where a calibrator or network is not the one that they
were fitted with. What a call has finished is not done again.
"""

import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from calibseg.calibrators.fitted.cases import refuse_fitted
from calibseg.core import files
from calibseg.core.hashing import file_fingerprint, fingerprint
from calibseg.core.types import BadInput, Prediction, Progress
from calibseg.decisions import Decision
from calibseg.decisions.fitted.rules import FoundCase, Rules, check_decisions, fit_rules, parts_of, read_rules
from calibseg.decisions.maths.findings import CasePass, Structure, pass_over
from calibseg.io.nifti_writer import write_mask
from calibseg.io.predictions import PredictionFiles
from calibseg.runs.folders import DecisionFolder
from calibseg.stages.decide.cases import Cases, CaseSource, open_cases
from calibseg.stages.decide.findings_file import load_findings, save_findings
from calibseg.stages.decide.sheets import Sheet, case_sheet, read_case_sheet, write_case_sheet, write_sheet
from calibseg.stages.score.workers import program


@dataclass(frozen=True)
class Fitted:
    """The rules and where they were written."""

    rules: Rules
    path: Path
    resumed: int  # cases that an earlier, interrupted call had read


def decide_fit(
    source: CaseSource,
    decisions: Sequence[Decision],
    output: Path | str,
    *,
    joint: bool = False,
    names: dict[str, str] | None = None,
    progress: Progress = lambda done, total, case: None,
) -> Fitted:
    """Fit rules on labelled cases and write them.

    joint: the promises about all structures hold at once: each gets its share of the level
    names: label of a decision -> the Python file that it came from
    """
    output = Path(output)
    files.check_output(output, (".json",))
    if output.is_file():
        read_rules(output)  # what is no rules.json, such as a run's own file, is not written over
    check_decisions(decisions, "masks" if source.masks else "probabilities")
    cases = open_cases(source, to_fit=True)
    structures = cases.structures(cases.open(cases.cases[0]))
    cache = output.with_name(f".{output.stem}.unfinished")
    resumed: list[str] = []
    try:
        findings = _findings(cases, structures, decisions, cache, resumed, progress)
        rules = fit_rules(decisions, findings, structures, cases.source, joint)
    except BadInput:
        shutil.rmtree(cache, ignore_errors=True)  # only a call that was interrupted goes on where it stopped
        raise
    stored = [file_fingerprint(one.files[0]) for one in cases.cases]
    facts = {**rules.fitted_on, **cases.facts, "ignore_label": cases.names.ignore_label, "files": stored}
    rules = replace(rules, activation=cases.cases[0].activation, fitted_on=facts, names=names or {})
    rules.save(output)
    shutil.rmtree(cache, ignore_errors=True)
    return Fitted(rules, output, len(resumed))


def decide_apply(
    rules: Path | str,
    source: CaseSource,
    output: Path | str,
    *,
    masks: bool = True,
    progress: Progress = lambda done, total, case: None,
) -> Sheet:
    """Apply rules to cases: the sheet of what they say, and the masks.

    masks: whether masks are written
    """
    path, output = Path(rules), Path(output)
    known = read_rules(path)
    if output.exists() and not output.is_dir():
        raise BadInput(f"{output}: is a file, expected the name of a folder to write into")
    cases = open_cases(source, to_fit=False)
    _refuse(known, cases, path)
    first = cases.open(cases.cases[0])
    if cases.names.classes or cases.names.regions:
        _refuse_other_structures(known, cases.structures(first), path)
    files.remove_temporary(output)
    sheets = []
    progress(0, len(cases.cases), "")
    for number, one in enumerate(cases.cases, start=1):
        sheets.append(_applied(known, file_fingerprint(path), cases, one, output, masks))
        progress(number, len(cases.cases), one.case)
    return write_sheet(output, known, sheets)


def _findings(
    cases: Cases,
    structures: Sequence[Structure],
    decisions: Sequence[Decision],
    cache: Path,
    resumed: list[str],
    progress: Progress,
) -> Iterator[FoundCase]:
    """One pass over each case, in the order of patients; what an interrupted call has read is not read again."""
    parts = parts_of(decisions)
    progress(0, len(cases.cases), "")
    for number, one in enumerate(cases.cases, start=1):
        key = fingerprint(
            [one.stated, [list(s) for s in structures], sorted(parts), str(cases.names), program()], one.all_files
        )
        kept = cache / f"{one.case}-{key}.safetensors"
        findings = load_findings(kept) if kept.is_file() else None
        if findings is None:
            findings = _passed(cases, one, structures, parts)[1].findings
            save_findings(kept, findings)
        else:
            resumed.append(one.case)
        yield FoundCase(one.case, one.patient, findings)
        progress(number, len(cases.cases), one.case)


def _passed(
    cases: Cases, one: PredictionFiles, structures: Sequence[Structure], parts: Any, thresholds: Any = None
) -> tuple[Prediction, CasePass]:
    """A case and one pass over it; what is wrong names its file."""
    prediction = cases.open(one)
    cases.check(one, prediction, structures)
    highest = max(channel for structure in structures for channel in structure.channels)
    try:
        if cases.source != "masks" and prediction.scores.shape[0] <= highest:
            raise BadInput(f"has {prediction.scores.shape[0]} channels, but the rules are about channel {highest}")
        return prediction, pass_over(prediction, structures, parts, cases.names.ignore_label, thresholds)
    except BadInput as error:
        raise BadInput(f"{one.files[0]}: {error}") from error


def _applied(
    rules: Rules, rules_key: str, cases: Cases, one: PredictionFiles, output: Path, masks: bool
) -> dict[str, Any]:
    """The sheet of one case, with its masks; those of the same files by the same rules are left alone."""
    key = fingerprint([rules_key, one.case, one.patient, one.stated, str(cases.names), masks, program()], one.all_files)
    known = read_case_sheet(output, one.case)
    if known is not None and known["key"] == key and all((output / path).is_file() for path in known["masks"]):
        return known
    prediction, passed = _passed(cases, one, rules.structures, parts_of(rules.decisions), rules.thresholds)
    made, paths = rules.masks(passed, prediction.spacing_mm), []
    if masks and made:
        place = cases.place(one)
        for (label, structure), mask in made.items():
            path = DecisionFolder(output).mask(label, structure, one.case)
            write_mask(path, mask, place)
            paths.append(path.relative_to(output).as_posix())
    sheet = case_sheet(rules, one, passed, made)
    sheet |= {"key": key, "masks": paths}
    write_case_sheet(output, sheet)
    return sheet


def _refuse(rules: Rules, cases: Cases, path: Path) -> None:
    """Rules keep their promise on new patients of the same network, calibrated alike."""
    known = rules.fitted_on
    if cases.source != rules.source:
        raise BadInput(f"{path}: the rules were fitted on {rules.source}, and these are {cases.source}")
    activation = cases.cases[0].activation
    if activation != rules.activation:
        raise BadInput(f"{path}: the rules were fitted on {rules.activation} scores, and these are for a {activation}")
    refuse_fitted(cases.cases, known, path)
    for fact, words in (("calibrator", "with the calibrator"), ("weights", "by a network of the weights")):
        ours, theirs = known.get(fact), cases.facts.get(fact)
        if ours is not None and theirs is not None and ours != theirs:
            raise BadInput(f"{path}: the rules were fitted on cases {words} {ours!r}, these are {words} {theirs!r}")


def _refuse_other_structures(rules: Rules, structures: Sequence[Structure], path: Path) -> None:
    here = {structure.name: structure for structure in structures}
    for structure in rules.structures:
        if here.get(structure.name) != structure:
            raise BadInput(
                f"{path}: the rules are about {structure.name!r} (label {'+'.join(map(str, structure.labels))}), which"
                f" these cases do not have; they have {', '.join(here)}"
            )
