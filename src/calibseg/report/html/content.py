"""What stands in a report: everything that was found, put in the order of the page, without a word of HTML."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy import ndarray as Array

from calibseg.analysis import ranking
from calibseg.analysis import run_records as report_runs
from calibseg.analysis.case_values import method_names
from calibseg.analysis.columns import Frame
from calibseg.analysis.evidence import Evidence, notes
from calibseg.analysis.headline import EXPLAINED, headline
from calibseg.analysis.recommendation import Recommendation, oracle, recommend
from calibseg.analysis.validation_cases import case_means, held_out_cases, judged_cases, prefer
from calibseg.core.types import BadInput
from calibseg.report import palette
from calibseg.report.html import cases as report_cases
from calibseg.report.html import charts, methods, run_charts
from calibseg.report.html import tables as report_tables
from calibseg.report.html.failure import failure
from calibseg.report.html.groups import ComparisonGroup, case_rank, comparison_groups
from calibseg.report.html.raters import raters
from calibseg.report.html.verdict import Verdict, verdict, why

RANKED = 60_000  # case values that a page carries, so that it can rank again
MANY = 20  # methods, beyond which sections are folded and figures show the best


@dataclass(frozen=True)
class Content:
    """What the template writes (`page`), what the script draws (`data`), and what the caller is told."""

    page: dict[str, Any]
    data: dict[str, Any]
    warnings: tuple[str, ...]
    choices: tuple[Recommendation, ...]
    verdicts: tuple[Verdict, ...]


def content(evidence: Evidence, title: str | None = None, paper: Frame | None = None) -> Content:
    """Tables, figures, pictures and warnings."""
    where = comparison_groups(evidence)
    choices, remarks = _choices(evidence)
    ranked, unranked = _ranked(where)
    warnings = (*evidence.warnings, *unranked, *_left_out(evidence), *report_tables.undefined(evidence.test))
    by_place = {(choice.dataset, choice.network): choice for choice in choices}
    chosen = {group.name: by_place.get((group.dataset, group.network)) for group in where}
    subjects = {group.name: _subject(group, chosen[group.name], ranked) for group in where}
    shown, cases_notes = report_cases.cases(where, subjects)
    detected = failure(where)
    rated = raters(where)
    figures = _figures(where, ranked, detected, rated)
    verdicts = [verdict(group, subjects[group.name], chosen[group.name], evidence) for group in where]
    page = {
        "title": title or f"Calibration report: {', '.join(group.name for group in where)}",
        "facts": _facts(evidence),
        "several": len(where) > 1,
        "many": len(_methods(evidence)) > MANY,
        "verdicts": [_first_screen(group, one, chosen[group.name]) for group, one in zip(where, verdicts, strict=True)],
        "methods_text": methods.paragraph(evidence, where, ranked),
        "remarks": remarks,
        **_tables(evidence, where, chosen, paper),
        "ranks": {name: case_rank(one) for name, one in ranked.items()},
        "raters": rated,
        "failure": detected,
        "figures": figures,
        "cases": shown,
        "cases_notes": cases_notes,
        "warnings": warnings,
    }
    data = {
        "methods": _methods(evidence),
        "places": [group.name for group in where],
        "figures": [figure for section in figures.values() for figure in section],
        "cases": shown,
        "classes": palette.CLASSES,
        "colours": {"over": palette.OVER, "under": palette.UNDER},
        "ranking": {name: values for name, one in ranked.items() if (values := _case_values(one))},
    }
    return Content(page, data, warnings, tuple(choices), tuple(verdicts))


def _choices(evidence: Evidence) -> tuple[list[Recommendation], list[str]]:
    """The recommended methods, and what to know about the choice."""
    try:
        measured = None if evidence.validation is None else judged_cases(evidence.validation)
    except BadInput as error:
        return [], [f"No method is recommended: {error}."]
    runs = [(run.dataset, run.network, run.method, run.split, run.held_out()) for run in evidence.runs]
    held_out = held_out_cases(runs, measured)
    crossed = "On validation, calibrators were cross-validated: each case was judged by a fit without its patient."
    judged = prefer(held_out, measured)
    choices = recommend(judged.loc[_tested(judged, evidence.test.rows)])
    return choices, [*([crossed] if len(held_out) else []), *(said for choice in choices for said in choice.remarks)]


def _ends(method: str) -> list[int]:
    """Where the loss in a method's name may end: at a calibrator, a variant, or the name's own end."""
    return [*(found.start() for found in re.finditer(r"[+]| [(]", method)), len(method)]


def _tested(judged: Frame, rows: Frame) -> Array:
    """Whose network was tested; a candidate that was not chosen is in the validation table only."""
    losses = rows[["dataset", "network", "loss"]].drop_duplicates().itertuples(index=False, name=None)
    networks = {(dataset, network, loss or "unnamed") for dataset, network, loss in losses}
    names = judged[["dataset", "network", "method"]].itertuples(index=False, name=None)
    tested = [
        any((dataset, network, method[:end]) in networks for end in _ends(method)) for dataset, network, method in names
    ]
    return np.array(tested, bool)


def _ranked(where: Iterable[ComparisonGroup]) -> tuple[dict[str, ranking.Ranked], list[str]]:
    """A ranking of each group, and a sentence where there is none."""
    rankings, why = {}, []
    for group in where:
        try:
            rankings[group.name] = group.ranked()
        except BadInput as error:
            why.append(f"{group.name} is not ranked: {error}")
    return rankings, why


def _subject(group: ComparisonGroup, choice: Recommendation | None, ranked: Mapping[str, ranking.Ranked]) -> str:
    """Whose worst cases are shown: the recommended method's, else those of the one with the best mean case-rank."""
    if choice is not None:
        return choice.method
    ranks = case_rank(ranked[group.name]) if group.name in ranked else {}
    return min(ranks, key=lambda method: ranks[method], default=group.methods[0])


