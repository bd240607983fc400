"""Python files that a run folder or a calibrator names are run only where the user names them too."""

import json
import os
import subprocess
import sys

import pytest

from calibseg.calibrators.fitted.files import load_calibrator
from calibseg.core import plugins, registry
from calibseg.core.types import BadInput, Split
from calibseg.runs.checkpoint import load_network, save_weights
from calibseg.runs.folders import RunFolder
from calibseg.runs.info import RunInfo, write_run
from calibseg.runs.recipe import read_recipe

NETWORK = '''"""A network that leaves a trace when it is imported."""
from pathlib import Path
from torch import nn

Path(__file__).with_suffix(".ran").touch()

class Mine(nn.Module):
    def __init__(self, in_channels: int, num_classes: int):
        super().__init__()
        self.layer = nn.Conv2d(in_channels, num_classes, 1)

    def forward(self, image):
        return self.layer(image)
'''


@pytest.fixture
def sent(tmp_path, monkeypatch):
    """A run folder that somebody sent, with a network of theirs."""
    monkeypatch.setenv(plugins.ALLOWED, "")
    source = tmp_path / "mine.py"
    source.write_text(NETWORK)
    tables = {"data": {"dataset": "phantom"}, "network": {"name": str(source)}, "loss": {"name": "ce"}}
    info = RunInfo("sent", tables, ("none", "a"), ("T1",), Split((), (), (), 0))
    folder = RunFolder(tmp_path / "run")
    write_run(folder, info)
    network = registry.build("networks", str(source), {"in_channels": 1, "num_classes": 2})
    save_weights(folder.weights, network, {})
    folder.recipe.write_text(f'[data]\ndataset = "phantom"\n[network]\nname = "{source}"\n')
    source.with_suffix(".ran").unlink()
    return folder.path, source


def test_the_network_of_a_run_that_somebody_sent_is_not_run(sent):
    run, source = sent
    with pytest.raises(BadInput, match=r"run\.json: names the Python file .*mine\.py, which would be run; .* --plugin"):
        load_network(run)
    with pytest.raises(BadInput, match=r"recipe\.toml: names the Python file"):
        read_recipe(run)
    assert not source.with_suffix(".ran").exists()
    plugins.allow(str(source))
    assert load_network(run)
    assert read_recipe(run).network.name == str(source)


def test_a_recipe_and_a_change_on_the_command_line_are_the_user_s_word(sent):
    run, source = sent
    (run.parent / "own.toml").write_text((run / "recipe.toml").read_text())
    read_recipe(run.parent / "own.toml")
    assert load_network(run)
    os.environ[plugins.ALLOWED] = ""
    read_recipe(run, [f"network.name={source}"])
    assert load_network(run)


def test_a_calibrator_that_somebody_sent_is_not_run(tmp_path, monkeypatch):
    monkeypatch.setenv(plugins.ALLOWED, "")
    source = tmp_path / "e.py"
    source.write_text(NETWORK.replace("network", "calibrator"))
    told = {"method": str(source), "options": {}, "activation": "softmax", "kind": "logits", "classes": 2,
            "keeps_argmax": True, "fitted_on": {}, "learnt": [], "arrays": [], "parameters": 0, "mark": ""}  # fmt: skip
    path = tmp_path / "calibrator.json"
    path.write_text(json.dumps({"format": "calibseg-calibrator/1", **told}))
    with pytest.raises(BadInput, match=r"calibrator\.json: names the Python file"):
        load_calibrator(tmp_path)
    assert not source.with_suffix(".ran").exists()


def test_the_command_says_how_to_allow_a_file_and_then_runs_it(sent):
    run, source = sent
    words = ["predict", str(run), "--subset", "test"]
    environment = {name: value for name, value in os.environ.items() if name != plugins.ALLOWED}

    def calibseg(*words: str) -> "subprocess.CompletedProcess[str]":
        command = [sys.executable, "-m", "calibseg", *words]
        return subprocess.run(command, capture_output=True, text=True, env=environment, cwd=run.parent, check=False)

    refused = calibseg(*words)
    assert (refused.returncode, source.with_suffix(".ran").exists()) == (2, False)
    assert f"calibseg --plugin {source} ..." in refused.stderr
    done = calibseg("--plugin", "mine.py", *words)
    assert (done.returncode, source.with_suffix(".ran").exists()) == (2, True)  # it was loaded; there are no cases
    assert "prepared cases are not in" in done.stderr


@pytest.mark.parametrize("name", ["nowhere.py", "."])
def test_a_plugin_that_is_not_there_is_refused(calibseg, name):
    code, _, said = calibseg("--plugin", name, "list", "losses")
    assert (code, said) == (2, f"error: --plugin {name}: there is no such Python file\n")
