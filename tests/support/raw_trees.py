"""Tiny raw studies in the exact layout of the real ones: names, dtypes and headers. One function per dataset key."""

import json
import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import nibabel as nib
import numpy as np

os.environ.setdefault("CALIBSEG_CACHE", tempfile.mkdtemp())  # readers keep what they computed, here not in the home
RAS = np.diag([1.0, 1.0, 1.0, 1.0])
LPS = np.diag([-1.0, -1.0, 1.0, 1.0])


@dataclass
class Tree:
    """What a reader must find below `root`."""

    root: Path
    ids: list[str]
    patients: list[str]
    label_files: dict[str, Path] = field(default_factory=dict)  # case id -> NIfTI label, to check places
    options: dict = field(default_factory=dict)


def write_nifti(path: Path, array: np.ndarray, affine: np.ndarray, dtype: type) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    nib.save(nib.Nifti1Image(array.astype(dtype), affine), path)
    return path


def spaced(base: np.ndarray, zooms: tuple[float, float, float], origin: tuple[float, float, float]) -> np.ndarray:
    affine = base @ np.diag([*zooms, 1.0])
    affine[:3, 3] = origin
    return affine


def grey(rng: np.random.Generator, shape: tuple[int, ...], scale: float = 300.0) -> np.ndarray:
    return rng.gamma(2.0, scale, shape)


