"""What README and docs/nnunet.md say to somebody with nnU-Net, run by nnU-Net itself: on a CPU, and with few steps."""

import os
import re
import subprocess
import sys

import pytest

from calibseg.integrations.nnunet.checkpoint import read_checkpoint
from support.nnunet_study import BIN, DATASET, TEST, environment
from support.pages import ROOT, blocks

pytest.importorskip("nnunetv2", reason="nnU-Net is not installed here: make test-nnunet")

CPU = {"nnUNetv2_train": " -device cpu", "nnUNetv2_predict": " -device cpu -npp 1 -nps 1"}


def told(page: str, language: str) -> str:
    found = [block for block in blocks(ROOT / page) if "make test-nnunet runs" in (block["reason"] or "")]
    return "".join(block["code"] for block in found if block["language"] == language)


def test_every_command_for_nnunet_runs_in_order(study, tmp_path):
    """Those of docs/nnunet.md, among which are those of README."""
    said = told("docs/nnunet.md", "bash").splitlines()
    assert set(told("README.md", "bash").splitlines()) <= set(said)
    commands = "\n".join(re.sub(r"^(nnUNetv2_\w+) .*$", lambda line: line[0] + CPU[line[1]], line) for line in said)
    (tmp_path / "imagesTs").symlink_to(study / "raw" / DATASET / "imagesTs")
    own = {"nnUNet_results": str(tmp_path / "results"), "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}"}
    reader = environment(study) | own | {"CALIBSEG_NNUNET": "epochs=3, iterations=2, validation_iterations=1"}
    del reader["nnUNet_extTrainer"]  # which the page sets
    for program in (["bash", "-ec", commands], [sys.executable, "-c", told("docs/nnunet.md", "python")]):
        done = subprocess.run(program, cwd=tmp_path, env=reader, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-3000:]}"
    fold = tmp_path / "results" / DATASET / "nnUNetTrainerNACL__nnUNetPlans__3d_fullres" / "fold_0"
    stored = read_checkpoint(fold / "checkpoint_final.pth")["calibseg"]
    assert (stored["loss"], len(stored["epochs"])) == ("nacl", 3)
    assert len(list((tmp_path / "calibrated/temperature/nnunet").glob("*.npz"))) == TEST
    released = read_checkpoint(tmp_path / "public_model" / "fold_0" / "checkpoint_final.pth")
    assert released["trainer_name"] == "nnUNetTrainer"
