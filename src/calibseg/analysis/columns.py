"""The columns of a score table, and what must be true of its rows: the one door that rows pass, read or to be written.

A row that says nothing (no metric, no class, a case without a name or patient), a word with blanks around it (`A ` and
`A` would be two patients), an infinite value, the same row twice, a metric with two units or two directions: each is an
error that names the place.

A metric and its voxel rule are one word, its key, wherever people name them; a shape metric has no rule:

>>> metric_key("ece", "predicted"), metric_key("dsc", ""), split_key("ece@predicted"), split_key("dsc")
('ece@predicted', 'dsc', ('ece', 'predicted'), ('dsc', ''))
"""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from numpy import ndarray as Array

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
MEANING = ("metric", "unit", "higher_is_better")
SCOPES = ("case", "pooled")
ALL = "all"  # the class column's word for all classes together
MEAN = "(mean)"  # in summaries only
NO_WORD = "with blanks around it or what cannot be printed"
LARGEST = 1e100  # sums of values far beyond any metric's would overflow


def metric_key(metric: str, voxels: str) -> str:
    return f"{metric}@{voxels}" if voxels else metric


def split_key(key: str) -> tuple[str, str]:
    metric, _, voxels = key.partition("@")
    return metric, voxels


def rows_of_key(rows: Frame, key: str) -> Frame:
    """The rows, of a score table or of its summary, that hold a metric under its rule."""
    metric, voxels = split_key(key)
    return rows[(rows["metric"] == metric) & (rows["voxels"] == voxels)]


def check_rows(rows: Frame, name: str, first: int = 1) -> None:
    """Refuse rows that cannot be right; `first` is the number of the first row in its file, `name` the file's."""
    if not len(rows):
        raise BadInput(f"{name} holds no rows: nothing was scored")
    for column in WORDS:
        check_words(rows[column], is_word, name, first, NO_WORD)
    check_words(rows["scope"], SCOPES.__contains__, name, first, f"not one of {', '.join(SCOPES)}")
    for column in ("metric", "class"):
        check_words(rows[column], bool, name, first, "and must say something")
    for column in ("patient", "case"):
        nameless = np.flatnonzero((rows[column] == "").to_numpy() & (rows["scope"] == "case").to_numpy())
        if len(nameless):
            raise BadInput(f"{name} line {nameless[0] + first}: a row of one case does not say its {column}")
    infinite = np.flatnonzero(np.abs(rows["value"].to_numpy()) > LARGEST)
    if len(infinite):
        raise BadInput(f"{name} line {infinite[0] + first}: the value is infinite or beyond 1e100 (undefined is nan)")
    refuse_twice(rows, name)
    refuse_two_patients(rows, name)
    meanings(rows, name)


def is_word(word: str) -> bool:
    """Whether a column of words may hold it."""
    return word == word.strip() and word.isprintable()


def check_words(column: Column, fits: Any, name: str, first: int, fault: str) -> None:
    """Refuse a column in which some word does not fit; the words are looked at once, however many rows there are."""
    words = words_of(column)
    wrong = [number for number, word in enumerate(words.categories) if not fits(word)]
    places = np.flatnonzero(np.isin(words.codes, wrong)) if wrong else []
    if len(places):
        raise BadInput(f"{name} line {places[0] + first}: {column.name} is {column.iloc[places[0]]!r}, {fault}")


def words_of(column: Column) -> Any:
    """A column as pandas' Categorical: its words (`categories`) and the number of each row's (`codes`); no copy."""
    return column.array if isinstance(column.dtype, pd.CategoricalDtype) else pd.Categorical(column)


def refuse_twice(rows: Frame, name: str) -> None:
    """The same case, class, voxel rule and metric of one experiment has one value."""
    number = _numbered(rows, KEY)
    ordered = np.sort(number)
    if (ordered[1:] == ordered[:-1]).any():
        twice = rows[pd.Series(number).duplicated().to_numpy()]
        row = twice.iloc[0]
        where = ", ".join(f"{column} {row[column]}" for column in KEY if row[column])
        raise BadInput(f"{name}: {len(twice)} rows appear twice, the first for {where}")


def refuse_two_patients(rows: Frame, name: str) -> None:
    """A case belongs to one patient, whoever scored it."""
    patients: dict[tuple[str, str], str] = {}
    for dataset, case, patient in _distinct(
        rows, ("dataset", "case", "patient"), np.flatnonzero(rows["scope"] == "case")
    ):
        if (known := patients.setdefault((dataset, case), patient)) != patient:
            raise BadInput(f"{name}: case {case!r} belongs to patient {known!r} and to {patient!r}")


def meanings(rows: Frame, name: str) -> dict[str, tuple[str, bool, str]]:
    """By metric its unit, whether higher is better, and the table that says so; refused where rows contradict."""
    by_metric: dict[str, tuple[str, bool, str]] = {}
    for metric, unit, better in _distinct(rows, MEANING):
        agree(by_metric, {str(metric): (str(unit), bool(better), name)})
    return by_metric


def _distinct(rows: Frame, columns: Sequence[str], among: Array | None = None) -> Iterator[tuple[Any, ...]]:
    """What these columns say (in the rows among these), each thing once, in the order of the rows."""
    places = np.arange(len(rows)) if among is None else among
    first = places[~pd.Series(_numbered(rows, columns)[places]).duplicated().to_numpy()]
    return zip(*(rows[column].array[first].tolist() for column in columns), strict=True)


def _numbered(rows: Frame, columns: Sequence[str]) -> Array:
    """A number for each row, equal where all these columns are: the numbers of their words make it up."""
    number, largest = np.zeros(len(rows), np.int64), 1
    for column in columns:
        words = words_of(rows[column])
        if (largest := largest * max(len(words.categories), 1)) >= 2**63:
            number, values = pd.factorize(number)
            largest = len(values) * len(words.categories)
        number *= max(len(words.categories), 1)
        number += words.codes
    return number


def agree(by_metric: dict[str, tuple[str, bool, str]], more: dict[str, tuple[str, bool, str]]) -> None:
    """Add what another table says of its metrics; refused where the two contradict each other."""
    for metric, (unit, better, name) in more.items():
        known_unit, known_better, known_name = by_metric.setdefault(metric, (unit, better, name))
        places = f"{name} and {known_name}" if name != known_name else f"{name} itself"
        if unit != known_unit:
            units = " and ".join(word or "no unit" for word in (unit, known_unit))
            raise BadInput(f"{places} contradict each other: {metric} is in {units}; score both with the same --units")
        if better != known_better:
            raise BadInput(
                f"{places} contradict each other: higher_is_better of {metric} is {str(better).lower()} and"
                f" {str(known_better).lower()}"
            )
