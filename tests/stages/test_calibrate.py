"""The stage that calibrates: runs and anybody's folders, before and after, the choice, and what is refused."""

import json
import os
import pickle
import re
import shutil
import signal
import sys
import tracemalloc
import warnings
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import nibabel as nib
import numpy as np
import pandas as pd
import pytest
from scipy.optimize import minimize_scalar
from typer.testing import CliRunner

from calibseg.api import calibrate, predict, score
from calibseg.calibrators import Calibrator, LocalTemperature, Temperature
from calibseg.calibrators.fitted import apply as calibrated_module
from calibseg.calibrators.fitted.apply import Calibrated, calibrated, calibrated_slices, pieces
from calibseg.calibrators.fitted.files import load_calibrator, read_calibrator
from calibseg.calibrators.fitted.nifti import write_probabilities as write_calibrated
from calibseg.calibrators.fitted.selected import find_calibrator, fitted_with
from calibseg.cli import app, main
from calibseg.cli import calibrate as cli_calibrate
from calibseg.core import registry
from calibseg.core.types import BadInput, Case, Prediction
from calibseg.data import prepared
from calibseg.io.class_names import ClassNames
from calibseg.io.predictions import match_files, unlabelled
from calibseg.io.stored_logits import open_logits
from calibseg.runs import folders
from calibseg.runs.info import read_run, write_run
from calibseg.runs.recipe import read_recipe
from calibseg.stages.calibrate.cross_fitting import Labelled, fold_numbers, mean_values, values_of
from calibseg.stages.calibrate.fit_and_choose import CalibrationSet, Method, fit_and_choose
from calibseg.stages.calibrate.options import CalibrationOptions
from calibseg.stages.prepare import make_splits, prepare
from calibseg.stages.score.case import measure
from calibseg.stages.score.options import ScoringOptions
from calibseg.stages.train.loop import train
from support.training import in_child

SHAPE = (9, 11, 6)  # (i, j, k) as in the files
TURNED = np.array([[0, -1.25, 0, 3.0], [0, 0, 2.0, 1.0], [-0.75, 0, 0, 2.0], [0, 0, 0, 1.0]])
TRUE_T = 2.5


