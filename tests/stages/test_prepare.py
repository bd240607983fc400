"""Prepare: from every raw tree to files that open fast, once; and the two commands."""

import json
import os
import re
import time
from dataclasses import replace

import numpy as np
import pytest
from safetensors import safe_open
from typer.testing import CliRunner

from calibseg.cli import app
from calibseg.core import registry
from calibseg.core.types import BadInput
from calibseg.data import prepared
from calibseg.data.preprocessing import Preprocessing, preprocess
from calibseg.data.slices import Slices, volume_batches
from calibseg.runs.recipe import read_recipe
from calibseg.stages.prepare import make_splits, prepare
from calibseg.stages.train.data import open_sources
from support.raw_trees import make_tree
from support.real_data import DATA
from support.whole_volumes import volume_scores

KEYS = list(registry.members("datasets"))


def files(work):
    return {path.name: path.stat().st_mtime_ns for path in (work / "cases").iterdir()}


@pytest.fixture
def heart(tmp_path):
    return make_tree("decathlon", tmp_path / "raw").root


@pytest.mark.parametrize("key", KEYS)
def test_every_raw_tree_is_prepared_and_a_second_run_does_nothing(key, tmp_path):
    made = make_tree(key, tmp_path / "raw")
    work = tmp_path / "work"
    smaller = {"resize": (8, 16, 16)} if key in ("brats19", "flare") else {}  # the real size is tested in test_volumes
    done = prepare(key, made.root, work, options=made.options, protocol=smaller)
    assert (done.cases, done.written, done.skipped) == (len(made.ids), len(made.ids), {})
    index = prepared.read_index(work)
    assert [entry["id"] for entry in index["cases"]] == sorted(made.ids)
    before = files(work)
    again = prepare(key, made.root, work, options=made.options, protocol=smaller)
    assert again.written == 0
    assert again.voxels == done.voxels
    assert files(work) == before
    for split in make_splits(work).values():
        assert split.train
        assert split.test


@pytest.mark.parametrize("key", ["hippocampus", "acdc", "nnunet", "phantom", "lidc4"])
def test_a_stored_case_is_the_prepared_case(key, tmp_path):
    made = make_tree(key, tmp_path / "raw")
    prepare(key, made.root, tmp_path, options=made.options)
    reader = registry.build("datasets", key, made.options)
    for raw in reader.cases(made.root):
        expected = preprocess(raw, Preprocessing(**reader.protocol))
        found = prepared.open_case(tmp_path, raw.id).case()
        for name in ("image", "labels", "true_p", "affine"):
            np.testing.assert_array_equal(getattr(found, name), getattr(expected, name))
        for name in ("id", "patient", "channels", "spacing_mm", "classes", "regions", "ignore_label", "header"):
            assert getattr(found, name) == getattr(expected, name)


def test_a_case_file_is_plain_safetensors_with_slices_first(tmp_path):
    made = make_tree("hippocampus", tmp_path / "raw")  # 14 x 20 x 10 voxels, cut sagittally
    prepare("hippocampus", made.root, tmp_path)
    with safe_open(tmp_path / "cases" / "hippocampus_001.safetensors", "np") as file:
        assert file.metadata()["format"] == "calibseg-case/1"
        assert json.loads(file.metadata()["case"])["patient"] == "hippocampus_001"
        image, labels = file.get_tensor("image"), file.get_tensor("labels")
        foreground = file.get_tensor("foreground")
    assert image.shape == labels.shape == (14, 1, 10, 20)
    assert (image.min(), image.max()) == (0, 1)
    np.testing.assert_array_equal(foreground, (labels > 0).sum((1, 2, 3)))
    opened = prepared.open_case(tmp_path, "hippocampus_001")
    for index in range(14):
        np.testing.assert_array_equal(opened.read("image", index), image[index])
        np.testing.assert_array_equal(opened.read("labels", index), labels[index])
    assert json.loads((tmp_path / "dataset.json").read_text())["format"] == "calibseg-dataset/1"


def test_a_changed_option_prepares_again_and_a_changed_file_only_itself(heart, tmp_path):
    work = tmp_path / "work"
    assert prepare("decathlon", heart, work).written == 3
    assert prepare("decathlon", heart, work, protocol={"crop": [None, 16, 12]}).written == 3
    assert prepared.open_case(work, "la_003").shape == (10, 1, 16, 12)
    assert prepare("decathlon", heart, work, protocol={"crop": [None, 16, 12]}).written == 0
    label = heart / "labelsTr" / "la_004.nii.gz"
    label.write_bytes((heart / "labelsTr" / "la_003.nii.gz").read_bytes() + b"")
    image = heart / "imagesTr" / "la_004.nii.gz"
    image.write_bytes((heart / "imagesTr" / "la_003.nii.gz").read_bytes())
    assert prepare("decathlon", heart, work, protocol={"crop": [None, 16, 12]}).written == 1
    for path in heart.rglob("*.nii.gz"):
        os.utime(path, (1, 1))  # touched, not changed
    assert prepare("decathlon", heart, work, protocol={"crop": [None, 16, 12]}).written == 0


