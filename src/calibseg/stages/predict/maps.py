r"""A prediction as NIfTI files on the scan's grid, written slice after slice, and what it says about each structure.

Of every voxel: the label (largest probability; ties: smallest id), the confidence (that probability), the entropy
$-\sum_k p_k \log p_k$ in nats, and the probabilities, classes on the fourth axis. The arrays are files that are mapped
into memory, so that the system writes them out when it needs the room: memory holds a slice, not the volume.

A structure is a class other than background, or a region (a set of classes, whose probability is their sum). With the
voxels S that are labelled as the structure, p its probability and v the volume of a voxel:

$$ \text{volume} = v |S|, \quad \text{expected volume} = v \sum_i p_i, \quad
   \text{mean confidence} = \frac{1}{|S|} \sum_{i \in S} p_i, \quad
   \text{soft-Dice confidence} = \frac{2 \sum_{i \in S} p_i}{\sum_i p_i + |S|} $$

Paper: Borges, Pacheco and Silva, Soft Dice Confidence, arXiv 2402.10665 (the last one, there for a binary mask).
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy import ndarray as Array

from calibseg.core.types import BadInput
from calibseg.data.preprocessing import AXES
from calibseg.io.images import to_ras
from calibseg.io.nifti_writer import compressed, mapped_nifti, place_of


class Maps:
    """Takes slices of probabilities and leaves label, confidence, entropy and probabilities as files in `folder`."""

    def __init__(self, folder: Path, classes: int, header: Mapping[str, Any], scan: Path, *, per_class: bool = False):
        original = header["original"]
        shape, affine = tuple(original["shape"]), np.array(original["affine"], float)
        kinds = {"label": np.uint8 if classes <= 256 else np.int16, "confidence": np.float32, "entropy": np.float32}
        shown = {"label": (0, 0), "confidence": (0, 1), "entropy": (0, float(np.log(max(classes, 2))))}
        self.folder, self.axis = folder, AXES[header["slice_axis"]]
        self.voxel_ml = abs(float(np.linalg.det(affine[:3, :3]))) / 1000
        grid = place_of(scan, affine)
        self.views = {
            name: self._view(mapped_nifti(folder / f"{name}.nii", shape, kind, grid, shown[name]), affine)
            for name, kind in kinds.items()
        }
        # Classes are the slowest axis of the file, so each of them is a volume of its own.
        file = mapped_nifti(folder / "probabilities.nii", (*shape, classes), np.float32, grid, (0, 1))
        self.probabilities = [self._view(file[..., k], affine) for k in range(classes)]
        if per_class:
            apart = [mapped_nifti(folder / f"class_{k}.nii", shape, np.float32, grid, (0, 1)) for k in range(classes)]
            self.views |= {f"class_{k}": self._view(volume, affine) for k, volume in enumerate(apart)}
        self.fullest: tuple[int, int, Any, Any] = (-1, 0, None, None)  # voxels, number, labels, confidence of a slice
        self.done = 0
        self.voxels = np.zeros(classes, np.int64)
        self.mass = np.zeros((classes, classes))  # [a b]: probability of b summed over the voxels labelled a
        self.entropy = 0.0

    def _view(self, array: Array, affine: Array) -> Array:
        """The array of a file as slices [n h w] in the order in which they come."""
        return np.moveaxis(to_ras(array, affine)[0].T, self.axis, 0)

    def add(self, p: Array) -> None:
        """The next slice: p [k h w], in RAS+, its classes summing to 1."""
        label = p.argmax(0)
        log = np.log(p, out=np.zeros_like(p), where=p > 0)
        entropy = -np.einsum("khw,khw->hw", p, log)
        np.maximum(entropy, 0, out=entropy)  # -0 where a class is certain
        maps = {"label": label, "confidence": p.max(0), "entropy": entropy}
        maps |= {f"class_{k}": part for k, part in enumerate(p)}
        area = int((label > 0).sum())
        middle = self.done == len(self.views["label"]) // 2
        if area > max(self.fullest[0], 0) or (middle and self.fullest[0] <= 0):
            self.fullest = (area, self.done, label, maps["confidence"].copy())
        for name, view in self.views.items():
            view[self.done] = maps[name]
        for view, part in zip(self.probabilities, p, strict=True):
            view[self.done] = part
        self.done += 1
        flat, classes = label.ravel(), len(p)
        self.voxels += np.bincount(flat, minlength=classes)
        self.mass += np.stack([np.bincount(flat, part.ravel(), classes) for part in p], 1)
        self.entropy += float(entropy.sum(dtype=float))

    def close(self) -> dict[str, Path]:
        """Compress the files; the names of the maps and where they lie."""
        slices = len(self.views["label"])
        if self.done != slices:
            raise BadInput(f"the scan has {slices} slices, probabilities were given for {self.done}")
        names = [*self.views, "probabilities"]
        self.views, self.probabilities = {}, []  # the last holders of the mapped files
        return {name: compressed(self.folder / f"{name}.nii") for name in names}

    def structures(self, names: Iterable[str], regions: Mapping[str, Iterable[int]]) -> dict[str, dict[str, Any]]:
        """Volume, expected volume and confidence of each foreground class and region; None where undefined."""
        members = {name: [number] for number, name in enumerate(names) if number} | {
            name: list(ids) for name, ids in regions.items()
        }
        return {name: self._structure(ids) for name, ids in members.items()}

    def _structure(self, ids: list[int]) -> dict[str, Any]:
        voxels = int(self.voxels[ids].sum())
        inside, everywhere = float(self.mass[np.ix_(ids, ids)].sum()), float(self.mass[:, ids].sum())
        return {
            "voxels": voxels,
            "volume_ml": voxels * self.voxel_ml,
            "expected_volume_ml": everywhere * self.voxel_ml,
            "mean_confidence": inside / voxels if voxels else None,
            "soft_dice_confidence": 2 * inside / (everywhere + voxels) if everywhere + voxels else None,
        }
