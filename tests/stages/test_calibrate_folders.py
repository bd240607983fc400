"""The stage that calibrates anybody's folders: every format, before and after, and what is done again."""

import json
import pickle
import shutil
from dataclasses import replace

import nibabel as nib
import numpy as np
import pandas as pd
import pytest

from calibseg.api import calibrate, score
from calibseg.calibrators.fitted.apply import Calibrated
from calibseg.calibrators.fitted.files import load_calibrator, read_calibrator, save_calibrator
from calibseg.calibrators.solvers import temperature_training
from calibseg.core import registry
from calibseg.core.types import LEAST_PROBABILITY, BadInput
from calibseg.io.class_names import ClassNames
from calibseg.io.conventions import FileConventions, PredictionFolder
from calibseg.io.predictions import match_files
from calibseg.stages.calibrate.stage import calibrate_folders
from support.calibrated_folders import (
    FORMS,
    SHAPE,
    TRUE_T,
    best_temperature,
    make_case,
    make_folders,
    run_cli,
    save,
    softmax,
    words,
    write_probabilities,
)


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
            logits = np.log(np.maximum(softmax(logits), LEAST_PROBABILITY))  # the stated floor
        wanted = softmax(logits / fitted["temperature"])
        np.testing.assert_allclose(np.asanyarray(found.dataobj), wanted, atol=2e-6)


def test_before_and_after_are_scored_and_printed(tmp_path):
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
    for heading in ("NLL", "Brier", "ECE", "truth", "predicted", "all", "CECE", "DSC", "(chosen)"):
        assert heading in shown
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
    assert sorted(changed) == ["choice.json"]  # the same choice, written again
    logits, labels = make_case(999)
    write_probabilities(tmp_path / "test", "test_100", logits, labels)
    third = calibrate(methods=["temperature"], **arguments)
    assert (third.fitted, third.written, third.unchanged) == (0, 1, 1)
    assert third.applied != first.applied
    assert calibrate(methods=["temperature"], sample=50, **arguments).fitted == 1


def test_before_and_after_are_of_the_same_cases_when_one_has_gone(tmp_path):
    make_folders(tmp_path, apply=3)
    arguments = {"predictions": tmp_path / "val", "labels": tmp_path / "val_labels", "output": tmp_path / "out"}
    arguments |= {"apply": tmp_path / "test", "apply_labels": tmp_path / "test_labels"}
    calibrate(methods=["temperature"], **arguments)
    (tmp_path / "test/test_101.nii.gz").unlink()
    calibrate(methods=["temperature"], **arguments)
    for name in ("none", "temperature"):
        rows = pd.read_csv(tmp_path / f"out/{name}/scores.csv")
        assert set(rows["case"].dropna()) == {"test_100", "test_102"}
    for folder in ("test", "test_labels"):
        shutil.copytree(tmp_path / folder, tmp_path / f"{folder}_2")
        (tmp_path / f"{folder}_2/test_100.nii.gz").unlink()
    arguments |= {"apply": tmp_path / "test_2", "apply_labels": tmp_path / "test_labels_2"}
    found = calibrate(methods=["temperature"], **arguments)
    assert [row["method"] for row in found.applied] == ["none", "temperature"]
    assert set(pd.read_csv(tmp_path / "out/temperature/scores.csv")["case"].dropna()) == {"test_102"}


def test_a_method_that_looks_at_images_joins_the_others_and_is_fitted_anew_with_other_images(tmp_path, monkeypatch):
    monkeypatch.setattr(temperature_training, "STEPS", 2)
    for case, (_, labels) in make_folders(tmp_path, fit=2, apply=0).items():
        save(labels.astype(np.float32), tmp_path / f"images/{case}.nii.gz")
    folders = {"predictions": tmp_path / "val", "labels": tmp_path / "val_labels", "output": tmp_path / "out"}
    looking = {"images": tmp_path / "images", "options": {"local_temperature.epochs": 1}, **folders}
    calibrate(methods=["temperature"], **folders)
    for fitted in (1, 0):
        found = calibrate(methods=["local_temperature"], **looking)
        assert [row["method"] for row in found.rows] == ["none", "local_temperature", "temperature"]
        assert found.fitted == fitted
    save(np.ones(SHAPE, np.float32), tmp_path / "images/val_000.nii.gz")
    assert calibrate(methods=["local_temperature", "temperature"], **looking).fitted == 1


def test_numbers_without_geometry_are_refused_and_a_segmentation_or_an_image_places_them(tmp_path):
    made = make_folders(tmp_path, "nnunet", apply=1)
    done = run_cli(words(tmp_path, "--apply", tmp_path / "test", form="nnunet"))
    assert isinstance(done.exception, BadInput)
    assert "does not say where its voxels lie" in str(done.exception)
    assert not list((tmp_path / "out").rglob("*.nii.gz"))
    logits, _ = made["test_100"]
    save(np.zeros(SHAPE, np.float32), tmp_path / "images/test_100_0000.nii.gz")
    apply = ("--apply", tmp_path / "test")
    assert run_cli(words(tmp_path, *apply, "--apply-images", tmp_path / "images", form="nnunet")).exit_code == 0
    by_image = (tmp_path / "out/temperature/probabilities/test_100.nii.gz").read_bytes()
    save(logits.argmax(-1).astype(np.uint8), tmp_path / "test/test_100.nii.gz")
    assert run_cli(words(tmp_path, *apply, form="nnunet", output="again")).exit_code == 0
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
    for folder in ("test", "test_labels"):  # the same case under another name
        (old,) = (tmp_path / folder.replace("test", "val")).glob("val_000*")
        shutil.copy(old, tmp_path / folder / old.name.replace("val_000", "test_200"))
    with pytest.raises(BadInput, match=r"was fitted on .*test_200.* under another name"):
        score(predictions=tmp_path / "test", output=tmp_path / "d.csv", calibrator=fitted, **shared)


