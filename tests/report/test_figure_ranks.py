"""What the figures of ranks show, against values computed by hand."""

import numpy as np
import pandas as pd
import pytest

from calibseg.analysis import ranking
from calibseg.analysis.table import ScoreTable
from calibseg.report.figure_data.ranks import bars, critical_difference, rank_heat
from support.score_rows import scores


def test_rank_heat_maps_sum_ranks_over_datasets_and_average_them_over_cases():
    one = scores({"a": {"dsc": [0.9, 0.9, 0.1], "ece@all": [0.1, 0.1, 0.1]},
                  "b": {"dsc": [0.8, 0.8, 0.8], "ece@all": [0.2, 0.2, 0.2]}}, dataset="d")  # fmt: skip
    two = scores({"a": {"dsc": [0.9], "ece@all": [0.1]}, "b": {"dsc": [0.8], "ece@all": [0.2]}}, dataset="e")
    ranked = ranking.rank(ScoreTable(pd.concat([one.rows, two.rows]), one.rules), ["dsc", "ece@all"])[0]
    sums = rank_heat(ranked)  # mean DSC of a on d is 1.9 / 3 < 0.8
    assert sums.loc["a"].tolist() == [2 + 1, 1 + 1, 5]
    assert sums.loc["b"].tolist() == [1 + 2, 2 + 2, 7]
    assert list(sums.index) == ["a", "b"]  # best first
    cases = rank_heat(ranked, "mean case-rank")
    assert cases.loc["a", "dsc"] == pytest.approx((1 + 1 + 2 + 1) / 4)
    assert cases.loc["a", "all"] == pytest.approx((1 + 1 + 1.5 + 1) / 4)


def test_the_critical_difference_diagram_joins_what_is_near():
    rng = np.random.default_rng(0)
    noise = rng.normal(scale=0.01, size=(3, 12))
    values = {m: {"ece@all": (b + e).tolist()} for m, b, e in zip("abc", (0.1, 0.1, 0.5), noise, strict=True)}
    ranked = ranking.rank(scores(values), ["ece@all"])[0]
    diagram = critical_difference(ranked, "ece")
    assert diagram.methods[2] == "c"
    assert diagram.mean_ranks[2] == 3.0
    assert diagram.critical_difference == pytest.approx(2.343 * np.sqrt(3 * 4 / (6 * 12)), abs=1e-3)  # Demsar, table 5
    assert diagram.groups == ((0, 1),)
    assert diagram.patients == 12


def test_bars_are_maximal_and_never_of_one():
    assert bars(np.array([1.0, 2.0, 3.0]), 0.5) == ()
    assert bars(np.array([1.0, 1.2, 1.4, 3.0]), 1.0) == ((0, 2),)
    assert bars(np.array([1.0, 2.0, 3.0]), 1.0) == ((0, 1), (1, 2))  # at the critical difference: not told apart
