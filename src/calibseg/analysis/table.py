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
| voxels | the rule (headline.VOXEL_RULES) for calibration metrics; blank for shape metrics, which see every voxel |
| scope | `case`: one case's value; `pooled`: the statistics of all cases added up first |
| metric, value, unit, higher_is_better | `nan` is undefined, and is counted |

In memory the columns of words are categories (pandas' `category`, Arrow's `dictionary`), in alphabetical order: a
million rows take 30 MB, and sort as words do.
"""

import functools
import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypedDict

import numpy as np
import pandas as pd
import pyarrow as pa
from numpy import ndarray as Array
from pyarrow import csv, parquet

from calibseg.analysis.columns import COLUMNS, WORDS, Frame, check_rows, check_words, words_of
from calibseg.core import files
from calibseg.core.coerce import coerce
from calibseg.core.files import atomic_write
from calibseg.core.types import BadInput

DICTIONARY = pa.dictionary(pa.int32(), pa.string())
NOT_A_TABLE = (pa.ArrowException, OSError, ValueError)  # what pyarrow raises for a file that is something else
FORMAT = "calibseg-scores/1"
ENDINGS = (".csv", ".parquet")
YES_OR_NO = {
    spelt(word): word == "true" for word in ("true", "false") for spelt in (str, str.title, str.upper)
}  # pandas, Excel


class _Dataset(TypedDict, total=False):
    classes: list[str]
    regions: dict[str, Any]


class _Rules(TypedDict, total=False):
    """What readers rely on in the rules of a table."""

    datasets: dict[str, _Dataset]
    metrics: dict[str, dict[str, Any]]


class _Notes(TypedDict, total=False):
    """What readers rely on in the notes of a table; a merged one holds those of its parts."""

    versions: dict[str, Any]
    left_out: list[str]
    merged: dict[str, "_Notes"]


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
        words = [words_of(part[name]) for part in frames]
        columns[name] = _words([(part.codes, part.categories.tolist()) for part in words])
    return pd.DataFrame(columns, copy=False)


def called(rows: Frame, **words: str) -> Frame:
    """The rows with one word in all of a column: the name that a method or a dataset has elsewhere."""
    return rows.assign(**{name: _words([(np.zeros(len(rows), np.int8), [word])]) for name, word in words.items()})


def _words(parts: Sequence[tuple[Array, Sequence[str]]]) -> pd.Categorical:
    """One column of several, each given as numbers and the words that they stand for."""
    words = sorted({word for _, categories in parts for word in categories})
    number = {word: index for index, word in enumerate(words)}
    small = np.min_scalar_type(-1 - len(words))
    codes = [np.array([number[word] for word in categories], small)[codes] for codes, categories in parts]
    return pd.Categorical.from_codes(np.concatenate(codes), dtype=_categories(tuple(words)), validate=False)


@functools.lru_cache(maxsize=256)
def _categories(words: tuple[str, ...]) -> pd.CategoricalDtype:
    """The tables of a benchmark say the same words in most of their columns."""
    return pd.CategoricalDtype(pd.Index(words, dtype=str))


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
        rows, first = _read_parquet(path), 1
        columns = {name: _typed(rows[name], name, path) for name in ("value", "higher_is_better")}
        meta = (rows.schema.metadata or {}).get(FORMAT.encode())
        rules, notes = (None, {}) if meta is None else _meta(meta, path)
    else:
        rows, first = read_csv(path, (*WORDS, "higher_is_better"), ("value",)), 2
        _check_columns(rows.column_names, path)
        better = pd.Series(from_arrow(rows, ["higher_is_better"])["higher_is_better"], name="higher_is_better")
        check_words(better, YES_OR_NO.__contains__, str(path), first, "not one of true, false")
        columns = {"value": _numbers(rows["value"], path), "higher_is_better": np.asarray(better.map(YES_OR_NO), bool)}
        companion = meta_path(path)
        rules, notes = _meta(companion.read_bytes(), companion) if companion.is_file() else (None, {})
    frame = pd.DataFrame({**from_arrow(rows, WORDS), **columns}, columns=list(COLUMNS), copy=False)
    check_rows(frame, str(path), first)
    return ScoreTable(frame, rules, notes, str(path))


def read_csv(path: Path, words: Iterable[str], numbers: Iterable[str]) -> pa.Table:
    """A CSV: columns of words as categories, those of numbers still as text. What is no table is an error."""
    types = dict.fromkeys(numbers, pa.string()) | dict.fromkeys(words, DICTIONARY)
    convert = csv.ConvertOptions(column_types=types, null_values=[], strings_can_be_null=False)
    try:
        rows = csv.read_csv(path, parse_options=csv.ParseOptions(newlines_in_values=True), convert_options=convert)
        return rows.rename_columns(rows.column_names)  # names that are no UTF-8 are found here
    except NOT_A_TABLE as error:
        reason = str(error).strip().splitlines()[0][:200].encode("ascii", "backslashreplace").decode()
        raise BadInput(f"{path} is not a CSV table: {reason if reason.isprintable() else 'it is no text'}") from error


def check_output(path: Path, reads: Iterable[Path | str] = ()) -> None:
    """Refuse to write a score table over what the command reads, or over a file that is none."""
    files.check_output(path, ENDINGS, reads)
    if path.suffix == ".csv" and path.is_file():
        with path.open("rb") as file:
            if file.readline().rstrip() != ",".join(COLUMNS).encode():
                raise BadInput(f"{path}: exists and is no score table; give the output another name")


def write(table: ScoreTable, path: Path | str, bins: Frame | None = None) -> None:
    """Write the rows, the rules and (if given) the reliability rows: all of them, or none."""
    path = Path(path)
    check_rows(table.rows, table.name)
    meta = {"format": FORMAT, "rules": table.rules, **table.notes}
    meta_text = json.dumps(meta, indent=2, allow_nan=False) + "\n"
    with ExitStack() as stack:  # the table's own name is replaced last: where it stands, its companions stand too
        if path.suffix == ".parquet":
            _write_parquet(table.rows, meta_text, stack.enter_context(atomic_write(path)))
        else:
            as_text(table.rows).to_csv(stack.enter_context(atomic_write(path)), index=False)
            stack.enter_context(atomic_write(meta_path(path))).write_text(meta_text, encoding="utf-8")
        if bins is not None:
            bins.to_csv(stack.enter_context(atomic_write(bins_path(path))), index=False, na_rep="nan")


def as_text(rows: Frame) -> Frame:
    """The rows as a CSV shows them: every value with the digits that make it whole."""
    return rows.assign(
        value=[repr(value) for value in rows["value"].tolist()],
        higher_is_better=np.where(rows["higher_is_better"], "true", "false"),
    )


def _read_parquet(path: Path) -> pa.Table:
    try:
        rows = parquet.read_table(path)
    except NOT_A_TABLE as error:
        raise BadInput(f"{path} is not a Parquet table: {str(error).strip()}") from error
    _check_columns(rows.column_names, path)
    for name in WORDS:
        kind = rows.schema.field(name).type
        kind = kind.value_type if pa.types.is_dictionary(kind) else kind
        if not (pa.types.is_string(kind) or pa.types.is_large_string(kind)) or rows[name].null_count:
            raise BadInput(f"{path}: the column {name} holds {kind} with {rows[name].null_count} gaps, not words alone")
    return rows


def _typed(column: pa.ChunkedArray, name: str, path: Path) -> Array:
    """Values as float64, in which a gap is undefined; directions as bool."""
    fits = pa.types.is_boolean if name == "higher_is_better" else _is_number
    if not fits(column.type) or (name == "higher_is_better" and column.null_count):
        raise BadInput(f"{path}: the column {name} holds {column.type} with {column.null_count} gaps")
    return column.to_numpy() if name == "higher_is_better" else column.cast(pa.float64()).to_numpy()


def _is_number(kind: pa.DataType) -> bool:
    return pa.types.is_floating(kind) or pa.types.is_integer(kind)


def _write_parquet(rows: Frame, meta: str, path: Path) -> None:
    """The words of a column once, then their numbers; the rules stand in the file's own header."""
    columns = {}
    for name in COLUMNS:
        if name not in WORDS:
            columns[name] = pa.array(rows[name].to_numpy())
            continue
        words = words_of(rows[name])
        used = np.bincount(words.codes, minlength=len(words.categories)) > 0
        codes = (np.cumsum(used) - 1).astype(words.codes.dtype)[words.codes]
        columns[name] = pa.DictionaryArray.from_arrays(codes, pa.array(words.categories[used]))
    parquet.write_table(pa.table(columns).replace_schema_metadata({FORMAT: meta}), path, compression="zstd")