def softmax(logits):
    e = np.exp(logits - logits.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def make_case(seed, classes=3, shape=SHAPE):
    """Logits [i j k class] that are 2.5 times too sure, and the labels that were drawn from what they should be."""
    rng = np.random.default_rng(seed)
    honest = rng.normal(0, 1.5, (*shape, classes))
    p = softmax(honest)
    labels = (p.cumsum(-1) > rng.random((*shape, 1))).argmax(-1)
    return (honest * TRUE_T).astype(np.float32), labels.astype(np.uint8)


def save(array, path, affine=TURNED, codes=(2, 1)):
    path.parent.mkdir(parents=True, exist_ok=True)
    image = nib.Nifti1Image(array, affine)
    image.set_sform(affine, codes[0])
    image.set_qform(affine, codes[1])
    nib.save(image, path)


def write_nnunet(folder, case, logits, labels):
    folder.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(folder / f"{case}.npz", probabilities=softmax(logits).astype(np.float32).transpose(3, 2, 1, 0))
    (folder / "dataset.json").write_text('{"labels": {"background": 0, "organ": 1, "tumour": 2}}')


def write_probabilities(folder, case, logits, labels):
    save(softmax(logits).astype(np.float32), folder / f"{case}.nii.gz")


def write_logits(folder, case, logits, labels):
    save(logits, folder / f"{case}.nii.gz")


def write_classes(folder, case, logits, labels):
    p = softmax(logits).astype(np.float32)
    for number in range(p.shape[-1]):
        save(p[..., number], folder / f"{case}_class{number}.nii.gz")


FORMS = {
    "nnunet": (write_nnunet, "probabilities"),
    "nifti": (write_probabilities, "probabilities"),
    "logits": (write_logits, "logits"),
    "classes": (write_classes, "probabilities"),
}


def make_folders(root, form="nifti", fit=4, apply=2, classes=3):
    """val, val_labels, test, test_labels and what is in them, by case."""
    write, _ = FORMS[form]
    made = {}
    for part, number, first in (("val", fit, 0), ("test", apply, 100)):
        for seed in range(first, first + number):
            case = f"{part}_{seed:03d}"
            logits, labels = make_case(seed, classes)
            made[case] = logits, labels
            write(root / part, case, logits, labels)
            save(labels, root / f"{part}_labels" / f"{case}.nii.gz")
    return made


def words(root, *more, form="nifti"):
    kind = FORMS[form][1]
    told = ["calibrate", "--predictions", root / "val", "--labels", root / "val_labels", "--kind", kind]
    return [str(word) for word in (*told, "-o", root / "out", *more)]


def run_cli(arguments):
    done = CliRunner().invoke(app, [str(word) for word in arguments])
    if done.exception is not None and not isinstance(done.exception, SystemExit | BadInput):
        raise done.exception
    return done


def best_temperature(logits, labels):
    """Independent of the package: the NLL of all voxels together, minimised over log T."""

    def nll(log_t):
        scaled = [one.astype(float) / np.exp(log_t) for one in logits]
        logs = [x - x.max(-1, keepdims=True) for x in scaled]
        logs = [x - np.log(np.exp(x).sum(-1, keepdims=True)) for x in logs]
        return -sum(
            np.take_along_axis(x, y[..., None].astype(int), -1).sum() for x, y in zip(logs, labels, strict=True)
        )

    return float(np.exp(minimize_scalar(nll, bounds=(-4, 4), method="bounded", options={"xatol": 1e-10}).x))


# Anybody's folders


@pytest.mark.parametrize("form", FORMS)
def test_a_folder_of_any_format_is_calibrated_where_it_lies(tmp_path, form):
    made = make_folders(tmp_path, form)
    told = ("--apply", tmp_path / "test", "--apply-labels", tmp_path / "test_labels", "--method", "temperature")
    done = run_cli(words(tmp_path, *told, form=form))
    assert done.exit_code == 0, done.output
    fitted = json.loads((tmp_path / "out/temperature/calibrator.json").read_text())
    val = [made[case] for case in made if case.startswith("val")]
    expected = best_temperature([logits for logits, _ in val], [labels for _, labels in val])
    assert fitted["temperature"] == pytest.approx(expected, rel=1e-4)  # probabilities were stored as float32
    assert fitted["temperature"] == pytest.approx(TRUE_T, rel=0.1)
    assert fitted["fitted_on"]["folder"] == str(tmp_path / "val")
    assert fitted["fitted_on"]["cases"] == ["val_000", "val_001", "val_002", "val_003"]
    for case in ("test_100", "test_101"):
        found = nib.load(tmp_path / f"out/temperature/probabilities/{case}.nii.gz")
        label = nib.load(tmp_path / f"test_labels/{case}.nii.gz")
        assert found.shape == (*SHAPE, 3)
        assert found.get_data_dtype() == np.float32
        assert found.affine.tobytes() == label.affine.tobytes()
        for name in ("sform_code", "qform_code"):
            assert int(found.header[name]) == int(label.header[name])
        assert found.get_qform().tobytes() == label.get_qform().tobytes()
        logits = made[case][0]
        if form != "logits":
            logits = np.log(np.maximum(softmax(logits), 1e-7))  # the stated floor
        wanted = softmax(logits / fitted["temperature"])
        np.testing.assert_allclose(np.asanyarray(found.dataobj), wanted, atol=2e-6)


def test_before_and_after_are_scored_and_printed(tmp_path, monkeypatch):
    monkeypatch.setattr(cli_calibrate.out, "width", 200)
    made = make_folders(tmp_path)
    told = ("--apply", tmp_path / "test", "--apply-labels", tmp_path / "test_labels", "--method", "temperature")
    shown = run_cli(words(tmp_path, *told)).output
    tables = {name: pd.read_csv(tmp_path / f"out/{name}/scores.csv") for name in ("none", "temperature")}
    temperature = read_calibrator(tmp_path / "out/temperature")["temperature"]
    for name, t in (("none", 1.0), ("temperature", temperature)):
        rows = tables[name]
        assert set(rows["calibrator"]) == {name}
        for case in ("test_100", "test_101"):
            logits, labels = made[case]
            p = np.take_along_axis(softmax(logits.astype(float) / t), labels[..., None].astype(int), -1)
            (value,) = rows[
                (rows["case"] == case)
                & (rows["metric"] == "nll")
                & (rows["voxels"] == "all")
                & (rows["class"] == "all")
            ]["value"]
            assert value == pytest.approx(-np.log(p).mean(), rel=1e-4)
    meta = json.loads((tmp_path / "out/temperature/scores.meta.json").read_text())
    assert meta["fitted_on"] == {"network": "unknown", "calibrator": str(tmp_path / "val")}
    for heading in ("NLL", "Brier", "ECE truth", "ECE predicted", "ECE all", "CECE", "DSC", "seconds to fit"):
        assert heading in shown
    assert "temperature (chosen)" in shown.replace("\n", " ")
    assert "On the cases to apply to" in shown


def test_a_second_call_does_nothing_and_a_changed_file_is_done_again(tmp_path):
    make_folders(tmp_path)
    arguments = {"predictions": tmp_path / "val", "labels": tmp_path / "val_labels", "output": tmp_path / "out"}
    arguments |= {"apply": tmp_path / "test", "apply_labels": tmp_path / "test_labels"}
    first = calibrate(methods=["temperature"], **arguments)
    assert (first.fitted, first.written, first.unchanged) == (1, 2, 0)
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("*") if path.is_file()}
    second = calibrate(methods=["temperature"], **arguments)
    assert (second.fitted, second.written, second.unchanged) == (0, 0, 2)
    assert second.applied == first.applied
    changed = [path.name for path, time in before.items() if path.stat().st_mtime_ns != time]
    assert sorted(changed) == [".lock", "choice.json"]  # the same choice, written again
    logits, labels = make_case(999)
    write_probabilities(tmp_path / "test", "test_100", logits, labels)
    third = calibrate(methods=["temperature"], **arguments)
    assert (third.fitted, third.written, third.unchanged) == (0, 1, 1)
    assert third.applied != first.applied
    assert calibrate(methods=["temperature"], sample=50, **arguments).fitted == 1


