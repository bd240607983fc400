"""nnU-Net itself, from raw data to calibrated predictions: `make test-nnunet`, in an environment of its own."""

import json
import shutil

import nibabel as nib
import numpy as np
import pytest
import torch
from scipy.spatial.transform import Rotation

from calibseg.integrations.nnunet.checkpoint import read_checkpoint
from support.nnunet_study import DATASET, TEST, kill_training, model, run, train

pytest.importorskip("nnunetv2", reason="nnU-Net is not installed here: make test-nnunet")


def test_multipliers_are_learnt_logged_and_stored(trained):
    fold = model(trained, "CRaC") / "fold_0"
    stored = read_checkpoint(fold / "checkpoint_final.pth")
    assert stored["trainer_name"] == "nnUNetTrainerCRaC"
    entry = stored["calibseg"]
    assert (entry["loss"], len(entry["epochs"]), entry["options"]["epochs"]) == ("crac", 3, 3)
    assert int(entry["state"]["multipliers.epoch"]) == 3
    assert int(entry["state"]["multipliers.done"]) == 3 * 2  # training steps, each counted once
    assert len((fold / "calibseg.csv").read_text().splitlines()) == 4
    assert "lambda_inner_1" in next(fold.glob("training_log_*.txt")).read_text()


def test_a_loss_without_multipliers_trains_too(study):
    """NACL is trained by test_nnunet_pages.py."""
    train(study, "MbLS", 0, options="epochs=3, iterations=2, validation_iterations=1, weight=0.2")
    stored = read_checkpoint(model(study, "MbLS") / "fold_0" / "checkpoint_final.pth")
    assert stored["calibseg"]["options"]["weight"] == 0.2
    assert [sorted(learnt) for learnt in stored["calibseg"]["epochs"]] == [["train_ce", "train_margin"]] * 3


def test_a_killed_training_goes_on_with_equal_multipliers(study):
    """Asked for no epoch more, nnU-Net loads, saves and validates: what it saves is what it has loaded."""
    few, fold = "iterations=2, validation_iterations=1, save_every=1", model(study, "CRaC") / "fold_2"
    latest = kill_training(study, "CRaC", 2, f"epochs=900, {few}", epochs=2)
    before = read_checkpoint(latest)["calibseg"]
    done = len(before["epochs"])
    train(study, "CRaC", 2, "--c", options=f"epochs={done}, {few}")
    same = read_checkpoint(fold / "checkpoint_final.pth")["calibseg"]
    assert same["epochs"] == before["epochs"]
    assert (before["state"]["multipliers.lambdas"] > 1.01e-6).any()  # beyond where they begin
    for name, value in before["state"].items():
        assert torch.equal(same["state"][name], value), name
    train(study, "CRaC", 2, "--c", options=f"epochs={done + 1}, {few}")
    after = read_checkpoint(fold / "checkpoint_final.pth")["calibseg"]
    assert after["epochs"][:done] == before["epochs"]
    assert len(after["epochs"]) == int(after["state"]["multipliers.epoch"]) == done + 1
    shutil.rmtree(fold)


def test_nnunets_own_commands_take_what_was_calibrated(calibrated):
    made = calibrated / "cal" / "temperature" / "nnunet"
    run(calibrated, "nnUNetv2_ensemble", "-i", made, calibrated / "out", "-o", calibrated / "both", "-np", 1)
    assert len(list((calibrated / "both").glob("*.nii.gz"))) == TEST
    truth = calibrated / "raw" / DATASET / "labelsTs"
    run(calibrated, "nnUNetv2_evaluate_folder", truth, made, "-djfile", made / "dataset.json", "-pfile",
        made / "plans.json", "-np", 1)  # fmt: skip
    assert "foreground_mean" in json.loads((made / "summary.json").read_text())