def test_a_length_of_0_is_none_as_toml_has_no_null(heart, tmp_path):
    assert prepare("decathlon", heart, tmp_path, protocol={"crop": [None, 16, 12]}).written == 3
    assert prepare("decathlon", heart, tmp_path, protocol={"crop": [0, 16, 12], "range": [0.5, 99.5]}).written == 0
    make_splits(tmp_path, sizes=(1, 1, 1))
    asked = {"dataset": "decathlon", "work": str(tmp_path), "protocol": {"crop": [0, 16, 12]}}
    assert open_sources(read_recipe({"data": asked})).protocol["crop"] == [None, 16, 12]
    with pytest.raises(BadInput, match=r"was prepared with crop = \[None, 16, 12\], the recipe's data.protocol has"):
        open_sources(read_recipe({"data": asked | {"protocol": {"crop": [0, 16, 0]}}}))


def test_an_interrupted_run_goes_on_where_it_stopped(heart, tmp_path):
    broken = heart / "imagesTr" / "la_005.nii.gz"
    good = broken.read_bytes()
    broken.write_bytes(good[:100])
    with pytest.raises(BadInput, match=r"la_005.nii.gz"):
        prepare("decathlon", heart, tmp_path / "work")
    assert not prepared.has_index(tmp_path / "work")
    assert set(files(tmp_path / "work")) == {"la_003.safetensors", "la_004.safetensors"}
    broken.write_bytes(good)
    assert prepare("decathlon", heart, tmp_path / "work").written == 1


def test_bad_cases_are_skipped_named_and_left_out_of_splits(heart, tmp_path):
    (heart / "imagesTr" / "la_004.nii.gz").write_bytes(b"no")
    (heart / "labelsTr" / "la_003.nii.gz").unlink()
    done = prepare("decathlon", heart, tmp_path / "work", skip_bad=True)
    assert done.cases == 1
    assert "is damaged or not a NIfTI file" in done.skipped["la_004"]
    assert "no such file" in done.skipped["la_003"]
    assert "skipped la_004" in str(done)
    assert [entry["id"] for entry in prepared.read_index(tmp_path / "work")["cases"]] == ["la_005"]
    (heart / "imagesTr" / "la_005.nii.gz").write_bytes(b"no")
    with pytest.raises(BadInput, match="all 3 cases were skipped, the first because"):
        prepare("decathlon", heart, tmp_path / "work2", skip_bad=True)


@pytest.mark.parametrize("skip_bad", [False, True])
def test_a_failed_write_leaves_nothing_behind_and_is_no_bad_case(skip_bad, heart, tmp_path, monkeypatch):
    def save_half(path, tensors, metadata):
        path.write_bytes(b"half")
        raise OSError("disk full")

    monkeypatch.setattr("calibseg.data.prepared.save_tensors", save_half)
    with pytest.raises(BadInput, match=r"^[^ ]*la_003\.safetensors: cannot be written: disk full"):
        prepare("decathlon", heart, tmp_path / "work", skip_bad=skip_bad)
    assert list((tmp_path / "work" / "cases").iterdir()) == []


def test_two_workers_write_the_same_files_as_one(heart, tmp_path):
    prepare("decathlon", heart, tmp_path / "one")
    seen = []
    prepare("decathlon", heart, tmp_path / "two", workers=2, progress=lambda *told: seen.append(told))
    for id in ("la_003", "la_004", "la_005"):
        one, two = prepared.open_case(tmp_path / "one", id), prepared.open_case(tmp_path / "two", id)
        assert (one.about, one.fingerprint) == (two.about, two.fingerprint)
        for name in one.tensors:
            np.testing.assert_array_equal(one.read(name), two.read(name))
    assert seen == [(1, 3, "la_003"), (2, 3, "la_004"), (3, 3, "la_005")]


def test_a_case_without_labels_is_prepared_for_prediction_only(tmp_path):
    made = make_tree("folder", tmp_path / "raw")
    table = made.root / "cases.toml"
    table.write_text(re.sub(r"labels = .*", "labels = []", table.read_text()))
    done = prepare("folder", made.root, tmp_path / "work")
    case = prepared.open_case(tmp_path / "work", "a")
    assert (done.cases, sum(done.voxels.values())) == (4, 0)
    assert case.case().labels is None
    assert volume_scores(case, volume_batches(case, 4)).shape == case.case().image.shape
    with pytest.raises(BadInput, match="case 'a' has no labels, only foreground, image"):
        Slices([case], 1).batch(0, 0)