def test_numbers_without_geometry_are_refused_and_a_segmentation_or_an_image_places_them(tmp_path):
    made = make_folders(tmp_path, "nnunet", apply=1)
    done = run_cli(words(tmp_path, "--apply", tmp_path / "test", form="nnunet"))
    assert isinstance(done.exception, BadInput)
    assert "does not say where its voxels lie" in str(done.exception)
    assert not list((tmp_path / "out").rglob("*.nii.gz"))
    _, labels = made["test_100"]
    save(np.zeros(SHAPE, np.float32), tmp_path / "images/test_100_0000.nii.gz")
    apply = ("--apply", tmp_path / "test")
    assert run_cli(words(tmp_path, *apply, "--apply-images", tmp_path / "images", form="nnunet")).exit_code == 0
    by_image = (tmp_path / "out/temperature/probabilities/test_100.nii.gz").read_bytes()
    save(labels, tmp_path / "test/test_100.nii.gz")
    assert run_cli(words(tmp_path, *apply, "-o", tmp_path / "again", form="nnunet")).exit_code == 0
    assert (tmp_path / "again/temperature/probabilities/test_100.nii.gz").read_bytes() == by_image


def test_a_fitted_folder_scores_other_cases_but_not_its_own(tmp_path):
    make_folders(tmp_path)
    assert run_cli(words(tmp_path)).exit_code == 0
    fitted = tmp_path / "out/temperature"
    shared = {"labels": tmp_path / "test_labels", "metrics": ("nll", "dsc")}
    plain = score(predictions=tmp_path / "test", output=tmp_path / "a.csv", **shared)
    after = score(predictions=tmp_path / "test", output=tmp_path / "b.csv", calibrator=fitted, **shared)
    assert set(after.table.rows["calibrator"]) == {"temperature"}
    values = [found.table.rows.query("metric == 'nll' and voxels == 'all'")["value"] for found in (plain, after)]
    assert (values[1].to_numpy() < values[0].to_numpy()).all()
    with pytest.raises(BadInput, match="was fitted on case 'val_000' or its patient"):
        score(
            predictions=tmp_path / "val", labels=tmp_path / "val_labels", output=tmp_path / "c.csv", calibrator=fitted
        )


def test_sigmoid_channels_each_have_a_temperature(tmp_path):
    rng = np.random.default_rng(0)
    slopes = np.array([2.0, 0.5])
    for part, first in (("val", 0), ("test", 3)):
        for number in range(first, first + 3):
            honest = rng.normal(0, 2, (12, 14, 10, 2))
            drawn = rng.random(honest.shape) < 1 / (1 + np.exp(-honest))
            drawn[..., 1] &= drawn[..., 0]
            logits = (honest * slopes).astype(np.float32)
            save(logits, tmp_path / part / f"{part}{number}.nii.gz")
            save((drawn[..., 0] + drawn[..., 1]).astype(np.uint8), tmp_path / f"{part}_labels/{part}{number}.nii.gz")
    told = ("--activation", "sigmoid", "--classes", "background,edema,core", "--regions", "WT=1+2,TC=2")
    told += ("--apply", tmp_path / "test", "--apply-labels", tmp_path / "test_labels")
    done = run_cli(words(tmp_path, *told, form="logits"))
    assert done.exit_code == 0, done.output
    found = read_calibrator(tmp_path / "out/temperature")["temperature"]
    assert found[0] == pytest.approx(2.0, rel=0.1)
    choice = json.loads((tmp_path / "out/choice.json").read_text())
    assert choice["chosen"] == "temperature"
    assert all(row["nll@all"] is not None and row["dsc"] is not None for row in choice["table"])


