"""Atomic writes, and JSON files of our own and of other people."""

import contextlib
import os
import stat

import numpy as np
import pytest

from calibseg.core import files
from calibseg.core.hashing import file_fingerprint
from calibseg.core.types import BadInput
from calibseg.io.nifti import read_nifti
from calibseg.io.npz import read_npz


def test_an_atomic_write_that_fails_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "below" / "a.txt"
    files.write_text(path, "old")
    with contextlib.suppress(ZeroDivisionError), files.atomic_write(path) as temporary:
        temporary.write_text("half")
        assert path.read_text() == "old"
        assert temporary.name.startswith(".")
        raise ZeroDivisionError
    assert [item.name for item in path.parent.iterdir()] == ["a.txt"]
    assert path.read_text() == "old"


def test_a_file_that_cannot_be_written_is_named_in_one_sentence(tmp_path):
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(BadInput, match=r"file/a\.txt: cannot be written: "):
        files.write_text(tmp_path / "file" / "a.txt", "text")


def test_a_written_file_has_the_rights_that_files_get_here(tmp_path):
    mask = os.umask(0o027)
    try:
        files.write_tensors(tmp_path / "a.safetensors", "state", {"x": np.zeros(2)}, {})
    finally:
        os.umask(mask)
    assert stat.S_IMODE((tmp_path / "a.safetensors").stat().st_mode) == 0o640


def test_a_temporary_folder_is_removed_whatever_happens(tmp_path):
    with contextlib.suppress(ZeroDivisionError), files.temporary_folder(tmp_path / "a.nii.gz") as folder:
        (folder / "p.nii").write_bytes(b"half")
        raise ZeroDivisionError
    assert not list(tmp_path.iterdir())


def test_what_killed_processes_left_is_removed_and_nothing_else(tmp_path):
    (tmp_path / "sub" / ".a.nii.gz.7.tmp").mkdir(parents=True)
    (tmp_path / "sub" / ".b.json.7.tmp").write_text("half")
    (tmp_path / "sub" / "b.json").write_text("whole")
    files.remove_temporary(tmp_path)
    assert [path.name for path in (tmp_path / "sub").iterdir()] == ["b.json"]


def test_json_of_our_own_must_say_its_format_and_that_of_others_need_not(tmp_path):
    path = tmp_path / "a.json"
    files.write_json(path, "split", {"train": ["a"]})
    assert files.read_json(path, "split") == {"train": ["a"]}
    assert files.read_json(path) == {"format": "calibseg-split/1", "train": ["a"]}
    with pytest.raises(BadInput, match=r"a\.json: its format is 'calibseg-split/1', this version reads"):
        files.read_json(path, "run")
    path.write_bytes(b'\xef\xbb\xbf{"labels": {}}')  # a byte order mark, as some programs write it
    assert files.read_json(path) == {"labels": {}}


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"{", "not JSON: "), (b"\xff", "is not written in UTF-8"), (b"[1]", "holds a list, expected an object")],
)
def test_what_is_wrong_with_a_json_file_is_said_with_its_path(tmp_path, content, message):
    (tmp_path / "a.json").write_bytes(content)
    with pytest.raises(BadInput, match=rf"a\.json: {message}"):
        files.read_json(tmp_path / "a.json")
    with pytest.raises(BadInput, match=r"b\.json: no such file"):
        files.read_json(tmp_path / "b.json")


def test_a_pipe_is_refused_and_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe.nii.gz")
    for read in (read_nifti, file_fingerprint, lambda path: read_npz(path, ("a",))):
        with pytest.raises(BadInput, match=r"pipe\.nii\.gz: is neither a file nor a folder"):
            read(tmp_path / "pipe.nii.gz")


def test_a_number_that_cannot_be_shown_is_no_toml():
    assert files.parse_toml("a = [0x7f, {b = 9223372036854775808}]") == {"a": [127, {"b": 1 << 63}]}
    with pytest.raises(ValueError, match="more than 10000 bits"):
        files.parse_toml(f"a = [{{b = 0x{'f' * 3000}}}]")
