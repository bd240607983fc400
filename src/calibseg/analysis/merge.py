"""One table from several: their rules must agree, and what they say of a metric (its unit, which way is better).

A comparison is made on one subset (`one_subset`): the one that is asked for; else test, where a table holds several;
else the only one. Rows that do not say their subset stand beside it.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from calibseg.analysis.columns import Frame, agree, meanings, refuse_twice, refuse_two_patients
from calibseg.analysis.table import ScoreTable, concat, meta_path
from calibseg.core.types import BadInput


class Agreement:
    """What the tables seen so far say together: rules, and units and directions of metrics."""

    def __init__(self) -> None:
        self.first: ScoreTable | None = None
        self.rules: Mapping[str, Any] | None = None
        self.meanings: dict[str, tuple[str, bool, str]] = {}

    def add(self, table: ScoreTable) -> None:
        """Refused, and forgotten, where it contradicts those before it."""
        more = meanings(table.rows, table.name)
        if self.first is None:
            self.first, self.rules, self.meanings = table, table.rules, more
            return
        for scores in (self.first, table):
            if scores.rules is None:
                raise BadInput(
                    f"{scores.name} cannot be merged with others: its rules are unknown,"
                    f" as {meta_path(Path(scores.name)).name} is not beside it"
                )
        for key, ours, theirs in _differences(self.rules, table.rules):
            raise BadInput(
                f"{table.name} was scored by other rules than {self.first.name} and cannot be merged:"
                f" {key} is {theirs} in it, not {ours}"
            )
        together = dict(self.meanings)
        agree(together, more)
        self.rules, self.meanings = _united(self.rules, table.rules), together


def merge(tables: Sequence[ScoreTable]) -> ScoreTable:
    """One table from several; refused where they contradict each other, or a row appears twice."""
    if not tables:
        raise BadInput("no score table is given: name at least one")
    agreement = Agreement()
    for table in tables:
        agreement.add(table)
    if len(tables) == 1:
        return tables[0]
    rows = concat([table.rows for table in tables])
    first, *more = (table.name for table in tables)
    names = " and ".join([first, *more]) if len(more) < 3 else f"{first} and {len(more)} more"
    refuse_twice(rows, names)
    refuse_two_patients(rows, names)
    sources = {table.name: dict(table.notes) for table in tables}
    return ScoreTable(rows, agreement.rules, {"merged": sources}, names)


def one_subset(rows: Frame, subset: str, name: str) -> Frame:
    """The rows of one subset; blank: test, or the only one. What was pooled over a fold (`test fold1`) goes with it."""
    cases = rows[rows["scope"] == "case"]
    names = [word for word in (cases if len(cases) else rows)["subset"].unique() if word]
    if subset and subset not in names:
        raise BadInput(f"{name}: holds no rows of the subset {subset!r}, only of {', '.join(names) or 'none by name'}")
    if len(names) > 1 and not subset and "test" not in names:
        raise BadInput(f"{name}: holds the subsets {', '.join(names)}, and they are not averaged: choose with --subset")
    chosen = subset or ("test" if "test" in names else "".join(names))
    pooled = [word for word in rows["subset"].unique() if word.startswith(f"{chosen} ")]
    folds = rows["subset"].isin(pooled) & (rows["scope"] == "pooled")
    return rows[rows["subset"].isin([chosen, ""]) | folds]


def _differences(ours: Any, theirs: Any, key: str = "") -> Iterator[tuple[str, str, str]]:
    """Where two sets of rules differ: the dotted name and both values."""
    if isinstance(ours, Mapping) and isinstance(theirs, Mapping):
        members = [*ours, *(name for name in theirs if name not in ours)]
        for name in members if not key else (name for name in members if name in ours and name in theirs):
            yield from _differences(ours.get(name), theirs.get(name), f"{key}.{name}" if key else name)
    elif ours != theirs:
        first, second = ("absent" if value is None else json.dumps(value) for value in (ours, theirs))
        yield key, first, second


def _united(ours: Any, theirs: Any) -> Any:
    """The rules of both, which do not differ."""
    if not (isinstance(ours, Mapping) and isinstance(theirs, Mapping)):
        return ours
    return {**theirs, **{name: _united(rule, theirs.get(name)) for name, rule in ours.items()}}
