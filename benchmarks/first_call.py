"""Small work never waits for compilation: 20 hippocampus volumes on a fresh installation, with and without numba.

    python benchmarks/first_call.py

Each contestant is a fresh process whose cache of compiled kernels is empty; the two take turns. Labels are those of the
real hippocampus set where CALIBSEG_DATA says where it is, else random ones of its size; probabilities are smoothed
labels. The bar: with numba it takes no longer than without (1.15 times, because single runs vary by more than a tenth).
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

VOLUMES, TURNS, BAR = 20, 3, 1.15
DATA = Path(os.environ.get("CALIBSEG_DATA", Path(__file__).parents[2] / "shared" / "data")) / "Task04_Hippocampus"


def volumes() -> list[tuple[np.ndarray, np.ndarray]]:
    """Probabilities [k z y x] and labels [z y x]."""
    import nibabel as nib
    from scipy.ndimage import gaussian_filter

    rng = np.random.default_rng(0)
    files = sorted((DATA / "labelsTr").glob("[!.]*.nii.gz"))[:VOLUMES]
    labels = [np.asarray(nib.load(file).dataobj).astype(np.uint8) for file in files]
    labels = labels or [rng.integers(0, 3, (36, 50, 35), np.uint8) for _ in range(VOLUMES)]
    made = []
    for y in labels:
        p = np.stack([gaussian_filter((y == k).astype(np.float32), 1.0) for k in range(3)]) + np.float32(1e-4)
        made.append((p / p.sum(0), y))
    return made


def measure_all() -> None:
    """What a fresh process does; prints its seconds."""
    from calibseg import measure

    cases = volumes()
    start = time.perf_counter()
    measure([p for p, _ in cases], [y for _, y in cases], kind="probabilities")
    print(time.perf_counter() - start)


def seconds(numba: bool) -> float:
    """Of one fresh process with an empty cache; without numba it cannot be imported."""
    block = "" if numba else "import sys; sys.modules['numba'] = None; "
    code = f"{block}import runpy; runpy.run_path({__file__!r}, run_name='measured')['measure_all']()"
    with tempfile.TemporaryDirectory() as cache:
        environment = os.environ | {"NUMBA_CACHE_DIR": cache}
        done = subprocess.run([sys.executable, "-c", code], env=environment, check=True, capture_output=True, text=True)
    return float(done.stdout)


def main() -> None:
    argparse.ArgumentParser(description=__doc__.split("\n")[0]).parse_args()
    times: dict[bool, list[float]] = {True: [], False: []}
    for _ in range(TURNS):
        for numba, taken in times.items():
            taken.append(seconds(numba))
    with_it, without = (statistics.median(times[numba]) for numba in (True, False))
    met = "met" if with_it <= BAR * without else "MISSED"
    ratio = f"{with_it / without:.2f} x (bar {BAR}: {met})"
    print(f"{VOLUMES} volumes: with numba {with_it:.2f} s, without {without:.2f} s; {ratio}")


if __name__ == "__main__":
    main()
