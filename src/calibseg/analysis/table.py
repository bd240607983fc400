"""The tidy score table: one row per case, class, voxel rule and metric, and the rules by which it was made.

A table is two files: `scores.csv` (a `scores.csv.gz` can be read too) holds the rows, `scores.meta.json` beside it what
the numbers mean (`rules`) and where they come from. Tables whose rules differ refuse to merge: HD95 in voxels and HD95
in mm are not one column. A rule that is itself a table (`metrics`, `datasets`) says something about each of its
members, and two tables may have different members; what they say about a common one must agree.

| column | says |
| --- | --- |
| dataset, network, loss, calibrator, seed, variant, subset | which experiment; blank where unknown |
| patient, case | whose; blank in pooled rows |
| class | a class or region by name; `all`: all classes together |
| voxels | the rule of `VOXELS` for calibration metrics; blank for shape metrics, which see every voxel |
| scope | `case`: one case's value; `pooled`: the statistics of all cases added up first |
| metric, value, unit, higher_is_better | `nan` is undefined, and is counted |
"""

import gzip
import json
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from calibseg.analysis import bootstrap
from calibseg.core.files import atomic_write
from calibseg.core.types import BadInput

# A pandas DataFrame or Series. pandas' own annotations cannot tell a table from one of its columns, so a type checker
# would object to every selection.
Frame = Any
Column = Any

EXPERIMENT = ("dataset", "network", "loss", "calibrator", "seed", "variant", "subset")
KEY = (*EXPERIMENT, "patient", "case", "class", "voxels", "scope", "metric")
COLUMNS = (*KEY, "value", "unit", "higher_is_better")
NOT_CSV = (pd.errors.ParserError, pd.errors.EmptyDataError, UnicodeDecodeError)
NOT_CSV += (EOFError, gzip.BadGzipFile, zlib.error)  # of a .csv.gz
SCOPES = ("case", "pooled")
FORMAT = "calibseg-scores/1"
ALL = "all"  # the class column's word for all classes together
MEAN = "(mean)"  # in summaries only

# The rows to look at first: calibration where something is predicted, proper scores on every voxel.
HEADLINE = (("ece", "predicted"), ("nll", "all"), ("brier", "all"))

# What a reader must know before believing a number: conditioning on the truth is no measure of calibration.
VOXELS = {
    "truth": "paper rule: the truth is foreground; a perfect predictor does not score 0 here",
    "predicted": "the prediction is foreground",
    "union": "truth or prediction is foreground; a perfect predictor does not score 0 here",
    "all": "every voxel",
    "boundary": "near the true surface; a perfect predictor does not score 0 here",
}


@dataclass(frozen=True)
class ScoreTable:
    """The rows, the rules they obey, and notes on where they come from. `name` is for messages."""

    rows: Frame
    rules: Mapping[str, Any] | None  # None: a CSV that came without its .meta.json
    notes: Mapping[str, Any] = field(default_factory=dict)
    name: str = "the table"


def meta_path(path: Path) -> Path:
    """`scores.csv` or `scores.csv.gz` -> `scores.meta.json`."""
    return path.with_name(f"{_stem(path)}.meta.json")


def bins_path(path: Path) -> Path:
    """`scores.csv` -> `bins.csv`; another name keeps it: `nacl.csv` -> `nacl.bins.csv`."""
    return path.with_name("bins.csv" if _stem(path) == "scores" else f"{_stem(path)}.bins.csv")


def _stem(path: Path) -> str:
    return path.with_suffix("").stem if path.suffix == ".gz" else path.stem


def frame(rows: Iterable[Mapping[str, Any]]) -> Frame:
    """Rows as a table with the columns in their order; experiment columns that a row does not have are blank."""
    blank = dict.fromkeys((*KEY, "unit"), "")
    table = pd.DataFrame([blank | dict(row) for row in rows], columns=list(COLUMNS))
    return table.astype(dict.fromkeys(blank, str) | {"value": float, "higher_is_better": bool})