def test_an_empty_prediction_may_be_fitted_on_and_another_one_calibrated(tmp_path):
    make_folders(tmp_path)
    empty = np.broadcast_to(np.float32([30, 0, 0]), (*SHAPE, 3))
    for case in ("val/val_001", "test/test_101"):
        write_probabilities(tmp_path / case.split("/")[0], case.split("/")[1], empty, None)
    assert (tmp_path / "val/val_001.nii.gz").read_bytes() == (tmp_path / "test/test_101.nii.gz").read_bytes()
    folders = (PredictionFolder(tmp_path / part, tmp_path / f"{part}_labels") for part in ("val", "test"))
    fit, apply = (replace(folder, files=FileConventions(kind="probabilities")) for folder in folders)
    done = calibrate_folders(fit, ["temperature"], tmp_path / "out", apply=apply, workers=1)
    assert done.written == 2


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


@pytest.mark.parametrize("change", [{"regions": {"any": (1, 2)}}, {"ignore_label": 9}])
def test_cases_whose_labels_mean_something_else_are_fitted_anew(tmp_path, change):
    make_folders(tmp_path)
    told = {"predictions": tmp_path / "val", "labels": tmp_path / "val_labels", "output": tmp_path / "out"}
    names = ClassNames(classes=("background", "a", "b"))
    fitted = [
        calibrate(methods=["temperature"], class_names=own, **told).fitted
        for own in (names, names, replace(names, **change), replace(names, **change))
    ]
    assert fitted == [1, 0, 1, 0]


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
    ((pair,), _) = match_files(tmp_path / "test", tmp_path / "test_labels", FileConventions("logits"))
    here = Calibrated.of(pair, tmp_path / "out/temperature")
    there = pickle.loads(pickle.dumps(here))
    np.testing.assert_array_equal(there.open().scores, here.open().scores)
    assert there.stated == here.stated != Calibrated.of(replace(pair, kind="probabilities"), here.calibrator).stated


def test_the_report_names_the_present_choice_also_after_another_one(tmp_path):
    make_folders(tmp_path)
    told = ("--apply", tmp_path / "test", "--apply-labels", tmp_path / "test_labels", "--method", "temperature")
    assert run_cli(words(tmp_path, *told)).exit_code == 0
    path = tmp_path / "out/choice.json"
    tables = [tmp_path / f"out/{name}/scores.csv" for name in ("none", "temperature")]
    for name in ("temperature", "none"):  # as a later call with more methods or another rule would choose
        path.write_text(json.dumps({**json.loads(path.read_text()), "chosen": name}))
        assert run_cli(["report", *map(str, tables), "-o", str(tmp_path / "report.html")]).exit_code == 0
        assert f"choice of a calibrator: {name}<" in (tmp_path / "report.html").read_text()
    for table in tables:
        assert "chosen" not in json.loads(table.with_name("scores.meta.json").read_text())


def test_scores_follow_a_calibrator_that_has_learnt_something_else(tmp_path):
    make_folders(tmp_path)
    told = ("--apply", tmp_path / "test", "--apply-labels", tmp_path / "test_labels", "--method", "temperature")
    assert run_cli(words(tmp_path, *told)).exit_code == 0
    fitted, scores = tmp_path / "out/temperature", tmp_path / "out/temperature/scores.csv"
    before = pd.read_csv(scores)
    calibrator, record = load_calibrator(fitted), json.loads((fitted / "calibrator.json").read_text())
    calibrator.load_state({"temperature": 9.0}, {})  # on another machine a fit from the same cases may end elsewhere
    save_calibrator(fitted, calibrator, {"made_from": record["made_from"], "fitted_on": record["fitted_on"]})
    assert run_cli(words(tmp_path, *told)).exit_code == 0
    assert read_calibrator(fitted)["temperature"] == 9.0
    assert not before["value"].equals(pd.read_csv(scores)["value"])


def test_further_raters_count_in_the_fit_and_in_the_scores_after_it(tmp_path):
    make_folders(tmp_path)
    for name in ("val", "test"):  # a second rater who sees nothing but background
        for path in sorted((tmp_path / f"{name}_labels").iterdir()):
            save(np.zeros(SHAPE, np.uint8), tmp_path / f"{name}_second" / path.name)
    fit, to = (
        PredictionFolder(tmp_path / name, tmp_path / f"{name}_labels", raters=(tmp_path / f"{name}_second",))
        for name in ("val", "test")
    )

    def result():
        return calibrate_folders(fit, ["temperature"], tmp_path / "out", apply=to)

    assert result().fitted == 1
    tables = [pd.read_csv(tmp_path / f"out/{name}/scores.csv") for name in ("none", "temperature")]
    assert all("rater_ece" in set(rows["metric"]) for rows in tables)
    assert result().fitted == 0
    second = next((tmp_path / "val_second").iterdir())
    second.write_bytes((tmp_path / "val_labels" / second.name).read_bytes())
    assert result().fitted == 1
