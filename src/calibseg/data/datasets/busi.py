"""BUSI: breast ultrasound, benign and malignant lesions, 647 pictures.

A picture may have several masks, which are united. The set names no patients and holds many near-duplicates; pictures
whose difference hashes (256 bits: does grey fall from one pixel to the next, in a 16x17 thumbnail) differ in at most
LOOK_ALIKE bits share one split group: at 40 bits 146 pairs of the published set, nearly all the same view when looked
at (at 12 bits 42). The papers' 445/65/137 pictures are met to the nearest group; `prepare` says what became of them.
Hashes are kept in ~/.cache/calibseg (or CALIBSEG_CACHE), because decoding all pictures takes half a minute.
"""

import contextlib
import os
import re
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
from numpy import ndarray as Array

from calibseg.core.files import read_json, write_json
from calibseg.core.hashing import fingerprint
from calibseg.core.types import BadInput, Case
from calibseg.data.datasets import Dataset
from calibseg.data.layouts import first_folder
from calibseg.data.splits import three_way
from calibseg.data.study import Study
from calibseg.io.images import read_volume

LOOK_ALIKE = 40  # of 256 bits


class BUSI(Dataset):
    """Breast UltraSound Images."""

    title = "BUSI"
    licence = "none stated; cite the paper"
    how_to_get = "https://scholar.cu.edu.eg/?q=afahmy/pages/dataset (Dataset_BUSI_with_GT)"
    layout = "Dataset_BUSI_with_GT/{benign,malignant}/{benign (N).png, benign (N)_mask.png, benign (N)_mask_1.png}"
    citation = "Al-Dhabyani et al., Dataset of breast ultrasound images, Data in Brief 28 (2020) 104863."
    classes = ("background", "lesion")
    channels = ("ultrasound",)
    protocol = {"slice_axis": "axial", "resize": (None, 256, 256)}
    split = {"sizes": (445, 65, 137), "unit": "case"}
    pairs = 0  # of pictures that look alike, as `find` counts them

    def find(self, root: Path) -> list[Study]:
        folder = first_folder(root, "benign", ("Dataset_BUSI_with_GT", "BUSI"))
        pictures = [
            path
            for kind in ("benign", "malignant")
            for path in sorted((folder / kind).glob("[!.]*.png"))
            if "_mask" not in path.stem
        ]
        masks: dict[str, list[Path]] = {}
        for path in sorted(folder.glob("*/[!.]*_mask*.png")):
            masks.setdefault(re.sub(r"_mask.*", "", path.stem), []).append(path)
        hashes = _hashes(pictures)
        groups, self.pairs = look_alikes(hashes), len(alike_pairs(hashes))
        names = [path.stem for path in pictures]
        return [
            self.study(name, names[group], [path], masks.get(name, []))
            for name, group, path in zip(names, groups, pictures, strict=True)
        ]

    def read(self, study: Study) -> Case:
        image = _grey(study.images[0])
        if not study.labels:
            raise BadInput(f"{study.images[0]}: has no mask beside it; leave such cases out with --skip-bad")
        union = np.zeros(image.shape, np.uint8)
        for path in study.labels:
            mask = _grey(path) > 0
            if mask.shape != image.shape:
                raise BadInput(
                    f"{path}: has {mask.shape[::-1]} pixels, its picture {image.shape[::-1]}; they must share one grid"
                )
            union[mask] = 1
        return self.case(study, image[None, None], union[None, None], read_volume(study.images[0]).original)

    def notes(self, studies: list[Study]) -> list[str]:
        patients = {study.id: study.patient for study in studies}
        sizes = [size for size in Counter(patients.values()).values() if size > 1]
        note = (
            f"{self.pairs} pairs look alike (at most {LOOK_ALIKE} of 256 bits differ): {sum(sizes)} of {len(studies)} "
            f"pictures, in {len(sizes)} groups of at most {max(sizes, default=1)}; a group stays in one part of a split"
        )
        with contextlib.suppress(BadInput):  # too few pictures for three parts
            split = three_way(patients, self.split["sizes"], unit="case")
            sizes_asked, met = self.split["sizes"], (len(split.train), len(split.validation), len(split.test))
            note += f", whose sizes are {'/'.join(map(str, met))} where {'/'.join(map(str, sizes_asked))} are asked for"
        return [note]


def difference_hash(grey: Array) -> Array:
    """256 bits: in a thumbnail of 16 rows and 17 columns, is a pixel brighter than the next one?"""
    rows, columns = (np.linspace(0, n, parts + 1).astype(int) for n, parts in zip(grey.shape, (16, 17), strict=True))
    total = np.pad(grey.astype(np.int64), ((1, 0), (1, 0))).cumsum(0).cumsum(1)
    total = total[np.ix_(rows, columns)]
    sums = total[1:, 1:] - total[:-1, 1:] - total[1:, :-1] + total[:-1, :-1]
    mean = sums / np.maximum(1, np.outer(np.diff(rows), np.diff(columns)))
    return np.packbits(mean[:, :-1] > mean[:, 1:])


def alike_pairs(hashes: Array) -> list[tuple[int, int]]:
    """Pictures that look alike, the earlier one first."""
    pairs = []
    for index, current in enumerate(hashes):
        far = np.bitwise_count(hashes[:index] ^ current).sum(1, dtype=int)
        pairs += [(int(earlier), index) for earlier in np.nonzero(far <= LOOK_ALIKE)[0]]
    return pairs


def look_alikes(hashes: Array) -> list[int]:
    """For each picture the first picture that it looks like, directly or through others."""
    group = list(range(len(hashes)))
    for pair in alike_pairs(hashes):
        first, last = sorted(group[index] for index in pair)
        group = [first if member == last else member for member in group]
    return group


def _hashes(pictures: list[Path]) -> Array:
    """Of every picture; those of files that have not changed since they were hashed last are not decoded again."""
    base = os.environ.get("CALIBSEG_CACHE") or Path.home() / ".cache" / "calibseg"
    cache = Path(base) / f"busi-{fingerprint([str(path.absolute()) for path in pictures], size=8)}.json"
    cached: dict[str, str] = {}
    with contextlib.suppress(BadInput):
        cached = read_json(cache, "picture-hashes", dict[str, str])
    hashes = {}
    for path in pictures:
        stat = path.stat()
        key = f"{path.parent.name}/{path.name} {stat.st_size} {stat.st_mtime_ns}"
        hashes[key] = cached.get(key, "")
        if not re.fullmatch("[0-9a-f]{64}", hashes[key]):
            try:
                hashes[key] = difference_hash(_grey(path)).tobytes().hex()
            except BadInput:  # reading the case says what is wrong with it; like nobody, as chance has it
                hashes[key] = fingerprint(key, size=32)
    if hashes != cached:
        with contextlib.suppress(BadInput):  # no room for a cache is no reason to stop
            write_json(cache, "picture-hashes", hashes)
    return np.array([np.frombuffer(bytes.fromhex(text), np.uint8) for text in hashes.values()])


def _grey(path: Path) -> Array:
    """[y x]: a colour picture as the mean of its channels (BUSI stores grey pictures in colour)."""
    array: Any = read_volume(path).array
    return array.mean(0)[0] if array.ndim == 4 else array[0]