def read(path: Path | str) -> ScoreTable:
    """Read a score table (.csv or .csv.gz) and its rules, strictly: what is wrong is an error that names the line."""
    path = Path(path)
    if not path.is_file():
        raise BadInput(f"no score table {path}")
    rows: Frame
    try:
        rows = pd.read_csv(path, dtype=str, keep_default_na=False, encoding="utf-8")
    except (
        pd.errors.ParserError,
        pd.errors.EmptyDataError,
        UnicodeDecodeError,
        EOFError,
        OSError,
        zlib.error,
    ) as error:
        raise BadInput(f"{path} is not a CSV table: {str(error).strip()}") from error
    if tuple(rows.columns) != COLUMNS:
        raise BadInput(f"{path} has the columns {','.join(rows.columns)}; a score table has {','.join(COLUMNS)}")
    rows["value"] = _numbers(rows["value"], path)
    _check_words(rows["scope"], SCOPES, path)
    _check_words(rows["higher_is_better"], ("true", "false"), path)
    rows["higher_is_better"] = rows["higher_is_better"] == "true"
    rules, notes = _read_meta(meta_path(path))
    return ScoreTable(rows, rules, notes, str(path))


def write(table: ScoreTable, path: Path | str, bins: Frame | None = None) -> None:
    """Write the rows, the rules and (if given) the reliability rows: all of them, or none."""
    path = Path(path)
    _refuse_twice(table.rows, table.name)
    text = table.rows.assign(
        value=[repr(float(value)) for value in table.rows["value"]],
        higher_is_better=["true" if better else "false" for better in table.rows["higher_is_better"]],
    )
    meta = {"format": FORMAT, "rules": table.rules, **table.notes}
    with ExitStack() as files:  # the table's own name is replaced last: where it stands, its companions stand too
        text.to_csv(files.enter_context(atomic_write(path)), index=False)
        meta_text = json.dumps(meta, indent=2, allow_nan=False) + "\n"
        files.enter_context(atomic_write(meta_path(path))).write_text(meta_text, encoding="utf-8")
        if bins is not None:
            bins.to_csv(files.enter_context(atomic_write(bins_path(path))), index=False, na_rep="nan")


def merge(tables: Sequence[ScoreTable]) -> ScoreTable:
    """One table from several; refused where the rules differ, naming the first difference, or a row appears twice."""
    if not tables:
        raise BadInput("no score table to merge")
    first, *others = tables
    rules = first.rules
    for other in others:
        for table in (first, other):
            if table.rules is None:
                raise BadInput(
                    f"{table.name} cannot be merged with others: its rules are unknown,"
                    f" as {meta_path(Path(table.name)).name} is not beside it"
                )
        difference = next(_differences(rules, other.rules), None)
        if difference:
            key, ours, theirs = difference
            raise BadInput(
                f"{other.name} was scored by other rules than {first.name} and cannot be merged:"
                f" {key} is {theirs} in it, not {ours}"
            )
        rules = _united(rules, other.rules)
    rows = pd.concat([table.rows for table in tables], ignore_index=True)
    names = " and ".join(table.name for table in tables)
    _refuse_twice(rows, names)
    sources = {table.name: dict(table.notes) for table in tables}
    return ScoreTable(rows, rules, first.notes if len(tables) == 1 else {"merged": sources}, names)


def named(table: ScoreTable, method: str) -> ScoreTable:
    """The same scores under a method's name, for predictions that came without one."""
    known = table.rows[["loss", "calibrator", "variant"]].drop_duplicates()
    if len(known) > 1:
        raise BadInput(f"{table.name} holds {len(known)} methods and cannot be called {method!r} as a whole")
    rows = table.rows.assign(loss=method, calibrator="", variant="")
    return ScoreTable(rows, table.rules, table.notes, table.name)


def summary(rows: Frame, repeats: int = bootstrap.REPEATS, seed: int = 0) -> Frame:
    """Mean over cases, 95 % patient-bootstrap interval, and of how many cases how many are defined (`18 of 20`)."""
    cases = rows[rows["scope"] == "case"]
    group = [*EXPERIMENT, "metric", "voxels", "class", "unit", "higher_is_better"]
    found = []
    for _, experiment in cases.groupby(list(EXPERIMENT), sort=False):
        present = experiment.groupby(group, sort=False)["value"].size()
        wide = experiment.pivot(index=["patient", "case"], columns=group, values="value")[list(present.index)]
        low, high = bootstrap.interval(wide.to_numpy(), list(wide.index.get_level_values("patient")), repeats, seed)
        block = present.index.to_frame(index=False)
        block["mean"] = wide.mean().to_numpy()
        block["low"], block["high"] = low, high
        block["defined"] = wide.notna().sum().to_numpy()
        block["cases"] = present.to_numpy()
        found.append(block)
    columns = [*group, "mean", "low", "high", "defined", "cases"]
    return pd.concat(found, ignore_index=True) if found else pd.DataFrame(columns=columns)


