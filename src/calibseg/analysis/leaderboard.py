"""A leaderboard: what anybody measured, on the same test cases, against the same labels and by the same rules.

    leaderboards/BENCHMARK.json     shipped: rules of scoring, metrics, and of every test case its patient and the
                                    fingerprint of its labels
    FOLDER/BENCHMARK/METHOD.json    a row: the values of every case, class by class, so that means, intervals and ranks
                                    can be computed again and undefined values counted

A score table becomes a row only if its rules are those of the benchmark, its cases are exactly the benchmark's, and
each was scored against the benchmark's labels (`label_fingerprints` of scores.meta.json). This finds mistakes; it does
not find made-up numbers.
"""

import dataclasses
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict

import numpy as np

from calibseg.analysis import bootstrap, ranking, table
from calibseg.analysis.case_values import case_values, method_names, rightly_empty
from calibseg.analysis.columns import ALL, Frame, rows_of_key, split_key
from calibseg.analysis.evidence import notes
from calibseg.analysis.merge import one_subset
from calibseg.analysis.table import ScoreTable
from calibseg.core import files, registry
from calibseg.core.hashing import fingerprint
from calibseg.core.types import BadInput

HOME = registry.PACKAGE / "analysis" / "leaderboards"
KIND, ROW = "leaderboard", "leaderboard-row"
STATED = ("bins", "units", "empty", "least_probability", "activation")  # rules that every metric obeys
LINK = re.compile(r"https://[^\s<>()\"'|\\]+")
Values = dict[str, dict[str, list[float | None]]]  # by metric and class, in the order of the benchmark's cases


class _Case(TypedDict):
    patient: str
    labels: str


class _Metric(TypedDict):
    unit: str
    higher_is_better: bool
    classes: list[str]
    options: dict[str, Any]


@dataclass(frozen=True)
class Benchmark:
    """The cases and rules that rows of a leaderboard share."""

    title: str
    dataset: str
    labels: str  # which label maps, in words
    score: str  # the options of `calibseg score` that make such a table
    rules: dict[str, Any]
    classes: list[str]
    metrics: dict[str, _Metric]
    cases: dict[str, _Case]
    name: str = ""  # that of its file

    @property
    def fingerprint(self) -> str:
        """Of all that a row must agree with."""
        return fingerprint([self.rules, self.classes, self.metrics, self.cases])


@dataclass(frozen=True)
class Entry:
    """A row before it is compared with others, as its file holds it."""

    method: str
    link: str
    seeds: int
    calibseg: str
    values: Values
    benchmark: str = ""  # and its fingerprint, against which the row was checked when it was added
    checked: str = ""


@dataclass(frozen=True)
class Standing:
    """A row among the others: its mean case-rank over all metrics, and by metric mean, interval and what it lacks."""

    entry: Entry
    rank: float
    means: Mapping[str, tuple[float, float, float]]
    undefined: Mapping[str, int]  # cases in which another row has a value and this one has not


def benchmark(name: str) -> Benchmark:
    """A benchmark by its name."""
    known = benchmarks()
    if name not in known:
        raise BadInput(registry.unknown("benchmark", name, known))
    return dataclasses.replace(files.read_json(HOME / f"{name}.json", KIND, Benchmark), name=name)


def benchmarks() -> list[str]:
    return sorted(path.stem for path in HOME.glob("*.json"))


def entry(scores: ScoreTable, method: str, to: Benchmark, link: str = "") -> Entry:
    """A score table as a row; refused where it was not made by the benchmark's rules on its cases and labels."""
    _check_words(method, link)
    _check_rules(scores, to)
    rows = one_subset(scores.rows, "", scores.name)
    rows = table.plain(rows[rows["scope"] == "case"])
    known = list(dict.fromkeys(method_names(rows)))
    if len(known) != 1:
        raise BadInput(f"{scores.name} holds {len(known)} methods ({', '.join(known[:5])}): a row is one of them")
    if len(networks := rows["network"].unique()) > 1:
        raise BadInput(f"{scores.name} holds {len(networks)} networks ({', '.join(networks)}): a row is one of them")
    case_of = _check_cases(scores, rows, to)
    values = _values(rows.assign(case=rows["case"].map(case_of)), to, scores.name)
    versions = [str(said.get("versions", {}).get("calibseg", "")) for said in notes(scores).values()]
    return Entry(method, link, rows["seed"].nunique(), max(versions, default=""), values)