def _figures(
    where: Sequence[ComparisonGroup],
    ranked: Mapping[str, ranking.Ranked],
    detected: report_tables.Section,
    rated: report_tables.Section,
) -> dict[str, list[charts.Figure]]:
    """The figures of each section, in their order."""
    sections = {
        "headline": [charts.trade_off(where)],
        "reliability": [make(where) for make in (charts.reliability, charts.balance, charts.distance)],
        "ranks": [
            charts.heat(ranked, "sum-rank"),
            charts.heat(ranked, "mean case-rank"),
            charts.differences(ranked),
            charts.radar(where),
        ],
        "raters": [rated.figure],
        "failure": [detected.figure],
        "cases": [charts.every_case(where, ranked)],
        "training": [
            make(where)
            for make in (run_charts.training, run_charts.multipliers, run_charts.interior, run_charts.logits)
        ],
        "robustness": [charts.shift(where), *run_charts.sensitivity(where)],
    }
    return {name: [figure for figure in made if figure] for name, made in sections.items()}


def _tables(
    evidence: Evidence,
    where: Sequence[ComparisonGroup],
    chosen: Mapping[str, Recommendation | None],
    paper: Frame | None,
) -> dict[str, Any]:
    recommended = {(place, choice.method) for place, choice in chosen.items() if choice is not None}
    columns = report_tables.columns(where, headline())
    rules = report_tables.columns(where, [f"ece@{rule}" for rule in EXPLAINED])
    keys, rule_keys = [column.key for column in columns], [column.key for column in rules]
    paper_keys, paper_rows = report_tables.beside_paper(where, paper) if paper is not None else ([], [])
    sources = notes(evidence.test)
    return {
        "columns": columns,
        "headline": [row for group in where for row in report_tables.compared(group, keys, recommended)]
        if keys
        else [],
        "rule_columns": rules,
        "rule_rows": [row for group in where for row in report_tables.compared(group, rule_keys)]
        if len(rules) > 1
        else [],
        "rule_notes": report_tables.voxel_rules(rule_keys),
        "paper_keys": paper_keys,
        "paper": paper_rows,
        "cost": report_runs.cost(evidence.runs),
        "fitted": [*report_runs.fitted(evidence.runs), *report_runs.chosen_in_folders(sources)],
        "versions": _versions(evidence),
        "sources": list(sources.items()),
    }


