"""All surface metrics at once against MONAI's HD95 + ASSD and MedPy's hd95 + assd: time and extra memory.

    python benchmarks/metrics.py shape [--repeats 7] [--medpy-repeats 2]

Three organs, two volume sizes; smooth predictions, the same with 0.1 % of the voxels labelled at random, and poor ones,
whose surfaces lie far from the truth. Within a row the contestants take turns, so that what else the machine does hits
all of them; read the ratios, not the times. MONAI gets one-hot tensors and MedPy boolean masks, made outside the clock.
Peak memory is what a call adds to a process of its own that holds the inputs and has done a small case before.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
from scipy.ndimage import zoom

from calibseg.metrics import ASD, ASSD, HD, HD95, NSD
from calibseg.metrics.statistics.surfaces import SurfaceStatistics

SIZES = {"30x192x192": ((30, 192, 192), (5.0, 1.2, 1.2)), "155x240x240": ((155, 240, 240), (1.0, 1.0, 1.0))}
ORGANS = [((-0.1, -0.25, -0.35), 0.45), ((0.1, 0.4, 0.3), 0.35), ((0.0, -0.4, 0.5), 0.25)]  # centre, radius of [-1, 1]
BARS = {  # at least this many times faster: than MONAI, than MedPy
    ("ours", "smooth"): (3.0, 20.0),
    ("ours", "poor"): (3.0, 0.0),
    ("ours", "scattered"): (1.5, 0.0),
}
MEMORY_BAR = 1 / 3
METRICS = (HD(), HD95("pooled"), HD95("max_directed"), ASD(), ASSD(), NSD())


def organs(shape: tuple[int, ...], wobble: float) -> np.ndarray:
    """Balls with an uneven surface; `wobble` moves the surface by a second random field."""
    grid = np.meshgrid(*(np.linspace(-1, 1, size) for size in shape), indexing="ij", sparse=True)
    fields = [
        zoom(np.random.default_rng(seed).normal(size=(7, 7, 7)), [n / 7 for n in shape], order=3) for seed in (0, 1)
    ]
    radius = 0.05 * fields[0] + wobble * fields[1]
    labels = np.zeros(shape, np.uint8)
    for organ, (centre, size) in enumerate(ORGANS, 1):
        far = sum((axis - middle) ** 2 for axis, middle in zip(grid, centre, strict=True))
        labels[np.sqrt(far) < size + radius] = organ
    return labels


def scattered(labels: np.ndarray) -> np.ndarray:
    rng = np.random.default_rng(2)
    return np.where(rng.random(labels.shape) < 0.001, rng.integers(1, 4, labels.shape), labels).astype(np.uint8)


def ours(truth, predicted, spacing, workers: int = 1) -> Callable[[], list[float]]:
    def run() -> list[float]:
        surfaces = SurfaceStatistics.of(truth, predicted, 4, spacing_mm=spacing, workers=workers)
        values = [metric.value(surfaces) for metric in METRICS]
        return [values[2][c] for c in (1, 2, 3)] + [values[4][c] for c in (1, 2, 3)]

    return run


def monai(truth, predicted, spacing) -> Callable[[], list[float]]:
    import torch
    from monai.metrics.hausdorff_distance import compute_hausdorff_distance
    from monai.metrics.surface_distance import compute_average_surface_distance

    y, y_pred = (torch.from_numpy(np.stack([labels == c for c in range(4)]))[None] for labels in (truth, predicted))

    def run() -> list[float]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            hd95 = compute_hausdorff_distance(y_pred, y, percentile=95, spacing=spacing)
            assd = compute_average_surface_distance(y_pred, y, symmetric=True, spacing=spacing)
        return [*hd95[0].tolist(), *assd[0].tolist()]

    return run


def medpy(truth, predicted, spacing) -> Callable[[], list[float]]:
    from medpy.metric.binary import assd, hd95

    pairs = [(predicted == c, truth == c) for c in (1, 2, 3)]
    return lambda: [float(f(*pair, spacing)) for f in (hd95, assd) for pair in pairs]


def timed(contestants: dict[str, tuple[Callable, int]]) -> dict[str, float]:
    """Median seconds of each, taking turns."""
    times: dict[str, list[float]] = {name: [] for name in contestants}
    for turn in range(max(repeats for _, repeats in contestants.values())):
        for name, (run, repeats) in contestants.items():
            if turn < repeats:
                start = time.perf_counter()
                run()
                times[name].append(time.perf_counter() - start)
    return {name: statistics.median(values) for name, values in times.items()}


def peak_megabytes(name: str, file: Path, spacing) -> float:
    """What one call adds to the resident memory of a process that holds the inputs, at its highest."""
    command = [sys.executable, __file__, "--measure", name, str(file), json.dumps(spacing)]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def measure(name: str, file: str, spacing: str) -> None:
    maps = np.load(file, allow_pickle=False)
    make = {"ours": ours, "monai": monai}[name]
    small = np.random.default_rng(0).integers(0, 4, (2, 4, 12, 12)).astype(np.uint8)
    make(*small, (1.0, 1.0, 1.0))()
    run = make(maps["truth"], maps["predicted"], tuple(json.loads(spacing)))
    Path("/proc/self/clear_refs").write_text("5")  # the high-water mark starts again from here
    before = _status("VmRSS")
    run()
    print(_status("VmHWM") - before)


def _status(field: str) -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field)) / 1024


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--medpy-repeats", type=int, default=2, help="0: leave MedPy out")
    parser.add_argument("--measure", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        measure(*options.measure)
        return 0
    missed = 0
    for size, (shape, spacing) in SIZES.items():
        truth, smooth, poor = organs(shape, 0.0), organs(shape, 0.02), organs(shape, 0.12)
        for kind, predicted in (("smooth", smooth), ("scattered", scattered(smooth)), ("poor", poor)):
            missed += contest(size, kind, truth, predicted, spacing, options)
    print("every bar met" if not missed else f"{missed} bars missed")
    return missed


def contest(size: str, kind: str, truth, predicted, spacing, options: argparse.Namespace) -> int:
    runs = {
        "ours": ours(truth, predicted, spacing),
        "ours, 2 workers": ours(truth, predicted, spacing, workers=2),
        "monai": monai(truth, predicted, spacing),
    }
    values = {name: run() for name, run in runs.items()}  # also the warm-up
    for name, found in values.items():
        assert np.allclose(found, values["monai"], rtol=1e-4), (name, found, values["monai"])
    contestants = {name: (run, options.repeats) for name, run in runs.items()}
    if kind == "smooth" and options.medpy_repeats:
        contestants["medpy"] = (medpy(truth, predicted, spacing), options.medpy_repeats)
    seconds = timed(contestants)
    dice = [
        2 * np.sum((truth == c) & (predicted == c)) / (np.sum(truth == c) + np.sum(predicted == c)) for c in (1, 2, 3)
    ]
    print(f"{size} {kind}: Dice " + ", ".join(f"{value:.2f}" for value in dice))
    missed = 0
    for name, value in seconds.items():
        line = f"  {name:16} {value * 1e3:8.1f} ms   {seconds['monai'] / value:6.1f}x MONAI"
        faster = [seconds["monai"] / value, seconds["medpy"] / value if "medpy" in seconds else np.inf]
        if "medpy" in seconds:
            line += f"   {faster[1]:6.1f}x MedPy"
        if bars := BARS.get((name, kind)):
            good = all(ratio >= bar for ratio, bar in zip(faster, bars, strict=True))
            missed += not good
            line += "   " + ("ok" if good else f"below the bar of {bars[0]}x MONAI, {bars[1]}x MedPy")
        print(line)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "maps.npz"
        np.savez(file, truth=truth, predicted=predicted)
        memory = {name: peak_megabytes(name, file, spacing) for name in ("ours", "monai")}
    for name, value in memory.items():
        share = value / memory["monai"]
        verdict = "" if name == "monai" else "   ok" if share <= MEMORY_BAR else f"   above {MEMORY_BAR:.2f}"
        missed += share > MEMORY_BAR and name != "monai"
        print(f"  {name:16} {value:8.1f} MB   {share:6.2f} of MONAI{verdict}")
    return missed


if __name__ == "__main__":
    sys.exit(main())
