"""The tidy score table: one row per case, class, voxel rule and metric, and the rules by which it was made.

A run's table is two files: `scores.csv` (a `scores.csv.gz` can be read too) holds the rows, `scores.meta.json` beside
it what the numbers mean (`rules`) and where they come from. The merged table of a benchmark is one Parquet file that
holds both. Values are the same to the bit in either. Tables whose rules differ refuse to merge: HD95 in voxels and HD95
in mm are not one column. A rule that is itself a table (`metrics`, `datasets`) says something about each of its
members, and two tables may have different members; what they say about a common one must agree.

| column | says |
| --- | --- |
| dataset, network, loss, calibrator, seed, variant, subset | which experiment; blank where unknown |
| patient, case | whose; blank in pooled rows |
| class | a class or region by name; `all`: all classes together |
| voxels | the rule (headline.VOXELS) for calibration metrics; blank for shape metrics, which see every voxel |
| scope | `case`: one case's value; `pooled`: the statistics of all cases added up first |
| metric, value, unit, higher_is_better | `nan` is undefined, and is counted |

In memory the columns of words are categories (pandas' `category`, Arrow's `dictionary`), in alphabetical order: a
million rows take 30 MB, and sort as words do.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pyarrow as pa
from numpy import ndarray as Array
from pyarrow import csv, parquet

from calibseg.core.files import atomic_write
from calibseg.core.types import BadInput

# pandas' annotations cannot tell a table from one of its columns: a type checker would object to every selection.
if TYPE_CHECKING:
    Frame = Any
    Column = Any
else:
    Frame = pd.DataFrame
    Column = pd.Series

EXPERIMENT = ("dataset", "network", "loss", "calibrator", "seed", "variant", "subset")
KEY = (*EXPERIMENT, "patient", "case", "class", "voxels", "scope", "metric")
COLUMNS = (*KEY, "value", "unit", "higher_is_better")
WORDS = (*KEY, "unit")
DICTIONARY = pa.dictionary(pa.int32(), pa.string())
NOT_A_TABLE = (pa.ArrowException, OSError, ValueError)  # what pyarrow raises for a file that is something else
SCOPES = ("case", "pooled")
FORMAT = "calibseg-scores/1"
ALL = "all"  # the class column's word for all classes together
MEAN = "(mean)"  # in summaries only


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
    blank = dict.fromkeys(WORDS, "")
    table = pd.DataFrame([blank | dict(row) for row in rows], columns=list(COLUMNS))
    return categorical(table.astype(dict.fromkeys(blank, str) | {"value": float, "higher_is_better": bool}))


def categorical(rows: Frame) -> Frame:
    """The same rows with every column of words as sorted categories."""
    return concat([rows])


def plain(rows: Frame) -> Frame:
    """A few rows with their words written out, for calculations in which categories are in the way."""
    return rows.astype({name: str for name in rows.columns if isinstance(rows[name].dtype, pd.CategoricalDtype)})


def concat(frames: Sequence[Frame]) -> Frame:
    """Rows below each other, every word written once: pandas' own concat would write them all out again."""
    columns = {}
    for name in frames[0].columns:
        if pd.api.types.is_numeric_dtype(frames[0][name]):
            columns[name] = np.concatenate([part[name].to_numpy() for part in frames])
            continue
        words = [part[name].astype("category").cat for part in frames]
        columns[name] = _words([(part.codes.to_numpy(), part.categories.tolist()) for part in words])
    return pd.DataFrame(columns, copy=False)


def _words(parts: Sequence[tuple[Array, Sequence[str]]]) -> pd.Categorical:
    """One column of several, each given as numbers and the words that they stand for."""
    words = sorted({word for _, known in parts for word in known})
    number = {word: index for index, word in enumerate(words)}
    small = np.min_scalar_type(-1 - len(words))
    codes = [np.array([number[word] for word in known], small)[codes] for codes, known in parts]
    return pd.Categorical.from_codes(np.concatenate(codes), pd.Index(words, dtype=str), validate=False)


def from_arrow(rows: pa.Table, words: Iterable[str]) -> dict[str, Any]:
    """These columns of an Arrow table as sorted categories."""
    columns = {}
    for name in words:
        chunks = rows[name].cast(DICTIONARY).chunks or [pa.array([], DICTIONARY)]
        columns[name] = _words([(chunk.indices.to_numpy(), chunk.dictionary.to_pylist()) for chunk in chunks])
    return columns


def read(path: Path | str) -> ScoreTable:
    """Read a score table (.csv, .csv.gz, .parquet) and its rules, strictly: an error names the file and the line."""
    path = Path(path)
    if not path.is_file():
        raise BadInput(f"no score table {path}")
    if path.suffix == ".parquet":
        return _read_parquet(path)
    rows = read_csv(path, (*WORDS, "higher_is_better"), ("value",))
    _check_columns(rows.column_names, path)
    columns = {**from_arrow(rows, (*WORDS, "higher_is_better")), "value": _numbers(rows["value"], path)}
    for name, known in (("scope", SCOPES), ("higher_is_better", ("true", "false"))):
        _check_words(name, columns[name], known, path)
    columns["higher_is_better"] = np.asarray(columns["higher_is_better"] == "true")
    rules, notes = _read_meta(meta_path(path))
    return ScoreTable(pd.DataFrame(columns, columns=list(COLUMNS), copy=False), rules, notes, str(path))


