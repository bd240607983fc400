"""What README and docs/nnunet.md say to somebody with nnU-Net, run by nnU-Net itself: on a CPU, and with few steps."""

import os
import re
import subprocess
import sys

import pytest

from support.nnunet_study import BIN, DATASET, TEST, environment
from support.pages import ROOT, blocks

pytest.importorskip("nnunetv2", reason="nnU-Net is not installed here: make test-nnunet")

CPU = {"nnUNetv2_train": " -device cpu", "nnUNetv2_predict": " -device cpu -npp 1 -nps 1"}


def on_a_cpu(code: str) -> str:
    return re.sub(r"^(nnUNetv2_\w+) .*$", lambda line: line[0] + CPU[line[1]], code, flags=re.M)


@pytest.mark.parametrize("page", ["README.md", "docs/nnunet.md"])
def test_every_command_for_nnunet_runs_in_order(page, study, tmp_path):
    told = [block for block in blocks(ROOT / page) if "nnU-Net" in (block["reason"] or "")]
    commands = on_a_cpu("".join(block["code"] for block in told if block["language"] == "bash"))
    assert "nnUNetv2_train" in commands
    (tmp_path / "imagesTs").symlink_to(study / "raw" / DATASET / "imagesTs")
    own = {"nnUNet_results": str(tmp_path / "results"), "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}"}
    reader = environment(study) | own | {"CALIBSEG_NNUNET": "epochs=1, iterations=1, validation_iterations=1"}
    del reader["nnUNet_extTrainer"]  # which the page sets
    programs = [["bash", "-ec", commands]]
    programs += [[sys.executable, "-c", block["code"]] for block in told if block["language"] == "python"]
    for program in programs:
        done = subprocess.run(program, cwd=tmp_path, env=reader, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-3000:]}"
    assert len(list((tmp_path / "calibrated/temperature/nnunet").glob("*.npz"))) == TEST
