"""`decide fit` against `score` on the same volumes, in one process each: seconds, and their ratio.

    python benchmarks/decide.py [CASES]

Volumes as large as the hippocampus' (36 x 50 x 35, 3 classes), stored as nnU-Net stores probabilities. The aim is a
ratio of at most 2.
"""

import sys
import tempfile
import time
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

SHAPE = (36, 50, 35)


def make(folder: Path, cases: int) -> PredictionFolder:
    """Smooth objects, and probabilities that are nearly right."""
    for name in ("p", "l"):
        (folder / name).mkdir()
    rng = np.random.default_rng(0)
    for number in range(cases):
        field = gaussian_filter(rng.normal(size=SHAPE), 4)
        labels = np.digitize(field, np.quantile(field, [0.95, 0.975])).astype(np.uint8)
        seen = np.stack([gaussian_filter((labels == k).astype(float), 1) for k in range(3)])
        logits = 8 * seen + rng.normal(0, 0.5, seen.shape)
        p = np.exp(logits) / np.exp(logits).sum(0)
        np.savez_compressed(folder / "p" / f"c{number:03d}.npz", probabilities=p.astype(np.float32))
        nib.save(nib.Nifti1Image(labels.T, np.eye(4)), folder / "l" / f"c{number:03d}.nii.gz")
    return PredictionFolder(folder / "p", folder / "l")


def seconds(work) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def main(cases: int) -> None:
    with tempfile.TemporaryDirectory() as temporary:
        folder = make(Path(temporary), cases)
        decisions = [FNR(0.05), Volume(0.9), Margin(0.95, 0.9)]
        fit = [
            seconds(lambda: decide_fit(CaseSource(folder), decisions, Path(temporary) / "rules.json")) for _ in range(3)
        ]
        score = [
            seconds(lambda: score_folder(folder, Path(temporary) / "s.csv", workers=WorkerOptions(1))) for _ in range(3)
        ]
        print(
            f"{cases} volumes of {' x '.join(map(str, SHAPE))}: decide fit {min(fit):.2f} s, score {min(score):.2f} s"
        )
        print(f"ratio {min(fit) / min(score):.2f} (aim: at most 2)")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 50)
