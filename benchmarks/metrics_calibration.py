"""Calibration statistics against MONAI and torchmetrics: time, memory and who is right. Prints ratios of one run.

    python benchmarks/metrics.py calibration [--threads 2] [--repeats 5] [--shape 155 240 240] [--no-stream]

Every repeat runs every contender once, in turn, so that other work on the machine hurts all alike; medians of those.
The volume is made like a network's output: nested blobs, smooth scores with some noise, most of it sure background.
"""

import argparse
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
import psutil
import torch

from calibseg.metrics import CECE, ECE
from calibseg.metrics.statistics.binning import all_statistics, calibration_statistics, numba_is_here

CLASSES = 4


def volume(shape: tuple[int, int, int], noise: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits [k z y x] of nested blobs, and labels drawn from blurred versions of them."""
    generator = torch.Generator().manual_seed(0)
    z, y, x = torch.meshgrid(*(torch.linspace(-1, 1, n) for n in shape), indexing="ij")
    radius = (z**2 + y**2 + x**2).sqrt()
    logits = torch.zeros(CLASSES, *shape)
    for k, size in enumerate((0.5, 0.35, 0.2), start=1):
        logits[k] = 24 * (size - radius) + 3 * k - 4
    truth = (logits + 0.7 * torch.randn(CLASSES, *(1,) * 3, generator=generator)).argmax(0)
    return logits + noise * torch.randn(logits.shape, generator=generator), truth


class AnonymousPeak:
    """The largest anonymous resident memory while a block runs, over what there was before it, in MB."""

    def __enter__(self) -> "AnonymousPeak":
        self.before = self.peak = self._now()
        self.done = False
        self.thread = threading.Thread(target=self._watch)
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.done = True
        self.thread.join()
        self.extra, self.total = (self.peak - self.before) / 1e6, self.peak / 1e6

    def _watch(self) -> None:
        while not self.done:
            self.peak = max(self.peak, self._now())
            time.sleep(0.001)

    def _now(self) -> int:
        memory = psutil.Process().memory_info()
        return memory.rss - memory.shared  # pages of files and shared libraries are not ours to count


def contenders(logits: torch.Tensor, p: torch.Tensor, labels: torch.Tensor) -> dict:
    """Name -> a call without arguments."""
    from monai.metrics.calibration import CalibrationErrorMetric
    from torchmetrics.functional.classification import multiclass_calibration_error

    one_hot = torch.nn.functional.one_hot(labels.long(), CLASSES).movedim(-1, 0)[None].float()
    flat_labels = labels.long().flatten()

    def ours(scores: torch.Tensor, kind, route):
        return lambda: calibration_statistics(scores, labels, kind=kind, route=route)

    def everything(scores: torch.Tensor, kind, route):
        return lambda: all_statistics(scores, labels, kind=kind, route=route)

    found = {
        "floor: read once": lambda: logits.sum(),
        "floor: softmax": lambda: logits.softmax(0),
        "MONAI, class curves, from p": lambda: CalibrationErrorMetric(num_bins=15)(p[None], one_hot),
        "MONAI, softmax first": lambda: CalibrationErrorMetric(num_bins=15)(logits.softmax(0)[None], one_hot),
        "torchmetrics, top label, from p": lambda: multiclass_calibration_error(
            p.flatten(1).T, flat_labels, CLASSES, n_bins=15
        ),
        "torch route, from p": ours(p, "probabilities", "torch"),
        "torch route, from logits": ours(logits, "logits", "torch"),
    }
    if numba_is_here():
        found["numba route, from p"] = ours(p, "probabilities", "numba")
        found["numba route, from logits"] = ours(logits, "logits", "numba")
    for name, scores, kind in (("p", p, "probabilities"), ("logits", logits, "logits")):
        found[f"everything, torch route, from {name}"] = everything(scores, kind, "torch")
        if numba_is_here():
            found[f"everything, numba route, from {name}"] = everything(scores, kind, "numba")
    return found


def compare(shape: tuple[int, int, int], noise: float, repeats: int) -> dict[str, float]:
    """Median seconds of each contender; prints the table."""
    logits, labels = volume(shape, noise)
    labels = labels.to(torch.uint8)
    p = logits.softmax(0)
    calls = contenders(logits, p, labels)
    times: dict[str, list[float]] = {name: [] for name in calls}
    for repeat in range(repeats + 1):
        for name, call in calls.items():
            start = time.perf_counter()
            call()
            if repeat:  # the first round compiles and warms up
                times[name].append(time.perf_counter() - start)
    median = {name: float(np.median(values)) for name, values in times.items()}
    print(
        f"\n{' x '.join(map(str, shape))} voxels, {CLASSES} classes, noise {noise}, {torch.get_num_threads()} threads"
    )
    for name, value in median.items():
        print(f"  {name:38s} {value:7.3f} s   {median['MONAI, class curves, from p'] / value:6.2f} x MONAI from p")
    for name in [name for name in calls if name.endswith("route, from p")]:
        with AnonymousPeak() as memory:
            calls[name]()
        print(f"  {name}: {memory.extra:.0f} MB more than before a warm call")
        median[f"{name}, MB"] = memory.extra
    curves = calls["torch route, from p"]().on("all")
    theirs = calls["torchmetrics, top label, from p"]().item()
    monais = calls["MONAI, class curves, from p"]()[0].mean().item()
    print(f"  ECE: ours {ECE().value(curves)[None]:.6f}, torchmetrics {theirs:.6f}")
    print(f"  CECE: ours {CECE().value(curves)[None]:.6f}, MONAI {monais:.6f}")
    gap = abs(float(curves.top_confidence.sum() - curves.top_hits.sum())) / curves.number
    print(f"  |mean confidence - accuracy| {gap:.6f}: no ECE can be below it")
    return median


def stream(calls: list[tuple[str, str]]) -> None:
    """Peak anonymous MB of a process that scores a 5-class 512 x 512 x 600 float16 file, by function and route."""
    shape = (5, 600, 512, 512)
    with tempfile.TemporaryDirectory() as folder:
        logits = np.lib.format.open_memmap(Path(folder) / "logits.npy", "w+", np.float16, shape)
        labels = np.lib.format.open_memmap(Path(folder) / "labels.npy", "w+", np.uint8, shape[1:])
        rng = np.random.default_rng(0)
        part = rng.normal(scale=2, size=(5, 20, 512, 512)).astype(np.float16)
        part[0] += np.float16(5)
        for a in range(0, 600, 20):
            logits[:, a : a + 20] = part
            labels[a : a + 20] = rng.random((20, 512, 512)) > 0.97
        logits.flush()
        del logits, labels
        for call, route in calls:
            code = f"""
import sys, time; sys.path.insert(0, {str(Path(__file__).parent)!r})
import numpy as np
from metrics_calibration import AnonymousPeak
from calibseg.metrics.statistics.binning import all_statistics, calibration_statistics
scores = np.load({str(Path(folder) / "logits.npy")!r}, mmap_mode="r")
labels = np.load({str(Path(folder) / "labels.npy")!r}, mmap_mode="r")
with AnonymousPeak() as memory:
    start = time.perf_counter()
    found = {call}(scores, labels, kind="logits", route={route!r})
    seconds = time.perf_counter() - start
found = found[0] if isinstance(found, tuple) else found
assert found.on("all").number == labels.size
print(seconds, memory.total, memory.extra)
"""
            done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
            seconds, total, extra = map(float, done.stdout.split())
            print(
                f"  {'met   ' if total < 500 else 'MISSED'} {call}, {route} route: {total:.0f} MB anonymous at most, "
                f"{extra:.0f} MB for the call, {seconds:.1f} s",
                flush=True,
            )


def main() -> None:
    """Run it all and say which bars are met."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--shape", type=int, nargs=3, default=(155, 240, 240))
    parser.add_argument("--no-stream", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    smooth = compare(tuple(options.shape), 0.3, options.repeats)
    compare(tuple(options.shape), 2.0, options.repeats)
    monai, softmax_monai = smooth["MONAI, class curves, from p"], smooth["MONAI, softmax first"]
    bars = [
        ("torch route at least as fast as MONAI", monai / smooth["torch route, from p"], 1.0),
        ("everything, torch: as fast as MONAI", monai / smooth["everything, torch route, from p"], 1.0),
    ]
    if numba_is_here():
        fast = smooth["numba route, from p"]
        from_p, from_logits = (smooth[f"everything, numba route, from {name}"] for name in ("p", "logits"))
        bars += [
            ("everything, numba: 5 x faster than MONAI, from p", monai / from_p, 5.0),
            ("everything, numba: 3 x faster than softmax + MONAI", softmax_monai / from_logits, 3.0),
            ("numba route 5 x faster than MONAI, from p", monai / fast, 5.0),
            ("numba route 3 x faster than softmax + MONAI", softmax_monai / smooth["numba route, from logits"], 3.0),
            ("numba route as fast as torchmetrics' top label", smooth["torchmetrics, top label, from p"] / fast, 1.0),
        ]
    print("\nbars (on the smooth volume)")
    for name, ratio, least in bars:
        print(f"  {'met   ' if ratio >= least else 'MISSED'} {name}: {ratio:.2f} x")
    for name in [name for name in smooth if name.endswith(", MB")]:
        print(f"  {'met   ' if smooth[name] < 64 else 'MISSED'} {name} extra under 64: {smooth[name]:.0f}")
    if not options.no_stream:
        print("\na 512 x 512 x 600 file of 5 classes in float16, from disk, under 500 MB")
        routes = ("torch", *(["numba"] if numba_is_here() else []))
        stream([(call, route) for route in routes for call in ("calibration_statistics", "all_statistics")])


if __name__ == "__main__":
    main()