def test_an_ignored_label_counts_for_nobody(tmp_path):
    make_folders(tmp_path)
    plain = calibrate(predictions=tmp_path / "val", labels=tmp_path / "val_labels", output=tmp_path / "out")
    for path in (tmp_path / "val_labels").iterdir():
        labels = np.asanyarray(nib.load(path).dataobj).copy()
        labels[:2] = 9
        save(labels, path)
    told = {"labels": tmp_path / "val_labels", "class_names": ClassNames(ignore_label=9)}
    cut = calibrate(predictions=tmp_path / "val", output=tmp_path / "cut", **told)
    counted = [read_calibrator(done.output / "temperature")["fitted_on"]["voxels_counted"] for done in (plain, cut)]
    assert counted == [4 * 9 * 11 * 6, 4 * 7 * 11 * 6]


# What is refused


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


# Cross-fitting and the choice


class Memory(Calibrator):
    """Knows every voxel that it has seen by heart, and nothing else: the best in-sample, the worst elsewhere."""

    keeps_argmax = False

    def fit_predictions(self, predictions):
        self.known = {}
        for prediction in predictions:
            scores = np.asarray(prediction.scores).reshape(len(prediction.scores), -1).T
            self.known |= {row.tobytes(): int(y) for row, y in zip(scores, prediction.labels.ravel(), strict=True)}
            self.classes = scores.shape[1]
        return self

    def transform_prediction(self, prediction):
        scores = prediction.scores
        rows = scores.reshape(len(scores), -1).T
        labels = np.array([self.known.get(row.tobytes(), -1) for row in rows])
        p = np.where(labels == np.arange(len(scores))[:, None], 0.99, 0.01 / (len(scores) - 1))
        p[:, labels < 0] = np.where(np.arange(len(scores)) == 0, 0.98, 0.02 / (len(scores) - 1))[:, None]
        return p.reshape(scores.shape).astype(np.float32)

    def state(self):
        return {}, {}


def make_calibration_set(root, cases, kind="logits"):
    found, _ = match_files(root / "val", root / "val_labels", kind)
    return CalibrationSet(Labelled(found[:cases], ClassNames()), f"set of {cases}", {"folder": "val"})


def test_the_choice_is_by_cases_that_were_not_fitted_on(tmp_path):
    """In-sample the one that knows by heart wins; on cases that it has not seen it is the worst."""
    make_folders(tmp_path, "logits")
    methods = [
        Method("temperature", Temperature, False, "t", "temperature"),
        Method("memory", Memory, False, "m", "memory"),
    ]
    in_sample = fit_and_choose(
        make_calibration_set(tmp_path, 1), methods, tmp_path / "one", CalibrationOptions(choose="any")
    )
    assert (in_sample.chosen, in_sample.cross_fitted) == ("memory", False)
    crossed = fit_and_choose(
        make_calibration_set(tmp_path, 4), methods, tmp_path / "four", CalibrationOptions(choose="any")
    )
    assert (crossed.chosen, crossed.cross_fitted) == ("temperature", True)
    by_name = {row["method"]: row["nll@all"] for row in crossed.rows}
    assert by_name["temperature"] < by_name["none"] < by_name["memory"]


def test_unless_asked_otherwise_what_may_change_labels_is_not_chosen_but_named(tmp_path):
    make_folders(tmp_path, "logits")
    calibration_set, calibrators_dir = make_calibration_set(tmp_path, 1), tmp_path / "s"
    methods = [
        Method("temperature", Temperature, False, "t", "temperature"),
        Method("memory", Memory, False, "m", "memory"),
    ]
    safe = fit_and_choose(calibration_set, methods, calibrators_dir)
    told = json.loads((calibrators_dir / "choice.json").read_text())
    assert (safe.chosen, safe.keeps_labels, told["chosen"], told["keeps_labels"]) == ("temperature", True) * 2
    assert told["best"] == {"keeps-labels": "temperature", "any": "memory"}
    assert told["by"].endswith("among those that keep every label")
    bold = fit_and_choose(calibration_set, methods, calibrators_dir, CalibrationOptions(choose="any"))
    told = json.loads((calibrators_dir / "choice.json").read_text())
    assert (bold.chosen, bold.keeps_labels, told["chosen"], told["keeps_labels"]) == ("memory", False) * 2
    assert find_calibrator(calibrators_dir, None).keeps_labels is False
    with pytest.raises(BadInput, match="choose must be one of 'keeps-labels', 'any', not 'all'"):
        fit_and_choose(calibration_set, methods, calibrators_dir, CalibrationOptions(choose="all"))


