"""Calibration of a model of nnU-Net, on folders that look as nnU-Net leaves them."""

import json
import os
import shutil

import nibabel as nib
import numpy as np
import pytest

from support.scored_folders import random_case, save

CLASSES = {"background": 0, "a": 1, "b": 2}
REGIONS = {"background": 0, "whole": [1, 2], "core": [2]}
OBLIQUE = np.array([[-0.9, 0.1, 0.2, 3], [0.2, 1.1, -0.1, -4], [0.1, 0.3, -2.0, 5], [0, 0, 0, 1]])


def facts(folder, labels=CLASSES, reader="SimpleITKIO"):
    folder.mkdir(parents=True, exist_ok=True)
    order = {"regions_class_order": [1, 2]} if labels is REGIONS else {}
    (folder / "dataset.json").write_text(json.dumps({"labels": labels, "file_ending": ".nii.gz", **order}))
    plans = {"dataset_name": "Dataset009_A", "plans_name": "nnUNetPlans", "image_reader_writer": reader}
    (folder / "plans.json").write_text(json.dumps(plans))


def say(folder, case, p, segmentation):
    """p [k x y z], as nnU-Net writes it with --save_probabilities."""
    folder.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(folder / f"{case}.npz", probabilities=p.transpose(0, 3, 2, 1))
    (folder / f"{case}.pkl").write_bytes(b"never opened")
    save(folder / f"{case}.nii.gz", segmentation.astype(np.uint8), OBLIQUE)


def as_regions(p):
    return np.stack([p[1] + p[2], p[2]]).astype(np.float32)


@pytest.fixture(params=[CLASSES, REGIONS], ids=["softmax", "regions"])
def model(request, tmp_path, monkeypatch):
    """Two folds of two cases, labels of a fifth, and predictions of two other cases."""
    monkeypatch.setenv("nnUNet_preprocessed", str(tmp_path / "preprocessed"))
    facts(tmp_path / "model", request.param)
    facts(tmp_path / "out", request.param)
    for number, case in enumerate(("a", "b", "c", "d", "e", "y", "z")):
        p, labels = random_case(number)
        p = (p**3 / (p**3).sum(0)).astype(np.float32)  # too sure
        seen = p.argmax(0)
        if request.param is REGIONS:
            p = as_regions(p)
            seen = np.where(p[1] > 0.5, 2, p[0] > 0.5)
        if case in "yz":
            say(tmp_path / "out", case, p, seen)
        else:
            save(
                tmp_path / f"preprocessed/Dataset009_A/gt_segmentations/{case}.nii.gz", labels.astype(np.uint8), OBLIQUE
            )
        if case in "abcd":
            say(tmp_path / f"model/fold_{number % 2}/validation", case, p, seen)
    return tmp_path


def test_every_fold_is_fitted_on_and_nnunets_files_come_back_calibrated(model, calibseg):
    output = model / "calibrated"
    code, out, err = calibseg("nnunet", "calibrate", model / "model", "--apply", model / "out", "-o", output)
    assert code == 0, err
    assert "1 of 5 label maps" in out
    told = json.loads((output / "temperature/calibrator.json").read_text())
    assert sorted(told["fitted_on"]["cases"]) == list("abcd")
    made, own = output / "temperature/nnunet", model / "out"
    assert sorted(path.name for path in made.iterdir()) == sorted(path.name for path in own.iterdir())
    for name in ("y.pkl", "y.nii.gz", "plans.json"):
        assert (made / name).read_bytes() == (own / name).read_bytes()
    before, after = (np.load(folder / "y.npz")["probabilities"].astype(float) for folder in (own, made))
    temperature = told["state"]["temperature"] if "state" in told else told["temperature"]
    plain = ((before > 1e-5) & (before < 1 - 1e-5)).all(0)  # beyond, float32 has no digits left
    before, after = before[:, plain], after[:, plain]
    if len(before) == 3:
        scores = np.log(before) / temperature
        expected = np.exp(scores) / np.exp(scores).sum(0)
    else:
        t = np.reshape(temperature, (-1, 1))
        expected = 1 / (1 + np.exp(-(np.log(before) - np.log1p(-before)) / t))
    np.testing.assert_allclose(after, expected, atol=1e-5)
    assert plain.mean() > 0.8
    nifti = np.asarray(nib.load(output / "temperature/probabilities/y.nii.gz").dataobj)
    np.testing.assert_array_equal(np.load(made / "y.npz")["probabilities"], nifti.transpose(3, 2, 1, 0))


