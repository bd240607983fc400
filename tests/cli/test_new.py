"""`calibseg new FAMILY NAME`: a file that runs as written, and passes its family's contract tests."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from calibseg.cli import usage
from calibseg.cli.usage import TEMPLATES
from calibseg.core import registry

ROOT = Path(__file__).parents[2]
CONTRACTS = {
    "losses": "tests/losses/test_every_loss.py",
    "metrics": "tests/metrics/test_every_metric.py",
    "networks": "tests/networks/test_every_network.py",
    "calibrators": "tests/calibrators/test_every_calibrator.py",
    "priors": "tests/losses/test_every_prior.py",
    "datasets": "tests/data/test_every_dataset.py",
    "decisions": "tests/decisions/test_every_decision.py",
}


def calibseg(*arguments, cwd):
    environment = os.environ | {"PYTHONPATH": str(registry.PACKAGE.parent)}
    command = [sys.executable, "-m", "calibseg", *arguments]
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=300)


def test_every_family_has_a_template():
    assert {path.name for path in TEMPLATES.iterdir()} == {f"{name}.py.txt" for name in registry.SINGULAR.values()}


def test_in_the_checkout_that_is_installed_it_is_written_into_the_familys_folder(tmp_path, monkeypatch):
    """In a clone whose package is installed elsewhere the file would be found by nobody: it is written here."""
    home = tmp_path / "src/calibseg/data/datasets"
    home.mkdir(parents=True)
    (tmp_path / "pyproject.toml").touch()
    assert usage.default_folder("datasets", home.parent) == (home.parent, False)
    monkeypatch.setattr(usage, "PACKAGE", tmp_path / "src/calibseg")
    monkeypatch.setattr(usage, "registry_folder", lambda family: home)
    assert usage.default_folder("datasets", home.parent) == (home, True)


@pytest.mark.parametrize("family", list(registry.SINGULAR))
def test_a_new_member_passes_the_contract_of_its_family(family, tmp_path):
    kind = registry.SINGULAR[family]
    done = calibseg("new", kind, f"my_{kind}", cwd=tmp_path)
    path = tmp_path / f"my_{kind}.py"
    assert done.returncode == 0, done.stderr
    assert f"my_{kind}" in calibseg("explain", f"{kind}:{path}", cwd=tmp_path).stdout
    again = calibseg("new", kind, f"my_{kind}", cwd=tmp_path)
    assert again.returncode == 2
    assert "exists already" in again.stderr
    environment = os.environ | {"CALIBSEG_MEMBERS": f"{family}={path}", "PYTHONPATH": str(registry.PACKAGE.parent)}
    command = [sys.executable, "-m", "pytest", CONTRACTS[family], "-q", "-n", "0", "-p", "no:cacheprovider"]
    tests = subprocess.run(
        [*command, "-k", f"my_{kind}"], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=500
    )
    assert tests.returncode == 0, tests.stdout[-3000:]
    assert " passed" in tests.stdout
