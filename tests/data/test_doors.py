"""What users state about data: generated rubbish is refused in a sentence, or it is used; there is no third way."""

import errno
import json
import os
import shutil
import tomllib
from pathlib import Path

import pytest
import tomli_w
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from calibseg.core import files, registry
from calibseg.core.types import BadInput, Split
from calibseg.data.augmentation import Augmentation
from calibseg.data.preprocessing import read_protocol
from calibseg.data.splits import check_split, three_way
from calibseg.io.class_names import ClassNames, with_overrides
from calibseg.runs.recipe import read_recipe
from calibseg.stages.prepare import make_splits, prepare
from support.raw_trees import make_tree

JUNK = st.recursive(
    st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=6)
    | st.sampled_from(["keeep", "(", "../x", 10**400]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("ab", max_size=2), inner, max_size=2),
    max_leaves=4,
)
MANY = settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))


@pytest.fixture(scope="module")
def trees(tmp_path_factory):
    return {key: make_tree(key, tmp_path_factory.mktemp(key)).root for key in ("folder", "nnunet", "decathlon", "busi")}


@pytest.mark.parametrize("key", ["folder", "nnunet", "decathlon", "phantom"])
@MANY
@given(data=st.data())
def test_odd_options_of_a_dataset(trees, tmp_path_factory, key, data):
    names = [option.name for option in registry.find("datasets", key).options]
    options = {data.draw(st.sampled_from(names)): data.draw(JUNK)} | ({"cases": 1} if key == "phantom" else {})
    if key == "phantom":
        options.setdefault("size", [4, 8, 8])
        if isinstance(options["cases"], int):
            options["cases"] = min(options["cases"], 2)
    work = tmp_path_factory.mktemp("work")
    try:
        prepare(key, trees.get(key), work, options=options)
    except BadInput as error:
        assert str(error)  # noqa: PT017
        assert not list(work.iterdir())
    shutil.rmtree(work)


@MANY
@given(
    st.dictionaries(st.sampled_from(["slice_axis", "spacing_mm", "resize", "crop", "intensity", "range", "x"]), JUNK)
)
def test_odd_protocols(fields):
    try:
        assert read_protocol("protocol: ", fields).slice_axis
    except BadInput as error:
        assert str(error).startswith("protocol")  # noqa: PT017


@pytest.mark.parametrize("key", ["nnunet", "decathlon"])
@MANY
@given(data=st.data())
def test_an_odd_dataset_json(trees, key, data):
    path = next(trees[key].rglob("dataset.json"))
    before = path.read_text()
    content = json.loads(before)
    holder = content
    while isinstance(holder, dict) and data.draw(st.booleans()):
        inner = [name for name, value in holder.items() if isinstance(value, dict) and value]
        if not inner:
            break
        holder = holder[data.draw(st.sampled_from(inner))]
    holder[data.draw(st.sampled_from(list(holder)))] = data.draw(JUNK)
    path.write_text(json.dumps(content))
    try:
        registry.build("datasets", key).studies(trees[key])
    except BadInput as error:
        assert str(trees[key]) in str(error)  # noqa: PT017
    finally:
        path.write_text(before)


@MANY
@given(data=st.data())
def test_an_odd_cases_toml(trees, data):
    path = trees["folder"] / "cases.toml"
    before = path.read_text()
    tables = tomllib.loads(before)
    table = data.draw(st.sampled_from([tables, *tables["case"]]))
    table[data.draw(st.sampled_from(sorted(table)))] = data.draw(JUNK)
    path.write_text(tomli_w.dumps(tables))
    try:
        registry.build("datasets", "folder").studies(trees["folder"])
    except BadInput as error:
        assert str(trees["folder"]) in str(error)  # noqa: PT017
    finally:
        path.write_text(before)


@pytest.mark.parametrize(
    "names",
    [
        {"classes": ("b", "a", "a")},
        {"classes": ("b", "a", "")},
        {"classes": ("b", "a"), "regions": {"r": (1, 2)}},
        {"classes": ("b", "a"), "regions": {"r": ()}},
        {"classes": ("b", "a", "c"), "regions": {"r": (1, 1)}},
        {"classes": ("b", "a\x1b[31m")},
        {"classes": ("b", "a"), "regions": {"a": (0, 1)}},
        {"classes": ("b", "a"), "ignore_label": 1},
    ],
)
def test_class_names_that_contradict_each_other_are_refused(names, tmp_path):
    with pytest.raises(BadInput, match=r"name|region|ignored"):
        ClassNames(**names)
    row = {"id": "x", "patient": "p", "images": "i.nii.gz", "labels": "l.nii.gz"}
    (tmp_path / "cases.toml").write_text(tomli_w.dumps({**names, "channels": ["CT"], "case": [row]}))
    with pytest.raises(BadInput, match=r"name|region|ignored"):
        registry.build("datasets", "folder").studies(tmp_path)


@pytest.mark.parametrize(
    ("regions", "message"),
    [
        ("x=1+1", "the region 'x' holds a class twice"),
        ("x=1,x=2", "gives two regions the same name"),
        ("x=\u00b2", "is neither a number nor one of"),
        (f"x={'1' * 5000}", "is neither a number nor one of"),
        ("x=1+a", "the region 'x' holds a class twice"),
    ],
)
def test_regions_that_count_a_class_twice_or_mean_nothing_are_refused(regions, message):
    with pytest.raises(BadInput, match=message):
        with_overrides(ClassNames(("b", "a", "c")), regions=regions)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1.0, 1e30])
