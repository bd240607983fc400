r"""How far two methods differ on the same cases, with an interval over patients and, of trainings.

Differences are taken case by case within a training (a draw of training cases, or a seed), then averaged; patients and
trainings are resampled together (`bootstrap.crossed_means`). A difference is worth a word if its interval excludes 0;
one patient gives none.

>>> rows = [("ce", "0", "p1", 0.30), ("ce", "0", "p2", 0.20), ("ls", "0", "p1", 0.25), ("ls", "0", "p2", 0.15)]
>>> values = pd.DataFrame(rows, columns=["method", "training", "case", "ece"]).assign(patient=lambda rows: rows["case"])
>>> difference(values, "ls", "ce", ["ece"])["ece"]
Difference(mean=-0.05, low=-0.05, high=-0.05, trainings=1, cases=2)
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd

from calibseg.analysis.bootstrap import crossed_means, ends
from calibseg.analysis.columns import Frame
from calibseg.core.types import BadInput


class Difference(NamedTuple):
    """A mean difference and the ends of its 95 % interval."""

    mean: float
    low: float
    high: float
    trainings: int
    cases: int

    @property
    def is_clear(self) -> bool:
        """Whether the interval excludes 0."""
        return self.low > 0 or self.high < 0


def difference(values: Frame, method: str, other: str | None, columns: Sequence[str]) -> dict[str, Difference]:
    """A method minus another (None: minus nothing), by column, on the trainings and cases that both have.

    values: one row per method, training, patient and case; trainings of one `draw`, a column that may be there (which
    cases they learnt from), are resampled together
    """
    parts = [
        values[values["method"] == name].set_index(["training", "patient", "case"])[list(columns)]
        for name in (method, other)
        if name is not None
    ]
    for name, part in zip((method, other), parts, strict=False):
        if part.index.has_duplicates or not len(part):
            problem = "is judged twice in one training" if len(part) else "has no values"
            raise BadInput(f"{name} {problem}: differences are paired case by case")
    gaps = parts[0] - parts[1].reindex(parts[0].index) if len(parts) > 1 else parts[0]
    trainings = list(dict.fromkeys(gaps.index.get_level_values("training")))
    defined = gaps.dropna(how="all")
    compared = [name for name in trainings if name in set(defined.index.get_level_values("training"))]
    if not compared:
        raise BadInput(f"{method} and {other} have no case in common")
    cases = defined.reset_index()[["patient", "case"]].drop_duplicates()
    index = pd.MultiIndex.from_frame(cases)
    blocks = [defined.xs(name, level="training").reindex(index).to_numpy(float) for name in compared]
    block = np.stack(blocks)
    patients = [str(name) for name in cases["patient"]]
    draw_of = dict(zip(values["training"], values["draw"] if "draw" in values else values["training"], strict=True))
    low, high = ends(crossed_means(block, patients, [draw_of[name] for name in compared]))
    counted = pd.DataFrame(~np.isnan(block).all(axis=0)).groupby(patients).any().sum().to_numpy()
    low, high = (np.where(counted > 1, end, np.nan) for end in (low, high))  # one patient drawn again shows nothing
    mean = np.nanmean(block, axis=(0, 1))
    return {
        name: Difference(
            round(float(mean[i]), 10), round(float(low[i]), 10), round(float(high[i]), 10), len(compared), len(cases)
        )
        for i, name in enumerate(columns)
    }