def test_the_command_says_whether_labels_can_change(tmp_path, monkeypatch):
    """In-sample, on one case, isotonic regression has the smallest NLL."""
    monkeypatch.setattr(cli_calibrate.out, "width", 200)
    make_folders(tmp_path, "logits", fit=1)
    words = ["calibrate", "--predictions", tmp_path / "val", "--labels", tmp_path / "val_labels", "--kind", "logits"]
    words += ["--method", "temperature,isotonic", "-o", tmp_path / "out"]
    done = run_cli(words)
    assert done.exit_code == 0, done.output
    assert "chosen: temperature, which keeps every label, by the NLL" in done.output
    assert "isotonic has the smaller NLL and may change labels: --choose any takes it" in done.output
    assert "isotonic *" in done.output
    assert "* may change labels" in done.output
    done = run_cli([*words, "--choose", "any"])
    assert "chosen: isotonic, which may change labels, by the NLL" in done.output
    assert "--choose any takes it" not in done.output


class Counted(Temperature):
    """Counts its fits, and stops in the one that it is told to stop in."""

    fits: ClassVar[list[list[str]]] = []
    stop: ClassVar[int] = 0

    def fit_predictions(self, predictions):
        self.fits.append([prediction.case_id for prediction in predictions])
        if len(self.fits) == self.stop:
            raise KeyboardInterrupt
        return super().fit_predictions(predictions)


def test_an_interrupted_cross_fitting_goes_on_with_the_next_fold(tmp_path, monkeypatch):
    make_folders(tmp_path, "logits")
    method = Method("temperature", Counted, False, "t", "temperature")
    calibration_set, whole, broken = make_calibration_set(tmp_path, 4), tmp_path / "whole", tmp_path / "broken"
    monkeypatch.setattr(Counted, "fits", [])
    fit_and_choose(calibration_set, [method], whole, CalibrationOptions(folds=4))
    assert len(Counted.fits) == 5  # of all cases, and of each fold
    expected = _what_is_there(whole)
    for stop in (3, 5):
        shutil.rmtree(broken, ignore_errors=True)
        monkeypatch.setattr(Counted, "fits", [])
        monkeypatch.setattr(Counted, "stop", stop)
        with pytest.raises(KeyboardInterrupt):
            fit_and_choose(calibration_set, [method], broken, CalibrationOptions(folds=4))
        seen = Counted.fits[: stop - 1]
        monkeypatch.setattr(Counted, "fits", [])
        monkeypatch.setattr(Counted, "stop", 0)
        fit_and_choose(calibration_set, [method], broken, CalibrationOptions(folds=4))
        assert len(seen) + len(Counted.fits) == 5  # what was fitted before is not fitted again
        assert not [cases for cases in Counted.fits if cases in seen]
        assert _what_is_there(broken) == expected


def test_folds_of_other_predictions_or_options_are_not_gone_on_with(tmp_path, monkeypatch):
    make_folders(tmp_path, "logits")
    calibration_set, calibrators_dir = make_calibration_set(tmp_path, 4), tmp_path / "s"
    monkeypatch.setattr(Counted, "fits", [])
    monkeypatch.setattr(Counted, "stop", 4)
    with pytest.raises(KeyboardInterrupt):
        fit_and_choose(
            calibration_set,
            [Method("temperature", Counted, False, "t", "temperature")],
            calibrators_dir,
            CalibrationOptions(folds=4),
        )
    for key, other in (
        ("other options", calibration_set),
        ("t", replace(calibration_set, fingerprint="other predictions")),
    ):
        kept = shutil.copytree(calibrators_dir, tmp_path / key)
        monkeypatch.setattr(Counted, "fits", [])
        monkeypatch.setattr(Counted, "stop", 0)
        fit_and_choose(
            other, [Method("temperature", Counted, False, key, "temperature")], kept, CalibrationOptions(folds=4)
        )
        assert len(Counted.fits) == 5


def test_a_long_fit_tells_how_it_goes_on(tmp_path):
    make_folders(tmp_path, "logits")
    told = []

    class WithoutImages(LocalTemperature):
        uses_image = False

    method = Method("local_temperature", lambda: WithoutImages(epochs=2), False, "l", "local_temperature")
    fit_and_choose(
        make_calibration_set(tmp_path, 4),
        [method],
        tmp_path / "s",
        CalibrationOptions(folds=2),
        lambda done, total, text: told.append((done, total, text)),
    )
    epochs = [(done, total, text) for done, total, text in told if "epoch" in text]
    assert [(done, total) for done, total, _ in epochs] == [(0, 4)] * 2 + [(1, 4)] * 2 + [(2, 4)] * 2
    assert re.fullmatch(r"local_temperature: fold 2 of 2, epoch 1/2, held-out NLL 0\.\d{5}, \d+ s", epochs[4][2])
    assert told[-1] == (4, 4, "")