def test_what_is_done_is_left_alone_and_what_is_missing_is_made_again(model, calibseg):
    words = ("nnunet", "calibrate", model / "model", "--apply", model / "out", "-o", model / "calibrated")
    calibseg(*words)
    made = model / "calibrated/temperature/nnunet"
    os.utime(made / "y.npz", (1, 1))
    (made / "z.npz").unlink()
    assert calibseg(*words)[0] == 0
    assert (made / "y.npz").stat().st_mtime == 1
    assert (made / "z.npz").is_file()


def test_a_method_that_moves_labels_writes_the_segmentation_that_nnunet_would_make(model, calibseg):
    words = ("nnunet", "calibrate", model / "model", "--apply", model / "out", "-o", model / "calibrated")
    code, _, err = calibseg(*words, "--method", "isotonic")
    assert code == 0, err
    made = model / "calibrated/isotonic/nnunet"
    p = np.load(made / "z.npz")["probabilities"]
    labels = p.argmax(0) if len(p) == 3 else np.where(p[1] > 0.5, 2, p[0] > 0.5)
    image = nib.load(made / "z.nii.gz")
    np.testing.assert_array_equal(np.asarray(image.dataobj).T, labels)
    np.testing.assert_array_equal(image.affine, nib.load(model / "out/z.nii.gz").affine)


def test_a_reader_that_turns_images_leaves_its_files_turned(model, calibseg):
    """nnU-Net's NibabelIOWithReorient: the .npz is RAS+, the segmentation lies as the image."""
    for folder in (model / "model", model / "out"):
        plans = json.loads((folder / "plans.json").read_text()) | {"image_reader_writer": "NibabelIOWithReorient"}
        (folder / "plans.json").write_text(json.dumps(plans))
    for path in [*model.glob("model/fold_*/validation/*.npz"), *model.glob("out/*.npz")]:
        p = np.load(path)["probabilities"]
        np.savez_compressed(path, probabilities=p[:, ::-1, :, ::-1])  # the file's x and z run to the left and down
    output = model / "calibrated"
    code, _, err = calibseg("nnunet", "calibrate", model / "model", "--apply", model / "out", "-o", output)
    assert code == 0, err
    turned = np.load(output / "temperature/nnunet/y.npz")["probabilities"]
    nifti = np.asarray(nib.load(output / "temperature/probabilities/y.nii.gz").dataobj)
    np.testing.assert_array_equal(turned[:, ::-1, :, ::-1], nifti.transpose(3, 2, 1, 0))


def test_an_ensemble_is_spoken_of_and_may_be_fitted_on_itself(model, calibseg):
    for fold in (0, 1):
        (model / f"model/fold_{fold}/checkpoint_final.pth").write_bytes(b"")
    (model / "out/predict_from_raw_data_args.json").write_text("{}")
    words = ("nnunet", "calibrate", model / "model", "--apply", model / "out", "-o", model / "calibrated")
    assert "does not tell how many folds predicted" in calibseg(*words)[1]  # as nnU-Net 2.8.1 writes it
    for folds, note in (([0], False), ([0, 1], True)):
        (model / "out/predict_from_raw_data_args.json").write_text(json.dumps({"use_folds": folds}))
        assert ("averages all 2 by default" in calibseg(*words)[1]) == note
    together = model / "val"
    shutil.copytree(model / "model/fold_0/validation", together)
    facts(together, json.loads((model / "model/dataset.json").read_text())["labels"])
    labels = model / "preprocessed/Dataset009_A/gt_segmentations"
    code, out, err = calibseg(*words[:-1], model / "again", "--predictions", together, "--labels", labels)
    assert code == 0, err
    assert "by default" not in out


def test_the_path_holds_the_one_module_that_nnunet_imports(calibseg):
    code, out, _ = calibseg("nnunet", "path")
    assert code == 0
    assert [name for name in os.listdir(out.strip()) if name.endswith(".py")] == ["calibseg_trainers.py"]