@pytest.mark.parametrize("name", ["flip", "rotate_deg", "scale", "gamma", "noise"])
def test_views_without_bounds_are_refused(name, value):
    with pytest.raises(BadInput, match=f"augmentation {name} must be a number from 0"):
        Augmentation(**{name: value})


@pytest.mark.parametrize("seed", [-1, 2**63, 10**30])
def test_seeds_that_no_generator_takes_are_refused(seed):
    with pytest.raises(BadInput, match="split_seed must be"):
        three_way({"a": "a", "b": "b", "c": "c"}, (1, 1, 1), seed)
    with pytest.raises(BadInput, match="seed must be"):
        read_recipe({"data": {"dataset": "phantom"}}, [f"seed={seed}"])
    with pytest.raises(BadInput, match="seed must be"):
        registry.build("datasets", "phantom", {"seed": seed})


@pytest.mark.parametrize("first", ["train", "validation", "calibration"])
@pytest.mark.parametrize("second", ["validation", "calibration", "test"])
def test_a_patient_in_two_subsets_is_refused_whichever_they_are(first, second):
    if first == second:
        return
    subsets = {"train": ("t",), "validation": (), "test": (), "calibration": ()}
    subsets |= {first: (*subsets[first], "a1"), second: (*subsets[second], "a2")}
    patients = {"t": "t", "a1": "a", "a2": "a"}
    with pytest.raises(BadInput, match="a"):
        check_split(Split(split_seed=0, **subsets), patients)
    check_split(Split(split_seed=0, **subsets), patients | {"a2": "b"})


def test_mrbrains_is_split_by_both_rules_of_its_text(tmp_path):
    root = make_tree("mrbrains18", tmp_path / "raw").root
    prepare("mrbrains18", root, tmp_path / "work")
    made = make_splits(tmp_path / "work")
    patients = len({name for name in made if name.startswith("without-")})
    assert patients == len(made) - 1 >= 2
    assert not made["default"].validation
    assert len(made["default"].train) + len(made["default"].test) == patients
    assert list(make_splits(tmp_path / "work", leave_one_out=True)) == sorted(
        name for name in made if name != "default"
    )


def test_the_five_and_two_of_mrbrains_keep_their_test_subjects_when_one_selects(tmp_path):
    patients = {f"s{n}": f"p{n}" for n in range(7)}
    plain, inner = three_way(patients, (5, 0, 2)), three_way(patients, (4, 1, 2))
    assert (len(plain.train), len(plain.test)) == (5, 2)
    assert plain.test == inner.test


@pytest.mark.parametrize("where", ["cases", "dataset.json", "splits"])
def test_a_full_disk_is_one_sentence_and_leaves_nothing_half_written(tmp_path, monkeypatch, where):
    replace = os.replace

    def full(source, target):
        if where in str(target):
            raise OSError(errno.ENOSPC, "No space left on device")
        replace(source, target)

    monkeypatch.setattr(files.os, "replace", full)

    def road() -> None:
        prepare("phantom", None, tmp_path / "work", options={"cases": 3, "size": [4, 8, 8]}, skip_bad=True)
        make_splits(tmp_path / "work")

    with pytest.raises(BadInput, match=rf"{where}.*cannot be written: No space left on device"):
        road()
    assert not list(tmp_path.rglob("*.tmp"))


@pytest.mark.parametrize("output", ["a file", "below a file"])
def test_an_output_that_is_a_file_is_one_sentence(tmp_path, output):
    (tmp_path / "file").write_text("no folder")
    path = tmp_path / "file" if output == "a file" else tmp_path / "file" / "work"
    with pytest.raises(BadInput, match=r"file.*cannot be written"):
        prepare("phantom", None, path, options={"cases": 1, "size": [4, 8, 8]})


def test_a_link_to_itself_and_a_name_that_is_not_utf_8_are_one_sentence(tmp_path, calibseg):
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    (tmp_path / "loop.py").symlink_to(tmp_path / "loop.py")
    for words in (["--dataset", "folder", "--root", tmp_path / "loop"], ["--dataset", tmp_path / "loop.py"]):
        code, _, said = calibseg("prepare", *words, "-o", tmp_path / "work")
        assert (code, said.count("\n")) == (2, 1), said
    root = make_tree("nnunet", tmp_path / "raw").root
    name = os.fsdecode(b"caf\xe9.nii.gz")
    first = next((root / "labelsTr").iterdir())
    try:
        shutil.copy(first, Path(root / "labelsTr" / name))
    except OSError:
        pytest.skip("this file system takes UTF-8 only")
    code, _, said = calibseg("prepare", "--dataset", "nnunet", "--root", root, "-o", tmp_path / "work")
    assert (code, "cannot be a case id" in said) == (2, True), said


def test_sources_that_are_not_utf_8_are_one_sentence(tmp_path):
    (tmp_path / "mine.py").write_bytes('"""Größe."""\nclass Mine: ...\n'.encode("latin-1"))
    with pytest.raises(BadInput, match=r"mine\.py: .*not Python"):
        registry.find("losses", str(tmp_path / "mine.py"))
    (tmp_path / "coded.py").write_bytes('# coding: latin-1\n"""Größe."""\nclass Mine: ...\n'.encode("latin-1"))
    assert registry.find("losses", str(tmp_path / "coded.py")).summary == "Größe."
    (tmp_path / "cases.csv").write_bytes("id,patient,image,label\nä,b,c,d\n".encode("latin-1"))
    with pytest.raises(BadInput, match=r"cases\.csv: is not written in UTF-8"):
        registry.build("datasets", "folder").studies(tmp_path)
