"""Predictions in several folders, as the folds of a cross-validation leave them, beside one folder of labels."""

import json
import shutil

import pytest

from calibseg import api
from calibseg.analysis import table
from support.scored_folders import random_case, save_case


@pytest.fixture
def folds(tmp_path):
    """Folds a and b of two cases each; labels of a fifth case, which nobody predicted."""
    for number, name in enumerate("vwxyz"):
        save_case(tmp_path, name, *random_case(number))
    for fold, names in (("a", "vw"), ("b", "xy")):
        (tmp_path / fold).mkdir()
        for name in names:
            shutil.move(tmp_path / "p" / f"{name}.npz", tmp_path / fold)
    shutil.rmtree(tmp_path / "p")
    return tmp_path


def test_several_folders_score_as_one_and_labels_of_others_are_counted_once(folds, calibseg):
    both = ("--predictions", folds / "a", "--predictions", folds / "b", "--labels", folds / "l")
    code, out, _ = calibseg("score", *both, "--metrics", "dsc,ece", "-o", folds / "s.csv")
    assert code == 0
    assert out.count("left out:") == 1
    assert "1 of 5 label maps" in out
    assert "like z.nii.gz" in out
    (folds / "one").mkdir()
    for fold in "ab":
        for path in (folds / fold).iterdir():
            shutil.copy(path, folds / "one")
    calibseg(
        "score", "--predictions", folds / "one", "--labels", folds / "l", "--metrics", "dsc,ece", "-o", folds / "o.csv"
    )
    several, one = (table.read(folds / name).rows for name in ("s.csv", "o.csv"))
    assert several.equals(one)
    assert "1 of 5 label maps" in json.loads((folds / "s.meta.json").read_text())["left_out"][0]


def test_a_calibrator_is_fitted_on_several_folders(folds):
    done = api.calibrate(predictions=[folds / "a", folds / "b"], labels=folds / "l", output=folds / "out")
    assert len(done.left_out) == 1
    told = json.loads((folds / "out" / "temperature" / "calibrator.json").read_text())["fitted_on"]
    assert sorted(told["cases"]) == list("vwxy")


def test_a_case_in_two_folders_is_refused(folds, calibseg):
    shutil.copy(folds / "a" / "v.npz", folds / "b")
    both = ("--predictions", folds / "a", "--predictions", folds / "b", "--labels", folds / "l")
    code, _, err = calibseg("score", *both, "-o", folds / "s.csv")
    assert code == 2
    assert "predict the same case: give every case once" in err


def test_the_same_file_under_another_name_in_another_folder_is_refused(folds, calibseg):
    shutil.copy(folds / "a" / "v.npz", folds / "b" / "z.npz")
    both = ("--predictions", folds / "a", "--predictions", folds / "b", "--labels", folds / "l")
    code, _, err = calibseg("calibrate", *both, "-o", folds / "out")
    assert code == 2
    assert "byte for byte" in err
    assert not (folds / "out").exists()
