"""The Python face of the stages, and scans that are calibrated with what was chosen on validation."""

import json
import shutil
from dataclasses import replace

import nibabel as nib
import numpy as np
import pytest
from typer.testing import CliRunner

from calibseg.api import calibrate, predict, rank, score
from calibseg.calibrators import Temperature
from calibseg.calibrators.fitted import apply as calibrated_module
from calibseg.calibrators.fitted.files import read_calibrator, save_calibrator
from calibseg.cli import app
from calibseg.core import files
from calibseg.core.types import BadInput
from calibseg.runs import folders
from calibseg.runs.folders import weights_fingerprint
from calibseg.runs.info import read_run, write_run
from calibseg.runs.recipe import read_recipe
from calibseg.stages.prepare import make_splits, prepare
from calibseg.stages.train.loop import train
from support.known_network import make_run, make_scan
from support.reporting import run as make_scored_run
from support.reporting import scores

T = 2.0


def give(run, chosen="temperature", weights=None):
    """A run gets a calibrator whose temperature is known, as if it had been fitted and chosen."""
    calibrator = Temperature()
    calibrator.temperature, calibrator.classes = (T,), 3
    calibrator.facts = {"nll_before": 1.0, "nll_after": 1.0, "passes": 1, "fallbacks": []}
    calibrator.fitted_on = {"cases": ["a"], "patients": ["a"], "voxels": "all"}
    about = {"subset": "validation", "weights": weights or weights_fingerprint([run])}
    save_calibrator(run / "calibrators/temperature", calibrator, {"fitted_on": about})
    if chosen:
        files.write_json(run / "calibrators/choice.json", "choice", {"chosen": chosen, "fitted_on": "validation"})
    return run


def probabilities(folder, name="scan"):
    return np.asanyarray(nib.load(folder / f"probabilities/{name}.nii.gz").dataobj)


def known(grey, temperature):
    """The network of support.known_network says l_1 - l_0 = 8 (grey - 1/2)."""
    return 1 / (1 + np.exp(-8 * (grey - 0.5) / temperature))


@pytest.fixture
def run(tmp_path):
    return make_run(tmp_path / "run", slice_axis="coronal")


@pytest.fixture
def scan(tmp_path):
    return make_scan(tmp_path / "scan.nii.gz")


def test_a_scan_is_calibrated_with_what_was_chosen_on_validation(tmp_path, run, scan):
    give(run)
    done = predict(run, input=tmp_path / "scan.nii.gz", output=tmp_path / "out", batch_size=3)
    assert (done.calibrator, done.why) == ("temperature", "chosen on validation")
    p = probabilities(tmp_path / "out")
    np.testing.assert_allclose(p[..., 1], known(scan, T), atol=2e-6)
    np.testing.assert_allclose(p.sum(-1), 1, atol=1e-6)
    told = json.loads((tmp_path / "out/scan.json").read_text())
    assert told["calibrator"] == "temperature"
    assert told["calibrator_fitted_on"]["subset"] == "validation"
    assert told["fitted_on"] == {
        "network": "train",
        "checkpoint": "validation",
        "calibrator": "validation",
        "choice": "validation",
    }
    assert told["validation_used"] == 3


@pytest.mark.parametrize("name", ["none", None])
def test_without_a_calibrator_a_scan_has_the_networks_own_probabilities(tmp_path, run, scan, name):
    if name == "none":
        give(run)
    done = predict(run, input=tmp_path / "scan.nii.gz", output=tmp_path / "out", calibrator=name)
    assert done.calibrator == "none"
    np.testing.assert_allclose(probabilities(tmp_path / "out")[..., 1], known(scan, 1), atol=2e-6)


def test_the_command_says_which_calibrator_it_took(tmp_path, run, scan):
    give(run, chosen=None)
    told = ["predict", str(run), "--input", str(tmp_path / "scan.nii.gz"), "-o", str(tmp_path / "out")]
    assert "calibrator: none (no calibrator was chosen for this run)" in CliRunner().invoke(app, told).output
    asked = CliRunner().invoke(app, [*told, "--calibrator", "temperature"]).output
    assert "calibrator: temperature (asked for)" in asked


