"""What the stage that calibrates refuses or warns of, in one sentence."""

import json
import sys

import nibabel as nib
import numpy as np
import pytest

from calibseg.calibrators import Temperature
from calibseg.calibrators.fitted.files import read_calibrator
from calibseg.cli import main
from calibseg.core.types import BadInput
from support.calibrated_folders import (
    SHAPE,
    make_case,
    make_folders,
    run_cli,
    save,
    softmax,
    words,
)


def test_what_is_fitted_on_is_never_applied_to(tmp_path):
    make_folders(tmp_path)
    apply = ("--apply", tmp_path / "test")
    who = tmp_path / "who.csv"
    rows = [f"val_{n:03d},p{n}" for n in range(4)] + ["test_100,p2", "test_101,p9"]
    who.write_text("case,patient\n" + "\n".join(rows) + "\n")
    same_patient = run_cli(words(tmp_path, *apply, "--patients", who))
    assert "the patient 'p2' is in" in str(same_patient.exception)
    same_case = run_cli(words(tmp_path, "--apply", tmp_path / "val"))
    assert "the case 'val_000' is in" in str(same_case.exception)
    (tmp_path / "test/test_100.nii.gz").write_bytes((tmp_path / "val/val_001.nii.gz").read_bytes())
    same_file = run_cli(words(tmp_path, *apply))
    assert "is the same file as" in str(same_file.exception)
    assert not (tmp_path / "out").exists()


def test_a_mistake_is_one_sentence_and_exit_code_2(tmp_path, monkeypatch, capsys):
    make_folders(tmp_path, fit=1)
    monkeypatch.setattr(sys, "argv", ["calibseg", *words(tmp_path, "--method", "temprature")])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    shown = capsys.readouterr().err
    assert shown.count("\n") == 1
    assert "no calibrator named 'temprature'. Did you mean 'temperature'?" in shown


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (
            ("--option", "temperature.solvr=newton"),
            "no option of calibrator 'temperature' named 'solvr'. Did you mean 'solver'",
        ),
        (("--option", "temperature.solver=adam"), "temperature.solver = 'adam' must be one of 'newton', 'released'"),
        (("--option", "vector.seed=1"), "an option is given for 'vector', which is none of the methods temperature"),
        (("--option", "seed=1"), "--option 'seed=1' is not of the form METHOD.OPTION=VALUE"),
        (("--method", ","), "name at least one calibrator. Known: "),
    ],
)
def test_a_wrong_option_is_named_with_the_choices(tmp_path, more, message):
    make_folders(tmp_path, fit=1, apply=0)
    assert message in str(run_cli(words(tmp_path, *more)).exception)


def test_nan_is_named_with_its_case_and_nothing_is_written(tmp_path):
    make_folders(tmp_path, fit=2, apply=0)
    logits, _ = make_case(0)
    logits[0, 0, 0, 1] = np.nan
    save(softmax(logits).astype(np.float32), tmp_path / "val/val_001.nii.gz")
    done = run_cli(words(tmp_path))
    assert isinstance(done.exception, BadInput)
    assert "val_001" in str(done.exception)
    assert "nan" in str(done.exception).lower()
    assert not list(tmp_path.glob("out/*/calibrator.json"))


def test_logits_that_are_called_probabilities_are_refused(tmp_path):
    make_folders(tmp_path, "logits", apply=0)
    told = [word if word != "logits" else "probabilities" for word in words(tmp_path, form="logits")]
    done = run_cli(told)
    assert "if they are logits, say so" in str(done.exception)


def test_a_method_that_looks_at_images_says_that_they_are_missing(tmp_path, monkeypatch):
    make_folders(tmp_path)
    monkeypatch.setattr(Temperature, "uses_image", True)
    apply = ("--apply", tmp_path / "test")
    assert "say where they lie with --images DIR" in str(run_cli(words(tmp_path, *apply)).exception)
    for number in range(4):
        save(np.zeros(SHAPE, np.float32), tmp_path / f"images/val_{number:03d}.nii.gz")
    told = (*apply, "--images", tmp_path / "images")
    assert "say where they lie with --apply-images DIR" in str(run_cli(words(tmp_path, *told)).exception)
    told += ("--apply-images", tmp_path / "images")
    assert "case 'test_100' has no image" in str(run_cli(words(tmp_path, *told)).exception)
    for number in (100, 101):
        save(np.zeros(SHAPE, np.float32), tmp_path / f"images/test_{number}_0000.nii.gz")
    assert run_cli(words(tmp_path, *told)).exit_code == 0


def test_a_class_that_nobody_has_leaves_a_finite_calibrator(tmp_path):
    make_folders(tmp_path, fit=2, apply=1)
    for path in (tmp_path / "val_labels").iterdir():
        labels = np.asanyarray(nib.load(path).dataobj).copy()
        labels[labels == 2] = 0
        save(labels, path)
    done = run_cli(words(tmp_path, "--apply", tmp_path / "test"))
    assert done.exit_code == 0, done.output
    assert 0 < read_calibrator(tmp_path / "out/temperature")["temperature"] < np.inf
    p = np.asanyarray(nib.load(tmp_path / "out/temperature/probabilities/test_100.nii.gz").dataobj)
    np.testing.assert_allclose(p.sum(-1), 1, atol=1e-5)


def test_a_single_case_is_measured_in_sample_and_this_is_said(tmp_path):
    make_folders(tmp_path, fit=1, apply=0)
    done = run_cli(words(tmp_path))
    assert done.exit_code == 0
    assert "a single patient cannot be held out" in " ".join(done.output.split())
    assert json.loads((tmp_path / "out/choice.json").read_text())["cross_fitted"] is False


def test_cases_to_apply_to_need_predictions(tmp_path):
    make_folders(tmp_path, fit=1, apply=0)
    done = run_cli(words(tmp_path, "--apply-labels", tmp_path / "val_labels"))
    assert "but not their predictions: --apply DIR" in str(done.exception)
    both = run_cli(["calibrate", tmp_path, "--predictions", tmp_path / "val"])
    assert "not both at once" in str(both.exception)
    assert "say what to calibrate" in str(run_cli(["calibrate"]).exception)