def test_cross_fitted_values_are_those_of_fits_that_left_the_case_out(tmp_path):
    made = make_folders(tmp_path, "logits", fit=3)
    calibration_set = make_calibration_set(tmp_path, 3)
    found = fit_and_choose(
        calibration_set, [Method("temperature", Temperature, False, "t", "temperature")], tmp_path / "s"
    )
    nlls = []
    for case in ("val_000", "val_001", "val_002"):
        others = [made[other] for other in made if other.startswith("val") and other != case]
        t = best_temperature([logits for logits, _ in others], [labels for _, labels in others])
        logits, labels = made[case]
        p = np.take_along_axis(softmax(logits.astype(float) / t), labels[..., None].astype(int), -1)
        nlls.append(-np.log(p).mean())
    assert found.rows[1]["nll@all"] == pytest.approx(np.mean(nlls), rel=1e-5)


def test_the_network_itself_is_chosen_where_nothing_helps(tmp_path):
    make_folders(tmp_path, "logits")
    found = fit_and_choose(
        make_calibration_set(tmp_path, 4), [Method("memory", Memory, False, "m", "memory")], tmp_path / "s"
    )
    assert found.chosen == "none"
    assert find_calibrator(tmp_path / "s", "chosen").folder is None


def test_a_later_call_adds_its_method_to_those_before(tmp_path):
    make_folders(tmp_path, "logits")
    calibration_set, calibrators_dir = make_calibration_set(tmp_path, 4), tmp_path / "s"
    fit_and_choose(calibration_set, [Method("temperature", Temperature, False, "t", "temperature")], calibrators_dir)
    found = fit_and_choose(calibration_set, [Method("memory", Memory, False, "m", "memory")], calibrators_dir)
    assert [row["method"] for row in found.rows] == ["none", "memory", "temperature"]
    assert found.chosen == "temperature"
    other = replace(calibration_set, fingerprint="another set")
    found = fit_and_choose(other, [Method("memory", Memory, False, "m", "memory")], calibrators_dir)
    assert [row["method"] for row in found.rows] == ["none", "memory"]  # the other was not fitted on this set


@pytest.mark.parametrize("number", [2, 3, 5])
def test_a_patient_is_held_out_with_all_of_its_cases(number):
    patients = [f"p{case // 2}" for case in range(20)]
    held = fold_numbers(patients, number)
    assert all(held[case] == held[case + 1] for case in range(0, 20, 2))
    sizes = np.bincount(held, minlength=number)
    assert sizes.max() - sizes.min() <= 2
    assert held == fold_numbers(patients, number)


def test_a_case_value_is_for_all_classes_or_the_mean_over_foreground(tmp_path):
    make_folders(tmp_path, fit=1, apply=0)
    ((pair,), _) = match_files(tmp_path / "val", tmp_path / "val_labels")
    measured = measure(pair, ClassNames(), ScoringOptions(metrics=("dsc", "ece")))
    values = values_of(measured, ClassNames())
    dsc = [row.value for row in measured.values if row.metric == "dsc" and row.name in ("1", "2")]
    assert values["dsc"] == pytest.approx(np.mean(dsc))
    assert values["ece@all"] == next(
        row.value for row in measured.values if (row.metric, row.voxels, row.name) == ("ece", "all", "all")
    )
    assert mean_values({"a": {"x": 1.0, "y": np.nan}, "b": {"x": 2.0, "y": np.nan}}) == {"x": 1.5, "y": None}


# Piece by piece


class Blur(Calibrator):
    """Scores minus the mean over what it reaches, so that a piece that is too small shows."""

    keeps_argmax = True

    def __init__(self, reach, axis=0):
        super().__init__()
        self.reach, self.classes = reach, 3  # pyright: ignore[reportAttributeAccessIssue]
        self.seen = []

    def transform_prediction(self, prediction):
        scores, axis = prediction.scores, 1 + prediction.slice_axis
        axes = {"voxel": (), "slice": tuple(a for a in (1, 2, 3) if a != axis), "volume": (1, 2, 3)}[self.reach]
        self.seen.append(scores.shape)
        mean = scores.mean(axes, keepdims=True, dtype=np.float64) if axes else 0
        return softmax(np.moveaxis(scores * (1 + mean), 0, -1)).transpose(3, 0, 1, 2).astype(np.float32)