def add(entry: Entry, to: Benchmark, folder: Path, replace: bool = False) -> Path:
    """Write a row as one file of its own."""
    name = re.sub(r"[^a-z0-9]+", "-", entry.method.lower()).strip("-")
    path = folder / to.name / f"{name}.json"
    if path.exists() and not replace:
        raise BadInput(f"{path} is there already: choose another --method, or say --replace")
    stamp = {"benchmark": to.name, "checked": to.fingerprint}
    files.write_json(path, ROW, stamp | vars(entry) | stamp)
    return path


def entries(folder: Path, to: Benchmark) -> list[Entry]:
    """The rows of a folder, each checked again: somebody may have written them by hand."""
    rows: list[Entry] = []
    for path in sorted((folder / to.name).glob("*.json")):
        row: Entry = files.read_json(path, ROW, Entry)
        if row.benchmark != to.name or row.checked != to.fingerprint:
            raise BadInput(f"{path} was not checked against the benchmark {to.name} as it is now: add it again")
        _check_words(row.method, row.link)
        _check_values(row.values, to, str(path))
        if row.method in [other.method for other in rows]:
            raise BadInput(f"{folder / to.name}: two rows are called {row.method!r}")
        rows.append(row)
    return rows


def standings(rows: Sequence[Entry], to: Benchmark) -> list[Standing]:
    """The rows, best mean case-rank first. A value that only others have takes the worst of its column, and counts."""
    if not rows:
        return []
    data = case_values(_frame(rows, to), to.metrics, "worst", {to.dataset: tuple(to.classes)[1:]})
    ranks = ranking.rank_table(data)
    whole = ranks[(ranks["ranking"] == "mean case-rank") & (ranks["metric"] == "")].set_index("method")["rank"]
    patients = data.cases["patient"].tolist()
    ends = [bootstrap.interval(values, patients) for values in data.values]
    result = []
    for row in rows:
        at = data.methods.index(row.method)
        means = {
            metric: (float(np.nanmean(values[:, at])), float(low[at]), float(high[at]))
            for metric, values, (low, high) in zip(data.metrics, data.values, ends, strict=True)
        }
        lacking = dict(zip(data.metrics, data.lacking[:, at].tolist(), strict=True))
        result.append(Standing(row, float(whole[row.method]), means, lacking))
    return sorted(result, key=lambda one: (one.rank, one.entry.method))


def _check_words(method: str, link: str) -> None:
    if not re.search("[A-Za-z0-9]", method) or not method.isprintable() or method != method.strip() or len(method) > 60:
        raise BadInput(f"a row is called by up to 60 letters, digits and signs on one line, not {method!r}")
    if re.search(r"[<>|`\[\]]", method):
        raise BadInput(f"the name {method!r} has a sign that a page would read as markup: one of < > | ` [ ]")
    if link and not LINK.fullmatch(link):
        raise BadInput(f"a link begins with https:// and has no blank, bracket or quote in it, not {link!r}")


def _check_rules(scores: ScoreTable, to: Benchmark) -> None:
    rules = scores.rules
    if rules is None:
        raise BadInput(f"{scores.name} does not say its rules: {table.meta_path(Path(scores.name)).name} is not there")
    pairs = [(name, rules.get(name), to.rules[name]) for name in STATED]
    options = rules.get("metrics") or {}
    for key, metric in to.metrics.items():
        name, _ = split_key(key)
        if name not in options:
            raise BadInput(f"{scores.name} does not hold {name}, which {to.name} asks for: calibseg score {to.score}")
        pairs.append((f"the options of {name}", options[name], metric["options"]))
    datasets = (rules.get("datasets") or {"": {}}).values()
    pairs += [("the list of classes", dataset.get("classes"), list(to.classes)) for dataset in datasets]
    for what, theirs, ours in pairs:
        if theirs != ours:
            raise BadInput(
                f"{scores.name} was not scored by the rules of {to.name}: {what} is {theirs!r}, not {ours!r}; score"
                f" with   calibseg score {to.score}"
            )


