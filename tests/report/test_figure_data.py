"""What the figures show, against values computed by hand: the correctness of a figure lies in its numbers."""

import shutil

import numpy as np
import pandas as pd
import pytest

from calibseg.analysis import ranking, table
from calibseg.analysis.merge import merge
from calibseg.analysis.run_names import named_runs, run_names
from calibseg.analysis.sources import read_source
from calibseg.analysis.table import ScoreTable
from calibseg.core.types import BadInput
from calibseg.metrics import ECE
from calibseg.metrics.statistics.binning import calibration_statistics
from calibseg.report.figure_data.ranks import critical_difference
from calibseg.report.figure_data.runs import (
    interior_confidence,
    logit_means,
    multipliers,
    sensitivity,
    training_curves,
)
from calibseg.report.figure_data.scores import (
    by_distance,
    confidence_balance,
    curve_error,
    means,
    noise_shift,
    radar,
    reliability,
    stacked,
    unshifted,
)
from calibseg.report.figure_data.slices import case_curve, open_view, worst_cases
from calibseg.report.text_tables import comparison
from calibseg.runs.info import prepared_dir
from calibseg.stages.score.options import ScoringOptions, WorkerOptions
from calibseg.stages.score.stage import score_run
from support.made_runs import CASES, CLASSES, make_labels, make_logits, make_run, make_work
from support.score_rows import scores

QUICK = ("dsc", "hd95", "ece", "nll", "overconfidence", "underconfidence", "signed_gap")


