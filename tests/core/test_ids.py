"""Ids: one rule, and no generated id leads out of the folder that it is meant for."""

import json
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calibseg.core.files import write_json
from calibseg.core.ids import LONGEST, check_id, check_patient, first_alike
from calibseg.core.types import BadInput, Split
from calibseg.data import prepared

NASTY = st.one_of(
    st.text(),
    st.text("./\\~ \0aé\n:*", max_size=12),
    st.sampled_from(
        ["..", ".", "", "/etc/passwd", "../../X", "a/../b", "C:\\x", "A ", " A", "-rf", "a" * 300, "\udcff"]
    ),
)


@given(NASTY)
def test_no_id_leads_to_a_path_outside_the_folder(id):
    try:
        path = prepared.case_path("prepared", id)
    except BadInput:
        return
    assert os.path.normpath(path) == str(path)
    assert path.parent == prepared.case_path("prepared", "plain").parent
    assert len(os.fsencode(f".{path.name}.1234567.tmp")) <= 255
    assert not path.name.startswith(".")
    with pytest.raises(BadInput, match="name of a split"):
        prepared.split_path("prepared", f"../{id}")


@pytest.mark.parametrize(
    "id", ["la_007", "BraTS19_2013_10_1", "patient 1 (2)", "_x", "Müller+a=3", "a.b-c", "x" * LONGEST]
)
def test_names_that_studies_have_are_ids(id):
    assert check_id(id) == id


@pytest.mark.parametrize("patient", ["A ", " A", "", "a\nb", 5, None])
def test_a_patient_with_blanks_around_the_name_would_be_a_second_patient(patient):
    with pytest.raises(BadInput, match="the patient of case 'c' cannot be called"):
        check_patient(patient, "c")


def test_ids_that_a_file_system_may_mistake_for_each_other_are_found():
    assert first_alike(["a", "b", "A"]) == "A"
    assert first_alike(["caf\u00e9", "cafe\u0301"]) == "cafe\u0301"
    assert first_alike(["a", "b"]) is None


@pytest.mark.parametrize("subset", ["train", "validation", "test", "calibration"])
def test_a_split_that_names_a_file_elsewhere_is_refused_with_its_file(tmp_path, subset):
    subsets = {"train": ["a"], "validation": [], "test": ["b"], "calibration": []} | {subset: ["../../X"]}
    with pytest.raises(BadInput, match="cannot be a case id"):
        Split(**{name: tuple(ids) for name, ids in subsets.items()}, split_seed=0)
    write_json(prepared.split_path(tmp_path, "default"), "split", subsets | {"split_seed": 0})
    with pytest.raises(BadInput, match=r"default\.json: '\.\./\.\./X' cannot be a case id"):
        prepared.read_split(tmp_path)


def test_an_index_that_names_a_case_twice_is_refused(tmp_path):
    entry = {"id": "a", "patient": "a", "key": "", "slices": 1, "height": 1, "width": 1, "voxels": []}
    index = {"dataset": "toy", "options": {}, "protocol": {}, "split": {}, "classes": ["b", "o"], "channels": ["T1"],
             "regions": {}, "select": None, "skipped": {}}  # fmt: skip
    for cases, said in (([entry, entry], "the case 'a' twice"), ([], "no case")):
        (tmp_path / "dataset.json").write_text(json.dumps({"format": "calibseg-dataset/1", **index, "cases": cases}))
        with pytest.raises(BadInput, match=rf"dataset\.json: names {said}"):
            prepared.read_index(tmp_path)
