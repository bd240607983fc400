"""How logits are best kept on disk: what each way costs in bytes and time, and how far it moves the ECE of a case.

Trains a small U-Net for some minutes (on the hippocampus where CALIBSEG_DATA says where it is, else on the phantom),
multiplies its test logits by 1, 3 and 10 (networks that train longer are surer), and compares with float64.
Bytes are relative to float32, seconds for `zlib` at level 1; the bar is an ECE that moves by less than 1e-4.
"""

import argparse
import os
import tempfile
import time
import zlib
from pathlib import Path

import numpy as np

from calibseg.data import prepared
from calibseg.io.stored_logits import relative
from calibseg.metrics.ece import ECE
from calibseg.metrics.statistics.binning import calibration_statistics
from calibseg.runs.checkpoint import load_network
from calibseg.runs.info import read_run
from calibseg.runs.recipe import read_recipe
from calibseg.stages.predict.slice_inference import slice_scores
from calibseg.stages.prepare import make_splits, prepare
from calibseg.stages.train.loop import train

WAYS = {
    "float32": lambda logits: logits,
    "float32, relative": relative,
    "float16": lambda logits: logits.astype(np.float16),
    "float16, relative": lambda logits: relative(logits).astype(np.float16),
}
VOXELS = ("truth", "predicted", "all")


def main() -> None:
    argparse.ArgumentParser(description=__doc__.split("\n")[0]).parse_args()
    with tempfile.TemporaryDirectory() as folder:
        cases = predicted(Path(folder))
    print(f"{len(cases)} cases, {sum(labels.size for _, labels in cases)} voxels\n")
    print(f"{'way':<20}{'bytes':>8}{'deflated':>10}{'write s':>9}{'read s':>9}   ECE of a case moves by: x1, x3, x10")
    for name, way in WAYS.items():
        moved = [max(change(way, logits * np.float32(by), labels) for logits, labels in cases) for by in (1, 3, 10)]
        shown = "  ".join(f"{value:.1e}" for value in moved)
        print(f"{name:<20}{costs(way, [logits for logits, _ in cases])}   {shown}")


def predicted(folder: Path) -> list[tuple[np.ndarray, np.ndarray]]:
    """Logits [k z y x] and labels [z y x] of the test cases of a network that was trained here."""
    root = Path(os.environ.get("CALIBSEG_DATA", "")) / "Task04_Hippocampus"
    dataset, epochs = ("hippocampus", 1) if root.is_dir() else ("phantom", 6)
    prepare(dataset, root if root.is_dir() else None, folder / "work")
    make_splits(folder / "work", sizes=(50, 5, 20))
    recipe = {
        "data": {"dataset": dataset, "work": str(folder / "work")},
        "network": {"name": "unet", "width": 8, "depth": 3, "norm": "batch"},
        "train": {"epochs": epochs, "select": "last"},
    }
    train(read_recipe(recipe), folder / "run", device="cpu")
    network = load_network(folder / "run")
    found = []
    for id in read_run(folder / "run").cases("test")[:20]:
        case = prepared.open_case(folder / "work", id)
        slices = np.concatenate([part.numpy() for part in slice_scores([network], case)])
        labels = case.case().labels
        assert labels is not None
        found.append((np.ascontiguousarray(np.moveaxis(slices, 0, 1 + case.axis)), np.ascontiguousarray(labels[0])))
    return found


def change(way, logits: np.ndarray, labels: np.ndarray) -> float:
    """The largest difference of the ECE to that of the logits in float64, over voxel rules and classes."""
    exact = calibration_statistics(logits.astype(np.float64), labels, kind="logits", ignore_label=255)
    found = calibration_statistics(np.ascontiguousarray(way(logits)), labels, kind="logits", ignore_label=255)
    differences = []
    for voxels in VOXELS:
        a, b = ECE().value(exact.on(voxels)), ECE().value(found.on(voxels))
        differences += [abs(a[name] - b[name]) for name in a]
    return float(np.nanmax(differences))


def costs(way, logits: list[np.ndarray]) -> str:
    whole = sum(part.nbytes for part in logits)
    stored = [np.ascontiguousarray(way(part)).tobytes() for part in logits]
    begin = time.process_time()
    packed = [zlib.compress(part, 1) for part in stored]
    middle = time.process_time()
    for part in packed:
        zlib.decompress(part)
    end = time.process_time()
    sizes = sum(map(len, stored)) / whole, sum(map(len, packed)) / whole
    return f"{sizes[0]:>8.2f}{sizes[1]:>10.2f}{middle - begin:>9.2f}{end - middle:>9.2f}"


if __name__ == "__main__":
    main()
