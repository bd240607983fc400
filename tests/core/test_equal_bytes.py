"""Equal content makes equal bytes, in this process and in another: so sha256 is a fingerprint."""

import hashlib
import os
import subprocess
import sys

import numpy as np
import pytest
from safetensors import safe_open

from calibseg.core import files

PROGRAM = """
import sys
from pathlib import Path
import numpy as np
from calibseg.calibrators import Isotonic, Temperature
from calibseg.core import files
from calibseg.core.types import Case
from calibseg.data import prepared
from calibseg.io.stored_logits import write_logits

folder = Path(sys.argv[1])
image = np.arange(120, dtype=np.float32).reshape(1, 4, 5, 6)
labels = (image > 60).astype(np.uint8)
case = Case("a", "p", image, ("T1",), labels, (1.0, 2.0, 3.0), ("none", "organ"), affine=np.eye(4),
            header={"slice_axis": "axial"})
prepared.write_case(folder, case, "mark")
logits = np.stack([-image[0], image[0]], 0) / 50 - 1
about = {"id": "a", "patient": "p", "classes": ["none", "organ"], "regions": {}, "spacing_mm": [1, 1, 1], "raters": 1}
write_logits(folder / "a.npz", [logits.swapaxes(0, 1)], logits.shape, 0, labels, about)
files.write_tensors(folder / "state.safetensors", "state", {name: image for name in sorted({"b", "a", "c"})}, {"x": 1})
for member in (Temperature, Isotonic):
    member().fit(logits, labels[0], kind="logits").save(folder / member.__name__)
"""


def hashes(folder):
    found = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in found}


def test_two_processes_store_the_same_bytes(tmp_path):
    for seed in ("1", "2"):
        environment = os.environ | {"PYTHONHASHSEED": seed}
        subprocess.run([sys.executable, "-c", PROGRAM, tmp_path / seed], env=environment, check=True)
    found = hashes(tmp_path / "1")
    assert {
        "cases/a.safetensors",
        "a.npz",
        "state.safetensors",
        "Temperature/calibrator.json",
        "Isotonic/calibrator.safetensors",
    } <= set(found)
    assert found == hashes(tmp_path / "2")


ARRAYS = {
    "wide": np.array([[1.5, np.nan], [np.inf, -0.0]]),
    "half": np.array([0.1, 2.0], np.float16),
    "number": np.array(7, np.int64),
    "none": np.zeros((0, 3), np.float32),
    "turned": np.arange(6, dtype=np.int32).reshape(2, 3).T,
    "big endian": np.arange(3, dtype=">u2"),
    "bits": np.array([True, False, True]),
    "bytes": np.frombuffer(b"abc", np.uint8),
}


@pytest.mark.parametrize("reverse", [False, True])
def test_the_library_reads_what_was_written_whatever_the_order(reverse, tmp_path):
    order = sorted(ARRAYS, reverse=reverse)
    files.save_tensors(tmp_path / "a", {name: ARRAYS[name] for name in order}, dict.fromkeys(order, 'ä"\n'))
    files.save_tensors(tmp_path / "b", ARRAYS, dict.fromkeys(sorted(order), 'ä"\n'))
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    with safe_open(tmp_path / "a", "np") as file:
        assert file.metadata() == dict.fromkeys(ARRAYS, 'ä"\n')
        for name, array in ARRAYS.items():
            found = file.get_tensor(name)
            np.testing.assert_array_equal(found, array)
            assert (found.dtype, found.shape) == (array.dtype.newbyteorder("="), array.shape)
    text = (tmp_path / "a").read_bytes()
    assert int.from_bytes(text[:8], "little") % 8 == 0  # so that arrays are aligned
