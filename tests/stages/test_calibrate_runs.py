"""The stage that calibrates a run: what it is fitted on, what is counted, and what a killed call leaves."""

import json
import os
import shutil
import signal
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from calibseg.api import calibrate, predict, score
from calibseg.calibrators import Temperature
from calibseg.calibrators.fitted.files import load_calibrator, read_calibrator
from calibseg.calibrators.fitted.selected import find_calibrator, fitted_with
from calibseg.core.types import BadInput
from calibseg.data import prepared
from calibseg.decisions import FNR
from calibseg.decisions.fitted.rules import read_rules
from calibseg.io.stored_logits import open_logits
from calibseg.runs import folders
from calibseg.runs.info import read_run, write_run
from calibseg.runs.recipe import read_recipe
from calibseg.stages.decide.cases import CaseSource
from calibseg.stages.decide.stage import decide_apply, decide_fit
from calibseg.stages.prepare import make_splits, prepare
from calibseg.stages.train.loop import train
from support.calibrated_folders import (
    best_temperature,
    run_cli,
    softmax,
    what_is_there,
)
from support.training import in_child


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A phantom run with predicted validation and test cases."""
    root = tmp_path_factory.mktemp("calibrate")
    prepare(
        "phantom", None, root / "work", options={"cases": 8, "size": [4, 32, 32]}, protocol={"slice_axis": "coronal"}
    )
    make_splits(root / "work", sizes=(3, 3, 2))
    wanted = {
        "data": {"dataset": "phantom", "work": str(root / "work")},
        "network": {"name": "unet", "width": 4, "depth": 3, "norm": "batch"},
        "train": {"epochs": 2, "batch_size": 8},
        "loss": {"name": "crac"},
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # CRaC says that two epochs leave it unsure
        train(read_recipe(wanted), root / "run", device="cpu")
    for part in ("validation", "test"):
        predict(root / "run", subset=part)
    return root


@pytest.fixture
def run(trained, tmp_path):
    """A copy of it that a test may change."""
    return Path(shutil.copytree(trained / "run", tmp_path / "run"))


def test_a_run_is_calibrated_on_validation_and_scored(run):
    done = run_cli(["calibrate", run, "--method", "temperature"])
    assert done.exit_code == 0, done.output
    about = read_calibrator(run / "calibrators/temperature")
    stored = [open_logits(path) for path in sorted((run / "logits/validation").glob("*.npz"))]
    assert about["fitted_on"]["cases"] == [one.case_id for one in stored]
    logits = [np.moveaxis(np.asarray(one.scores), 0, -1) for one in stored for _ in one.labels]
    labels = [rater for one in stored for rater in one.labels]
    assert about["temperature"] == pytest.approx(best_temperature(logits, labels), rel=1e-4)
    assert json.loads((run / "calibrators/choice.json").read_text())["chosen"] in ("temperature", "none")
    found = score(run, calibrator="temperature", metrics=("nll",))
    assert found.table.name == str(run / "scores-test+temperature.csv")
    rows = pd.read_csv(run / "scores-test+temperature.csv")
    assert set(rows["calibrator"]) == {"temperature"}
    for path in sorted((run / "logits/test").glob("*.npz")):
        one = open_logits(path)
        scaled = np.asarray(one.scores, float) / about["temperature"]
        log_p = np.moveaxis(scaled, 0, -1) - np.log(np.exp(scaled).sum(0))[..., None]
        nll = -np.mean([np.take_along_axis(log_p, rater[..., None].astype(int), -1) for rater in one.labels])
        (value,) = rows.query(f"case == '{one.case_id}' and voxels == 'all' and `class` == 'all'")["value"]
        assert value == pytest.approx(nll, rel=1e-5)


def test_how_often_validation_was_used_is_counted(run):
    """CRaC learns multipliers from validation: checkpoint, multipliers, calibrator and choice make four."""
    calibrate(run, ["temperature"])
    rules = {"metrics": ("nll",)}
    score(run, **rules)
    plain = json.loads((run / "scores-test.meta.json").read_text())
    assert plain["fitted_on"] == {"network": "train", "checkpoint": "validation", "multipliers": "validation"}
    assert plain["validation_used"] == 2
    path = run / "calibrators/choice.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "chosen": "temperature"}))
    score(run, calibrator="chosen", **rules)
    chosen = json.loads((run / "scores-test+temperature.meta.json").read_text())
    assert chosen["fitted_on"] == plain["fitted_on"] | {"calibrator": "validation", "choice": "validation"}
    assert (chosen["validation_used"], chosen["in_sample"]) == (4, False)
    score(run, subset="validation", calibrator="temperature", **rules)
    assert json.loads((run / "scores-validation+temperature.meta.json").read_text())["in_sample"] is True
    last = {"train": {"select": "last"}, "loss": {"name": "ce"}}
    assert fitted_with(last, find_calibrator(run / "calibrators", "none"))["validation_used"] == 0


@pytest.mark.parametrize(
    ("breaking", "message"),
    [
        ({"subset": "test"}, "nothing is fitted on test cases"),
        ({"subset": "calibration"}, "has no calibration cases to fit on"),
        ({"missing": "folder"}, "holds no logits; run   calibseg predict"),
        ({"missing": "case"}, "lacks case 'phantom_"),
        ({"foreign": "case"}, "which is none of the run's validation cases"),
        ({"weights": "other"}, "was predicted by other weights than the run has now"),
        ({"folds": 1}, "folds must be a whole number of at least 2, not 1"),
    ],
)
def test_a_run_that_cannot_be_calibrated_says_why(run, breaking, message):
    logits = sorted((run / "logits/validation").glob("*.npz"))
    if breaking.get("missing") == "folder":
        for path in logits:
            path.unlink()
    elif "missing" in breaking:
        logits[0].unlink()
    elif "foreign" in breaking:
        other = next((run / "logits/test").glob("*.npz"))
        (run / "logits/validation" / other.name).write_bytes(other.read_bytes())
    elif "weights" in breaking:
        (run / "weights.safetensors").write_bytes((run / "weights.safetensors").read_bytes() + b" ")
    options = {key: value for key, value in breaking.items() if key in ("subset", "folds")}
    with pytest.raises(BadInput, match=message):
        calibrate(run, ["temperature"], **options)
    assert not (run / "calibrators").exists()


def test_images_of_a_run_are_its_prepared_cases(run, trained, monkeypatch):
    seen = {}
    original = Temperature.transform_prediction

    def looking(self, prediction):
        seen[prediction.case_id] = prediction.image
        return original(self, prediction)

    calibrate(run, ["temperature"])
    monkeypatch.setattr(Temperature, "uses_image", True)
    monkeypatch.setattr(Temperature, "transform_prediction", looking)
    score(run, calibrator="temperature", metrics=("nll",), workers=1)
    id = sorted((run / "logits/test").glob("*.npz"))[-1].stem
    np.testing.assert_array_equal(seen[id], prepared.open_case(trained / "work", id).case().image)


def test_prepared_cases_may_have_moved_since_training(run, trained, tmp_path, monkeypatch):
    calibrate(run, ["temperature"])
    monkeypatch.setattr(Temperature, "uses_image", True)
    options = {"calibrator": "temperature", "metrics": ("nll",), "workers": 1}
    with pytest.raises(BadInput, match="nowhere"):
        score(run, work=tmp_path / "nowhere", **options)
    moved = shutil.copytree(trained / "work", tmp_path / "moved")
    assert len(score(run, work=moved, **options).table.rows)


def test_a_part_of_a_subset_is_not_scored_as_the_whole(run):
    stored = sorted((run / "logits/test").glob("*.npz"))
    stored[0].unlink()
    with pytest.raises(BadInput, match=rf"lacks case '{stored[0].stem}' of test; run   calibseg predict"):
        score(run, metrics=("nll",))


def test_a_calibrator_of_other_weights_is_not_applied(run):
    calibrate(run, ["temperature"])
    path = run / "calibrators/temperature/calibrator.json"
    told = json.loads(path.read_text())
    told["fitted_on"]["weights"] = "others"
    path.write_text(json.dumps(told))
    with pytest.raises(BadInput, match="was fitted to other weights than the run has now"):
        score(run, calibrator="temperature")
    with pytest.raises(BadInput, match="no calibrator named 'temprature'"):
        score(run, calibrator="temprature")


def test_rules_are_refused_with_a_calibrator_that_was_fitted_again(run, tmp_path):
    source = CaseSource(run=run, subset="test", calibrator="temperature")
    calibrate(run, ["temperature"])
    decide_fit(source, [FNR(alpha=0.5)], tmp_path / "rules.json")
    first = read_rules(tmp_path / "rules.json").fitted_on["calibrator"]
    assert first == f"temperature {read_calibrator(run / 'calibrators/temperature')['mark']}"
    calibrate(run, ["temperature"], fit_on="foreground")
    with pytest.raises(BadInput, match="fitted on cases with the calibrator 'temperature"):
        decide_apply(tmp_path / "rules.json", replace(source, subset="validation"), tmp_path / "out")


def test_a_calibration_part_of_the_split_is_preferred(run, trained):
    info = read_run(run)
    split = replace(info.split, calibration=info.split.validation, validation=())
    write_run(folders.RunFolder(run), replace(info, split=split))
    (run / "logits/validation").rename(run / "logits/calibration")
    calibrate(run, ["temperature"])
    assert read_calibrator(run / "calibrators/temperature")["fitted_on"]["subset"] == "calibration"
    score(run, calibrator="temperature", metrics=("nll",))
    told = json.loads((run / "scores-test+temperature.meta.json").read_text())
    assert told["fitted_on"]["calibrator"] == "calibration"
    assert told["validation_used"] == 2


def _die_at_rename(run, number):
    original, calls = os.replace, 0

    def hooked(*arguments, **options):
        nonlocal calls
        calls += 1
        if calls == number:
            os.kill(os.getpid(), signal.SIGKILL)
        return original(*arguments, **options)

    os.replace = hooked
    calibrate(run, ["temperature"])


def test_a_killed_call_leaves_whole_files_and_the_next_one_ends_as_if_nothing_had_happened(run, tmp_path):
    whole = Path(shutil.copytree(run, tmp_path / "whole"))
    calibrate(whole, ["temperature"])
    expected = what_is_there(whole / "calibrators")
    assert sorted(expected) == [
        "choice.json",
        "none/cross-fitted.json",
        "temperature/calibrator.json",
        "temperature/cross-fitted.json",
    ]
    for number in (1, 3, 5):  # 2 to 4: folds, in one file
        killed = Path(shutil.copytree(run, tmp_path / f"killed{number}"))
        assert in_child(_die_at_rename, killed, number) == -signal.SIGKILL
        assert len(what_is_there(killed / "calibrators")) == min(number - 1, 2)
        calibrate(killed, ["temperature"])
        assert what_is_there(killed / "calibrators") == expected


def test_loading_a_calibrator_gives_what_was_fitted(run):
    calibrate(run, ["temperature"])
    one = open_logits(next((run / "logits/test").glob("*.npz")))
    loaded = load_calibrator(run / "calibrators/temperature")
    p = loaded.transform(np.asarray(one.scores), batch=False)
    t = read_calibrator(run / "calibrators/temperature")["temperature"]
    expected = softmax(np.moveaxis(np.asarray(one.scores, float), 0, -1) / t)
    np.testing.assert_allclose(np.moveaxis(p, 0, -1), expected, atol=1e-6)
