"""The stubs of the package and its families say what there is."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_stubs_are_current():
    done = subprocess.run([sys.executable, ROOT / "scripts/stubs.py", "--check"], capture_output=True, text=True)
    assert done.returncode == 0, f"{done.stdout}{done.stderr}\nwrite them again: make stubs"
