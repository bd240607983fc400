"""What it costs to repair confidence after training, against netcal and against LBFGS with all voxels in memory.

    python benchmarks/posthoc.py                # 25 volumes with simulated scores
    python benchmarks/posthoc.py --run RUN --work WORK     # validation logits of a run, images of its prepared set

All contestants fit one temperature to the same stored logits, 25 hippocampus volumes, and take turns in one run; read
the ratios. Seconds are given for the fit alone, with everything unpacked in memory before (the bar), and from the files
on, where unpacking costs all the same. Memory is the rise of a fresh process's high-water mark while it reads and fits,
after a fit of a small case has loaded whatever is loaded once. Without --run, scores are simulated from the labels of
the real hippocampus set where CALIBSEG_DATA says where it is (else from phantoms of its size): the logarithm of
smoothed labels, shifted by smooth noise and doubled, which is over-confident. Then local temperature scaling is fitted
and applied, once.
"""

import argparse
import importlib.util
import itertools
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from scipy.ndimage import gaussian_filter

from calibseg.calibrators import LocalTemperature, Temperature
from calibseg.core import registry
from calibseg.core.types import Case, Prediction
from calibseg.data import prepared
from calibseg.io.stored_logits import logits_files, open_logits, write_logits

VOLUMES = 25
FASTER, LEANER = 10, 10  # the bars: so many times faster, and with so small a share of the memory
DATA = Path(os.environ.get("CALIBSEG_DATA", Path(__file__).parents[2] / "shared" / "data"))


class Stored:
    """Stored predictions, opened one after the other whenever they are asked for."""

    def __init__(self, files: list[Path]):
        self.files = files

    def __iter__(self) -> Iterator[Prediction]:
        return map(open_logits, self.files)


def ours(cases: Iterable[Prediction]) -> float:
    return Temperature().fit_predictions(cases).temperature[0]


def flat(cases: Iterable[Prediction]) -> tuple[np.ndarray, np.ndarray]:
    """What the peers need: all voxels at once, [n k] and [n]."""
    scores, labels = [], []
    for case in cases:
        assert case.labels is not None
        part = np.asarray(case.scores)
        scores.append(part.reshape(len(part), -1).T)
        labels.append(case.labels.reshape(-1))
    return np.concatenate(scores), np.concatenate(labels).astype(np.int64)


def lbfgs(scores: np.ndarray, labels: np.ndarray) -> float:
    """Log T by torch's LBFGS with a line search, until it stops by itself."""
    logits, target = torch.from_numpy(scores), torch.from_numpy(labels)
    log_t = torch.zeros(1, requires_grad=True)
    optimiser = torch.optim.LBFGS([log_t], max_iter=50, line_search_fn="strong_wolfe")

    def closure() -> torch.Tensor:
        optimiser.zero_grad()
        loss = F.cross_entropy(logits / log_t.exp(), target)
        loss.backward()
        return loss

    optimiser.step(closure)  # type: ignore[arg-type]
    return float(log_t.detach().exp())


def netcal(scores: np.ndarray, labels: np.ndarray) -> float:
    """netcal's default, maximum likelihood by scipy; its weight multiplies logits, so it is 1 / T.

    It takes probabilities, here in float64: in float32 its finite differences see no slope, and T stays 1.
    """
    from netcal.scaling import TemperatureScaling

    p = torch.from_numpy(scores).double().softmax(1).numpy()
    method = TemperatureScaling()
    method.fit(p, labels)
    return 1 / float(np.ravel(method.temperature)[0])


PEERS: dict[str, Callable[[np.ndarray, np.ndarray], float]] = {"LBFGS in memory": lbfgs, "netcal": netcal}


def contest(files: list[Path], repeats: int) -> int:
    """Print the table; return how many bars are missed."""
    peers = {name: fit for name, fit in PEERS.items() if name != "netcal" or importlib.util.find_spec("netcal")}
    unpacked = [
        Prediction(case.case_id, case.patient, np.asarray(case.scores), case.kind, case.spacing_mm, labels=case.labels)
        for case in Stored(files)
    ]
    whole = flat(unpacked)
    calls: dict[str, Callable[[], float]] = {"calibseg": lambda: ours(Stored(files))}
    calls["calibseg, fit alone"] = lambda: ours(unpacked)
    for name, fit in peers.items():
        calls[name] = lambda fit=fit: fit(*flat(Stored(files)))
        calls[f"{name}, fit alone"] = lambda fit=fit: fit(*whole)
    seconds, found = interleaved(calls, repeats)
    memory = {name: peak_megabytes(name, files[0].parent) for name in ("calibseg", *peers)}
    losses = {name: nll(whole, found[name]) for name in memory}
    size = f"{len(files)} volumes, {len(whole[1])} voxels, {whole[0].shape[1]} classes"
    print(f"{size}; NLL before {nll(whole, 1.0):.8f}\n")
    print("| fit of one temperature | T | NLL | s from files | s fit alone | extra MB |")
    print("| --- | --- | --- | --- | --- | --- |")
    for name, peak in memory.items():
        times = f"{seconds[name]:.3f} | {seconds[f'{name}, fit alone']:.3f}"
        print(f"| {name} | {found[name]:.5f} | {losses[name]:.8f} | {times} | {peak:.1f} |")
    missed = 0
    for name in peers:
        faster = seconds[name] / seconds["calibseg"], seconds[f"{name}, fit alone"] / seconds["calibseg, fit alone"]
        leaner = memory[name] / max(memory["calibseg"], 0.1)
        met = faster[1] >= FASTER, leaner >= LEANER, losses["calibseg"] <= losses[name] + 1e-9
        missed += met.count(False)
        words = ["met" if one else "MISSED" for one in met]
        print(
            f"\nagainst {name}: {faster[1]:.1f} times faster to fit (bar {FASTER}: {words[0]}), from the files on"
            f" {faster[0]:.1f} times; {leaner:.1f} times less memory (bar {LEANER}: {words[1]});"
            f" NLL equal or better: {words[2]}"
        )
    if "netcal" not in peers:
        print("\nnetcal is not installed: pip install calibseg[bench] adds its row.")
    return missed


