"""Cross-fitting, going on with it after an interruption, and the choice of a calibrator."""

import contextlib
import json
import re
import shutil
from dataclasses import replace
from typing import ClassVar

import numpy as np
import pytest

from calibseg.calibrators import Calibrator, LocalTemperature, Temperature
from calibseg.calibrators.fitted.selected import find_calibrator
from calibseg.cli import calibrate as cli_calibrate
from calibseg.core.types import BadInput
from calibseg.io.class_names import ClassNames
from calibseg.io.conventions import FileConventions
from calibseg.io.predictions import match_files
from calibseg.stages.calibrate import fit_and_choose as fit_and_choose_module
from calibseg.stages.calibrate.cross_fitting import Labelled, fold_numbers, mean_values, values_of
from calibseg.stages.calibrate.fit_and_choose import CalibrationSet, Method, fit_and_choose
from calibseg.stages.calibrate.options import CalibrationOptions
from calibseg.stages.score.case import measure
from calibseg.stages.score.options import ScoringOptions
from support.calibrated_folders import (
    best_temperature,
    make_folders,
    run_cli,
    softmax,
    what_is_there,
)


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
    found, _ = match_files(root / "val", root / "val_labels", FileConventions(kind))
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
    with pytest.raises(BadInput, match="choose = 'all' must be one of 'keeps-labels', 'any'"):
        fit_and_choose(calibration_set, methods, calibrators_dir, CalibrationOptions(choose="all"))


def test_the_command_says_whether_labels_can_change(tmp_path, monkeypatch):
    """In-sample, on one case, isotonic regression has the smallest NLL."""
    monkeypatch.setattr(cli_calibrate.out, "width", 200)
    make_folders(tmp_path, "logits", fit=1)
    words = ["calibrate", "--predictions", tmp_path / "val", "--labels", tmp_path / "val_labels", "--kind", "logits"]
    words += ["--method", "temperature,isotonic", "-o", tmp_path / "out"]
    done = run_cli(words)
    assert done.exit_code == 0, done.output
    assert "chosen: temperature, which does not change the segmentation, by the NLL" in done.output
    assert "isotonic has the smaller NLL and may change the segmentation: --choose any takes it" in done.output
    assert "isotonic *" in done.output
    assert "* may change the segmentation" in done.output
    done = run_cli([*words, "--choose", "any"])
    assert "chosen: isotonic, which may change the segmentation, by the NLL" in done.output
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
    expected = what_is_there(whole)
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
        assert what_is_there(broken) == expected


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


def test_values_of_another_fit_are_not_those_of_a_call_that_was_stopped_before_its_first_fold(tmp_path, monkeypatch):
    make_folders(tmp_path, "logits")
    calibration_set, calibrators_dir = make_calibration_set(tmp_path, 4), tmp_path / "s"
    for key, stop in (("t", 0), ("other options", 2)):
        monkeypatch.setattr(Counted, "fits", [])
        monkeypatch.setattr(Counted, "stop", stop)
        with contextlib.suppress(KeyboardInterrupt):
            method = Method("temperature", Counted, False, key, "temperature")
            fit_and_choose(calibration_set, [method], calibrators_dir, CalibrationOptions(folds=4))
    memory = [Method("memory", Memory, False, "m", "memory")]
    found = fit_and_choose(calibration_set, memory, calibrators_dir, CalibrationOptions(folds=4))
    assert [row["method"] for row in found.rows] == ["none", "memory"]


def test_the_network_itself_is_measured_anew_by_another_program(tmp_path, monkeypatch):
    make_folders(tmp_path, "logits")
    calibration_set, calibrators_dir = make_calibration_set(tmp_path, 2), tmp_path / "s"
    method = [Method("temperature", Temperature, False, "t", "temperature")]
    first = fit_and_choose(calibration_set, method, calibrators_dir)
    path = calibrators_dir / "none/cross-fitted.json"
    content = json.loads(path.read_text())
    for values in content["cases"].values():
        values["nll@all"] = 0.0
    path.write_text(json.dumps(content))
    assert fit_and_choose(calibration_set, method, calibrators_dir).chosen == "none"
    monkeypatch.setattr(fit_and_choose_module, "__version__", "the next")
    again = fit_and_choose(calibration_set, method, calibrators_dir)
    assert (again.chosen, again.rows[0]["nll@all"]) == ("temperature", first.rows[0]["nll@all"])


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


def test_a_fit_of_a_version_that_counted_no_parameters_is_made_anew_and_takes_no_part_before(tmp_path):
    make_folders(tmp_path, "logits")
    calibration_set, calibrators_dir = make_calibration_set(tmp_path, 4), tmp_path / "s"
    older = [Method("temperature", Temperature, False, "t", "temperature")]
    fit_and_choose(calibration_set, older, calibrators_dir)
    path = calibrators_dir / "temperature/calibrator.json"
    content = json.loads(path.read_text())
    del content["parameters"]
    path.write_text(json.dumps(content))
    found = fit_and_choose(calibration_set, [Method("memory", Memory, False, "m", "memory")], calibrators_dir)
    assert [row["method"] for row in found.rows] == ["none", "memory"]
    found = fit_and_choose(calibration_set, older, calibrators_dir)
    assert (found.fitted, [row["method"] for row in found.rows]) == (1, ["none", "memory", "temperature"])
    assert json.loads(path.read_text())["parameters"] == 1


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