def bins(rows):
    """Reliability rows: (scope, case, bin of four, count, confidence, accuracy)."""
    named = dict.fromkeys(("network", "calibrator", "variant", "subset"), "")
    found = [
        {
            **named, "dataset": "d", "loss": "ce", "seed": seed, "patient": case, "case": case, "class": "all",
            "voxels": "predicted", "scope": scope, "bin": b, "low": b / 4, "high": (b + 1) / 4, "count": float(n),
            "confidence": confidence, "accuracy": accuracy,
        }
        for seed, scope, case, b, n, confidence, accuracy in rows
    ]  # fmt: skip
    return pd.DataFrame(found)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Three runs on three cases, scored with and without noise."""
    folder = tmp_path_factory.mktemp("runs")
    work = make_work(folder / "work")
    parts = {"test": 1.0, "test-noise0.05-seed0": 0.6}
    made = {
        "ce": make_run(folder / "runs" / "ce", work, "ce", 3.0, parts=parts),
        "mbls": make_run(folder / "runs" / "mbls", work, "mbls", 2.5, {"margin": 5.0}),
        "crac": make_run(folder / "runs" / "crac", work, "crac", 2.0),
    }
    rules = ScoringOptions(voxels=("truth", "predicted", "all", "boundary"), metrics=QUICK)
    for name, run in made.items():
        for part in parts if name == "ce" else ("test",):
            score_run(run, subset=part, scoring=rules, workers=WorkerOptions(1))
    return made


def test_a_reliability_curve_pools_voxels_and_shows_the_spread_of_cases():
    rows = [
        ("0", "case", "a", 3, 100, 0.9, 0.6),
        ("0", "case", "b", 3, 300, 0.8, 0.8),
        ("0", "case", "b", 1, 5, 0.4, 0.2),  # too few voxels for the spread
        ("0", "pooled", "", 3, 400, 0.825, 0.75),
        ("0", "pooled", "", 1, 5, 0.4, 0.2),
        ("0", "pooled", "", 0, 0, np.nan, np.nan),
        ("1", "pooled", "", 3, 400, 0.925, 0.85),  # a second seed
    ]
    curve = reliability(bins(rows)).set_index("bin")
    assert list(curve.index) == [3, 1]  # an empty bin has no point
    assert curve.loc[3, "count"] == 800
    assert curve.loc[3, "confidence"] == pytest.approx((0.825 + 0.925) / 2)
    assert curve.loc[3, "accuracy"] == pytest.approx(0.8)
    assert curve.loc[3, "share"] == pytest.approx(800 / 805)
    assert curve.loc[3, ["case_low", "case_median", "case_high"]].tolist() == pytest.approx([0.62, 0.7, 0.78])
    assert curve["cases"].tolist() == [2, 0]
    assert np.isnan(curve.loc[1, "case_low"])
    assert curve_error(curve) == pytest.approx((800 * 0.075 + 5 * 0.2) / 805)


def test_the_error_of_the_pooled_curve_is_the_pooled_ece(runs):
    source = read_source(list(runs.values()))
    rows = source.table.rows
    for voxels in ("truth", "predicted", "all"):
        curves = reliability(unshifted(ScoreTable(source.need_bins(), None)).rows, voxels)
        pooled = rows[(rows["scope"] == "pooled") & (rows["metric"] == "ece") & (rows["voxels"] == voxels)]
        pooled = pooled[(pooled["class"] == "all") & (pooled["variant"] == "")].set_index("loss")["value"]
        assert set(pooled.index) == {"ce", "mbls", "crac"}
        for method, curve in curves.groupby("method"):
            assert curve_error(curve) == pytest.approx(pooled[method], abs=1e-12)


def test_over_and_under_confidence_are_means_over_cases():
    values = {"overconfidence@predicted": [0.3, 0.1], "underconfidence@predicted": [0.0, 0.1],
              "signed_gap@predicted": [0.3, 0.0]}  # fmt: skip
    balance = confidence_balance(scores({"ce": values})).iloc[0]
    assert balance[["over", "under", "gap"]].tolist() == pytest.approx([0.2, 0.05, 0.15])
    assert balance[["gap_low", "gap_high"]].tolist() == pytest.approx([0.0, 0.3])  # both draws of one patient twice


def test_over_and_under_confidence_add_up_to_the_ece(runs):
    found = read_source([runs["ce"], runs["crac"]]).table
    ece = means(unshifted(found), ["ece"]).set_index("method")["mean"]
    balance = confidence_balance(unshifted(found)).set_index("method")
    assert (balance["over"] + balance["under"]).to_dict() == pytest.approx(ece.to_dict())
    assert (balance["over"] - balance["under"]).to_dict() == pytest.approx(balance["gap"].to_dict())


def test_means_are_per_dataset_and_places_follow_the_direction():
    one = scores({"ce": {"dsc": [0.8, 0.9], "ece@all": [0.1, 0.3]}, "ls": {"dsc": [0.7, 0.7], "ece@all": [0.1, 0.1]}},
                 dataset="d")  # fmt: skip
    two = scores({"ce": {"dsc": [0.5], "ece@all": [0.2]}}, dataset="e")
    found = means(ScoreTable(pd.concat([one.rows, two.rows]), one.rules), ["dsc", "ece@all"])
    got = found.set_index(["dataset", "metric", "method"])
    assert got.loc[("d", "dsc", "ce"), ["mean", "place", "cases"]].tolist() == pytest.approx([0.85, 1, 2])
    assert got.loc[("d", "ece@all", "ls"), ["mean", "place"]].tolist() == pytest.approx([0.1, 1])
    assert got.loc[("d", "ece@all", "ce"), "place"] == 2
    assert ("e", "dsc", "ls") not in got.index  # a method that was not run on a dataset is not missing there


def test_distance_bands_come_in_order_with_their_limits():
    values = {"ece@-inf to -1 mm": [0.1, np.nan], "ece@1 to inf mm": [0.01, 0.03], "ece@-1 to 1 mm": [0.2, 0.4]}
    found = by_distance(scores({"ce": values}))
    assert found["low_mm"].tolist() == [-np.inf, -1.0, 1.0]
    assert found["high_mm"].tolist() == [-1.0, 1.0, np.inf]
    assert found["mean"].tolist() == pytest.approx([0.1, 0.3, 0.02])
    assert found["cases"].tolist() == [1, 2, 2]


def test_bands_of_a_scored_run_are_found(runs):
    found = by_distance(read_source([runs["ce"]]).table)
    assert found["high_mm"].max() == np.inf
    assert (found["pooled"].dropna() >= 0).all()


def test_noise_is_read_from_the_variant():
    clean = scores({"ce": {"dsc": [0.9], "ece@predicted": [0.1]}})
    noisy = scores({"ce": {"dsc": [0.6], "ece@predicted": [0.4]}}, variant="wide-noise0.05-seed1")
    wide = scores({"ce": {"dsc": [0.8], "ece@predicted": [0.2]}}, variant="wide")
    found = noise_shift(ScoreTable(pd.concat([clean.rows, noisy.rows, wide.rows]), clean.rules))
    got = {(row["method"], row["sigma"]): (row["shape"], row["calibration"]) for _, row in found.iterrows()}
    assert got == {("ce", 0.0): (0.9, 0.1), ("ce (wide)", 0.0): (0.8, 0.2), ("ce (wide)", 0.05): (0.6, 0.4)}
    assert found["calibration_metric"].unique().tolist() == ["ece@predicted"]
    assert (found["shape_better"].all(), found["calibration_better"].any()) == (True, False)


def test_a_radar_has_a_scale_of_its_own_on_every_axis():
    made = scores({name: {"dsc": [dsc], "ece@all": [ece]} for name, dsc, ece in (
        ("ce", 0.8, 0.1), ("ls", 0.6, 0.05), ("nacl", 0.75, 0.06))})  # fmt: skip
    found = radar(means(made, ["dsc", "ece@all"])).set_index(["method", "metric"])
    expected = {("ce", "dsc"): 1.0, ("ls", "dsc"): 0.0, ("nacl", "dsc"): 0.75, ("ce", "ece@all"): 0.0,
                ("ls", "ece@all"): 1.0, ("nacl", "ece@all"): 0.8}  # fmt: skip
    assert found["score"].to_dict() == pytest.approx(expected)
    assert found.loc[("ce", "ece@all"), ["worst", "best"]].tolist() == [0.1, 0.05]


def test_equal_methods_are_all_at_the_rim_of_a_radar():
    found = radar(means(scores({"ce": {"ece@all": [0.0]}, "ls": {"ece@all": [0.0]}}), ["ece@all"]))
    assert found["score"].tolist() == [1.0, 1.0]


def test_a_dataset_without_any_value_takes_nothing_from_the_stack():
    one = scores({"ce": {"hd95": [2.0, 4.0]}}, dataset="a")
    two = scores({"ce": {"hd95": [np.nan, np.nan]}}, dataset="b")
    found = stacked(means(ScoreTable(pd.concat([one.rows, two.rows]), one.rules), ["hd95"]))
    assert found["part"].sum() == 3.0  # the mean over the only dataset that has one


def test_stacked_parts_add_up_to_the_mean_over_datasets():
    one = scores({"ce": {"dsc": [0.8]}, "ls": {"dsc": [0.2]}}, dataset="a")
    two = scores({"ce": {"dsc": [0.4]}, "ls": {"dsc": [0.6]}}, dataset="b")
    both = ScoreTable(pd.concat([one.rows, two.rows]), one.rules)
    found = stacked(means(both, ["dsc"]))
    assert found.groupby("method")["part"].sum().to_dict() == pytest.approx({"ce": 0.6, "ls": 0.4})


def test_a_method_undefined_in_more_cases_than_its_rivals_has_no_place():
    nan = float("nan")
    table = scores({"ce": {"hd95": [1.0, nan, nan]}, "ls": {"hd95": [2.0, 3.0, 9.0]}, "nacl": {"hd95": [3.0] * 3}})
    found = means(table, ["hd95"]).set_index("method")
    assert found["defined"].to_dict() == {"ce": 1, "ls": 3, "nacl": 3}
    assert found.loc[["ls", "nacl"], "place"].tolist() == [2, 1]
    assert np.isnan(found.loc["ce", "place"])


def test_training_curves_sum_the_terms_of_the_loss(runs):
    curves = training_curves([runs["ce"]])
    loss = curves[curves["quantity"] == "train_loss"]
    assert loss["value"].tolist() == pytest.approx([1.5, 0.75, 0.5])
    assert (curves["best"] == 2).all()
    assert set(curves["quantity"]) == {"train_loss", "val_dsc", "val_nll", "val_ece_predicted", "val_ece_all"}


def test_multipliers_carry_class_names_and_runs_without_them_are_left_out(runs):
    found = multipliers(list(runs.values()))
    assert set(found["method"]) == {"crac"}
    one = found[(found["multiplier"] == "lambda") & (found["region"] == "outer") & (found["class"] == "left")]
    assert one["value"].tolist() == pytest.approx([10.0 ** (e - 3 - 4) for e in (1, 2, 3)])
    inside = interior_confidence(list(runs.values()))
    assert inside["confidence"].tolist() == pytest.approx([0.85, 0.9, 0.95])


def test_logits_per_true_class_are_free_of_the_offset(runs):
    found = logit_means(runs["ce"]).set_index(["true", "class"])
    logits = np.stack([make_logits(make_labels(n), 3.0, 10 * n + 1) for n in range(len(CASES))], 1).astype(float)
    labels = np.stack([make_labels(n) for n in range(len(CASES))])
    centred = logits - logits.mean(0)
    for y, true in enumerate(CLASSES):
        here = labels == y
        for k, name in enumerate(CLASSES):
            row = found.loc[(true, name)]
            assert row["signed"] == pytest.approx(centred[k][here].mean(), abs=1e-5)
            assert row["absolute"] == pytest.approx(np.abs(centred[k][here]).mean(), abs=1e-5)
            assert row["distance"] == pytest.approx((logits.max(0) - logits[k])[here].mean(), abs=1e-5)
            assert row["raw"] == pytest.approx(logits[k][here].mean(), abs=5e-3)  # the largest is float16
            assert row["magnitude"] == pytest.approx(np.abs(logits[k][here]).mean(), abs=5e-3)
            assert row["voxels"] == here.sum()
    assert found.groupby(level="true")["signed"].sum().abs().max() < 1e-9


def test_sensitivity_averages_over_cases_at_every_value_of_an_option(tmp_path, runs):
    work = prepared_dir(runs["ce"])
    made = [make_run(tmp_path / f"m{m}", work, "mbls", 1.0 + m / 5, {"margin": m}) for m in (10.0, 5.0)]
    for run in made:
        score_run(run, scoring=ScoringOptions(metrics=("dsc", "ece")), workers=WorkerOptions(1))
    alone = means(read_source([made[0]]).table, ["dsc"])
    for end in (".csv", ".meta.json"):  # of noisy images: another question
        shutil.copyfile(made[0] / f"scores-test{end}", made[0] / f"scores-test-noise0.1-seed0{end}")
    found = sensitivity([*made, runs["ce"]], "loss.margin", ["dsc"])
    assert found["value"].tolist() == [5.0, 10.0]  # ce has no margin
    assert set(found["method"]) == {"mbls"}
    assert found["mean"].iloc[1] == pytest.approx(alone["mean"].iloc[0])


def test_a_run_is_called_by_its_loss_and_by_what_sets_it_apart(tmp_path, runs):
    work = prepared_dir(runs["ce"])
    five, ten = (make_run(tmp_path / f"x{m}", work, "mbls", 1.0, {"margin": m}) for m in (5.0, 10.0))
    assert run_names([runs["ce"], five, ten]) == ["ce", "mbls (margin=5.0)", "mbls (margin=10.0)"]
    assert run_names([five, five]) == ["x5.0", "x5.0"]
    assert list(named_runs({"mine": five})) == ["mine"]


def test_scores_of_runs_with_one_loss_are_told_apart_but_seeds_are_averaged(tmp_path, runs):
    work = prepared_dir(runs["ce"])
    made = [make_run(tmp_path / f"m{m:g}s{s}", work, "mbls", 1.0 + m / 5 + s, {"margin": m}, seed=s)
            for m, s in ((5.0, 0), (10.0, 0), (10.0, 1))]  # fmt: skip
    for run in made:
        score_run(run, scoring=ScoringOptions(metrics=("dsc",)), workers=WorkerOptions(1))
    found = means(read_source([tmp_path]).table, ["dsc"]).set_index("method")["mean"]
    assert list(found.index) == ["mbls (margin=10.0)", "mbls (margin=5.0)"]
    apart = [means(read_source([run]).table, ["dsc"])["mean"].iloc[0] for run in made]
    assert found.iloc[0] == pytest.approx((apart[1] + apart[2]) / 2)
    assert found.iloc[1] == pytest.approx(apart[0])


def test_a_benchmark_finds_the_reliability_rows_of_its_runs_under_its_labels(tmp_path, runs):
    for name in ("ce", "mbls", "crac"):
        shutil.copytree(runs[name], tmp_path / "runs" / name)
    lines = ["cell,dataset,network,label,seed", "ce,d1,wide,plain,0", "mbls,d1,wide,mbls-m5,0", "crac,d1,wide,crac,0"]
    (tmp_path / "cells.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    labels = {"ce": "plain", "mbls": "mbls-m5"}  # crac has not finished
    parts = []
    for name, label in labels.items():
        one = table.read(tmp_path / "runs" / name / "scores-test.csv")
        assert one.rules is not None
        rules = {**one.rules, "datasets": {"d1": one.rules["datasets"]["made"]}}
        parts.append(ScoreTable(one.rows.assign(dataset="d1", network="wide", loss=label), rules, name=name))
    table.write(merge(parts), tmp_path / "scores.csv")
    curves = reliability(read_source([tmp_path]).need_bins())
    assert set(curves["method"]) == {"plain", "mbls-m5"}
    assert set(curves["dataset"]) == {"d1"}
    alone = reliability(read_source([runs["mbls"]]).need_bins())
    assert curves.loc[curves["method"] == "mbls-m5", "accuracy"].tolist() == alone["accuracy"].tolist()
    assert run_names([tmp_path / "runs" / "ce", tmp_path / "runs" / "mbls"]) == ["plain", "mbls-m5"]


def test_a_slice_shows_image_truth_prediction_confidence_and_error(runs):
    view = open_view(runs["ce"], "case_b")
    one = view.slice()
    labels = make_labels(1)
    assert one.index == 1  # the first of the three slices that hold both boxes
    p = np.exp(make_logits(labels, 3.0, 11)[:, 1].astype(float))
    p /= p.sum(0)
    np.testing.assert_array_equal(one.truth, labels[1])
    np.testing.assert_array_equal(one.prediction, p.argmax(0))
    np.testing.assert_allclose(one.confidence, p.max(0), atol=1e-6)
    np.testing.assert_array_equal(one.error, p.argmax(0) != labels[1])
    assert one.image.shape == (1, 10, 12)
    assert np.abs(one.image[0] - labels[1] / 2).mean() < 0.15
    assert one.aspect == 1.0
    assert view.slices == 4


def test_the_curve_of_one_case_is_that_of_its_statistics(runs):
    view = open_view(runs["mbls"], "case_a")
    curve = case_curve(view)
    statistics = calibration_statistics(np.asarray(view.stored.scores), view.stored.labels, kind="logits")
    curves = statistics.on("predicted")
    expected = [row for row in curves.rows() if row["class"] is None and row["count"]]
    assert curve["count"].tolist() == [row["count"] for row in expected]
    np.testing.assert_allclose(curve["confidence"], [row["confidence"] for row in expected], atol=1e-6)
    np.testing.assert_allclose(curve["accuracy"], [row["accuracy"] for row in expected], atol=1e-12)
    assert curve_error(curve) == pytest.approx(ECE().value(curves)[None], abs=1e-6)


def test_the_worst_cases_come_first_and_once():
    table = scores({"ce": {"dsc": [0.9, 0.2, 0.5]}, "ls": {"dsc": [0.1, 0.3, 0.6]}})
    found = worst_cases(table, number=2)
    assert found[["case", "method", "value"]].to_numpy().tolist() == [["c0", "ls", 0.1], ["c1", "ce", 0.2]]
    assert worst_cases(table, number=1, method="ce")["case"].tolist() == ["c1"]
    errors = scores({"ce": {"ece@all": [0.1, 0.4]}})
    assert worst_cases(errors, "ece@all", 1)["case"].tolist() == ["c1"]


def test_what_is_missing_is_named(tmp_path, runs):
    good = runs["ce"] / "scores-test.csv"
    lone = tmp_path / "alone.csv"
    lone.write_bytes(good.read_bytes())
    table.meta_path(lone).write_bytes(table.meta_path(good).read_bytes())
    source = read_source([lone])
    with pytest.raises(BadInput, match=r"no reliability rows .*alone\.bins\.csv: calibseg score writes them"):
        source.need_bins()
    with pytest.raises(BadInput, match=r"no voxel rule named 'predictd'. Did you mean 'predicted'\? In the table: "):
        reliability(read_source([good]).need_bins(), "predictd")
    with pytest.raises(BadInput, match=r"no reliability rows of the class 'top'; the table has all, background"):
        reliability(read_source([good]).need_bins(), of="top")
    with pytest.raises(BadInput, match="has no ECE by distance: score with --voxels predicted,all,boundary"):
        by_distance(scores({"ce": {"ece@all": [0.1]}}))
    with pytest.raises(BadInput, match="holds no scores on noisy images"):
        noise_shift(scores({"ce": {"ece@all": [0.1]}}))
    with pytest.raises(BadInput, match="compares methods, and there is only ce"):
        critical_difference(ranking.rank(scores({"ce": {"dsc": [0.1, 0.2]}}), ["dsc"])[0], "dsc")
    two = scores({"ce": {"ece@all": [0.1, 0.2]}, "ls": {"ece@all": [0.3, 0.1]}})
    with pytest.raises(BadInput, match=r"no ranked metric named 'eca'. Did you mean"):
        critical_difference(ranking.rank(two, ["ece@all"])[0], "eca")
    with pytest.raises(BadInput, match=r"'case_x' is not predicted; run calibseg predict"):
        open_view(runs["ce"], "case_x")
    with pytest.raises(BadInput, match="case_a has the slices 0 to 3, not 7"):
        open_view(runs["ce"], "case_a").slice(7)
    with pytest.raises(BadInput, match="none of ce logs multipliers"):
        multipliers([runs["ce"]])
    with pytest.raises(BadInput, match=r"its log has no 'val_eca'. Known: epoch"):
        training_curves([runs["ce"]], ["val_eca"])
    with pytest.raises(BadInput, match=r"several values of 'loss.margin'; these have only the value 5.0"):
        sensitivity([runs["mbls"]], "loss.margin")
    with pytest.raises(BadInput, match="holds no training run"):
        read_source([tmp_path])
    with pytest.raises(BadInput, match="the paper's values have no column 'value'"):
        comparison(scores({"ce": {"dsc": [0.1]}}), ["dsc"], paper=pd.DataFrame(columns=["dataset", "method", "metric"]))
