"""Ranks and tests against printed tables, hand calculations and scipy."""

import io
import sys
from subprocess import run

import numpy as np
import pandas as pd
import pytest
from rich.console import Console
from scipy import stats

from calibseg.analysis import bootstrap, case_values, friedman, ranking, table
from calibseg.cli import console
from calibseg.core.types import BadInput
from support.score_rows import scores

# Murugesan et al., Class and Region-Adaptive Constraints for Network Calibration, MICCAI 2024, Table 1 (U-Net):
# DSC, HD95, ECE, TACE on ACDC, the same on FLARE, and the printed Friedman rank.
CRAC_TABLE_1 = {
    "FL": ([0.620, 7.30, 0.153, 0.224, 0.834, 6.65, 0.053, 0.145], 7.88),
    "ECP": ([0.782, 4.44, 0.130, 0.151, 0.860, 5.30, 0.037, 0.134], 5.38),
    "LS": ([0.809, 3.30, 0.083, 0.093, 0.860, 5.33, 0.055, 0.050], 4.88),
    "SVLS": ([0.824, 2.81, 0.091, 0.138, 0.857, 5.72, 0.039, 0.144], 5.25),
    "MbLS": ([0.827, 2.99, 0.103, 0.081, 0.836, 5.75, 0.046, 0.041], 5.25),
    "NACL": ([0.854, 2.93, 0.068, 0.073, 0.868, 5.12, 0.033, 0.031], 2.25),
    "BWCR": ([0.841, 2.69, 0.051, 0.075, 0.848, 5.39, 0.029, 0.059], 3.13),
    "CRaC": ([0.877, 1.72, 0.057, 0.058, 0.876, 5.52, 0.029, 0.033], 1.75),
}


def rows_of(values, **columns):
    """Score rows from {(method, patient, case, metric): value}; HD and ECE are better when small."""
    made = []
    for (method, patient, case, metric), value in values.items():
        name, _, voxels = metric.partition("@")
        made.append(
            {
                "dataset": "toy", "loss": method, "patient": patient, "case": case, "class": "organ", "scope": "case",
                "metric": name, "voxels": voxels, "value": value, "higher_is_better": name == "dsc",
            } | columns
        )  # fmt: skip
    return table.frame(made)