def test_a_reader_from_a_python_file_prepares_too(heart, tmp_path):
    text = (registry.folder("datasets") / "decathlon.py").read_text()
    (tmp_path / "mine.py").write_text(text.replace("class Decathlon", "class Mine"))
    for workers in (1, 2):
        assert prepare(str(tmp_path / "mine.py"), heart, tmp_path / f"work{workers}", workers=workers).cases == 3
    assert prepared.read_index(tmp_path / "work1")["dataset"] == "mine"
    make_splits(tmp_path / "work1", sizes=(1, 1, 1))
    recipe = read_recipe({"data": {"dataset": str(tmp_path / "mine.py"), "work": str(tmp_path / "work1")}})
    assert len(open_sources(recipe).train) == 1  # and it can be trained on
    (tmp_path / "mine.py").write_text(text.replace("class Decathlon", "class Mine") + "\n# edited\n")
    assert prepare(str(tmp_path / "mine.py"), heart, tmp_path / "work1").written == 3


def test_cases_that_an_interrupted_prepare_wrote_anew_are_not_mixed_with_the_old_ones(heart, tmp_path):
    prepare("decathlon", heart, tmp_path)
    make_splits(tmp_path, sizes=(1, 1, 1))
    recipe = read_recipe({"data": {"dataset": "decathlon", "work": str(tmp_path)}})
    open_sources(recipe)
    bad = heart / "imagesTr" / "la_005.nii.gz"
    good = bad.read_bytes()
    bad.write_bytes(good[:100])
    with pytest.raises(BadInput, match="la_005"):
        prepare("decathlon", heart, tmp_path, protocol={"crop": [None, 16, 12]})
    with pytest.raises(BadInput, match=r"is not what the index of .* says, as where `calibseg prepare` was"):
        open_sources(recipe)
    bad.write_bytes(good)
    prepare("decathlon", heart, tmp_path)
    open_sources(recipe)


def test_voxels_beside_their_header_are_looked_at_too(tmp_path):
    made = make_tree("promise12", tmp_path / "raw")
    prepare("promise12", made.root, tmp_path / "work")
    raw = next(made.root.rglob("*.raw"))
    raw.write_bytes(raw.read_bytes()[::-1])
    assert prepare("promise12", made.root, tmp_path / "work").written == 1


def test_a_random_slice_costs_less_than_a_tenth_of_a_millisecond(tmp_path):
    made = next(registry.build("datasets", "phantom", {"cases": 1, "size": (4, 32, 32)}).cases())
    large = replace(made, image=np.zeros((1, 30, 192, 192), np.float32), labels=None, true_p=None)
    prepared.write_case(tmp_path, preprocess(large, Preprocessing()), "key")
    case = prepared.open_case(tmp_path, made.id)
    times = []
    for index in np.random.default_rng(0).integers(0, 30, 200):
        start = time.perf_counter()
        case.read("image", int(index))
        times.append(time.perf_counter() - start)
    assert np.median(times) < 1e-4


@pytest.mark.parametrize(
    "damage", [lambda b: b[:-10], lambda b: b"x" + b[1:], lambda b: b[:9] + b"}" + b[10:], lambda b: b""]
)
def test_a_damaged_case_file_is_named(tmp_path, damage):
    prepare("phantom", None, tmp_path, options={"cases": 1, "size": (4, 16, 16)})
    path = prepared.case_path(tmp_path, "phantom_0000")
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(BadInput, match=r"phantom_0000.safetensors: .*(remove it|format)"):
        prepared.open_case(tmp_path, "phantom_0000")


def test_another_format_is_refused(tmp_path):
    prepare("phantom", None, tmp_path, options={"cases": 3, "size": (4, 32, 32)})
    make_splits(tmp_path)
    path = tmp_path / "splits" / "default.json"
    path.write_text(path.read_text().replace("calibseg-split/1", "calibseg-split/2"))
    with pytest.raises(BadInput, match="its format is 'calibseg-split/2', this version reads 'calibseg-split/1'"):
        prepared.read_split(tmp_path)
    path.write_text("[")
    with pytest.raises(BadInput, match="not JSON"):
        prepared.read_split(tmp_path)