def read_csv(path: Path, words: Iterable[str], numbers: Iterable[str]) -> pa.Table:
    """A CSV: columns of words as categories, those of numbers still as text. What is no table is an error."""
    types = dict.fromkeys(numbers, pa.string()) | dict.fromkeys(words, DICTIONARY)
    convert = csv.ConvertOptions(column_types=types, null_values=[], strings_can_be_null=False)
    try:
        return csv.read_csv(path, parse_options=csv.ParseOptions(newlines_in_values=True), convert_options=convert)
    except NOT_A_TABLE as error:
        raise BadInput(f"{path} is not a CSV table: {str(error).strip()}") from error


def write(table: ScoreTable, path: Path | str, bins: Frame | None = None) -> None:
    """Write the rows, the rules and (if given) the reliability rows: all of them, or none."""
    path = Path(path)
    _refuse_twice(table.rows, table.name)
    meta = {"format": FORMAT, "rules": table.rules, **table.notes}
    meta_text = json.dumps(meta, indent=2, allow_nan=False) + "\n"
    with ExitStack() as files:  # the table's own name is replaced last: where it stands, its companions stand too
        if path.suffix == ".parquet":
            _write_parquet(table.rows, meta_text, files.enter_context(atomic_write(path)))
        else:
            as_text(table.rows).to_csv(files.enter_context(atomic_write(path)), index=False)
            files.enter_context(atomic_write(meta_path(path))).write_text(meta_text, encoding="utf-8")
        if bins is not None:
            bins.to_csv(files.enter_context(atomic_write(bins_path(path))), index=False, na_rep="nan")


def as_text(rows: Frame) -> Frame:
    """The rows as a CSV shows them: every value with the digits that make it whole."""
    return rows.assign(
        value=[repr(value) for value in rows["value"].tolist()],
        higher_is_better=np.where(rows["higher_is_better"], "true", "false"),
    )


def _read_parquet(path: Path) -> ScoreTable:
    try:
        rows = parquet.read_table(path)
    except NOT_A_TABLE as error:
        raise BadInput(f"{path} is not a Parquet table: {str(error).strip()}") from error
    _check_columns(rows.column_names, path)
    meta = (rows.schema.metadata or {}).get(FORMAT.encode())
    rules, notes = (None, {}) if meta is None else _meta(meta.decode(), path)
    words = from_arrow(rows, WORDS)
    numbers = {name: rows[name].to_numpy() for name in ("value", "higher_is_better")}
    return ScoreTable(pd.DataFrame(words | numbers, columns=list(COLUMNS), copy=False), rules, notes, str(path))


def _write_parquet(rows: Frame, meta: str, path: Path) -> None:
    """The words of a column once, then their numbers; the rules stand in the file's own header."""
    columns = {}
    for name in COLUMNS:
        words = rows[name].astype("category").cat.remove_unused_categories().cat if name in WORDS else None
        if words is None:
            columns[name] = pa.array(rows[name].to_numpy())
        else:
            columns[name] = pa.DictionaryArray.from_arrays(words.codes.to_numpy(), pa.array(words.categories))
    parquet.write_table(pa.table(columns).replace_schema_metadata({FORMAT: meta}), path, compression="zstd")


def _check_columns(names: Sequence[str], path: Path) -> None:
    if tuple(names) != COLUMNS:
        raise BadInput(f"{path} has the columns {','.join(names)}; a score table has {','.join(COLUMNS)}")


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
    rows = concat([table.rows for table in tables])
    names = " and ".join(table.name for table in tables) if len(tables) < 4 else f"{first.name} and {len(others)} more"
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


def _numbers(column: pa.ChunkedArray, path: Path) -> Array:
    try:
        return column.cast(pa.float64()).to_numpy()  # correctly rounded, as Python's own float
    except pa.ArrowInvalid:
        for line, text in enumerate(column.to_pylist(), start=2):
            try:
                float(text)
            except ValueError:
                raise BadInput(f"{path} line {line}: the value {text!r} is not a number (undefined is nan)") from None
        return np.array([float(text) for text in column.to_pylist()])


def _check_words(name: str, column: pd.Categorical, known: Sequence[str], path: Path) -> None:
    wrong = np.flatnonzero(~column.isin(np.array(known, dtype=object)))
    if len(wrong):
        word = column[int(wrong[0])]
        raise BadInput(f"{path} line {wrong[0] + 2}: {name} is {word!r}, not one of {', '.join(known)}")


def _read_meta(path: Path) -> tuple[dict[str, Any] | None, dict[str, Any]]:
    if not path.is_file():
        return None, {}
    try:
        return _meta(path.read_text(encoding="utf-8"), path)
    except UnicodeDecodeError as error:
        raise BadInput(f"{path} is not JSON: {error}") from error


def _meta(text: str, path: Path) -> tuple[dict[str, Any] | None, dict[str, Any]]:
    """Rules and notes."""
    try:
        meta = json.loads(text)
    except json.JSONDecodeError as error:
        raise BadInput(f"{path} is not JSON: {error}") from error
    if not isinstance(meta, dict) or meta.get("format") != FORMAT or not isinstance(meta.get("rules"), dict):
        raise BadInput(f"{path} does not say format {FORMAT} and its rules: it is not the companion of a score table")
    return meta["rules"], {key: value for key, value in meta.items() if key not in ("format", "rules")}


def _refuse_twice(rows: Frame, name: str) -> None:
    number, largest = np.zeros(len(rows), np.int64), 1  # of a row's key, as the codes of its words make it up
    for column in KEY:
        words = rows[column].astype("category").cat
        if (largest := largest * max(len(words.categories), 1)) >= 2**63:
            number, known = pd.factorize(number)
            largest = len(known) * len(words.categories)
        number *= max(len(words.categories), 1)
        number += words.codes.to_numpy()
    if (np.diff(np.sort(number)) == 0).any():
        twice = rows[pd.Series(number).duplicated().to_numpy()]
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