def _check_cases(scores: ScoreTable, rows: Frame, to: Benchmark) -> dict[str, str]:
    """By its name in the table, which case of the benchmark each is: its labels tell."""
    seen = {case: mark for said in notes(scores).values() for case, mark in _fingerprints(said).items()}
    by_labels = {case["labels"]: name for name, case in to.cases.items()}
    case_of: dict[str, str] = {}
    for case in dict.fromkeys(rows["case"]):
        mark = seen.get(case)
        if mark is None:
            raise BadInput(
                f"{scores.name} does not say which labels case {case!r} was scored against (label_fingerprints in"
                f" {table.meta_path(Path(scores.name)).name}): score it again"
            )
        if mark not in by_labels:
            if case in to.cases:
                raise BadInput(f"{scores.name}: case {case!r} was scored against other labels than {to.labels}")
            raise BadInput(f"{scores.name}: case {case!r} is none of the {len(to.cases)} test cases of {to.name}")
        case_of[case] = by_labels[mark]
    missing = [case for case in to.cases if case not in case_of.values()]
    if missing:
        raise BadInput(
            f"{scores.name} lacks {len(missing)} of the {len(to.cases)} test cases of {to.name}, the first is"
            f" {missing[0]}"
        )
    if len(set(case_of.values())) < len(case_of):
        raise BadInput(f"{scores.name}: two cases were scored against the same labels of {to.name}")
    return case_of


def _fingerprints(said: Mapping[str, Any]) -> Mapping[str, str]:
    fingerprints = said.get("label_fingerprints")
    return fingerprints if isinstance(fingerprints, Mapping) else {}


def _values(rows: Frame, to: Benchmark, name: str) -> Values:
    """Seeds averaged; what one seed leaves undefined is undefined, unless it rightly left out what another invented."""
    values: Values = {}
    for key, metric in to.metrics.items():
        part = rightly_empty(rows_of_key(rows, key), split_key(key)[0])
        values[key] = {}
        for of in metric["classes"]:
            groups = part[part["class"] == of].groupby("case")["value"]
            if len(groups) != len(to.cases):
                whose = f" of {of}" if of != ALL else ""
                raise BadInput(f"{name} has {key}{whose} for {len(groups)} of the {len(to.cases)} cases of {to.name}")
            means = groups.mean().where(~groups.apply(lambda column: column.isna().any()))
            values[key][of] = [_rounded(float(means[case])) for case in to.cases]
    _check_values(values, to, name)
    return values


def _rounded(value: float) -> float | None:
    return float(f"{value:.6g}") if math.isfinite(value) else None


def _check_values(values: Values, to: Benchmark, name: str) -> None:
    if list(values) != list(to.metrics):
        raise BadInput(f"{name} has the metrics {', '.join(values)}; {to.name} has {', '.join(to.metrics)}")
    for key, by_class in values.items():
        if list(by_class) != to.metrics[key]["classes"] or any(len(v) != len(to.cases) for v in by_class.values()):
            raise BadInput(f"{name}: {key} is not given for every class and case of {to.name}")
        most = 1.0 if to.metrics[key]["higher_is_better"] else math.inf
        for value in (value for column in by_class.values() for value in column if value is not None):
            if not 0 <= value <= most or not math.isfinite(value):
                raise BadInput(f"{name}: {key} is {value!r}, which it cannot be")


def _frame(entries: Iterable[Entry], to: Benchmark) -> Frame:
    """The rows as one score table."""
    rows = []
    for one in entries:
        for key, by_class in one.values.items():
            metric, voxels = split_key(key)
            facts = {"metric": metric, "voxels": voxels, "unit": to.metrics[key]["unit"], "scope": "case"}
            facts |= {
                "higher_is_better": to.metrics[key]["higher_is_better"],
                "dataset": to.dataset,
                "loss": one.method,
            }
            for of, column in by_class.items():
                for (case, facts_of_case), value in zip(to.cases.items(), column, strict=True):
                    who = {"case": case, "patient": facts_of_case["patient"], "class": of}
                    rows.append({**facts, **who, "value": math.nan if value is None else value})
    return table.frame(rows)