def crac_rows():
    values = {}
    for method, (printed, _) in CRAC_TABLE_1.items():
        for index, value in enumerate(printed):
            dataset = ("ACDC", "FLARE")[index // 4]
            metric = ("dsc", "hd95", "ece@truth", "tcece@truth")[index % 4]
            values[method, dataset, dataset, metric] = value
    rows = rows_of(values)
    return rows.assign(dataset=rows["case"])


def test_smallest_rank_for_ties_reproduces_the_friedman_ranks_printed_in_crac_table_1():
    data = case_values.case_values(crac_rows(), ["dsc", "hd95", "ece", "tcece"])
    ranks = ranking.rank_table(data, ties="min")
    found = ranks[ranks["ranking"] == "friedman mean rank"].set_index("method")["rank"]
    for method, (_, printed) in CRAC_TABLE_1.items():
        # two decimals are printed; the ranks are eighths, so 3.125 is printed 3.13 and 7.875 is printed 7.88
        assert found[method] == pytest.approx(printed, abs=0.0051), method
    final = ranks[ranks["ranking"] == "final rank"].set_index("method")["rank"].to_dict()
    assert final == {"FL": 8, "ECP": 7, "LS": 4, "SVLS": 5, "MbLS": 5, "NACL": 2, "BWCR": 3, "CRaC": 1}


def test_average_ties_give_other_ranks_than_crac_printed():
    data = case_values.case_values(crac_rows(), ["dsc", "hd95", "ece", "tcece"])
    ranks = ranking.rank_table(data, ties="average")
    found = ranks[ranks["ranking"] == "friedman mean rank"].set_index("method")["rank"]
    # ECP and LS share DSC 0.860 on FLARE, BWCR and CRaC share ECE 0.029 on FLARE: each gains 1/2 of a rank in 1 of 8
    assert found["ECP"] == 5.375 + 0.0625
    assert found["LS"] == 4.875 + 0.0625
    assert found["BWCR"] == 3.125 + 0.0625
    assert found["CRaC"] == 1.75 + 0.0625


def two_metrics():
    """Three cases, two metrics, three methods; worked out by hand below."""
    dsc = {"a": [0.9, 0.8, 0.7], "b": [0.8, 0.9, 0.7], "c": [0.7, 0.7, 0.9]}
    hd95 = {"a": [1.0, 5.0, 2.0], "b": [2.0, 1.0, 3.0], "c": [3.0, 2.0, 1.0]}
    return rows_of(
        {
            (method, f"p{case}", f"c{case}", metric): values[method][case]
            for metric, values in (("dsc", dsc), ("hd95", hd95))
            for method in "abc"
            for case in range(3)
        }
    )


def rank_of(ranks, ranking_name, method, metric=""):
    chosen = ranks[(ranks["ranking"] == ranking_name) & (ranks["method"] == method) & (ranks["metric"] == metric)]
    return chosen["rank"].item()


def test_mean_case_rank_on_a_hand_computed_example():
    ranks = ranking.rank_table(case_values.case_values(two_metrics(), ["dsc", "hd95"]), ties="min")
    # DSC ranks by case   a: 1 2 2   b: 2 1 2   c: 3 3 1        (case 3: a and b tie at 0.7 and share rank 2)
    # HD95 ranks by case  a: 1 3 2   b: 2 1 3   c: 3 2 1
    # mean over metrics   a: 1 2.5 2 b: 2 1 2.5 c: 3 2.5 1
    assert rank_of(ranks, "mean case-rank", "a") == pytest.approx(5.5 / 3)
    assert rank_of(ranks, "mean case-rank", "b") == pytest.approx(5.5 / 3)
    assert rank_of(ranks, "mean case-rank", "c") == pytest.approx(6.5 / 3)
    assert rank_of(ranks, "mean case-rank", "a", "dsc") == pytest.approx(5 / 3)


def test_sum_rank_adds_the_ranks_of_the_means():
    ranks = ranking.rank_table(case_values.case_values(two_metrics(), ["dsc", "hd95"]), ties="min")
    # mean DSC a 0.8, b 0.8, c 0.7667 -> 1, 1, 3;  mean HD95 a 2.667, b 2, c 2 -> 3, 1, 1
    assert [rank_of(ranks, "sum-rank", method) for method in "abc"] == [4.0, 2.0, 4.0]


def test_a_missed_organ_takes_the_worst_value_and_is_counted():
    rows = rows_of(
        {
            ("finds", "p1", "c1", "hd95"): 5.0,
            ("finds", "p2", "c2", "hd95"): 9.0,
            ("misses", "p1", "c1", "hd95"): 1.0,
            ("misses", "p2", "c2", "hd95"): float("nan"),
        }
    )
    data = case_values.case_values(rows, ["hd95"])
    assert data.values[0].tolist() == [[5.0, 1.0], [9.0, 9.0]]
    assert data.filled.tolist() == [[0, 1]]
    dropped = case_values.case_values(rows, ["hd95"], undefined="drop")
    assert dropped.values[0, 0].tolist() == [5.0, 1.0]
    assert np.isnan(dropped.values[0, 1]).all()


def test_a_case_that_no_method_defines_is_left_out():
    rows = rows_of({(m, f"p{c}", f"c{c}", "hd95"): v for m in "ab" for c, v in ((1, 2.0), (2, float("nan")))})
    ranks = ranking.rank_table(case_values.case_values(rows, ["hd95"]))
    assert rank_of(ranks, "mean case-rank", "a") == 1.0
    assert rank_of(ranks, "sum-rank", "b") == 1.0


def test_seeds_are_averaged_before_ranking():
    low = rows_of({("a", "p", "c", "dsc"): 0.6, ("b", "p", "c", "dsc"): 0.7}, seed="0")
    high = rows_of({("a", "p", "c", "dsc"): 0.9, ("b", "p", "c", "dsc"): 0.7}, seed="1")
    data = case_values.case_values(pd.concat([low, high]), ["dsc"])
    assert data.values[0].tolist() == [[pytest.approx(0.75), pytest.approx(0.7)]]


def test_methods_scored_on_different_cases_are_not_ranked():
    rows = rows_of({("a", "p1", "c1", "dsc"): 0.5, ("a", "p2", "c2", "dsc"): 0.5, ("b", "p1", "c1", "dsc"): 0.5})
    with pytest.raises(BadInput, match=r"b has no dsc for 1 of 2 cases .* the first is c2 of toy"):
        case_values.case_values(rows, ["dsc"])


def test_a_bare_calibration_metric_reads_predicted_voxels_and_proper_scores_read_all():
    names = ("ece@truth", "ece@predicted", "ece@all", "nll@truth", "nll@predicted", "nll@all")
    rows = rows_of({("a", "p", "c", name): index for index, name in enumerate(names)})
    assert case_values.case_values(rows, ["ece", "nll", "ece@truth"]).metrics == (
        "ece@predicted",
        "nll@all",
        "ece@truth",
    )
    with pytest.raises(BadInput, match=r"ece not on the voxels 'union'; it has ece@truth, ece@predicted, ece@all"):
        case_values.case_values(rows, ["ece@union"])
    with pytest.raises(BadInput, match=r"no metric named 'hd' in the table\. Known: ece, nll"):
        case_values.case_values(rows, ["hd"])


def test_a_method_is_named_by_loss_calibrator_and_variant():
    rows = pd.DataFrame(
        {"loss": ["nacl", "nacl", "ce", ""], "calibrator": ["", "ts", "none", ""], "variant": ["", "", "wide", ""]}
    )
    assert case_values.method_names(rows).tolist() == ["nacl", "nacl+ts", "ce (wide)", "unnamed"]


def test_regions_are_judged_where_a_dataset_has_them_and_the_background_never_is():
    acdc = {"classes": ["background", "lv", "rv"], "regions": {}}
    brats = {"classes": ["background", "edema"], "regions": {"WT": [1]}}
    evaluated_classes = case_values.evaluated_classes({"datasets": {"acdc": acdc, "brats": brats}})
    assert evaluated_classes == {"acdc": ("lv", "rv"), "brats": ("WT",)}
    assert case_values.evaluated_classes(None) == {}
    values = {("a", "p", "c", "dsc"): 0.5}
    rows = pd.concat([rows_of(values, dataset="brats", **{"class": name}) for name in ("edema", "WT")])
    rows.loc[rows["class"] == "WT", "value"] = 0.9
    assert case_values.case_values(rows, ["dsc"], classes=evaluated_classes).values.item() == 0.9
    assert case_values.case_values(rows, ["dsc"]).values.item() == 0.7


# --- Friedman, Nemenyi, Holm -----------------------------------------------------------------------------------------


def test_friedman_equals_scipy():
    values = np.random.default_rng(0).normal(size=(12, 4)).round(1)  # rounding makes ties
    ours, theirs = friedman.friedman(values), stats.friedmanchisquare(*values.T)
    assert (ours.statistic, ours.p) == (theirs.statistic, theirs.pvalue)


def test_friedman_statistic_by_hand():
    values = np.array([[1.0, 2.0, 3.0], [1.0, 2.0, 3.0], [1.0, 3.0, 2.0], [2.0, 1.0, 3.0]])
    # rank sums 5, 8, 11: 12 / (4 * 3 * 4) * (25 + 64 + 121) - 3 * 4 * 4 = 52.5 - 48
    result = friedman.friedman(values)
    assert result.statistic == pytest.approx(4.5)
    assert result.p == pytest.approx(np.exp(-4.5 / 2))  # chi-square with two degrees of freedom


def test_friedman_for_two_methods_is_the_sign_test_statistic():
    values = np.array([[0.0, 1.0]] * 8 + [[1.0, 0.0]] * 2)
    assert friedman.friedman(values).statistic == pytest.approx((8 - 2) ** 2 / 10)


def test_equal_methods_do_not_differ():
    result = friedman.friedman(np.ones((5, 3)))
    assert (result.statistic, result.p) == (0.0, 1.0)
    assert (result.nemenyi == 1.0).all()
    assert (result.holm == 1.0).all()


@pytest.mark.parametrize(("methods", "q"), [(2, 1.960), (3, 2.343), (4, 2.569), (5, 2.728), (8, 3.031), (10, 3.164)])
def test_nemenyi_critical_difference_uses_the_published_q(methods, q):
    # Demsar 2006, Table 5(a), q at 0.05
    values = np.random.default_rng(0).normal(size=(30, methods))
    expected = q * np.sqrt(methods * (methods + 1) / (6 * 30))
    assert friedman.friedman(values).critical_difference == pytest.approx(expected, abs=6e-4)


def test_nemenyi_p_is_below_alpha_exactly_when_ranks_are_further_apart_than_the_critical_difference():
    result = friedman.friedman(np.random.default_rng(3).normal(size=(40, 5)) + np.arange(5) * 0.3)
    apart = np.abs(result.mean_ranks[:, None] - result.mean_ranks[None, :]) > result.critical_difference
    assert apart.any()
    assert not apart.all()
    assert ((result.nemenyi < 0.05) == apart).all()


def test_holm_by_hand():
    # sorted 0.005, 0.011, 0.02, 0.04, 0.13 times 5, 4, 3, 2, 1 = 0.025, 0.044, 0.06, 0.08, 0.13
    p = np.array([0.04, 0.005, 0.13, 0.011, 0.02])
    assert friedman.holm(p).tolist() == pytest.approx([0.08, 0.025, 0.13, 0.044, 0.06])


def test_holm_pairs_use_the_normal_distribution_of_rank_differences():
    values = np.array([[1.0, 2.0, 3.0]] * 6)
    # differences of mean ranks 1, 2, 1; standard error sqrt(3 * 4 / (6 * 6)) = 0.57735; z = 1.732, 3.464, 1.732
    near, far = 2 * stats.norm.sf(np.sqrt(3)), 2 * stats.norm.sf(2 * np.sqrt(3))
    result = friedman.friedman(values)
    assert result.holm[0, 2] == pytest.approx(3 * far)
    assert result.holm[0, 1] == result.holm[1, 0] == pytest.approx(2 * near)


def test_tests_run_over_patients_not_cases():
    values = {}
    for patient in range(6):
        for case in range(3):  # three copies of each patient must not make the test three times surer
            for method, value in (("a", 0.1 * patient), ("b", 0.1 * patient + 0.01), ("c", 0.1 * patient + 0.02)):
                values[method, f"p{patient}", f"p{patient}-{case}", "ece"] = value
    result = ranking.friedman_tests(case_values.case_values(rows_of(values), ["ece"]))["ece"]
    assert result.blocks == 6
    assert result.statistic == pytest.approx(12.0)  # perfect agreement: n (k - 1)


# --- bootstrap -------------------------------------------------------------------------------------------------------


def test_the_bootstrap_draws_patients_with_all_their_cases():
    # One patient with three cases, one with a single case: the draws can only be 0 (b b), 0.75 (a b) or 1 (a a).
    values = np.array([[1.0], [1.0], [1.0], [0.0]])
    drawn = bootstrap.means(values, ["a", "a", "a", "b"], repeats=4000)[:, 0]
    assert set(drawn.round(6)) == {0.0, 0.75, 1.0}
    assert np.mean(drawn == 0.75) == pytest.approx(0.5, abs=0.03)


def test_the_bootstrap_agrees_with_scipy():
    rng = np.random.default_rng(1)
    values = rng.normal(size=60)
    ours = bootstrap.interval(values[:, None], [str(i) for i in range(60)], repeats=20_000)
    theirs = stats.bootstrap((values,), np.mean, n_resamples=20_000, method="percentile", rng=2).confidence_interval
    assert ours[0][0] == pytest.approx(theirs.low, abs=0.01)
    assert ours[1][0] == pytest.approx(theirs.high, abs=0.01)


def test_the_bootstrap_leaves_undefined_values_out_and_is_seeded():
    values = np.array([[1.0, np.nan], [np.nan, np.nan], [3.0, np.nan]])
    low, high = bootstrap.interval(values, ["a", "b", "c"])
    assert (low[0], high[0]) == (1.0, 3.0)
    assert np.isnan([low[1], high[1]]).all()
    assert (bootstrap.draws(5, seed=1) == bootstrap.draws(5, seed=1)).all()
    assert (bootstrap.draws(5) == bootstrap.draws(5, seed=0)).all()
    assert (bootstrap.draws(5, seed=1) != bootstrap.draws(5, seed=2)).any()


def paired_rows():
    rng = np.random.default_rng(5)
    values = {}
    for patient in range(30):
        level = rng.normal()  # patients differ far more than methods do: only a paired comparison sees the difference
        for case in range(2):
            noise = rng.normal(scale=0.05, size=2)
            values["a", f"p{patient}", f"p{patient}-{case}", "ece"] = level + noise[0]
            values["b", f"p{patient}", f"p{patient}-{case}", "ece"] = level + 0.1 + noise[1]
    return rows_of(values)


def test_two_methods_are_compared_within_patients():
    data = case_values.case_values(paired_rows(), ["ece"])
    (found,) = ranking.differences(data, "a", "b")
    assert found.mean == pytest.approx(-0.1, abs=0.03)
    assert found.low < found.mean < found.high < 0
    assert (found.cases, found.patients) == (60, 30)
    assert found.p < 0.001
    assert found == ranking.differences(data, "a", "b")[0]
    (mirrored,) = ranking.differences(data, "b", "a")
    assert mirrored.mean == -found.mean
    assert mirrored.low == pytest.approx(-found.high)


def test_a_method_does_not_differ_from_itself():
    (found,) = ranking.differences(case_values.case_values(paired_rows(), ["ece"]), "a", "a")
    assert (found.mean, found.low, found.high, found.p) == (0.0, 0.0, 0.0, 1.0)


def test_comparing_an_unknown_method_names_the_known_ones():
    with pytest.raises(BadInput, match=r"no method named 'x' in the table\. Known: a, b"):
        ranking.differences(case_values.case_values(paired_rows(), ["ece"]), "a", "x")


def test_ranking_does_not_import_torch():
    code = "import sys, calibseg.analysis.ranking; sys.exit('torch' in sys.modules)"
    assert run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_signed_error_is_not_ranked():
    for metric, values, instead in (("signed_gap@all", (0.1, 0.2), "ece"), ("volume_error", (-0.1, 0.2), "absolute")):
        rows = rows_of({(method, "p", "c", metric): value for method, value in zip("ab", values, strict=True)})
        with pytest.raises(BadInput, match=rf"best at 0 and bad on both sides.*use .*{instead}"):
            case_values.case_values(rows, [metric])
    absolute = rows_of({("a", "p", "c", "volume_error"): 0.1, ("b", "p", "c", "volume_error"): 0.2})
    assert case_values.case_values(absolute, ["volume_error"]).values.tolist() == [[[0.1, 0.2]]]


def test_a_table_of_many_methods_has_a_line_for_each_and_may_show_the_best_only():
    values = {(f"method{i}", f"p{case}", f"c{case}", "dsc"): (i + case) / 64 for i in range(40) for case in range(2)}
    merged = table.ScoreTable(rows_of(values), None)
    shown = Console(width=100, record=True, file=io.StringIO())
    for part in console.ranked_tables(ranking.rank(merged, ("dsc",))[0], most=3)[:2]:
        shown.print(part)
    text = shown.export_text()
    assert text.count("method39") == 2
    assert "0.6172 (1)" in text  # the mean of 39/64 and 40/64
    assert "method36" not in text


def test_a_mean_s_rounding_decides_no_tie():
    # 0.1 + 0.2 + 0.3 and 0.3 + 0.2 + 0.1 differ in the last bit; half of a billionth is no difference, two are
    rows = rows_of(
        {(m, f"p{c}", f"c{c}", "dsc"): v for m, values in (("a", (0.1, 0.2, 0.3)), ("b", (0.3, 0.2, 0.1)))
         for c, v in enumerate(values)}
    )  # fmt: skip
    ranks = ranking.rank_table(case_values.case_values(rows, ["dsc"]))
    assert [rank_of(ranks, "sum-rank", method) for method in "ab"] == [1.0, 1.0]
    assert friedman.ranks(np.array([[0.5, 0.5 + 5e-10, 0.5 + 3e-9]])).tolist() == [[1.0, 1.0, 3.0]]
    assert friedman.ranks(np.array([[-1e300, 1e300, 0.0]])).tolist() == [[1.0, 3.0, 2.0]]


def test_a_patient_whom_two_networks_saw_is_one_block():
    values = np.random.default_rng(2).normal(size=(2, 7, 3))  # networks, patients, methods
    rows = pd.concat(
        rows_of(
            {(f"m{m}", f"p{p}", f"c{p}", "ece"): values[n, p, m] for p in range(7) for m in range(3)}, network=f"n{n}"
        )
        for n in range(2)
    )
    found = ranking.friedman_tests(case_values.case_values(rows, ["ece"]))["ece"]
    means = [[(values[0, p, m] + values[1, p, m]) / 2 for p in range(7)] for m in range(3)]
    theirs = stats.friedmanchisquare(*means)
    assert found.blocks == 7
    assert (found.statistic, found.p) == pytest.approx((theirs.statistic, theirs.pvalue), rel=1e-12)


def test_a_metric_must_be_named_and_counts_once():
    rows = rows_of({("a", "p", "c", "ece@predicted"): 0.1, ("b", "p", "c", "ece@predicted"): 0.2})
    with pytest.raises(BadInput, match="no metric is named"):
        case_values.case_values(rows, [])
    assert case_values.case_values(rows, ["ece", "ece@predicted", "ece"]).metrics == ("ece@predicted",)


def test_a_method_without_any_defined_value_is_ranked_last_or_left_out_for_all():
    values = {("a", f"p{c}", f"c{c}", "hd95"): float(c) for c in range(3)}
    rows = rows_of(values | {("b", f"p{c}", f"c{c}", "hd95"): float("nan") for c in range(3)})
    found = ranking.rank(table.ScoreTable(rows, None), ["hd95"])[0]
    assert found.data.filled.tolist() == [[0, 3]]
    assert rank_of(found.ranks, "sum-rank", "b") == 2.0
    with pytest.raises(BadInput, match="nothing to rank: hd95 are undefined in every case"):
        ranking.rank(table.ScoreTable(rows, None), ["hd95"], undefined="drop")


def test_a_dataset_or_a_class_that_a_method_lacks_is_told_not_filled():
    both = rows_of({("a", "p", "c", "dsc"): 0.5, ("b", "p", "c", "dsc"): 0.6})
    other = rows_of({("a", "p", "c", "dsc"): 0.9}, **{"class": "core"})
    with pytest.raises(BadInput, match=r"b has no dsc for 1 of 2 classes of cases .* core of c of toy"):
        case_values.case_values(pd.concat([both, other]), ["dsc"])
    with pytest.raises(BadInput, match=r"dsc has no value for any class of toy that its rules judge \(liver\)"):
        case_values.case_values(both, ["dsc"], classes={"toy": ["liver"]})
    together = rows_of({(m, "q", "d", "dsc"): 0.7 for m in "ab"}, dataset="more", **{"class": "all"})
    mixed = case_values.case_values(pd.concat([both, together]), ["dsc"])
    assert mixed.values.tolist() == [[[0.5, 0.6], [0.7, 0.7]]]


def test_a_class_that_is_rightly_left_out_beats_one_that_was_invented():
    """Of eight cases four have the organ; `sober` leaves it out of the others, `eager` invents it there."""
    both = [0.8, 0.6, 0.7, 0.5]
    rows = scores({"sober": {"dsc": both + [float("nan")] * 4}, "eager": {"dsc": both + [0.0] * 4}}).rows
    found = case_values.case_values(rows, ["dsc"])
    sober, eager = found.values[0].mean(0)
    assert sober == pytest.approx((sum(both) + 4) / 8)
    assert eager == pytest.approx(sum(both) / 8)
    assert found.filled.tolist() == found.lacking.tolist() == [[0, 0]]
    ranks = ranking.rank_table(found)
    assert [rank_of(ranks, "sum-rank", method) for method in ("sober", "eager")] == [1.0, 2.0]
