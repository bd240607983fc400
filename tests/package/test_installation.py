"""What a stranger's pip makes of us: pins that parse, and a wheel and an sdist that install and run."""

import re
import subprocess
import sys
import tomllib
from importlib.metadata import version
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def constraints() -> list[str]:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    return [line for line in lines if line.strip() and not line.startswith("#")]


@pytest.mark.parametrize("line", constraints())
def test_every_constraint_is_one_that_the_newest_pip_can_read_and_names_one_version(line):
    (pin,) = Requirement(line).specifier  # pip >= 24.1 refuses what `packaging` cannot parse
    assert pin.operator == "=="
    assert "*" not in pin.version


def plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def needed_for_tests() -> set[str]:
    """What the package and its extra `test` ask for, extras of extras included."""
    extras = PROJECT["optional-dependencies"]
    asked, seen = [*PROJECT["dependencies"], *extras["test"]], set()
    while asked:
        requirement = Requirement(asked.pop())
        if requirement.name == "calibseg":
            asked += [line for extra in requirement.extras for line in extras[extra]]
        else:
            seen.add(plain(requirement.name))
    return seen


def test_everything_that_is_installed_for_the_tests_is_pinned():
    assert needed_for_tests() <= {plain(Requirement(line).name) for line in constraints()}


@pytest.mark.parametrize("name", sorted(needed_for_tests()))
def test_no_test_is_skipped_because_a_package_of_the_extra_is_missing(name):
    """Tests that need a peer or a host are skipped without it: with `make test` each of them is there."""
    assert version(name)


@pytest.mark.slow
def test_a_built_wheel_and_sdist_install_into_an_empty_environment_with_the_newest_pip(tmp_path):
    python = tmp_path / "venv/bin/python"

    def call(*command, cwd=tmp_path) -> str:
        done = subprocess.run([str(part) for part in command], capture_output=True, text=True, cwd=cwd, timeout=1500)
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    call(sys.executable, "-m", "venv", tmp_path / "venv")
    call(python, "-m", "pip", "install", "--upgrade", "pip", "hatchling")
    call(python, "-m", "hatchling", "build", "-d", tmp_path / "dist", cwd=ROOT)
    wheel, sdist = *tmp_path.glob("dist/*.whl"), *tmp_path.glob("dist/*.tar.gz")
    call(python, "-m", "pip", "uninstall", "--yes", "hatchling")
    for built, options in ((wheel, ()), (sdist, ("--no-deps", "--force-reinstall"))):  # the sdist finds torch there
        call(python, "-m", "pip", "install", "--constraint", ROOT / "constraints.txt", *options, built)
        assert "torch" in call(python, "-m", "calibseg", "doctor")
        assert "nacl" in call(python, "-m", "calibseg", "list")
        work = tmp_path / built.name
        call(python, "-m", "calibseg", "prepare", "--dataset", "phantom", "--option", "cases=4", "-o", work)
        assert len(list(work.glob("cases/*.safetensors"))) == 4