@pytest.mark.parametrize("reach", ["voxel", "slice", "volume"])
def test_what_a_calibrator_reaches_changes_nothing_for_one_temperature(tmp_path, run, scan, reach, monkeypatch):
    give(run)
    monkeypatch.setattr(Temperature, "reach", reach)
    monkeypatch.setattr(calibrated_module, "IN_MEMORY", 0)
    predict(run, input=tmp_path / "scan.nii.gz", output=tmp_path / "out", batch_size=4)
    np.testing.assert_allclose(probabilities(tmp_path / "out")[..., 1], known(scan, T), atol=2e-6)


def test_several_runs_or_views_have_no_calibrator(tmp_path, run, scan):
    give(run)
    twin = shutil.copytree(run, tmp_path / "twin")
    arguments = {"input": tmp_path / "scan.nii.gz", "output": tmp_path / "out"}
    done = predict([run, twin], **arguments)
    assert (done.calibrator, done.why) == ("none", "the average of 2 runs has no calibrator")
    np.testing.assert_allclose(probabilities(tmp_path / "out")[..., 1], known(scan, 1), atol=2e-6)
    assert predict(run, flips="both", **arguments).why == "the average of mirror images has no calibrator"
    with pytest.raises(BadInput, match="the average of 2 runs has no calibrator"):
        predict([run, twin], calibrator="temperature", **arguments)


def test_a_calibrator_that_does_not_fit_is_refused(tmp_path, run, scan):
    give(run, weights="others")
    arguments = {"input": tmp_path / "scan.nii.gz", "output": tmp_path / "out"}
    with pytest.raises(BadInput, match="was fitted to other weights"):
        predict(run, **arguments)
    with pytest.raises(BadInput, match="no calibrator named 'tempera'"):
        predict(run, calibrator="tempera", **arguments)
    with pytest.raises(BadInput, match="logits of cases are stored as the network gives them"):
        predict(run, subset="test", calibrator="temperature")
    shutil.rmtree(run / "calibrators")
    with pytest.raises(BadInput, match="no calibrator was chosen yet"):
        predict(run, calibrator="chosen", **arguments)
    assert not (tmp_path / "out").exists()


# Files that hold more channels than the network takes


def four_axes(path, channels):
    grey = np.random.default_rng(1).random((7, 8, 5, channels)).astype(np.float32)
    nib.save(nib.Nifti1Image(grey, np.eye(4)), path)
    return grey


def test_a_file_with_more_channels_gives_those_that_the_run_was_trained_on(tmp_path, run):
    """As in the Decathlon's Prostate, whose files hold T2 and ADC, and whose networks take T2."""
    write_run(folders.RunFolder(run), replace(read_run(run), select=[1]))
    grey = four_axes(tmp_path / "scan.nii.gz", 2)
    predict(run, input=tmp_path / "scan.nii.gz", output=tmp_path / "out")
    np.testing.assert_allclose(probabilities(tmp_path / "out")[..., 1], known(grey[..., 1], 1), atol=2e-6)
    alone = make_scan(tmp_path / "alone.nii.gz")  # a file that holds nothing but the channel is as good
    predict(run, input=tmp_path / "alone.nii.gz", output=tmp_path / "out")
    np.testing.assert_allclose(probabilities(tmp_path / "out", "alone")[..., 1], known(alone, 1), atol=2e-6)


def test_a_file_with_too_many_channels_is_refused_where_nothing_says_which(tmp_path, run):
    four_axes(tmp_path / "scan.nii.gz", 2)
    with pytest.raises(BadInput, match="found 2 channels, expected 1"):
        predict(run, input=tmp_path / "scan.nii.gz", output=tmp_path / "out")


