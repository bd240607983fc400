"""Every JSON file of ours, damaged in every way that hypothesis thinks of: refused in a sentence, or read."""

import hashlib
import json
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from calibseg.benchmark.cell import Outcome, read_outcome
from calibseg.calibrators.fitted.files import load_calibrator
from calibseg.calibrators.fitted.selected import find_calibrator
from calibseg.core import files
from calibseg.core.types import BadInput
from calibseg.data import prepared
from calibseg.decisions.volume import Volume
from calibseg.io.predictions import stored
from calibseg.io.stored_logits import open_logits
from calibseg.runs.checkpoint import load_network
from calibseg.runs.folders import BenchmarkFolder, RunFolder
from calibseg.runs.info import prepared_dir, read_run
from calibseg.stages.calibrate.fold_files import FoldFile, read_values
from calibseg.stages.calibrate.options import CalibrationOptions
from calibseg.stages.calibrate.stage import calibrate_run
from calibseg.stages.decide.cases import CaseSource
from calibseg.stages.decide.stage import decide_apply, decide_fit
from calibseg.stages.predict.stage import predict
from calibseg.stages.prepare import make_splits
from calibseg.stages.score.stage import score_run
from calibseg.stages.train.loop import train
from support.training import phantom, recipe

JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4) | st.sampled_from(["../x", "./e.py"]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=3,
)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A run with all that stages leave, in a folder of its own: trained, predicted, calibrated."""
    root = tmp_path_factory.mktemp("made")
    work = phantom(root / "work")
    run = train(recipe(work, "train.epochs=1"), root / "run").run
    for subset in ("validation", "test"):
        predict(run, subset=subset, device="cpu")
    calibrate_run(run, ["temperature"], options=CalibrationOptions())
    outcomes = BenchmarkFolder(root / "bench")
    files.write_json(outcomes.outcome("cell"), "outcome", vars(Outcome("done")))
    decide_fit(CaseSource(run=run), [Volume(0.5)], root / "rules.json")
    return root


def _calibrators(root: Path) -> None:
    found = find_calibrator(RunFolder(root / "run").calibrators, "chosen")
    if found.folder is not None:
        load_calibrator(found.folder)


def _cross_fitted(root: Path) -> None:
    path = RunFolder(root / "run").calibrator("temperature").cross_fitted
    FoldFile(path, "made from", "calibration set", 5).done()
    read_values(path, "calibration set", 5)


def _run(root: Path) -> None:
    prepared_dir(root / "run", root / "work")
    info = read_run(root / "run")
    info.cases("test")
    assert info.dataset + info.seed + info.loss + info.network != ""
    load_network(root / "run")


def _rules(root: Path) -> None:
    decide_apply(root / "rules.json", CaseSource(run=root / "run"), root / "decided", masks=False)


READERS: dict[str, Callable[[Path], Any]] = {
    "work/dataset.json": lambda root: make_splits(root / "work", sizes=(4, 1, 1), overwrite=True),
    "work/splits/default.json": lambda root: prepared.read_split(root / "work"),
    "run/run.json": _run,
    "run/calibrators/choice.json": _calibrators,
    "run/calibrators/temperature/calibrator.json": _calibrators,
    "run/calibrators/temperature/cross-fitted.json": _cross_fitted,
    "rules.json": _rules,
    "bench/outcomes/cell.json": lambda root: read_outcome(BenchmarkFolder(root / "bench"), "cell"),
}


def _places(value: Any, path: tuple = ()) -> list[tuple]:
    """Where a value could be changed; long lists at their first item only."""
    inner = value.items() if isinstance(value, dict) else enumerate(value[:1]) if isinstance(value, list) else ()
    return [*([path] if path else []), *(place for key, item in inner for place in _places(item, (*path, key)))]


def _damaged(data: st.DataObject, content: Any) -> Any:
    content = json.loads(json.dumps(content))
    *way, last = data.draw(st.sampled_from(_places(content)))
    holder = content
    for key in way:
        holder = holder[key]
    if data.draw(st.booleans()):
        holder.pop(last)
    else:
        holder[last] = data.draw(JUNK)
    return content


@pytest.mark.parametrize("name", READERS)
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_a_damaged_file_of_ours_is_refused_in_a_sentence_or_read(made, name, data):
    path = made / name
    before = path.read_bytes()
    kind = data.draw(st.sampled_from(["key", "key", "key", "bytes"]))
    if kind == "bytes":
        cut = data.draw(st.integers(0, len(before)))
        path.write_bytes(before[:cut] + data.draw(st.binary(max_size=3)) + before[cut + 1 :])
    else:
        content = _damaged(data, json.loads(before))
        if "mark" in content:  # whoever changes rules can mark them, too
            marked = {key: value for key, value in content.items() if key not in ("format", "mark")}
            content["mark"] = hashlib.sha256(json.dumps(marked, sort_keys=True).encode()).hexdigest()[:16]
        path.write_text(json.dumps(content))
    try:
        READERS[name](made)
    except BadInput as error:
        assert "\n" not in str(error)  # noqa: PT017
    finally:
        path.write_bytes(before)
        split = prepared.split_path(made / "work", "default")
        if name == "work/dataset.json":
            split.unlink(missing_ok=True)
            make_splits(made / "work", sizes=(4, 1, 1))


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_damaged_stored_logits_are_refused_in_a_sentence_or_read(made, data):
    path = next((made / "run" / "logits" / "test").glob("*.npz"))
    before = path.read_bytes()
    try:
        _rewrite(path, lambda about: _damaged(data, about))
        for pair in stored(path.parent)[0]:
            pair.open().scores[:]
    except BadInput as error:
        assert str(path) in str(error)  # noqa: PT017
    finally:
        path.write_bytes(before)


@pytest.mark.parametrize("name", ["", "\x1b", "organ"])
def test_a_stored_class_without_a_name_of_its_own_is_told_with_its_file(made, name):
    path = next((made / "run" / "logits" / "test").glob("*.npz"))
    before = path.read_bytes()
    try:
        _rewrite(path, lambda about: {**about, "classes": [name, *about["classes"][1:]]})
        with pytest.raises(BadInput, match=str(path)):
            stored(path.parent)
    finally:
        path.write_bytes(before)


def _rewrite(path: Path, change: Callable[[Any], Any]) -> None:
    with zipfile.ZipFile(path) as archive:
        content = {name: archive.read(name) for name in archive.namelist()}
    content["about.json"] = json.dumps(change(json.loads(content["about.json"]))).encode()
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, part in content.items():
            archive.writestr(name, part)


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_a_damaged_prepared_case_is_refused_in_a_sentence_or_read(made, data):
    id = prepared.read_index(made / "work")["cases"][0]["id"]
    path = prepared.case_path(made / "work", id)
    before = path.read_bytes()
    length = int.from_bytes(before[:8], "little")
    header = json.loads(before[8 : 8 + length])
    if data.draw(st.booleans()):
        header = _damaged(data, header)
    else:
        header["__metadata__"]["case"] = json.dumps(_damaged(data, json.loads(header["__metadata__"]["case"])))
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + before[8 + length :])
    try:
        case = prepared.open_case(made / "work", id)
        case.read("image", 0)
        case.case()
    except BadInput as error:
        assert str(path) in str(error)  # noqa: PT017
    finally:
        path.write_bytes(before)


def test_an_id_in_stored_logits_cannot_make_score_write_elsewhere(made, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(made / "run", run)
    path = next((run / "logits" / "test").glob("*.npz"))
    _rewrite(path, lambda about: about | {"id": "../../X"})
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(BadInput, match=rf"{path.name}: '\.\./\.\./X' cannot be a case id"):
        score_run(run)
    assert sorted(tmp_path.rglob("*")) == before


def test_an_id_in_a_split_cannot_make_predict_write_elsewhere(made, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(made / "run", run)
    content = json.loads((run / "run.json").read_text())
    content["split"]["test"] = ["../../X"]
    (run / "run.json").write_text(json.dumps(content))
    with pytest.raises(BadInput, match=r"run\.json: split: '\.\./\.\./X' cannot be a case id"):
        predict(run, subset="test", work=made / "work", device="cpu")


def test_a_file_that_was_copied_under_another_name_is_refused(made, tmp_path):
    first, *_ = sorted((made / "run" / "logits" / "test").glob("*.npz"))
    shutil.copy(first, tmp_path / "twin.npz")
    with pytest.raises(BadInput, match=rf"twin\.npz: holds the case '{first.stem}'"):
        open_logits(tmp_path / "twin.npz")
    case = prepared.case_path(made / "work", first.stem)
    (tmp_path / "cases").mkdir()
    shutil.copy(case, tmp_path / "cases" / "twin.safetensors")
    with pytest.raises(BadInput, match=rf"twin\.safetensors: holds the case '{first.stem}'"):
        prepared.open_case(tmp_path, "twin")
