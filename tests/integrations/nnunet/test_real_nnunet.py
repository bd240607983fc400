"""nnU-Net itself, from raw data to calibrated predictions: `make test-nnunet`, in an environment of its own."""

import json
import shutil

import nibabel as nib
import numpy as np
import pytest
import torch
from scipy.spatial.transform import Rotation

from support.nnunet_study import DATA, DATASET, TEST, environment, make_study, plan, run

pytest.importorskip("nnunetv2", reason="nnU-Net is not installed here: make test-nnunet")
if not DATA.is_dir():
    pytest.skip("the hippocampus data of the Medical Segmentation Decathlon are not here", allow_module_level=True)

FEW = "epochs=3, iterations=2, validation_iterations=2, save_every=1"


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    """Planned and preprocessed, batches and network small."""
    root = tmp_path_factory.mktemp("nnunet")
    make_study(root)
    plan(root)
    return root


def train(root, trainer, fold, *words, options=FEW, expect=0):
    base = ("-tr", f"nnUNetTrainer{trainer}", "-device", "cpu", *words)
    return run(root, "nnUNetv2_train", 4, "3d_fullres", fold, *base, options=options, expect=expect)


def model(root, trainer):
    return root / "results" / DATASET / f"nnUNetTrainer{trainer}__nnUNetPlans__3d_fullres"


@pytest.fixture(scope="module")
def trained(study):
    """CRaC, two folds with probabilities of their validation cases, and the predictions of both together."""
    for fold in (0, 1):
        train(study, "CRaC", fold, "--npz")
    images = study / "raw" / DATASET / "imagesTs"
    run(study, "nnUNetv2_predict", "-i", images, "-o", study / "out", "-d", 4, "-c", "3d_fullres", "-f", 0, 1, "-tr",
        "nnUNetTrainerCRaC", "--save_probabilities", "-device", "cpu", "-npp", 1, "-nps", 1)  # fmt: skip
    return study


@pytest.fixture(scope="module")
def calibrated(trained):
    words = ("--apply", trained / "out", "--apply-labels", trained / "raw" / DATASET / "labelsTs")
    printed = run(trained, "calibseg", "nnunet", "calibrate", model(trained, "CRaC"), *words, "-o", trained / "cal")
    assert "9 of 16 label maps" in printed
    assert "averages all 2 by default" in printed
    return trained


def checkpoint(path):
    from calibseg.integrations.nnunet.checkpoint import read_checkpoint

    return read_checkpoint(path)


def test_multipliers_are_learnt_logged_and_stored(trained):
    fold = model(trained, "CRaC") / "fold_0"
    stored = checkpoint(fold / "checkpoint_final.pth")
    assert stored["trainer_name"] == "nnUNetTrainerCRaC"
    entry = stored["calibseg"]
    assert (entry["loss"], len(entry["epochs"]), entry["options"]["epochs"]) == ("crac", 3, 3)
    assert int(entry["state"]["multipliers.epoch"]) == 3
    assert int(entry["state"]["multipliers.done"]) == 3 * 2  # training steps, each counted once
    assert len((fold / "calibseg.csv").read_text().splitlines()) == 4
    assert "lambda_inner_1" in next(fold.glob("training_log_*.txt")).read_text()


@pytest.mark.parametrize("trainer", ["NACL", "MbLS"])
def test_losses_without_multipliers_train_too(study, trainer):
    train(study, trainer, 0, options="epochs=1, iterations=2, validation_iterations=1, weight=0.2")
    stored = checkpoint(model(study, trainer) / "fold_0" / "checkpoint_final.pth")
    assert stored["calibseg"]["options"]["weight"] == 0.2


def test_a_stopped_training_goes_on_with_equal_multipliers_and_refuses_other_options(trained):
    fold = model(trained, "CRaC") / "fold_2"
    train(trained, "CRaC", 2, options="epochs=2, iterations=1, validation_iterations=1, save_every=1")
    (fold / "checkpoint_final.pth").rename(fold / "checkpoint_latest.pth")
    before = checkpoint(fold / "checkpoint_latest.pth")["calibseg"]
    failed = train(trained, "CRaC", 2, "--c", options="epochs=3, rho=0.5", expect=1)
    assert "was trained by the loss crac" in failed
    train(trained, "CRaC", 2, "--c", options="epochs=3, iterations=1, validation_iterations=1")
    after = checkpoint(fold / "checkpoint_final.pth")["calibseg"]
    assert after["epochs"][:2] == before["epochs"]
    assert len(after["epochs"]) == 3
    assert int(after["state"]["multipliers.epoch"]) == 3
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
    run(
        calibrated,
        "calibseg",
        "score",
        "--predictions",
        out,
        "--labels",
        truth,
        "--metrics",
        "nll,brier,dsc",
        "-o",
        output,
    )
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
    stored = checkpoint(calibrated / "public" / "fold_0" / "checkpoint_final.pth")
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