def _first_screen(group: ComparisonGroup, verdict: Verdict, choice: Recommendation | None) -> dict[str, Any]:
    """A verdict with the choice behind it, the method's test values, and the oracle's."""
    columns = report_tables.columns([group], [*headline(), "ece@truth"])
    rows = report_tables.compared(group, [column.key for column in columns])
    cells = next((row.cells for row in rows if row.method == verdict.method), ())
    complete = choice is not None and {"dsc", "nll@all"} <= set(group.keys)
    best = oracle(case_means(judged_cases(group.core)), group.dataset, group.network) if complete else None
    cards = list(zip(columns, cells, strict=False))
    sentence = why(choice) if choice else ""
    return {"verdict": verdict, "choice": choice, "why": sentence, "cards": cards, "oracle": best}


def _facts(evidence: Evidence) -> list[tuple[str, str]]:
    """The sizes of what is compared, for the head of the page."""
    rows = evidence.test.rows[evidence.test.rows["scope"] == "case"]
    experiments = rows[["dataset", "network", "loss", "calibrator", "variant", "seed"]].drop_duplicates()
    facts = [
        ("methods", method_names(experiments).nunique()),
        ("datasets", experiments["dataset"].nunique()),
        ("networks", experiments["network"].nunique()),
        ("cases", len(rows[["dataset", "case"]].drop_duplicates())),
        ("patients", len(rows[["dataset", "patient"]].drop_duplicates())),
        ("seeds", experiments["seed"].nunique()),
    ]
    return [(name if count != 1 else name[:-1], str(count)) for name, count in facts]


def _methods(evidence: Evidence) -> list[dict[str, Any]]:
    """How each method is called and drawn, and which training and calibrator it is."""
    rows = evidence.test.rows[["loss", "calibrator", "variant"]].drop_duplicates()
    rows = rows.assign(method=method_names(rows), base=method_names(rows.assign(calibrator="")))
    parts = {row["method"]: (row["base"], row["calibrator"]) for row in rows.to_dict("records")}
    for run in evidence.runs:  # one that is not scored yet has its curves all the same
        parts.setdefault(run.method, (run.method, ""))
    styles = palette.method_styles(parts)
    return [
        {
            "name": method,
            "label": styles[method].label,
            "base": base,
            "calibrator": "" if calibrator == "none" else calibrator,
            "colour": styles[method].colour,
            "dash": styles[method].dash,
            "marker": styles[method].marker,
            "hollow": styles[method].hollow,
        }
        for method, (base, calibrator) in parts.items()
    ]


def _case_values(one: ranking.Ranked) -> dict[str, Any] | None:
    """What ranks are made of, so that the page can rank the methods that a filter leaves; nothing if it is too much."""
    values = one.data.values
    if values.size > RANKED:
        return None
    defined = (~np.isnan(values)).sum(1)
    means = np.where(defined, np.nansum(values, 1) / np.maximum(defined, 1), np.nan).tolist()
    up = one.data.higher_is_better.tolist()
    return {"methods": one.data.methods, "up": up, "means": means, "values": values.tolist()}


def _left_out(evidence: Evidence) -> list[str]:
    """Cases that scoring skipped, as the tables say it."""
    tables = notes(evidence.test).items()
    return [f"{Path(name).name}: left out: {reason}" for name, said in tables for reason in said.get("left_out", ())]


def _versions(evidence: Evidence) -> list[tuple[str, str]]:
    """Every version that any table or run names; several where they differ."""
    packages: dict[str, dict[str, None]] = {}
    for said in [*notes(evidence.test).values(), *(run.info.provenance for run in evidence.runs)]:
        for package, version in (said.get("versions") or {}).items():
            packages.setdefault(str(package), {})[str(version)] = None
    for run in evidence.runs:
        revision = (run.info.provenance.get("git") or {}).get("revision")
        if revision:
            packages.setdefault("source revision", {})[str(revision)[:12]] = None
    return [(package, ", ".join(versions)) for package, versions in packages.items()]