def class_means(rows: Frame, classes: Sequence[str], repeats: int = bootstrap.REPEATS, seed: int = 0) -> Frame:
    """The same summary over cases and the named classes together, for metrics that have no value for all classes.

    Every defined value counts once, as in the papers' tables, so `defined` and `cases` count cases times classes.
    """
    cases = rows[rows["scope"] == "case"]
    together = cases.loc[cases["class"] == ALL, "metric"].unique()
    chosen = cases[cases["class"].isin(list(classes)) & ~cases["metric"].isin(together)]
    group = [*EXPERIMENT, "metric", "voxels", "unit", "higher_is_better"]
    found = []
    for key, part in chosen.groupby(group, sort=False):
        values = part["value"].to_numpy()
        low, high = bootstrap.interval(values[:, None], part["patient"].tolist(), repeats, seed)
        counts = {"defined": int(part["value"].notna().sum()), "cases": len(part)}
        named = dict(zip(group, key, strict=True))
        found.append({**named, "class": MEAN, "mean": part["value"].mean(), "low": low[0], "high": high[0], **counts})
    return pd.DataFrame(found, columns=[*group[:-2], "class", *group[-2:], "mean", "low", "high", "defined", "cases"])


def _numbers(column: Column, path: Path) -> list[float]:
    values = []
    for line, text in enumerate(column, start=2):
        try:
            values.append(float(text))
        except ValueError:
            raise BadInput(f"{path} line {line}: the value {text!r} is not a number (undefined is nan)") from None
    return values


def _check_words(column: Column, known: Sequence[str], path: Path) -> None:
    wrong = column[~column.isin(known)]
    if len(wrong):
        line = int(wrong.index[0]) + 2
        raise BadInput(f"{path} line {line}: {column.name} is {wrong.iloc[0]!r}, not one of {', '.join(known)}")


def _read_meta(path: Path) -> tuple[dict[str, Any] | None, dict[str, Any]]:
    if not path.is_file():
        return None, {}
    try:
        meta = json.loads(path.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise BadInput(f"{path} is not JSON: {error}") from error
    if not isinstance(meta, dict) or meta.get("format") != FORMAT or not isinstance(meta.get("rules"), dict):
        raise BadInput(f"{path} does not say format {FORMAT} and its rules: it is not the companion of a score table")
    rules = meta["rules"]
    return rules, {key: value for key, value in meta.items() if key not in ("format", "rules")}


def _refuse_twice(rows: Frame, name: str) -> None:
    twice = rows[rows.duplicated(list(KEY))]
    if len(twice):
        row = twice.iloc[0]
        where = ", ".join(f"{column} {row[column]}" for column in KEY if row[column])
        raise BadInput(f"{name}: {len(twice)} rows appear twice, the first for {where}")


def _differences(ours: Any, theirs: Any, key: str = "") -> Iterator[tuple[str, str, str]]:
    """Where two sets of rules differ: the dotted name and both values."""
    if isinstance(ours, Mapping) and isinstance(theirs, Mapping):
        members = [*ours, *(name for name in theirs if name not in ours)]
        for name in members if not key else (name for name in members if name in ours and name in theirs):
            yield from _differences(ours.get(name), theirs.get(name), f"{key}.{name}" if key else name)
    elif ours != theirs:
        yield key, _shown(ours), _shown(theirs)


def _united(ours: Any, theirs: Any) -> Any:
    """The rules of both, which do not differ."""
    if not (isinstance(ours, Mapping) and isinstance(theirs, Mapping)):
        return ours
    return {**theirs, **{name: _united(rule, theirs.get(name)) for name, rule in ours.items()}}


def _shown(value: Any) -> str:
    return "absent" if value is None else json.dumps(value)
