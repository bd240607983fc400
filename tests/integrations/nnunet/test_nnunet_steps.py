"""nnU-Net's own classes with our losses in them, step by step: its losses, its search for trainers, its steps."""

import json

import numpy as np
import pytest
import torch

from support.nnunet_study import DATASET, environment

pytest.importorskip("nnunetv2", reason="nnU-Net is not installed here: make test-nnunet")


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
