"""Names of files are written once: those of runs and benchmarks in runs/folders, of prepared data in data/prepared."""

import ast
import re
from pathlib import Path

import pytest

from calibseg.core.registry import PACKAGE
from calibseg.runs.folders import RunFolder, method_name, predicted_name, subset_and_variant
from calibseg.stages.predict.ensemble import InferenceOptions

NAMES = (
    *("run.json", "recipe.toml", "log.csv", "weights.safetensors", "state.safetensors", "choice.json"),
    *("calibrator.json", "calibrator.safetensors", "cross-fitted.json", "applied.json", "cells.csv", "grid.toml"),
    *("selection.csv", "scores.parquet", "scores.csv", "scores-", "ranks.csv", "report.html", "dataset.json"),
)
HOMES = ("runs/folders.py", "data/prepared.py")
USER = "cli/self_test/"  # types names as a user does, on purpose
ALLOWED = {
    ("cli/report.py", "report.html"),  # where `calibseg report` writes unless told: the user's folder, no benchmark's
}


def strays(name: str, source: str) -> list[tuple[str, str]]:
    """The literals of a file that name a file of ours; sentences (docstrings, help, messages) have spaces."""
    named = re.compile("|".join(rf"(?<![\w-]){re.escape(one)}" for one in NAMES))
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and not re.search(r"\s", node.value):
            others = node.value.endswith("dataset.json") and name.startswith(
                ("data/", "io/", "integrations/nnunet/")
            )  # nnU-Net's, Decathlon's
            if named.search(node.value) and not others and (name, node.value) not in ALLOWED:
                found.append((name, node.value))
    return found


def test_no_file_but_their_homes_spells_the_names_of_our_files():
    files = {path.relative_to(PACKAGE).as_posix(): path for path in sorted(PACKAGE.rglob("*.py"))}
    assert set(HOMES) <= set(files)
    found = [
        one
        for name, path in files.items()
        if name not in HOMES and not name.startswith(USER)
        for one in strays(name, path.read_text("utf-8"))
    ]
    assert found == []


@pytest.mark.parametrize(
    "line",
    ['run / "run.json"', 'f"scores-{part}.csv"', 'x.glob("*/calibrator.json")', 'work / "a/dataset.json"'],
)
def test_a_name_that_is_spelt_elsewhere_is_noticed(line):
    assert strays("stages/made.py", line)


@pytest.mark.parametrize("line", ['"""What run.json says."""', 'print("no run.json is there")', 'a / "other.json"'])
def test_a_sentence_may_speak_of_a_file(line):
    assert not strays("stages/made.py", line)


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({}, "test"),
        ({"noise": 0.05}, "test-noise0.05-seed0"),
        ({"noise": 0.05, "seed": 3, "flips": "both"}, "test-noise0.05-seed3-flips-both"),
    ],
)
def test_prediction_and_benchmark_call_a_noisy_subset_by_one_name(options, name):
    assert predicted_name("test", **options) == InferenceOptions(**options).folder("test") == name
    assert subset_and_variant(name) == ("test", name.removeprefix("test").removeprefix("-"))


def test_score_tables_are_found_by_their_subset_and_reliability_tables_apart(tmp_path):
    run = RunFolder(tmp_path)
    paths = [run.scores("test"), run.scores("test", "temperature"), run.scores(predicted_name("test", 0.05))]
    others = [run.scores("validation"), run.scores("tests")]
    bins = tmp_path / "scores-test.bins.csv"
    for path in (*paths, *others, bins):
        path.touch()
    assert set(run.score_tables("test")) == set(paths)
    assert set(run.score_tables()) == {*paths, *others}
    assert run.reliability_tables() == [bins]


def test_a_calibrator_from_a_file_is_called_by_the_name_of_its_file(tmp_path):
    assert method_name("here/mine.py") == "mine"
    assert method_name("temperature") == "temperature"
    assert RunFolder(tmp_path).scores("test", "here/mine.py") == RunFolder(tmp_path).scores("test", "mine")
    assert RunFolder(tmp_path).calibrator("here/mine.py").path == Path(tmp_path) / "calibrators" / "mine"