def _check_columns(names: Sequence[str], path: Path) -> None:
    if tuple(names) != COLUMNS:
        raise BadInput(f"{path} has the columns {','.join(names)}; a score table has {','.join(COLUMNS)}")


def _numbers(column: pa.ChunkedArray, path: Path) -> Array:
    try:
        return column.cast(pa.float64()).to_numpy()  # correctly rounded, as Python's own float
    except pa.ArrowInvalid:
        for line, text in enumerate(column.to_pylist(), start=2):
            try:
                float(text.replace("_", "?"))  # Python would read 1_000
            except ValueError:
                raise BadInput(f"{path} line {line}: the value {text!r} is not a number (undefined is nan)") from None
        return np.array([float(text) for text in column.to_pylist()])


def _meta(content: bytes, path: Path) -> tuple[dict[str, Any] | None, dict[str, Any]]:
    """Rules and notes."""
    try:
        meta = json.loads(content.decode())
    except (ValueError, RecursionError) as error:
        raise BadInput(f"{path} is not JSON: {error}") from error
    if not isinstance(meta, dict) or meta.get("format") != FORMAT or not isinstance(meta.get("rules", 0), dict | None):
        raise BadInput(f"{path} does not say format {FORMAT} and its rules: it is not the companion of a score table")
    rules, notes = meta["rules"], {key: value for key, value in meta.items() if key not in ("format", "rules")}
    return rules and coerce(f"{path}: rules", rules, _Rules), coerce(f"{path}: ", notes, _Notes)
