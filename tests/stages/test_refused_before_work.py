"""What is wrong is said before work begins, in one sentence, and nothing is left behind; so is a full disk."""

import contextlib
import json
import resource
import shutil
import sys

import numpy as np
import pytest

from calibseg.api import calibrate, score, train
from calibseg.core.types import BadInput
from calibseg.data import prepared
from calibseg.io.stored_logits import read_about
from calibseg.runs.lock import locked
from calibseg.stages.predict.options import InferenceOptions
from support.calibrated_folders import make_folders
from support.made_runs import make_run, make_work
from support.scored_folders import random_case, save_case
from support.training import phantom


@pytest.fixture(scope="module")
def work(tmp_path_factory):
    return phantom(tmp_path_factory.mktemp("phantom"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            "loss.class_weight=[1.0, nan, 1.0]",
            r"class_weight must be a number of 0 or more for every class, not \[1.0, nan",
        ),
        ("loss.class_weight=[1.0, 1.0]", "class_weight has 2 values for"),
        ("loss.class_weight=[]", "class_weight has 0 values for"),
        ("loss.dice_weight=-1", "dice_weight must be at least 0, not -1"),
        ("network.depth=0", "depth must be a whole number of at least"),
        ("seed=-1", "seed must be a whole number of at least 0, not -1"),
        ("seed=9223372036854775808", r"seed must be below 2\^63, not 9223372036854775808"),
    ],
)
def test_train_refuses_a_wrong_option_before_it_makes_a_folder_or_imports_lightning(
    work, tmp_path, monkeypatch, change, message
):
    monkeypatch.setitem(sys.modules, "lightning_fabric", None)  # importing it would now be an ImportError
    with pytest.raises(BadInput, match=message):
        train({"data": {"dataset": "phantom", "work": str(work)}}, tmp_path / "run", changes=[change])
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("seed", [-1, 1 << 63, 1.5, "1", True])
def test_predict_refuses_a_seed_that_no_generator_takes(seed):
    with pytest.raises(BadInput, match="seed"):
        InferenceOptions(noise=0.1, seed=seed)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"options": {"nsd.tolerance_mm": "wide"}}, "nsd.tolerance_mm = 'wide' must be a "),
        ({"options": {"hd95.definition": 3}}, "hd95.definition = 3 must be one of"),
        ({"options": {"hd95.empty": "keeep"}}, "empty"),
        ({"bins": "15"}, "bins = '15' must be a whole number"),
        ({"bins": 0}, "the number of bins must lie between 1 and 1000, not 0"),
        ({"boundary_mm": float("nan")}, "band edges must be positive distances in mm, not nan"),
        ({"boundary_mm": -1}, "band edges must be positive distances in mm, not -1.0"),
        ({"units": "cm"}, "units = 'cm' must be one of 'mm', 'voxel'"),
        ({"empty": "zero"}, "empty = 'zero' must be one of"),
        ({"voxels": ()}, "no voxel rule named ''"),
    ],
)
def test_score_refuses_a_wrong_option_before_it_opens_a_file(folder, options, message):
    (folder / "p" / "case0.npz").write_bytes(b"never opened")
    with pytest.raises(BadInput) as refused:
        score(predictions=folder / "p", labels=folder / "l", output=folder / "out" / "scores.csv", **options)
    assert message in str(refused.value)
    assert not (folder / "out").exists()


def test_an_empty_list_on_the_command_line_is_refused(folder, calibseg):
    for option in ("--metrics", "--voxels"):
        given = ("--predictions", folder / "p", "--labels", folder / "l", "-o", folder / "out" / "scores.csv")
        code, _, err = calibseg("score", *given, option, " ,")
        assert (code, "empty list" in err) == (2, True)


def test_probabilities_called_logits_are_refused_in_files_as_in_memory(folder, calibseg):
    given = ("score", "--predictions", folder / "p", "--labels", folder / "l", "-o", folder / "out" / "scores.csv")
    for path in (folder / "p").glob("*.npz"):
        with np.load(path) as file:
            np.savez(path, logits=file["probabilities"])
    code, _, err = calibseg(*given, "--kind", "logits")
    assert code == 2
    assert "case0.npz: the scores are called logits, but all of them lie between 0 and 1 and sum to 1" in err
    for path in (folder / "p").glob("*.npz"):
        with np.load(path) as file:
            np.savez(path, probabilities=np.log(file["logits"]))
    code, _, err = calibseg(*given, "--kind", "probabilities")
    assert code == 2
    assert "say so (kind logits)" in err
    assert not (folder / "out").exists()


