"""How fast an epoch of slices is delivered, against two ways of reading that people use.

    python benchmarks/data.py

(a) opens the image's and the label's .nii.gz for every slice; (b) reads the whole image and label volume from one .h5
per case for every slice, as the papers' released loaders do. All three deliver the same random slices of the
hippocampus set (phantoms in its layout where it is absent) to batches of 16 in float32 and int64, padded to a multiple
of 32, and take turns batch by batch in one run. Read the ratios; absolute times depend on what else the machine does.
"""

import argparse
import os
import resource
import sys
import tempfile
import time
from pathlib import Path

import nibabel as nib
import numpy as np
import torch

from calibseg.core import registry
from calibseg.data import prepared
from calibseg.data.slices import Slices, padded
from calibseg.stages.prepare import prepare

BATCH, MULTIPLE = 16, 32
DATA = Path(os.environ.get("CALIBSEG_DATA", Path(__file__).parents[2] / "shared" / "data"))


def raw_study(folder: Path) -> tuple[str, Path]:
    """The real hippocampus set, or phantoms of about its size in the same layout."""
    if (DATA / "Task04_Hippocampus").is_dir():
        return "hippocampus", DATA / "Task04_Hippocampus"
    import json

    names = []
    for case in registry.build("datasets", "phantom", {"cases": 60, "size": (35, 51, 35), "classes": 3}).cases():
        for kind, array in (("imagesTr", case.image[0]), ("labelsTr", case.labels[0])):
            (folder / kind).mkdir(parents=True, exist_ok=True)
            nib.save(nib.Nifti1Image(array.T, np.eye(4)), folder / kind / f"{case.id}.nii.gz")
        names.append({"image": f"imagesTr/{case.id}.nii.gz", "label": f"labelsTr/{case.id}.nii.gz"})
    (folder / "dataset.json").write_text(json.dumps({"training": names}))
    return "hippocampus", folder


def batch_of(images: list[np.ndarray], labels: list[np.ndarray]) -> tuple[torch.Tensor, torch.Tensor]:
    image = padded([part[None] for part in images], MULTIPLE, 0, np.float32)
    return torch.from_numpy(image), torch.from_numpy(padded(labels, MULTIPLE, -100, np.int64))


def from_nifti(root: Path, ids: tuple[str, ...], slices: tuple[int, ...]) -> tuple[torch.Tensor, torch.Tensor]:
    images, labels = [], []
    for id, index in zip(ids, slices, strict=True):
        images.append(np.asarray(nib.load(root / "imagesTr" / f"{id}.nii.gz").dataobj)[index].T)  # type: ignore[attr-defined]
        labels.append(np.asarray(nib.load(root / "labelsTr" / f"{id}.nii.gz").dataobj)[index].T)  # type: ignore[attr-defined]
    return batch_of(images, labels)


def from_h5(folder: Path, ids: tuple[str, ...], slices: tuple[int, ...]) -> tuple[torch.Tensor, torch.Tensor]:
    import h5py

    images, labels = [], []
    for id, index in zip(ids, slices, strict=True):
        with h5py.File(folder / f"{id}.h5", "r") as file:
            images.append(file["img"][:][index])  # type: ignore[index]
            labels.append(file["mask"][:][index])  # type: ignore[index]
    return batch_of(images, labels)


def main() -> None:
    argparse.ArgumentParser(description=__doc__.split("\n")[0]).parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        key, root = raw_study(folder / "raw")
        start = time.perf_counter()
        done = prepare(key, root, folder / "work")
        print(f"{done.cases} cases, {done.slices} slices prepared in {time.perf_counter() - start:.1f} s")
        start = time.perf_counter()
        prepare(key, root, folder / "work")
        print(f"prepared again, nothing to do: {time.perf_counter() - start:.2f} s")
        cases = [
            prepared.open_case(folder / "work", entry["id"]) for entry in prepared.read_index(folder / "work")["cases"]
        ]
        others = {"(a) .nii.gz opened per slice": lambda *what: from_nifti(root, *what)}
        try:
            import h5py

            for case in cases:
                with h5py.File(folder / f"{case.id}.h5", "w") as file:
                    file["img"], file["mask"] = case.read("image")[:, 0], case.read("labels")[:, 0]
            others["(b) whole .h5 volume per slice"] = lambda *what: from_h5(folder, *what)
        except ImportError:
            print("h5py is not installed: (b) is left out")
        compare(cases, others)
        beside_the_network(cases)
        latency(cases)


def compare(cases: list[prepared.PreparedCase], others: dict) -> None:
    loader = Slices(cases, BATCH, multiple_of=MULTIPLE, workers=0)
    spent = dict.fromkeys(["calibseg", *others], 0.0)
    batches = loader.epoch(0)
    for _ in range(len(loader)):
        start = time.perf_counter()
        ours = next(batches)
        spent["calibseg"] += time.perf_counter() - start
        for name, read in others.items():
            start = time.perf_counter()
            image, target = read(ours.case_ids, ours.slices)
            spent[name] += time.perf_counter() - start
            assert torch.equal(target, ours.target), name
            assert image.shape == ours.image.shape, name
    total = len(loader.index)
    print(f"\none epoch of {total} slices, {torch.get_num_threads()} threads, taking turns batch by batch")
    for name, seconds in spent.items():
        print(f"  {name:32s} {total / seconds:9.0f} slices/s   {seconds / spent['calibseg']:6.1f}x the time")


def beside_the_network(cases: list[prepared.PreparedCase], batches: int = 12) -> None:
    """The loader against training steps of a small network on the same batches (bar: 20 times its slices/s)."""
    network = registry.build("networks", "unet", {"in_channels": 1, "num_classes": 3, "width": 8, "norm": "batch"})
    optimiser, loss = torch.optim.Adam(network.parameters()), registry.build("losses", "ce")
    spent = {"loader": 0.0, "network": 0.0}
    epoch = Slices(cases, BATCH, multiple_of=MULTIPLE, workers=0).epoch(1)
    for number in range(batches + 2):
        start = time.perf_counter()
        batch = next(epoch)
        middle = time.perf_counter()
        optimiser.zero_grad()
        loss(network(batch.image), batch.target).backward()
        optimiser.step()
        if number >= 2:  # the first steps allocate
            spent["loader"] += middle - start
            spent["network"] += time.perf_counter() - middle
    speed = {name: batches * BATCH / seconds for name, seconds in spent.items()}
    print(f"\nU-Net of width 8, training: {speed['network']:.0f} slices/s; ", end="")
    print(f"loader {speed['loader']:.0f} slices/s, {speed['loader'] / speed['network']:.0f}x (bar: 20)")


def latency(cases: list[prepared.PreparedCase]) -> None:
    rng, times = np.random.default_rng(0), []
    for _ in range(2000):
        case = cases[rng.integers(len(cases))]
        index = int(rng.integers(case.shape[0]))
        start = time.perf_counter()
        case.read("image", index)
        times.append(time.perf_counter() - start)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"a random slice: median {1e3 * np.median(times):.4f} ms, 99 % below {1e3 * np.quantile(times, 0.99):.4f} ms")
    print(f"peak resident memory of this process: {peak:.0f} MB")


if __name__ == "__main__":
    sys.exit(main())
