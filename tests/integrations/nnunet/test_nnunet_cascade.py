"""nnU-Net's 3d_lowres and 3d_cascade_fullres configurations, from training to calibrated predictions."""

import json
import shutil

import pytest

from calibseg.integrations.nnunet.checkpoint import read_checkpoint
from support.nnunet_study import DATASET, TEST, add_cascade, model, run, train

pytest.importorskip("nnunetv2", reason="nnU-Net is not installed here: make test-nnunet")

FEW = "epochs=1, iterations=2, validation_iterations=1"


def test_a_cascade_is_trained_on_the_lowres_folds_predicted_and_calibrated(study, tmp_path):
    for name in ("raw", "preprocessed"):
        shutil.copytree(study / name, tmp_path / name)
    add_cascade(tmp_path)
    for fold in (0, 1):  # the cascade learns from out-of-fold segmentations of both
        train(tmp_path, "CRaC", fold, options=FEW, configuration="3d_lowres")
    train(tmp_path, "CRaC", 0, "--npz", options=FEW, configuration="3d_cascade_fullres")
    cascade = model(tmp_path, "CRaC", "3d_cascade_fullres")
    entry = read_checkpoint(cascade / "fold_0" / "checkpoint_final.pth")["calibseg"]
    assert int(entry["state"]["multipliers.epoch"]) == 1
    images, few = tmp_path / "raw" / DATASET / "imagesTs", ("-device", "cpu", "-npp", 1, "-nps", 1)
    base = ("nnUNetv2_predict", "-i", images, "-d", 4, "-f", 0, "-tr", "nnUNetTrainerCRaC", *few)
    run(tmp_path, *base, "-c", "3d_lowres", "-o", tmp_path / "low")
    run(tmp_path, *base, "-c", "3d_cascade_fullres", "-o", tmp_path / "out", "-prev_stage_predictions",
        tmp_path / "low", "--save_probabilities")  # fmt: skip
    truth = tmp_path / "raw" / DATASET / "labelsTs"
    words = ("--apply", tmp_path / "out", "--apply-labels", truth, "-o", tmp_path / "cal")
    run(tmp_path, "calibseg", "nnunet", "calibrate", cascade, *words)
    told = json.loads((tmp_path / "cal/temperature/calibrator.json").read_text())
    assert len(told["fitted_on"]["cases"]) == 8
    assert len(list((tmp_path / "cal/temperature/nnunet").glob("*.npz"))) == TEST