@pytest.mark.parametrize("deep", [True, False])
@pytest.mark.parametrize(("regions", "ignore"), [(False, False), (False, True), (True, False), (True, True)])
def test_cross_entropy_is_nnunets_own_loss_to_rounding(regions, ignore, deep):
    from nnunetv2.training.loss.compound_losses import DC_and_BCE_loss, DC_and_CE_loss
    from nnunetv2.training.loss.deep_supervision import DeepSupervisionWrapper
    from nnunetv2.training.loss.dice import MemoryEfficientSoftDiceLoss

    from calibseg.integrations.nnunet.objective import Objective, make_loss

    torch.manual_seed(0)
    dice = {"batch_dice": deep, "smooth": 1e-5, "do_bg": regions, "ddp": False}
    if regions:
        own = DC_and_BCE_loss({}, dice, use_ignore_label=ignore, dice_class=MemoryEfficientSoftDiceLoss)
    else:
        kind = {"ignore_label": 3 if ignore else None, "dice_class": MemoryEfficientSoftDiceLoss}
        own = DC_and_CE_loss(dice, {}, 1, 1, **kind)
    logits = [torch.randn(2, 3, 16 // n, 12 // n, 8 // n, requires_grad=True) for n in (1, 2, 4)]
    if regions:
        target = [(torch.rand(2, 4 if ignore else 3, *one.shape[2:]) > 0.5) for one in logits]
    else:
        target = [torch.randint(0, 4 if ignore else 3, (2, 1, *one.shape[2:])).to(torch.int16) for one in logits]
    theirs = DeepSupervisionWrapper(own, (4 / 7, 2 / 7, 1 / 7)) if deep else own
    given = (logits, target) if deep else (logits[0], target[0])
    expected = theirs(*given)
    slopes = torch.autograd.grad(expected, logits, allow_unused=True)
    ours = Objective(theirs, make_loss("ce", {}, 3, regions), 3 if ignore else None, regions)
    found = ours(*given)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
    for mine, slope in zip(torch.autograd.grad(found, logits, allow_unused=True), slopes, strict=True):
        assert (mine is None) == (slope is None)
        if mine is not None:
            torch.testing.assert_close(mine, slope, rtol=1e-4, atol=1e-7)


def test_nnunet_finds_a_trainer_for_every_loss(monkeypatch, tmp_path):
    from nnunetv2.utilities.find_objects import recursive_find_trainer_class_by_name

    from calibseg.integrations.nnunet import trainers

    monkeypatch.setenv("nnUNet_extTrainer", environment(tmp_path)["nnUNet_extTrainer"])
    for name in trainers.trainer_names():
        found = recursive_find_trainer_class_by_name(name)
        assert found is getattr(trainers, name)
        assert found.__module__ == "calibseg.integrations.nnunet.trainers"


LABELS = {
    "labels": {"background": 0, "anterior": 1, "posterior": 2},
    "ignore": {"background": 0, "anterior": 1, "posterior": 2, "ignore": 3},
    "regions": {"background": 0, "whole": [1, 2], "posterior": [2]},
    "regions, ignore": {"background": 0, "whole": [1, 2], "posterior": [2], "ignore": 3},
}


@pytest.mark.filterwarnings("ignore:crac")
@pytest.mark.parametrize("trainer", ["NACL", "CRaC"])
@pytest.mark.parametrize("labels", LABELS)
@pytest.mark.parametrize("configuration", ["2d", "3d_fullres"])
def test_steps_of_nnunets_trainer_with_labels_regions_and_ignored_voxels(
    study, monkeypatch, configuration, labels, trainer
):
    """nnU-Net's own train_step and validation_step, on a batch as its transforms make it."""
    from nnunetv2.training.nnUNetTrainer import nnUNetTrainer as module

    from calibseg.integrations.nnunet import trainers

    for name in ("raw", "preprocessed", "results"):
        monkeypatch.setenv(f"nnUNet_{name}", str(study / (name if name != "results" else "steps")))
    monkeypatch.setattr(module, "infer_dataset_class", lambda folder: None)
    monkeypatch.setenv("nnUNet_compile", "false")
    plans = json.loads((study / "preprocessed" / DATASET / "nnUNetPlans.json").read_text())
    plans["continue_training"] = False
    about = {"channel_names": {"0": "MRI"}, "labels": LABELS[labels], "file_ending": ".nii.gz"}
    if "regions" in labels:
        about["regions_class_order"] = [1, 2]
    made = getattr(trainers, f"nnUNetTrainer{trainer}")(plans, configuration, 0, about, torch.device("cpu"))
    made.initialize()
    torch.manual_seed(0)
    space = made.configuration_manager.patch_size
    channels = made.label_manager.num_segmentation_heads + made.label_manager.has_ignore_label
    targets = []
    for scale in made._get_deep_supervision_scales():
        shape = [round(size * one) for size, one in zip(space, scale, strict=True)]
        if "regions" in labels:
            targets.append(torch.rand(2, channels, *shape) > 0.6)
        else:
            targets.append(torch.randint(0, len(LABELS[labels]), (2, 1, *shape)).to(torch.int16))
    batch = {"data": torch.randn(2, 1, *space), "target": targets}
    made.on_train_epoch_start()
    first = made.train_step({**batch})["loss"]
    with torch.no_grad():
        made.on_validation_epoch_start()
        outputs = [made.validation_step({"data": batch["data"], "target": [one.clone() for one in targets]})]
        made.on_validation_epoch_end(outputs)
    assert np.isfinite(first)
    assert np.isfinite(outputs[0]["loss"])
    if trainer == "CRaC":
        heads = made.label_manager.num_segmentation_heads
        assert list(made.loss.loss.lambdas.shape) == ([heads, 2, 2] if "regions" in labels else [heads, 2])
        assert (made.loss.loss.lambdas > 1e-6).any()
