"""`decide fit` against `score` on the same volumes, in one process each: seconds, their ratio, and memory.

    python benchmarks/decide.py [CASES] [LABELS]

LABELS is a folder of NIfTI label maps (MSD Task04_Hippocampus/labelsTr); without it objects are made, as large as the
hippocampus (36 x 50 x 35, 3 classes). Probabilities are made from the labels and stored as nnU-Net stores them. The aim
is a ratio of at most 2, and as much memory for all cases as for a fifth of them.
"""

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import nibabel as nib
import numpy as np
from scipy.ndimage import gaussian_filter

from calibseg.decisions import FNR, Margin, Volume
from calibseg.io.conventions import PredictionFolder
from calibseg.stages.decide.cases import CaseSource
from calibseg.stages.decide.stage import decide_fit
from calibseg.stages.score.options import WorkerOptions
from calibseg.stages.score.stage import score_folder

SHAPE, CLASSES = (36, 50, 35), 3


def label_maps(folder: Path | None, rng: np.random.Generator) -> Iterator[nib.Nifti1Image]:
    """Real label maps, or smooth objects."""
    for path in sorted(folder.glob("[!.]*.nii.gz")) if folder else ():
        yield nib.load(path)  # pyright: ignore[reportReturnType]
    while folder is None:
        field = gaussian_filter(rng.normal(size=SHAPE), 4)
        labels = np.digitize(field, np.quantile(field, [0.95, 0.975])).astype(np.uint8)
        yield nib.Nifti1Image(labels.T, np.eye(4))


def make(folder: Path, cases: int, given: Path | None) -> PredictionFolder:
    """Probabilities that are nearly right."""
    for name in ("p", "l"):
        (folder / name).mkdir(parents=True)
    rng = np.random.default_rng(0)
    for number, image in enumerate(islice(label_maps(given, rng), cases)):
        labels = np.asarray(image.dataobj).astype(np.uint8).T
        seen = np.stack([gaussian_filter((labels == k).astype(float), 1) for k in range(CLASSES)])
        logits = 8 * seen + rng.normal(0, 0.5, seen.shape)
        p = np.exp(logits) / np.exp(logits).sum(0)
        np.savez_compressed(folder / "p" / f"c{number:03d}.npz", probabilities=p.astype(np.float32))
        nib.save(image, folder / "l" / f"c{number:03d}.nii.gz")
    return PredictionFolder(folder / "p", folder / "l")


def fit(folder: Path) -> None:
    decisions = [FNR(0.1), Volume(0.9), Margin(0.95, 0.9)]
    decide_fit(CaseSource(PredictionFolder(folder / "p", folder / "l")), decisions, folder / "rules.json")


def seconds(work) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def megabytes(folder: Path) -> float:
    """The most memory that a process of its own takes for `decide fit`."""
    return float(subprocess.run([sys.executable, __file__, "--fit", folder], check=True, capture_output=True).stdout)


def main(cases: int, given: Path | None) -> None:
    with tempfile.TemporaryDirectory() as temporary:
        whole, part = Path(temporary) / "whole", Path(temporary) / "part"
        folder = make(whole, cases, given)
        make(part, max(cases // 5, 10), given)
        fitting = min(seconds(lambda: fit(whole)) for _ in range(3))
        scoring = min(
            seconds(lambda: score_folder(folder, whole / "s.csv", workers=WorkerOptions(1))) for _ in range(3)
        )
        print(f"{cases} {'real' if given else 'made'} label maps: decide fit {fitting:.2f} s, score {scoring:.2f} s")
        print(f"ratio {fitting / scoring:.2f} (aim: at most 2)")
        few, many = megabytes(part), megabytes(whole)
        print(f"memory of decide fit: {few:.0f} MB for {max(cases // 5, 10)} cases, {many:.0f} MB for {cases}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("cases", type=int, nargs="?", default=50)
    parser.add_argument("labels", type=Path, nargs="?", help="a folder of NIfTI label maps")
    parser.add_argument("--fit", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.fit:
        fit(options.fit)
        print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
    else:
        main(options.cases, options.labels)
