"""nnU-Net itself, from raw data to calibrated predictions, made once for all tests that look at it."""

import importlib.util

import pytest

from support import nnunet_study
from support.nnunet_study import DATASET, HIPPOCAMPUS, model, run, train

FEW = "epochs=3, iterations=2, validation_iterations=2, save_every=1"


@pytest.fixture(scope="session")
def study(tmp_path_factory):
    """Planned and preprocessed, batches and network small."""
    if importlib.util.find_spec("nnunetv2") is None:
        pytest.skip("nnU-Net is not installed here: make test-nnunet")
    if not HIPPOCAMPUS.is_dir():
        pytest.skip("the hippocampus data of the Medical Segmentation Decathlon are not here")
    root = tmp_path_factory.mktemp("nnunet")
    nnunet_study.make_study(root)
    nnunet_study.plan(root)
    return root


@pytest.fixture(scope="session")
def trained(study):
    """CRaC, two folds with probabilities of their validation cases, and the predictions of both together."""
    for fold in (0, 1):
        train(study, "CRaC", fold, "--npz", options=FEW)
    images = study / "raw" / DATASET / "imagesTs"
    run(study, "nnUNetv2_predict", "-i", images, "-o", study / "out", "-d", 4, "-c", "3d_fullres", "-f", 0, 1, "-tr",
        "nnUNetTrainerCRaC", "--save_probabilities", "-device", "cpu", "-npp", 1, "-nps", 1)  # fmt: skip
    return study


@pytest.fixture(scope="session")
def calibrated(trained):
    words = ("--apply", trained / "out", "--apply-labels", trained / "raw" / DATASET / "labelsTs")
    printed = run(trained, "calibseg", "nnunet", "calibrate", model(trained, "CRaC"), *words, "-o", trained / "cal")
    assert "9 of 16 label maps" in printed
    assert "averages all 2 by default" in printed
    return trained
