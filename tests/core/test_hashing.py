"""Fingerprints: the values on disk stay what they are, and what differs is told apart."""

import hashlib
import json

import pytest

from calibseg.core import registry
from calibseg.core.hashing import file_fingerprint, fingerprint, program_files, program_fingerprint
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


def test_the_program_of_a_calibrator_is_all_that_it_imports_of_the_package_and_no_more():
    names = program_files(registry.find("calibrators", "temperature").path)
    used = {"temperature.py", "calibrators/__init__.py", "calibrators/solvers/search.py", "core/parallel.py"}
    used |= {"core/scores.py", "core/labels.py", "metrics/statistics/binning/numba/sums.py"}
    assert used <= set(names)
    assert not [name for name in names if name.split("/")[0] in ("report", "cli", "benchmark", "stages", "losses")]
    assert "calibrators/vector.py" not in names


def test_a_calibrator_of_ones_own_that_builds_on_a_packaged_one_has_its_files_too(tmp_path):
    mine = tmp_path / "mine.py"
    mine.write_text("from calibseg.calibrators import Temperature\nimport numpy, calibseg.core.coerce\n")
    names = program_files(mine)
    assert {"mine.py", "calibrators/temperature.py", "core/parallel.py", "core/coerce.py"} <= set(names)
    assert "calibrators/vector.py" not in names


@pytest.mark.parametrize("edited", ["a.py", "near.py", "room/__init__.py", "room/far.py", "room/inside.py"])
def test_an_edit_in_any_module_that_a_program_imports_changes_its_fingerprint(tmp_path, edited):
    package = tmp_path / "made"
    sources = {
        "a.py": "from made import near\nimport json",
        "near.py": "def late():\n    from made.room.far import x",
        "room/__init__.py": "",
        "room/far.py": "import made.room.inside\nfrom made import near\nx = 1",
        "room/inside.py": "",
        "other.py": "from made import a",
    }
    for name, text in sources.items():
        path = package / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    before = program_fingerprint(package / "a.py", package)
    assert program_fingerprint(package / "a.py", package) == before
    (package / "other.py").write_text("from made import a  # edited")
    assert program_fingerprint(package / "a.py", package) == before
    (package / edited).write_text(sources[edited] + "\n# edited")
    assert program_fingerprint(package / "a.py", package) != before
