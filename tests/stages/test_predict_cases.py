"""Prediction with a run that training has left: the cases of its split, and what it refuses."""

import errno
import os
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from calibseg.api import predict
from calibseg.cli import app
from calibseg.core import files
from calibseg.core.types import BadInput
from calibseg.data import prepared
from calibseg.io import stored_logits as logits_module
from calibseg.io.stored_logits import logits_files, open_logits, read_about, relative
from calibseg.runs import folders
from calibseg.runs.checkpoint import load_network
from calibseg.runs.info import read_run, write_run
from calibseg.runs.recipe import read_recipe
from calibseg.stages.predict.slice_inference import slice_scores
from calibseg.stages.prepare import make_splits, prepare
from calibseg.stages.train.loop import train
from support.known_network import make_run, make_scan
from support.map_files import cut_short, everything_below

NARROW = {"name": "unet", "width": 2, "norm": "batch"}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A phantom, prepared and split, and a run that training itself has left."""
    root = tmp_path_factory.mktemp("trained")
    prepare(
        "phantom", None, root / "work", options={"cases": 5, "size": [5, 32, 32]}, protocol={"slice_axis": "coronal"}
    )
    make_splits(root / "work", sizes=(2, 1, 2))
    recipe = {
        "data": {"dataset": "phantom", "work": str(root / "work")},
        "network": {"name": "unet", "width": 2, "norm": "batch"},
    }
    train(read_recipe({**recipe, "train": {"epochs": 1}}), root / "run", device="cpu")
    return root


# A scan in, maps out


def test_a_full_disk_is_one_sentence_and_leaves_nothing(tmp_path, monkeypatch, trained):
    def full(file, size):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(files, "preallocate", full)
    monkeypatch.setattr(logits_module, "preallocate", full)
    run = make_run(tmp_path / "run")
    make_scan(tmp_path / "scan.nii.gz")
    with pytest.raises(BadInput, match="cannot be written: No space left on device"):
        predict(run, input=tmp_path / "scan.nii.gz", output=tmp_path / "out")
    with pytest.raises(BadInput, match="cannot be written: No space left on device"):
        predict(trained / "run", subset="test", output=tmp_path / "logits")
    assert everything_below(tmp_path / "out") == everything_below(tmp_path / "logits") == []


def test_what_does_not_go_together_is_said(tmp_path, trained):
    run, other = make_run(tmp_path / "run"), make_run(tmp_path / "other", channels=("T2",))
    for arguments, message in [
        ({}, "either the cases of a subset of the split, or a scan"),
        ({"subset": "test", "input": "a.nii"}, "either the cases of a subset of the split, or a scan"),
        ({"input": "a.nii", "output": "out", "noise": 0.1}, "noise is for cases of the split"),
        ({"input": "a.nii", "output": "out", "calibrator": "ts"}, "no calibrator named 'ts'. Known: none, chosen"),
        ({"input": "a.nii", "output": "out", "flips": "all"}, "flips = 'all' must be one of"),
        ({"input": "a.nii", "output": "out", "noise": -1.0}, "at least 0"),
    ]:
        with pytest.raises(BadInput) as caught:
            predict(run, **arguments)
        assert message in str(caught.value)
    with pytest.raises(BadInput, match="networks are averaged only where they see and say the same"):
        predict([run, other], input="a.nii", output="out")
    with pytest.raises(BadInput, match=r"the split of .* has no calibration cases"):
        predict(trained / "run", subset="calibration")
    with pytest.raises(BadInput, match="holds no training run"):
        predict(tmp_path, subset="test")


# Logits on disk


def test_cases_of_the_split_are_stored_and_left_alone_the_second_time(trained, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(trained / "run", run)
    first = predict(run, subset="test")
    assert (first.output, first.written, first.unchanged) == (run / "logits/test", 2, 0)
    files = logits_files(first.output)
    assert [path.stem for path in files] == read_run(run).cases("test")
    again = predict(run, subset="test")
    assert (again.written, again.unchanged) == (0, 2)
    cut_short(files[0])
    assert predict(run, subset="test").written == 1
    noisy = predict(run, subset="test", noise=0.05, seed=3)
    assert (noisy.output.name, noisy.written) == ("test-noise0.05-seed3", 2)
    assert predict(run, subset="test", flips="both").output.name == "test-flips-both"
    case = prepared.open_case(trained / "work", files[0].stem)
    stored, about = open_logits(files[0]), read_about(files[0])
    np.testing.assert_array_equal(stored.labels, case.case().labels)
    assert (about["format"], about["noise"], about["raters"]) == ("calibseg-logits/1", 0.0, 4)
    slices = torch.cat(list(slice_scores([load_network(run)], case)))
    np.testing.assert_array_equal(stored.scores, relative(np.moveaxis(slices.numpy(), 0, 1 + case.axis)))
    moved = np.asarray(open_logits(noisy.output / files[0].name).scores, np.float32) - np.asarray(
        stored.scores, np.float32
    )
    assert np.abs(moved).max() > 1e-3


def test_runs_of_different_splits_are_not_averaged_on_cases(trained, tmp_path):
    """What is one fold's test is another fold's training."""
    shutil.copytree(trained / "run", tmp_path / "fold")
    info = read_run(tmp_path / "fold")
    swapped = replace(info.split, test=info.split.validation, validation=info.split.test)
    write_run(folders.RunFolder(tmp_path / "fold"), replace(info, split=swapped))
    with pytest.raises(BadInput, match="networks are averaged on cases that none of them was trained on"):
        predict([trained / "run", tmp_path / "fold"], subset="test", output=tmp_path / "out")


def test_data_that_were_prepared_otherwise_are_refused(trained, tmp_path):
    prepare("phantom", None, tmp_path / "work", options={"cases": 5, "size": [5, 32, 32]})  # axial, not coronal
    with pytest.raises(BadInput, match="the run was trained on"):
        predict(trained / "run", subset="test", work=tmp_path / "work", output=tmp_path / "out")


def test_the_command_predicts_cases_and_scans(trained, tmp_path):
    run = make_run(tmp_path / "run")
    make_scan(tmp_path / "scan.nii.gz")
    shown = CliRunner().invoke(
        app, ["predict", str(run), "-i", str(tmp_path / "scan.nii.gz"), "-o", str(tmp_path / "out")]
    )
    assert shown.exit_code == 0, shown.output
    assert "inside" in shown.output
    assert (tmp_path / "out/scan.json").is_file()
    runs = [str(trained / "run"), str(shutil.copytree(trained / "run", tmp_path / "copy"))]
    shown = CliRunner().invoke(
        app, ["predict", *runs, "--subset", "test", "-o", str(tmp_path / "both"), "--flips", "both"]
    )
    assert shown.exit_code == 0, shown.output
    assert "2 cases written, 0 unchanged" in shown.output