def test_scores_are_those_of_plain_numpy_through_nnunets_own_reader(calibrated):
    from nnunetv2.imageio.simpleitk_reader_writer import SimpleITKIO

    output = calibrated / "scores.csv"
    truth, out = calibrated / "raw" / DATASET / "labelsTs", calibrated / "out"
    words = ("--predictions", out, "--labels", truth, "--metrics", "nll,brier,dsc")
    run(calibrated, "calibseg", "score", *words, "-o", output)
    from calibseg.analysis import table

    rows = table.read(output).rows
    for path in sorted(out.glob("*.npz")):
        p = np.load(path)["probabilities"].astype(float)
        labels = SimpleITKIO().read_seg(str(truth / f"{path.stem}.nii.gz"))[0][0].astype(int)
        likelihood = np.take_along_axis(p, labels[None], 0)[0].clip(2.0**-24)
        brier = ((p - (np.arange(len(p))[:, None, None, None] == labels)) ** 2).sum(0).mean()
        seen = p.argmax(0)
        dice = 2 * ((seen == 1) & (labels == 1)).sum() / ((seen == 1).sum() + (labels == 1).sum())
        own = rows[rows["case"] == path.stem]
        for metric, name, expected in (
            ("nll", "all", -np.log(likelihood).mean()),
            ("brier", "all", brier),
            ("dsc", "anterior", dice),
        ):
            chosen = own[(own["metric"] == metric) & (own["class"] == name)]
            chosen = chosen[chosen["voxels"].isin(["", "all"])]
            assert float(chosen["value"].iloc[0]) == pytest.approx(expected, rel=1e-5), (path.stem, metric)


@pytest.mark.parametrize("reader", ["SimpleITKIO", "NibabelIO", "NibabelIOWithReorient"])
def test_oblique_scans_are_read_as_nnunets_readers_write_them(tmp_path, reader):
    """A segmentation and probabilities written by nnU-Net's own export, of an image that lies askew."""
    from nnunetv2.imageio.reader_writer_registry import recursive_find_reader_writer_by_name

    from calibseg.io.conventions import FileConventions
    from calibseg.io.predictions import match_files

    turn = Rotation.from_euler("xyz", [20, -15, 100], degrees=True).as_matrix() * [-1, 1, 1.5]
    affine = np.eye(4)
    affine[:3, :3], affine[:3, 3] = turn, (7, -3, 11)
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 3, (6, 7, 8)).astype(np.uint8)
    folders = {name: tmp_path / name for name in ("images", "labels", "out")}
    for folder in folders.values():
        folder.mkdir()
    nib.save(nib.Nifti1Image(rng.normal(size=labels.shape).astype(np.float32), affine), folders["images"] / "a.nii.gz")
    nib.save(nib.Nifti1Image(labels, affine), folders["labels"] / "a.nii.gz")
    reads = recursive_find_reader_writer_by_name(reader)()
    _, properties = reads.read_images([str(folders["images"] / "a.nii.gz")])
    seg, _ = reads.read_seg(str(folders["labels"] / "a.nii.gz"))
    p = np.stack([(seg[0] == k) * 0.7 + 0.1 for k in range(3)]).astype(np.float32)
    np.savez_compressed(folders["out"] / "a.npz", probabilities=p)
    reads.write_seg(p.argmax(0).astype(np.uint8), str(folders["out"] / "a.nii.gz"), properties)
    (folders["out"] / "plans.json").write_text(json.dumps({"plans_name": "p", "image_reader_writer": reader}))
    ((pair,), unmatched) = match_files(folders["out"], folders["labels"], FileConventions(file_format="nnunet"))
    assert not unmatched
    prediction = pair.open()
    np.testing.assert_array_equal(np.asarray(prediction.scores).argmax(0), prediction.labels)


def test_a_released_model_predicts_the_same_without_us(calibrated):
    run(calibrated, "calibseg", "nnunet", "release", model(calibrated, "CRaC"), "-o", calibrated / "public")
    stored = read_checkpoint(calibrated / "public" / "fold_0" / "checkpoint_final.pth")
    assert stored["trainer_name"] == "nnUNetTrainer"
    assert "calibseg" not in stored
    scans = calibrated / "one"
    scans.mkdir()
    first = min((calibrated / "raw" / DATASET / "imagesTs").iterdir())
    shutil.copy(first, scans)
    run(calibrated, "nnUNetv2_predict_from_modelfolder", "-i", scans, "-o", calibrated / "again", "-m",
        calibrated / "public", "-f", 0, 1, "--save_probabilities", "-device", "cpu", "-npp", 1, "-nps", 1,
        external=False)  # fmt: skip
    case = first.name.removesuffix("_0000.nii.gz")
    again, own = (np.load(calibrated / name / f"{case}.npz")["probabilities"] for name in ("again", "out"))
    np.testing.assert_allclose(again, own, atol=1e-5)