def test_a_folder_holds_one_dataset(heart, tmp_path):
    prepare("phantom", None, tmp_path / "work", options={"cases": 1, "size": (4, 32, 32)})
    with pytest.raises(BadInput, match="holds the dataset 'phantom'; prepare 'decathlon' in another folder"):
        prepare("decathlon", heart, tmp_path / "work")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"dataset": "acdcc"}, "no dataset named 'acdcc'. Did you mean 'acdc'"),
        ({"options": {"casess": 3}}, "no option of dataset 'phantom' named 'casess'. Did you mean 'cases'"),
        ({"options": {"cases": "ten"}}, "phantom.cases = 'ten' must be a whole number"),
        ({"protocol": {"slice": "axial"}}, "protocol: no key named 'slice'. Did you mean 'slice_axis'"),
        ({"protocol": {"crop": 5}}, "protocol: crop = 5 must be a list of"),
    ],
)
def test_what_prepare_cannot_do_is_explained(tmp_path, arguments, said):
    with pytest.raises(BadInput, match=said):
        prepare(**{"dataset": "phantom", "root": None, "work": tmp_path / "work", **arguments})
    assert not (tmp_path / "work").exists()


def test_splits_are_saved_and_not_silently_replaced(tmp_path):
    prepare("phantom", None, tmp_path, options={"cases": 10, "size": (4, 24, 24)})
    first = make_splits(tmp_path)["default"]
    assert prepared.read_split(tmp_path) == first
    assert make_splits(tmp_path)["default"] == first
    with pytest.raises(BadInput, match=r"default.json: exists and differs; give --overwrite"):
        make_splits(tmp_path, split_seed=1)
    assert prepared.read_split(tmp_path) == first
    assert make_splits(tmp_path, split_seed=1, overwrite=True)["default"] == prepared.read_split(tmp_path) != first
    make_splits(tmp_path, folds=5, validation=1)
    assert prepared.split_names(tmp_path) == ["default", *(f"fold-{n}-of-5" for n in range(1, 6))]
    with pytest.raises(BadInput, match=r"no split named 'fold-6-of-5'. Known: default, fold-1-of-5"):
        prepared.read_split(tmp_path, "fold-6-of-5")
    with pytest.raises(BadInput, match="choose one of"):
        make_splits(tmp_path, folds=5, sizes=(1, 1, 1))


def test_mrbrains_is_split_leave_one_out_by_itself(tmp_path):
    made = make_tree("mrbrains18", tmp_path / "raw")
    prepare("mrbrains18", made.root, tmp_path)
    found = make_splits(tmp_path)
    assert sorted(found) == sorted(["default", *(f"without-{name}" for name in made.patients)])
    assert all(split.validation == () for split in found.values())


def test_splitting_an_empty_folder_says_to_prepare_first(tmp_path):
    with pytest.raises(BadInput, match=r"holds no prepared dataset .* run calibseg prepare first"):
        make_splits(tmp_path)


def test_the_commands_prepare_and_split(heart, tmp_path):
    work, run = str(tmp_path / "work"), CliRunner().invoke
    arguments = ["prepare", "--dataset", "decathlon", "--root", str(heart), "-o", work]
    done = run(app, [*arguments, "--protocol", "slice_axis=sagittal", "--option", "empty_labels=keep"])
    assert done.exit_code == 0, done.output
    assert "3 cases, 42 slices" in done.output
    assert "left atrium" in done.output
    assert run(app, ["split", work, "--sizes", "1", "1", "1"]).exit_code == 0
    assert len(prepared.read_split(tmp_path / "work").validation) == 1
    folds = run(app, ["split", work, "--leave-one-out", "--validation", "1"])
    assert "without-la_003  1 train, 1 validation, 1 test cases" in folds.output
    wrong = run(app, [*arguments, "--option", "novalue"])
    assert isinstance(wrong.exception, BadInput)
    assert "'novalue' is not of the form NAME=VALUE" in str(wrong.exception)


@pytest.mark.parametrize("key", KEYS)
def test_explain_tells_where_a_dataset_comes_from(key):
    shown = CliRunner().invoke(app, ["explain", f"dataset:{key}"])
    assert shown.exit_code == 0, shown.output
    facts = registry.find("datasets", key).facts
    for fact in ("licence", "how_to_get", "layout", "citation"):
        assert facts.get(fact, "") in shown.output


@pytest.mark.skipif(not DATA.is_dir(), reason=f"the real data is not at {DATA} (set CALIBSEG_DATA)")
def test_the_real_hippocampus_is_prepared_and_split_as_in_the_papers(tmp_path):
    done = prepare("hippocampus", DATA / "Task04_Hippocampus", tmp_path)
    assert (done.cases, done.slices) == (260, 9198)
    total = sum(done.voxels.values())
    assert [round(count / total, 3) for count in done.voxels.values()] == [0.948, 0.027, 0.025]
    split = make_splits(tmp_path)["default"]
    assert tuple(map(len, (split.train, split.validation, split.test))) == (185, 25, 50)
    assert prepare("hippocampus", DATA / "Task04_Hippocampus", tmp_path).written == 0