def interleaved(calls: dict[str, Callable[[], float]], repeats: int) -> tuple[dict[str, float], dict[str, float]]:
    """Median seconds of each call and what it found; all take turns, and a first turn does not count."""
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    found = {}
    for turn, (name, call) in itertools.product(range(repeats + 1), calls.items()):
        start = time.perf_counter()
        found[name] = call()
        if turn:
            seconds[name].append(time.perf_counter() - start)
    return {name: statistics.median(values) for name, values in seconds.items()}, found


def nll(whole: tuple[np.ndarray, np.ndarray], t: float) -> float:
    """Mean NLL at a temperature, in float64."""
    scores, labels = torch.from_numpy(whole[0]).double() / t, torch.from_numpy(whole[1])
    return float(F.cross_entropy(scores, labels))


def peak_megabytes(name: str, folder: Path) -> float:
    command = [sys.executable, __file__, "--measure", name, str(folder)]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()[-1])


def measure(name: str, folder: Path) -> None:
    """Print by how many megabytes one contestant raises this process's memory."""
    rng = np.random.default_rng(0)
    small = [
        Prediction(
            id,
            id,
            rng.normal(size=(3, 4, 8, 8)).astype(np.float32),
            "logits",
            (1.0, 1.0, 1.0),
            labels=rng.integers(0, 3, (4, 8, 8)).astype(np.uint8),
        )
        for id in "ab"
    ]
    run = ours if name == "calibseg" else lambda cases: PEERS[name](*flat(cases))
    run(small)
    files = logits_files(folder)[:VOLUMES]
    open_logits(files[0])
    Path("/proc/self/clear_refs").write_text("5")  # the high-water mark starts again from here
    before = _status("VmRSS")
    run(Stored(files))
    print(_status("VmHWM") - before)


def _status(field: str) -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field)) / 1024


def local(files: list[Path], images: dict[str, np.ndarray]) -> None:
    """Local temperature scaling: seconds to fit and to transform a volume."""
    cases = [with_image(open_logits(file), images) for file in files]
    start = time.perf_counter()
    calibrator = LocalTemperature().fit_predictions(cases)
    fit = time.perf_counter() - start
    start = time.perf_counter()
    for case in cases:
        calibrator.transform_prediction(case)
    transform = time.perf_counter() - start
    facts, _ = calibrator.state()
    print(
        f"\nlocal temperature scaling ({'with' if images else 'without'} the image): fitted in {fit:.1f} s"
        f" ({fit / len(cases):.2f} s per volume, {facts['epochs_run']} epochs, best {facts['best_epoch']}), transformed"
        f" in {transform / len(cases) * 1e3:.0f} ms per volume; held-out NLL {facts['nll_before']:.5f} ->"
        f" {facts['nll_after']:.5f}, T from {facts['temperature_min']:.2f} to {facts['temperature_max']:.2f}"
    )


def with_image(case: Prediction, images: dict[str, np.ndarray]) -> Prediction:
    return Prediction(
        case.case_id, case.patient, case.scores, case.kind, case.spacing_mm, case.activation, case.labels,
        images.get(case.case_id), case.slice_axis,
    )  # fmt: skip


def simulate(folder: Path) -> dict[str, np.ndarray]:
    """Store over-confident scores of labelled volumes; return their images."""
    images = {}
    for case in itertools.islice(volumes(), VOLUMES):
        assert case.labels is not None
        labels, rng = case.labels[0], np.random.default_rng(len(images))
        k = len(case.classes)
        smooth = np.stack([gaussian_filter((labels == c).astype(np.float32), 1.2) for c in range(k)])
        noise = np.stack([gaussian_filter(rng.normal(size=labels.shape), 1.5) for _ in range(k)])
        scores = 2 * (np.log(smooth + 1e-4) + noise * (1.5 / noise.std()))
        about = {
            "id": case.id, "patient": case.patient, "classes": case.classes, "regions": {}, "raters": 1,
            "spacing_mm": case.spacing_mm,
        }  # fmt: skip
        slices = np.moveaxis(scores, 3, 0)  # [n k h w], along x: sagittal
        shape = (k, *map(int, labels.shape))
        write_logits(folder / f"{case.id}.npz", [slices], shape, 2, case.labels[:1].astype(np.uint8), about)  # type: ignore[arg-type]
        images[case.id] = case.image
    return images


def volumes() -> Iterator[Case]:
    root = DATA / "Task04_Hippocampus"
    if root.is_dir():
        return iter(registry.build("datasets", "hippocampus").cases(root))
    options = {"cases": VOLUMES, "size": (35, 51, 35), "classes": 3}
    return iter(registry.build("datasets", "phantom", options).cases())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", type=Path, help="a trained run with logits/validation")
    parser.add_argument("--work", type=Path, help="the prepared set of the run, for the images")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--measure", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        measure(options.measure[0], Path(options.measure[1]))
        return 0
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.run / "logits" / "validation" if options.run else Path(temporary)
        images = {} if options.run else simulate(folder)
        files = logits_files(folder)[:VOLUMES]
        if options.work:
            images = {path.stem: prepared.open_case(options.work, path.stem).case().image for path in files}
        kind = "stored" if options.run else "simulated"
        print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, {kind} logits")
        missed = contest(files, options.repeats)
        local(files, images)
    return missed


if __name__ == "__main__":
    sys.exit(main())