def blocks(shape: tuple[int, int, int], values: list[int]) -> np.ndarray:
    """Background 0, and one block per value, off the centre, so that a flip or a swap of axes shows."""
    label = np.zeros(shape, np.int16)
    step = max(1, shape[0] // (len(values) + 2))
    for number, value in enumerate(values):
        label[1 + number * step : 1 + (number + 1) * step, 1 : shape[1] // 2, : (shape[2] + 1) // 2] = value
    return label


def acdc(root: Path, rng: np.random.Generator) -> Tree:
    tree = Tree(root, [], [])
    for name, (ed, es) in {"patient001": (1, 12), "patient002": (1, 9), "patient003": (4, 11)}.items():
        folder = root / "database" / "training" / name
        shape, affine = (20, 24, 3), spaced(RAS, (1.5625, 1.5625, 10.0), (0, 0, 0))
        for frame in (ed, es):
            stem = folder / f"{name}_frame{frame:02d}"
            write_nifti(Path(f"{stem}.nii.gz"), grey(rng, shape), affine, np.int16)
            label = write_nifti(Path(f"{stem}_gt.nii.gz"), blocks(shape, [1, 2, 3]), affine, np.uint8)
            tree.label_files[f"{name}_{'ED' if frame == ed else 'ES'}"] = label
        write_nifti(folder / f"{name}_4d.nii.gz", grey(rng, (*shape, 2)), affine, np.int16)
        (folder / "Info.cfg").write_text(f"ED: {ed}\nES: {es}\nGroup: DCM\nHeight: 184.0\nNbFrame: 30\nWeight: 95.0\n")
        tree.ids += [f"{name}_ED", f"{name}_ES"]
        tree.patients += [name, name]
    return tree


def flare(root: Path, rng: np.random.Generator) -> Tree:
    tree = Tree(root, [f"train_{n:03d}" for n in range(4)], [f"train_{n:03d}" for n in range(4)])
    for id in tree.ids:
        shape, affine = (26, 22, 12), spaced(LPS, (0.8, 0.8, 2.5), (180.0, 150.0, -700.0))
        write_nifti(root / "TrainingImg" / f"{id}_0000.nii.gz", rng.normal(0, 300, shape), affine, np.int16)
        tree.label_files[id] = write_nifti(
            root / "TrainingMask" / f"{id}.nii.gz", blocks(shape, [1, 2, 3, 4]), affine, np.uint8
        )
    return tree


def brats19(root: Path, rng: np.random.Generator) -> Tree:
    ids = ["BraTS19_2013_10_1", "BraTS19_CBICA_AAB_1", "BraTS19_TCIA10_103_1"]
    tree = Tree(root, ids, [id.rpartition("_")[0] for id in ids])
    for id, grade in zip(ids, ("HGG", "HGG", "LGG"), strict=True):
        folder = root / "MICCAI_BraTS_2019_Data_Training" / grade / id
        shape, affine = (24, 24, 15), spaced(LPS, (1, 1, 1), (0, 239, 0))
        for channel in ("flair", "t1", "t1ce", "t2"):
            write_nifti(folder / f"{id}_{channel}.nii.gz", grey(rng, shape), affine, np.int16)
        tree.label_files[id] = write_nifti(folder / f"{id}_seg.nii.gz", blocks(shape, [1, 2, 4]), affine, np.uint8)
    return tree


def mrbrains18(root: Path, rng: np.random.Generator) -> Tree:
    subjects = ["070", "1", "14", "148", "4", "5", "7"]
    tree = Tree(root, [f"subject_{name}" for name in subjects], subjects)
    for name in subjects:
        folder = root / "training" / name
        shape, affine = (24, 24, 6), spaced(LPS, (0.958, 0.958, 3.0), (110.0, 100.0, -60.0))
        for channel in ("FLAIR", "T1", "IR", "reg_T1", "reg_IR"):
            write_nifti(folder / "pre" / f"{channel}.nii.gz", grey(rng, shape), affine, np.float32)
        label = blocks(shape, list(range(1, 11)))
        tree.label_files[f"subject_{name}"] = write_nifti(folder / "segm.nii.gz", label, affine, np.float32)
    return tree


def promise12(root: Path, rng: np.random.Generator) -> Tree:
    import SimpleITK as sitk

    ids = ["Case00", "Case01", "Case02"]
    folder = root / "TrainingData_Part1"
    folder.mkdir(parents=True)
    for id in ids:
        shape = (20, 24, 5)  # (x, y, z)
        for name, array in (
            (id, grey(rng, shape).astype(np.int16)),
            (f"{id}_segmentation", blocks(shape, [1]).astype(np.int8)),
        ):
            image = sitk.GetImageFromArray(array.transpose(2, 1, 0))
            image.SetSpacing((0.625, 0.625, 3.6))
            image.SetOrigin((-75.2, -107.3, -30.1))
            sitk.WriteImage(image, str(folder / f"{name}.mhd"))
    return Tree(root, ids, ids)


def _decathlon(root: Path, rng: np.random.Generator, name: str, ids: list[str], labels: dict, modality: dict) -> Tree:
    tree = Tree(root / name, ids, ids)
    shape, channels = (14, 20, 10), len(modality)
    for id in ids:
        image = grey(rng, shape if channels == 1 else (*shape, channels))
        write_nifti(root / name / "imagesTr" / f"{id}.nii.gz", image, RAS, np.float32)
        label = blocks(shape, list(range(1, len(labels))))
        tree.label_files[id] = write_nifti(root / name / "labelsTr" / f"{id}.nii.gz", label, RAS, np.uint8)
        (root / name / "imagesTr" / f"._{id}.nii.gz").write_bytes(b"macOS left this here")
    about = {
        "name": name,
        "modality": modality,
        "labels": labels,
        "numTraining": len(ids),
        "training": [{"image": f"./imagesTr/{id}.nii.gz", "label": f"./labelsTr/{id}.nii.gz"} for id in ids],
        "test": [],
    }
    (root / name / "dataset.json").write_text(json.dumps(about))
    return tree


def hippocampus(root: Path, rng: np.random.Generator) -> Tree:
    ids = ["hippocampus_001", "hippocampus_003", "hippocampus_004"]
    labels = {"0": "background", "1": "Anterior", "2": "Posterior"}
    return _decathlon(root, rng, "Task04_Hippocampus", ids, labels, {"0": "MRI"})


def prostate(root: Path, rng: np.random.Generator) -> Tree:
    ids = ["prostate_00", "prostate_01", "prostate_02"]
    labels = {"0": "background", "1": "PZ", "2": "TZ"}
    return _decathlon(root, rng, "Task05_Prostate", ids, labels, {"0": "T2", "1": "ADC"})


def decathlon(root: Path, rng: np.random.Generator) -> Tree:
    ids = ["la_003", "la_004", "la_005"]
    return _decathlon(root, rng, "Task02_Heart", ids, {"0": "background", "1": "left atrium"}, {"0": "MRI"})


def nnunet(root: Path, rng: np.random.Generator) -> Tree:
    ids = ["p1_a", "p1_b", "p2_a", "p3_a"]
    tree = Tree(root, ids, ["p1", "p1", "p2", "p3"], options={"patient": "(p[0-9]+)_"})
    for id in ids:
        shape, affine = (16, 18, 8), spaced(LPS, (1.0, 1.0, 2.0), (7, 8, 9))
        for channel in range(2):
            write_nifti(root / "imagesTr" / f"{id}_{channel:04d}.nii.gz", grey(rng, shape), affine, np.float32)
        label = blocks(shape, [1, 2, 3, 4])  # 4 is ignored
        tree.label_files[id] = write_nifti(root / "labelsTr" / f"{id}.nii.gz", label, affine, np.uint8)
    about = {
        "channel_names": {"0": "T1", "1": "T2"},
        "labels": {"background": 0, "whole": [1, 2, 3], "core": [2, 3], "active": 3, "ignore": 4},
        "regions_class_order": [1, 2, 3],
        "numTraining": 4,
        "file_ending": ".nii.gz",
    }
    (root / "dataset.json").write_text(json.dumps(about))
    return tree


def folder(root: Path, rng: np.random.Generator) -> Tree:
    tree = Tree(root, ["a", "b", "c", "d"], ["p1", "p1", "p2", "p3"])
    lines = ['classes = ["background", "liver"]', 'channels = ["CT"]', "regions = { all = [1] }"]
    for id, patient in zip(tree.ids, tree.patients, strict=True):
        shape, affine = (12, 14, 6), spaced(LPS, (1, 1, 3), (0, 0, 0))
        write_nifti(root / f"{id}.nii.gz", grey(rng, shape), affine, np.int16)
        tree.label_files[id] = write_nifti(root / f"{id}_1.nii.gz", blocks(shape, [1]), affine, np.uint8)
        write_nifti(root / f"{id}_2.nii.gz", np.roll(blocks(shape, [1]), 1, 0), affine, np.uint8)
        lines += ["[[case]]", f'id = "{id}"', f'patient = "{patient}"', f'images = ["{id}.nii.gz"]']
        lines += [f'labels = ["{id}_1.nii.gz", "{id}_2.nii.gz"]']
    (root / "cases.toml").write_text("\n".join(lines))
    return tree


def busi(root: Path, rng: np.random.Generator) -> Tree:
    """Six pictures; malignant (1) is benign (2) with another contrast, so both are one group."""
    from PIL import Image
    from scipy.ndimage import gaussian_filter

    top = root / "Dataset_BUSI_with_GT"
    names = {"benign": 4, "malignant": 2, "normal": 1}
    ids = [f"{kind} ({n})" for kind in ("benign", "malignant") for n in range(1, names[kind] + 1)]
    pictures = {}
    for kind, count in names.items():
        (top / kind).mkdir(parents=True)
        for n in range(1, count + 1):
            height, width = 60 + 5 * n, 80 + 3 * n
            picture = 128 + 2000 * gaussian_filter(rng.normal(0, 1, (height, width)), 6)
            if (kind, n) == ("malignant", 1):
                picture = 20 + 0.8 * pictures["benign", 2]
            pictures[kind, n] = picture
            height, width = picture.shape
            stem = top / kind / f"{kind} ({n})"
            rgb = np.repeat(picture.clip(0, 255).astype(np.uint8)[:, :, None], 3, 2)
            Image.fromarray(rgb).save(f"{stem}.png")
            mask = np.zeros((height, width), np.uint8)
            mask[5:20, 10:30] = 0 if kind == "normal" else 255
            Image.fromarray(mask).save(f"{stem}_mask.png")
            if (kind, n) == ("benign", 3):
                Image.fromarray(np.roll(mask, 25, 0)).save(f"{stem}_mask_1.png")
    patients = [id if id != "malignant (1)" else "benign (2)" for id in ids]
    return Tree(root, ids, patients)


def lidc4(root: Path, rng: np.random.Generator) -> Tree:
    masks = np.zeros((4, 4, 128, 128), np.uint8)
    for case in range(4):
        for rater in range(4):
            masks[case, rater, 50 + rater : 70, 55 : 75 - case] = 1
    np.savez_compressed(
        root / "lidc_4rater_central.npz",
        images=rng.integers(0, 255, (4, 128, 128), np.uint8),
        masks_packed=np.packbits(masks, axis=-1),
        n_raters=np.full(4, 4, np.uint8),
        patient=np.array(["LIDC-IDRI-0001", "LIDC-IDRI-0003", "LIDC-IDRI-0003", "LIDC-IDRI-0004"]),
        nodule=np.array([0, 1, 2, 0], np.int16),
        slice=np.array([3, 7, 2, 2], np.int16),
    )
    ids = ["LIDC-IDRI-0001_n0_s3", "LIDC-IDRI-0003_n1_s7", "LIDC-IDRI-0003_n2_s2", "LIDC-IDRI-0004_n0_s2"]
    return Tree(root, ids, [id.partition("_")[0] for id in ids])


def phantom(root: Path, rng: np.random.Generator) -> Tree:
    del rng
    ids = [f"phantom_{n:04d}" for n in range(4)]
    return Tree(root, ids, ids, options={"cases": 4, "size": (6, 32, 32)})


TREES: dict[str, Callable[[Path, np.random.Generator], Tree]] = {
    function.__name__: function
    for function in (
        acdc,
        flare,
        brats19,
        mrbrains18,
        promise12,
        hippocampus,
        prostate,
        decathlon,
        nnunet,
        folder,
        busi,
        lidc4,
        phantom,
    )
}


def two_folders(root: Path, rng: np.random.Generator) -> Tree:
    """What the template of `calibseg new dataset` reads."""
    tree = Tree(root, ["a", "b", "c"], ["a", "b", "c"])
    for id in tree.ids:
        shape, affine = (14, 12, 6), spaced(LPS, (1, 1, 2), (0, 0, 0))
        write_nifti(root / "images" / f"{id}.nii.gz", grey(rng, shape), affine, np.int16)
        tree.label_files[id] = write_nifti(root / "labels" / f"{id}.nii.gz", blocks(shape, [1]), affine, np.uint8)
    return tree


def make_tree(key: str, root: Path) -> Tree:
    """The raw study of a dataset, the same every time."""
    root.mkdir(parents=True, exist_ok=True)
    return TREES.get(key, two_folders)(root, np.random.default_rng(0))
