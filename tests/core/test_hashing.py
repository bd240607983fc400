"""Fingerprints: the values on disk stay what they are, and what differs is told apart."""

import hashlib
import json

import pytest

from calibseg.core.hashing import file_fingerprint, fingerprint, program_fingerprint
from calibseg.core.types import BadInput


def test_a_fingerprint_of_json_is_the_hash_that_runs_on_disk_carry():
    content = {"b": [1, 2.5], "a": None}
    text = json.dumps(content, sort_keys=True).encode()
    assert fingerprint(content) == hashlib.blake2b(text, digest_size=16).hexdigest()
    assert fingerprint(content, size=4) == hashlib.blake2b(text, digest_size=4).hexdigest()
    assert fingerprint(("a", 1)) == fingerprint(["a", 1])


def test_a_fingerprint_of_files_is_the_hash_that_prepared_cases_carry(tmp_path):
    (tmp_path / "a.nii").write_bytes(b"image")
    expected = hashlib.blake2b(b"[]" + b"a.nii" + hashlib.blake2b(b"image").digest(), digest_size=16).hexdigest()
    assert fingerprint([], [tmp_path / "a.nii"]) == expected


def test_a_file_under_another_name_is_another_source_but_the_same_content(tmp_path):
    one, two = tmp_path / "one", tmp_path / "two"
    one.write_bytes(b"same")
    two.write_bytes(b"same")
    assert fingerprint([], [one]) != fingerprint([], [two])
    assert file_fingerprint(one) == file_fingerprint(two) == hashlib.blake2b(b"same", digest_size=16).hexdigest()


def test_a_file_that_has_changed_has_another_fingerprint(tmp_path):
    path = tmp_path / "a"
    path.write_bytes(b"before")
    before = file_fingerprint(path)
    path.write_bytes(b"afterwards")
    assert file_fingerprint(path) != before


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(BadInput, match=r"missing cannot be read: No such file"):
        fingerprint([], [tmp_path / "missing"])
    with pytest.raises(BadInput, match=r"missing cannot be read: No such file"):
        file_fingerprint(tmp_path / "missing")


@pytest.mark.parametrize(("edited", "changes"), [("mine.py", True), ("room/inside.py", True), ("other/far.py", False)])
def test_an_edit_of_a_program_or_of_what_it_builds_on_changes_its_fingerprint(tmp_path, edited, changes):
    for name in ("mine.py", "package/room/inside.py", "package/other/far.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x = 1")
    mine, package = tmp_path / "mine.py", tmp_path / "package"
    before = program_fingerprint(mine, ["room"], package)
    assert program_fingerprint(mine, ["room"], package) == before
    (tmp_path / edited if edited == "mine.py" else package / edited).write_text("x = 2  # edited")
    assert (program_fingerprint(mine, ["room"], package) != before) is changes
