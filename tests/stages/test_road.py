"""The whole road on a small phantom, through the command: prepare, split, train, predict, calibrate, score, rank."""

import contextlib
import json
import warnings
from pathlib import Path

import pandas as pd
import pytest
from typer.testing import CliRunner

from calibseg.cli import app
from calibseg.io.stored_logits import open_logits
from calibseg.metrics import ECE
from calibseg.metrics.nll import NLL
from calibseg.metrics.statistics.binning import calibration_statistics


def walk(*arguments: str, cwd: Path) -> str:
    with contextlib.chdir(cwd), warnings.catch_warnings(action="ignore"):  # two epochs are under-confident, crac says
        done = CliRunner(env={"COLUMNS": "160"}).invoke(app, arguments)
    assert done.exit_code == 0, done.output
    return done.output


@pytest.fixture(scope="module")
def road(tmp_path_factory):
    folder = tmp_path_factory.mktemp("road")
    options = ("--option", "cases=10", "--option", "size=[6,32,32]")
    walk("prepare", "--dataset", "phantom", *options, "-o", "work/phantom", cwd=folder)
    walk("split", "work/phantom", cwd=folder)
    small = ("--set", "train.epochs=2", "--set", "network.width=4", "-q")
    for loss in ("ce", "crac"):
        chosen = ("--set", f"loss.name={loss}")
        walk("train", "cpu/phantom-nacl", *chosen, *small, "-o", f"runs/{loss}", cwd=folder)
        walk("predict", f"runs/{loss}", "--subset", "test", cwd=folder)
        walk("score", f"runs/{loss}", cwd=folder)
    walk("predict", "runs/ce", "--subset", "validation", cwd=folder)
    walk("calibrate", "runs/ce", "--method", "temperature,vector", cwd=folder)
    walk("score", "runs/ce", "--calibrator", "vector", cwd=folder)
    return folder


def test_scores_of_a_run_are_those_of_its_stored_logits(road):
    """Four raters drew each case: calibration counts the share of them that agree."""
    scores = pd.read_csv(road / "runs/ce/scores-test.csv")
    for path in sorted((road / "runs/ce/logits/test").glob("*.npz")):
        stored = open_logits(path)
        assert stored.labels is not None
        assert stored.labels.ndim == 4
        curves = calibration_statistics(stored.scores, stored.labels, kind="logits", ignore_label=255).on("all")
        rows = scores[(scores["case"] == stored.case_id) & (scores["voxels"] == "all") & (scores["class"] == "all")]
        for name, metric in (("ece", ECE()), ("nll", NLL())):
            (value,) = rows[rows["metric"] == name]["value"]
            assert value == pytest.approx(metric.value(curves)[None], abs=1e-9)


def test_the_experiment_is_named_in_every_row(road):
    scores = pd.read_csv(road / "runs/crac/scores-test.csv", dtype=str)
    for column, value in {
        "dataset": "phantom",
        "network": "unet",
        "loss": "crac",
        "seed": "0",
        "subset": "test",
    }.items():
        assert scores[column].unique().tolist() == [value]


def test_runs_are_ranked_by_their_tables(road):
    shown = walk("rank", "runs/ce/scores-test.csv", "runs/crac/scores-test.csv", "--metrics", "nll,ece", cwd=road)
    assert "crac" in shown
    assert "sum-rank" in shown


def test_a_calibrated_run_is_a_method_of_its_own(road):
    tables = [f"runs/ce/scores-test{end}.csv" for end in ("", "+vector")]
    shown = walk("rank", *tables, "--metrics", "nll,ece@all", cwd=road)
    assert "ce+vector" in shown
    chosen = json.loads((road / "runs/ce/calibrators/choice.json").read_text())
    assert [row["method"] for row in chosen["table"]] == ["none", "temperature", "vector"]


def test_a_run_and_folders_at_once_are_refused(road, calibseg):
    code, _, said = calibseg("score", road / "runs/ce", "--labels", "x")
    assert code == 2
    assert "not both at once" in said


def test_the_demonstration_draws_and_does_not_train_twice(tmp_path):
    from rich.console import Console

    from calibseg.cli import demo_benchmark

    small = ["data.options={cases = 8, size = [4, 24, 24]}", "network.width=4", "train.steps_per_epoch=4"]
    written = []
    for _ in range(2):
        done = demo_benchmark.run(tmp_path, ["ce", "ls"], 1, 0, Console(quiet=True), small)
        assert done.exit_code == 0
        weights = sorted((tmp_path / "runs").glob("*/weights.safetensors"))
        written.append([path.stat().st_mtime_ns for path in weights])
    assert len(written[0]) == 2
    assert written[0] == written[1]
    assert (tmp_path / "demo.png").stat().st_size > 10_000
    ranks = pd.read_csv(tmp_path / "ranks.csv")
    calibrated = ("", "+temperature", "+region_temperature")
    assert set(ranks["method"]) == {f"{loss}{name}" for loss in ("ce", "ls") for name in calibrated}