@pytest.mark.parametrize("reach", ["voxel", "slice", "volume"])
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_pieces_give_what_the_whole_volume_gives(reach, axis, monkeypatch):
    monkeypatch.setattr(calibrated_module, "PIECE", 200)
    monkeypatch.setattr(calibrated_module, "IN_MEMORY", 0)
    scores = np.random.default_rng(0).normal(size=(3, 7, 8, 9)).astype(np.float32)
    prediction = Prediction("a", "a", scores, "logits", (1.0, 1.0, 1.0), slice_axis=axis)
    blur = Blur(reach)
    whole = blur.transform_prediction(prediction)
    blur.seen.clear()
    found = calibrated(prediction, blur)
    assert found.kind == "probabilities"
    np.testing.assert_allclose(found.scores, whole, atol=1e-6)
    assert (len(blur.seen) == 1) == (reach == "volume")
    case = Case("a", "a", np.zeros((1, 7, 8, 9), np.float32), ("x",), None, (1.0,) * 3, ("a", "b", "c"), np.eye(4))
    slices = np.moveaxis(scores, 1 + axis, 0)
    parts = [slices[begin : begin + 3] for begin in range(0, len(slices), 3)]
    by_slice = np.stack(list(calibrated_slices(parts, case, axis, blur)))
    np.testing.assert_allclose(np.moveaxis(by_slice, 0, 1 + axis), whole, atol=1e-6)


def test_a_piece_is_bounded_whatever_the_volume_is():
    shape = (5, 400, 100, 90)
    for reach in ("voxel", "slice"):
        cuts = list(pieces(Blur(reach), shape, 0))
        assert sum(cut[1].stop - cut[1].start for cut in cuts) == 400
        assert max(cut[1].stop - cut[1].start for cut in cuts) * 5 * 100 * 90 <= calibrated_module.PIECE


def test_memory_holds_a_piece_of_a_file_and_not_its_volume(tmp_path, monkeypatch):
    """33 MB of probabilities in an uncompressed file, calibrated a megabyte at a time."""
    monkeypatch.setattr(calibrated_module, "PIECE", 1 << 18)
    save(np.full((128, 128, 100, 5), 0.2, np.float32), tmp_path / "p/big.nii")
    (pair,) = unlabelled(tmp_path / "p")
    calibrator = Temperature()
    calibrator.temperature, calibrator.classes = (2.0,), 5
    tracemalloc.start()
    write_calibrated(pair, calibrator, tmp_path / "big.nii.gz")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 12 << 20
    found = np.asanyarray(nib.load(tmp_path / "big.nii.gz").dataobj)
    np.testing.assert_allclose(found[::16, ::16, ::16], 0.2, atol=1e-6)


# Runs


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
        predict(root / "run", cases=part)
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
    score(run, cases="validation", calibrator="temperature", **rules)
    assert json.loads((run / "scores-validation+temperature.meta.json").read_text())["in_sample"] is True
    last = {"train": {"select": "last"}, "loss": {"name": "ce"}}
    assert fitted_with(last, find_calibrator(run / "calibrators", "none"))["validation_used"] == 0


