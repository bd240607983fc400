"""The rows of a score table and of its reliability diagrams, from what was measured."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

from calibseg.analysis.columns import ALL, EXPERIMENT
from calibseg.stages.score.case import CaseMeasurement, Statistics, Value, values
from calibseg.stages.score.options import ScoringOptions

BIN_COLUMNS = (*EXPERIMENT, "patient", "case", "class", "voxels", "scope", "bin", "low", "high", "count",
               "confidence", "accuracy")  # fmt: skip


class Named(Protocol):
    """Whose a measurement is."""

    @property
    def case(self) -> str: ...

    @property
    def patient(self) -> str: ...


def score_rows(
    measured: Sequence[tuple[Named, CaseMeasurement]],
    pooled: Statistics,
    scoring: ScoringOptions,
    experiment: Mapping[str, str],
) -> Iterator[dict[str, Any]]:
    """The rows of a score table: every case's, then those of all cases pooled."""
    for pair, one in measured:
        whose = {**experiment, "patient": pair.patient, "case": pair.case, "scope": "case"}
        yield from (whose | _columns(row) for row in one.values)
    channels = measured[0][1].channels
    yield from ({**experiment, "scope": "pooled"} | _columns(row) for row in values(pooled, channels, scoring))


def _columns(row: Value) -> dict[str, Any]:
    fields = row._asdict()
    return {"class": fields.pop("name"), **fields}


def bin_rows(
    measured: Sequence[tuple[Named, CaseMeasurement]],
    pooled: Statistics,
    scoring: ScoringOptions,
    experiment: Mapping[str, str],
) -> Iterator[dict[str, Any]]:
    """The rows of the reliability diagrams: every case's, then those of all cases pooled."""
    channels = measured[0][1].channels
    blank = dict.fromkeys((*EXPERIMENT, "patient", "case"), "") | dict(experiment)
    sources = [({"patient": p.patient, "case": p.case, "scope": "case"}, one.statistics) for p, one in measured]
    for whose, statistics in [*sources, ({"scope": "pooled"}, pooled)]:
        for voxels in scoring.voxels:
            for row in statistics.calibration.on(voxels).rows():
                name = ALL if row["class"] is None else channels.names[row["class"]]
                yield blank | whose | row | {"class": name}