def test_a_run_on_files_with_more_channels_remembers_which_it_took(tmp_path):
    root = tmp_path / "Task05_Prostate"
    names = []
    for number in range(3):
        for folder in ("imagesTr", "labelsTr"):
            (root / folder).mkdir(parents=True, exist_ok=True)
        four_axes(root / f"imagesTr/prostate_{number:02d}.nii.gz", 2)
        labels = np.zeros((7, 8, 5), np.uint8)
        labels[2:5, 2:5], labels[3, 3] = 1, 2
        nib.save(nib.Nifti1Image(labels, np.eye(4)), root / f"labelsTr/prostate_{number:02d}.nii.gz")
        names.append(
            {a: f"./{b}/prostate_{number:02d}.nii.gz" for a, b in (("image", "imagesTr"), ("label", "labelsTr"))}
        )
    (root / "dataset.json").write_text(json.dumps({"training": names, "labels": {}, "modality": {}}))
    small = {"resize": [None, 16, 16], "crop": [None, 16, 16]}
    prepare("prostate", root, tmp_path / "work", protocol=small)
    make_splits(tmp_path / "work", sizes=(1, 1, 1))
    recipe = {
        "data": {"dataset": "prostate", "work": str(tmp_path / "work")},
        "network": {"name": "unet", "width": 2, "depth": 2},
        "train": {"epochs": 1},
    }
    train(read_recipe(recipe), tmp_path / "run", device="cpu")
    assert read_run(tmp_path / "run").select == [0]
    scan = root / "imagesTr/prostate_00.nii.gz"
    assert predict(tmp_path / "run", input=scan, output=tmp_path / "out").written == 1
    assert probabilities(tmp_path / "out", "prostate_00").shape == (7, 8, 5, 3)


# The face itself


def test_the_three_stages_walk_hand_in_hand(tmp_path):
    prepare("phantom", None, tmp_path / "work", options={"cases": 5, "size": [4, 24, 24]})
    make_splits(tmp_path / "work", sizes=(1, 3, 1))
    recipe = {
        "data": {"dataset": "phantom", "work": str(tmp_path / "work")},
        "network": {"name": "unet", "width": 2, "depth": 2},
        "train": {"epochs": 1},
    }
    run = tmp_path / "run"
    train(read_recipe(recipe), run, device="cpu")
    for part in ("validation", "test"):
        predict(run, subset=part)
    fitted = calibrate(run, ["temperature", "vector"])
    assert fitted.output == run / "calibrators"
    assert [row["method"] for row in fitted.rows] == ["none", "temperature", "vector"]
    assert fitted.best["any"] == min(fitted.rows, key=lambda row: row["nll@all"])["method"]
    assert fitted.chosen == min(fitted.rows[:2], key=lambda row: row["nll@all"])["method"]  # vector may move labels
    before = score(run, metrics=("nll",))
    after = score(run, calibrator=fitted.chosen, metrics=("nll",))
    assert len(before.table.rows) == len(after.table.rows)
    assert read_calibrator(run / "calibrators/vector")["fitted_on"]["subset"] == "validation"


@pytest.mark.parametrize("stage", [score, calibrate])
def test_a_run_and_folders_at_once_are_refused(stage, tmp_path):
    with pytest.raises(BadInput, match="not both at once"):
        stage(tmp_path, predictions=tmp_path)
    with pytest.raises(BadInput, match="say what to"):
        stage(predictions=tmp_path)


def test_ranks_are_never_written_over_the_scores_that_they_come_from(tmp_path):
    run = make_scored_run(tmp_path / "a", "ce")
    path = scores(run / "scores-test.csv", "ce")
    before = path.read_bytes()
    for source in (path, run):
        with pytest.raises(BadInput, match="is read by this command"):
            rank([source], ["dsc"], output=path)
    for words in (["rank", "-o"], ["table", "--export"], ["table", "-o"]):
        result = CliRunner().invoke(app, [words[0], str(run), words[1], str(path)])
        assert "is read by this command" in str(result.exception), result.output
    assert path.read_bytes() == before