@pytest.mark.parametrize(
    ("breaking", "message"),
    [
        ({"cases": "test"}, "nothing is fitted on test cases"),
        ({"cases": "calibration"}, "has no calibration cases to fit on"),
        ({"missing": "folder"}, "holds no logits; run   calibseg predict"),
        ({"missing": "case"}, "lacks case 'phantom_"),
        ({"foreign": "case"}, "which is none of the run's validation cases"),
        ({"weights": "other"}, "was predicted by other weights than the run has now"),
        ({"folds": 1}, "folds = 1 must be at least 2"),
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
    options = {key: value for key, value in breaking.items() if key in ("cases", "folds")}
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


def test_a_calibration_part_of_the_split_is_preferred(run, trained):
    info = read_run(run)
    split = replace(info.split, calibration=info.split.validation, validation=())
    write_run(folders.RunFolder(run), replace(info, split=split))
    (run / "logits/validation").rename(run / "logits/calibration")
    calibrate(run, ["temperature"])
    assert read_calibrator(run / "calibrators/temperature")["fitted_on"]["part"] == "calibration"
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


def _what_is_there(folder):
    """Every file's content without the seconds."""
    found = {}
    for path in sorted(folder.rglob("*.json")):
        content = json.loads(path.read_text())
        content.pop("seconds", None)
        for row in content.get("table", []):
            row.pop("seconds")
        found[str(path.relative_to(folder))] = content
    return found


def test_a_killed_call_leaves_whole_files_and_the_next_one_ends_as_if_nothing_had_happened(run, tmp_path):
    whole = Path(shutil.copytree(run, tmp_path / "whole"))
    calibrate(whole, ["temperature"])
    expected = _what_is_there(whole / "calibrators")
    assert sorted(expected) == [
        "choice.json",
        "none/cross-fitted.json",
        "temperature/calibrator.json",
        "temperature/cross-fitted.json",
    ]
    for number in (1, 3, 5):  # 2 to 4: folds, in one file
        killed = Path(shutil.copytree(run, tmp_path / f"killed{number}"))
        assert in_child(_die_at_rename, killed, number) == -signal.SIGKILL
        assert len(_what_is_there(killed / "calibrators")) == min(number - 1, 2)
        calibrate(killed, ["temperature"])
        assert _what_is_there(killed / "calibrators") == expected


def test_loading_a_calibrator_gives_what_was_fitted(run):
    calibrate(run, ["temperature"])
    one = open_logits(next((run / "logits/test").glob("*.npz")))
    loaded = load_calibrator(run / "calibrators/temperature")
    p = loaded.transform(np.asarray(one.scores), batch=False)
    t = read_calibrator(run / "calibrators/temperature")["temperature"]
    expected = softmax(np.moveaxis(np.asarray(one.scores, float), 0, -1) / t)
    np.testing.assert_allclose(np.moveaxis(p, 0, -1), expected, atol=1e-6)


def test_what_a_killed_call_left_half_written_is_swept(tmp_path):
    make_folders(tmp_path)
    arguments = {"predictions": tmp_path / "val", "labels": tmp_path / "val_labels", "output": tmp_path / "out"}
    left = tmp_path / "out/temperature/probabilities/.test_100.nii.gz.1.tmp"
    left.mkdir(parents=True)
    (left / "p.nii").write_bytes(b"half")
    calibrate(methods=["temperature"], apply=tmp_path / "test", **arguments)
    assert not list((tmp_path / "out").rglob("*.tmp"))
    assert len(list((tmp_path / "out").rglob("test_*.nii.gz"))) == 2


def test_every_calibrator_goes_through_the_stage(tmp_path):
    """The choice is the smallest cross-fitted NLL of those that keep labels, whatever there is to choose among."""
    make_folders(tmp_path, "logits", fit=3, apply=1)
    for case in [*(f"val_{n:03d}" for n in range(3)), "test_100"]:
        save(np.random.default_rng(0).random(SHAPE).astype(np.float32), tmp_path / f"images/{case}.nii.gz")
    names = list(registry.members("calibrators"))
    arguments = {"predictions": tmp_path / "val", "labels": tmp_path / "val_labels", "output": tmp_path / "out"}
    arguments |= {"images": tmp_path / "images", "apply_images": tmp_path / "images", "apply": tmp_path / "test"}
    options = {"local_temperature.epochs": 1}
    done = calibrate(methods=names, kind="logits", folds=2, options=options, **arguments)
    assert [row["method"] for row in done.rows] == ["none", *names]
    safe = [row for row in done.rows if row["keeps_argmax"]]
    assert done.chosen == done.best["keeps-labels"] == min(safe, key=lambda row: row["nll@all"])["method"]
    assert done.best["any"] == min(done.rows, key=lambda row: row["nll@all"])["method"]
    logits, _ = make_case(100)
    for name, row in zip(names, done.rows[1:], strict=True):
        p = np.asanyarray(nib.load(tmp_path / f"out/{name}/probabilities/test_100.nii.gz").dataobj)
        np.testing.assert_allclose(p.sum(-1), 1, atol=1e-4)
        if row["keeps_argmax"]:
            np.testing.assert_array_equal(p.argmax(-1), logits.argmax(-1))
    after = score(
        predictions=tmp_path / "test",
        labels=tmp_path / "test_labels",
        output=tmp_path / "a.csv",
        kind="logits",
        calibrator=tmp_path / "out",  # the chosen one of those
        images=tmp_path / "images",
        metrics=("nll",),
    )
    assert set(after.table.rows["calibrator"]) == {done.chosen}


def test_a_calibrated_case_travels_to_a_worker(tmp_path):
    make_folders(tmp_path, "logits", apply=1)
    calibrate(predictions=tmp_path / "val", labels=tmp_path / "val_labels", output=tmp_path / "out", kind="logits")
    ((pair,), _) = match_files(tmp_path / "test", tmp_path / "test_labels", "logits")
    here = Calibrated.of(pair, tmp_path / "out/temperature")
    there = pickle.loads(pickle.dumps(here))
    np.testing.assert_array_equal(there.open().scores, here.open().scores)
    assert there.stated == here.stated != Calibrated.of(replace(pair, kind="probabilities"), here.calibrator).stated


def test_cases_to_apply_to_need_predictions(tmp_path):
    make_folders(tmp_path, fit=1, apply=0)
    done = run_cli(words(tmp_path, "--apply-labels", tmp_path / "val_labels"))
    assert "but not their predictions: --apply DIR" in str(done.exception)
    both = run_cli(["calibrate", tmp_path, "--predictions", tmp_path / "val"])
    assert "not both at once" in str(both.exception)
    assert "say what to calibrate" in str(run_cli(["calibrate"]).exception)
