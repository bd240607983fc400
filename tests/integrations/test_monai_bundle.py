"""The bundle in examples/: its parts are built, and `python -m monai.bundle run` trains on hippocampi."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from monai.bundle import ConfigParser

pytest.importorskip("ignite")
from calibseg.integrations.monai import CalibrationHandler, LearnOnValidation
from support.real_data import DATA

BUNDLE = Path(__file__).parents[2] / "examples" / "monai_bundle"
HIPPOCAMPUS = DATA / "Task04_Hippocampus"


def test_the_bundles_parts_of_ours_are_built_from_its_config():
    parser = ConfigParser()
    parser.read_config(str(BUNDLE / "configs" / "train.json"))
    parser.read_meta(str(BUNDLE / "configs" / "metadata.json"))
    learner = parser.get_parsed_content("learn_on_validation")
    assert isinstance(learner, LearnOnValidation)
    assert learner.loss.lambdas.shape == (3, 2)
    assert isinstance(parser.get_parsed_content("validate#key_metric")["val_ece"], CalibrationHandler)


@pytest.mark.slow
@pytest.mark.skipif(not HIPPOCAMPUS.is_dir(), reason="the hippocampus data are not there")
def test_the_bundle_trains_on_eight_hippocampi(tmp_path):
    words = ["--config_file", str(BUNDLE / "configs" / "train.json"), "--dataset_dir", str(HIPPOCAMPUS)]
    done = subprocess.run(
        [sys.executable, "-m", "monai.bundle", "run", *words, "--ckpt_dir", str(tmp_path / "models")],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=500,
    )
    said = done.stdout + done.stderr
    assert done.returncode == 0, said[-3000:]
    assert said.count("Key metric: val_ece best value") == 2
    assert "lambda_inner_1" in said
    saved = torch.load(tmp_path / "models" / "model.pt", weights_only=True)
    assert int(saved["loss"]["loss"]["multipliers.epoch"]) >= 1
    assert saved["loss"]["observed"] is True
