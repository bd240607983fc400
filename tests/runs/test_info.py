"""run.json as a record: written and read back, damaged, and where a run's prepared cases lie."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from calibseg.core.types import BadInput, Split
from calibseg.data import prepared
from calibseg.runs.folders import RunFolder
from calibseg.runs.info import RunInfo, prepared_dir, read_run, write_run
from calibseg.stages.prepare import make_splits, prepare

INFO = RunInfo(
    slug="toy-unet-ce-s0",
    recipe={"data": {"dataset": "toy", "work": "work/toy"}, "network": {"name": "unet"}, "loss": {"name": "ce"}},
    classes=("background", "organ"),
    channels=("T1",),
    split=Split(("a",), ("b",), ("c",), 3),
    regions={"all": [1]},
    frame=(21, 30),
    fingerprint="12",
    data_fingerprint="34",
    status="finished",
    wall_time_s=1.5,
    provenance={"device": "cpu", "versions": {"torch": "2"}},
)


def test_a_record_is_read_as_it_was_written_under_the_keys_that_runs_have_always_had(tmp_path):
    write_run(RunFolder(tmp_path), INFO)
    assert read_run(tmp_path) == INFO
    content = json.loads((tmp_path / "run.json").read_text())
    assert content["format"] == "calibseg-run/1"
    assert (content["hash"], content["data_hash"], content["device"]) == ("12", "34", "cpu")
    assert (content["split"]["train"], content["classes"]) == (["a"], ["background", "organ"])


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("slug", None, "slug is missing"),
        ("split", None, "split is missing"),
        ("classes", "organ", "classes = 'organ' must be a list of text"),
        ("epochs_done", "many", "epochs_done = 'many' must be a whole number"),
        (
            "split",
            {"train": 5, "validation": [], "test": [], "split_seed": 0},
            r"split\.train = 5 must be a list of text",
        ),
        ("recipe", {"loss": "ce"}, r"recipe\.loss = 'ce' must be a table"),
    ],
)
def test_a_damaged_record_is_named_with_its_file_and_key(tmp_path, key, value, message):
    write_run(RunFolder(tmp_path), INFO)
    path = tmp_path / "run.json"
    content = json.loads(path.read_text())
    content.pop(key)
    path.write_text(json.dumps(content if value is None else content | {key: value}))
    with pytest.raises(BadInput, match=rf"run\.json: {message}"):
        read_run(tmp_path)


def test_a_run_without_a_record_says_which_command_makes_one(tmp_path):
    with pytest.raises(BadInput, match=r"holds no training run \(run\.json is missing\); run calibseg train first"):
        read_run(tmp_path)


def test_prepared_cases_that_moved_with_their_run_are_found_from_anywhere(tmp_path, monkeypatch):
    write_run(RunFolder(tmp_path / "before" / "runs" / "a"), INFO)
    prepared.write_index(tmp_path / "before" / "work" / "toy", {"dataset": "toy"})
    shutil.move(tmp_path / "before", tmp_path / "after")
    monkeypatch.chdir("/")
    assert prepared_dir(tmp_path / "after" / "runs" / "a") == tmp_path / "after" / "work" / "toy"
    assert prepared_dir(tmp_path / "after" / "runs" / "a", "elsewhere").name == "elsewhere"
    shutil.rmtree(tmp_path / "after" / "work")
    with pytest.raises(BadInput, match=r"its prepared cases are not in work/toy; say where they are \(--work\)"):
        prepared_dir(tmp_path / "after" / "runs" / "a")


def test_of_two_folders_of_one_name_the_cases_that_the_run_learnt_from_are_taken(tmp_path, monkeypatch):
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    for base, size in ((ours, 16), (theirs, 24)):
        prepare("phantom", None, base / "work" / "phantom", options={"cases": 3, "size": [4, size, size]})
    work = ours / "work" / "phantom"
    split = make_splits(work, sizes=(1, 1, 1))["default"]
    recipe = {"data": {"dataset": "phantom", "work": "work/phantom"}}
    info = replace(INFO, recipe=recipe, split=split, data_fingerprint=prepared.split_fingerprint(work, split))
    write_run(RunFolder(ours / "runs" / "a"), info)
    monkeypatch.chdir(theirs)
    assert prepared_dir(ours / "runs" / "a").resolve() == work
    (theirs / "work" / "phantom" / "dataset.json").write_text("{}")  # damaged, and nobody's business here
    assert prepared_dir(ours / "runs" / "a").resolve() == work
    write_run(RunFolder(ours / "runs" / "a"), replace(info, data_fingerprint="of neither"))
    assert prepared_dir(ours / "runs" / "a") == Path("work/phantom")
