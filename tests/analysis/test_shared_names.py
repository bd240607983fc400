"""Names that mean two things: a patient of two datasets, subsets of folds, lines of tables made in memory."""

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from calibseg.analysis import bootstrap, case_values, ranking, summary, table
from calibseg.analysis.columns import check_rows
from calibseg.analysis.merge import one_subset
from calibseg.core.types import BadInput

VALUES = np.random.default_rng(5).normal(0.3, 0.1, size=(2, 6, 3))  # datasets, patients, methods


def row(dataset, patient, method, value, **columns):
    named = {"dataset": f"d{dataset}", "patient": f"p{patient}", "case": f"c{patient}", "loss": f"m{method}"}
    what = {"class": "all", "scope": "case", "metric": "ece", "voxels": "predicted", "higher_is_better": False}
    return named | what | {"value": value} | columns


def rows():
    """Patients p0 ... p5 in both datasets: twelve people."""
    return table.frame(row(*place, value) for place, value in np.ndenumerate(VALUES))


def test_friedmans_blocks_are_the_patients_of_each_dataset():
    found = ranking.friedman_tests(case_values.case_values(rows(), ["ece"]))["ece@predicted"]
    theirs = stats.friedmanchisquare(*VALUES.reshape(12, 3).T)
    assert found.blocks == 12
    assert (found.statistic, found.p) == pytest.approx((theirs.statistic, theirs.pvalue), rel=1e-12)


def test_the_paired_bootstrap_draws_the_patients_of_each_dataset():
    (found,) = ranking.differences(case_values.case_values(rows(), ["ece"]), "m0", "m1", repeats=500)
    gap = (VALUES[..., 0] - VALUES[..., 1]).reshape(12, 1)
    drawn = bootstrap.means(gap, [f"{n:02d}" for n in range(12)], 500, 0)[:, 0]
    assert (found.patients, found.cases) == (12, 12)
    assert (found.low, found.high) == pytest.approx(tuple(np.percentile(drawn, [2.5, 97.5])), rel=1e-12)


def test_a_summary_has_the_interval_of_each_datasets_own_patients():
    found = summary.summary(rows(), repeats=300)
    one = summary.summary(rows()[rows()["dataset"] == "d1"], repeats=300)
    pd.testing.assert_frame_equal(found[found["dataset"] == "d1"].reset_index(drop=True), one)
    assert set(found["cases"]) == {6}


def test_ranks_by_case_count_the_patients_of_each_dataset():
    ranks = ranking.rank_table(case_values.case_values(rows(), ["ece"]))
    mean = ranks[(ranks["ranking"] == "mean case-rank") & (ranks["metric"] == "ece@predicted")].set_index("method")[
        "rank"
    ]
    by_hand = [[1 + sum(other < value for other in case) for value in case] for case in VALUES.reshape(12, 3)]
    assert mean.to_dict() == pytest.approx({f"m{m}": np.mean([case[m] for case in by_hand]) for m in range(3)})


def test_subsets_are_those_of_cases_and_what_folds_pooled_goes_with_them():
    both = table.frame(
        [
            row(0, 0, 0, 0.1, subset="validation"),
            row(0, 0, 0, 0.2, subset="validation fold1", scope="pooled") | {"patient": "", "case": ""},
        ]
    )
    assert one_subset(both, "", "made")["value"].tolist() == [0.1, 0.2]
    with pytest.raises(BadInput, match=r"holds no rows of the subset 'test', only of validation$"):
        one_subset(both, "test", "made")
    pooled = both[both["scope"] == "pooled"]
    assert one_subset(pooled, "", "made")["value"].tolist() == [0.2]
    two = table.frame([row(0, 0, 0, 0.1, subset="validation"), row(0, 0, 0, 0.3, subset="calibration")])
    with pytest.raises(BadInput, match="holds the subsets validation, calibration, and they are not averaged"):
        one_subset(two, "", "made")
    tested = pd.concat([two, table.frame([row(0, 0, 0, 0.5, subset="test")])])
    assert one_subset(tested, "", "made")["value"].tolist() == [0.5]


def test_lines_of_a_table_in_memory_count_from_one():
    made = table.frame([row(0, 0, 0, 0.1), row(0, 1, 0, np.inf)])
    with pytest.raises(BadInput, match="made line 2: the value is infinite"):
        check_rows(made, "made")
    with pytest.raises(BadInput, match="made line 8: the value is infinite"):
        check_rows(made, "made", first=7)