def test_a_prediction_copied_under_another_name_is_refused_or_left_out(folder):
    shutil.copy(folder / "p" / "case1.npz", folder / "p" / "case2.npz")
    where = {
        "predictions": folder / "p",
        "labels": folder / "l",
        "output": folder / "out" / "scores.csv",
        "metrics": ("dsc",),
    }
    with pytest.raises(BadInput, match=r"case1.npz and .*case2.npz are the same file, byte for byte"):
        score(**where)
    scored = score(**where, skip_bad=True)
    assert len(scored.bad) == 2
    assert set(scored.table.rows["case"]) == {"case0", "case3", ""}


def test_two_equal_predictions_that_say_nothing_are_two_cases(tmp_path):
    p, labels = random_case(0)
    p = np.zeros_like(p)
    p[0] = 1
    for name in ("a", "b"):
        save_case(tmp_path, name, p, labels)
    scored = score(predictions=tmp_path / "p", labels=tmp_path / "l", output=tmp_path / "scores.csv", metrics=("dsc",))
    assert set(scored.table.rows["case"]) == {"a", "b", ""}


def test_stored_logits_of_other_weights_or_under_another_name_are_not_scored(tmp_path):
    run = make_run(tmp_path / "run", make_work(tmp_path / "work"), "ce", 3.0)
    files = sorted((run / "logits" / "test").glob("*.npz"))
    weights = run / "weights.safetensors"
    weights.write_bytes(b"other weights")
    with pytest.raises(BadInput, match="was predicted by other weights than the run has now; run   calibseg predict"):
        score(run, metrics=("dsc",))
    weights.unlink()
    shutil.copy(files[0], files[0].with_name("copy.npz"))
    with pytest.raises(BadInput, match=f"copy.npz: holds the case {read_about(files[0])['id']!r}"):
        score(run, metrics=("dsc",))
    assert not list(run.glob("scores*"))


def test_a_prepared_case_under_another_name_is_refused(work, tmp_path):
    shutil.copytree(work, tmp_path / "work")
    first, second = sorted((tmp_path / "work" / "cases").glob("*.safetensors"))[:2]
    shutil.copy(first, second)
    with pytest.raises(BadInput, match=f"{second.name}: holds the case {first.stem!r}"):
        prepared.open_case(tmp_path / "work", second.stem)


def test_a_lock_is_gone_when_its_holder_is_and_so_is_a_folder_made_for_it(tmp_path):
    with locked(tmp_path / "new" / "lock"):
        assert json.loads((tmp_path / "new" / "lock").read_text())["pid"]
        with pytest.raises(BadInput, match="works in this folder"), locked(tmp_path / "new" / "lock"):
            pass
    assert not (tmp_path / "new").exists()
    with locked(tmp_path / "lock"):
        pass
    assert not list(tmp_path.iterdir())


@contextlib.contextmanager
def full_disk():
    """No file may grow: every write fails as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_disk_that_is_full_when_a_stage_begins_is_a_sentence_and_leaves_nothing(work, folder):
    make_folders(folder / "fit")
    outputs = [folder / name for name in ("run", "scored", "calibrated")]
    with pytest.raises(BadInput, match="cannot be written: "), full_disk():
        train({"data": {"dataset": "phantom", "work": str(work)}}, outputs[0])
    with pytest.raises(BadInput, match="cannot be written: "), full_disk():
        score(predictions=folder / "p", labels=folder / "l", output=outputs[1] / "scores.csv")
    fit = {"predictions": folder / "fit" / "val", "labels": folder / "fit" / "val_labels", "methods": ["temperature"]}
    with pytest.raises(BadInput, match="cannot be written: "), full_disk():
        calibrate(**fit, output=outputs[2])
    assert [path for output in outputs for path in output.rglob("*") if path.is_file()] == []
