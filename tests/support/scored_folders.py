"""Folders of predictions and labels to score, and the values of a score table."""

import nibabel as nib
import numpy as np

from calibseg.analysis import table

QUICK = ("dsc", "ece", "hd95")


def save(path, array, affine=None):
    path.parent.mkdir(parents=True, exist_ok=True)
    nib.save(nib.Nifti1Image(array, np.eye(4) if affine is None else affine), path)


def save_case(folder, name, p, labels, affine=None):
    """p [k x y z] and labels [x y z], as NIfTI has its axes; the prediction as nnU-Net stores it."""
    (folder / "p").mkdir(parents=True, exist_ok=True)
    np.savez_compressed(folder / "p" / f"{name}.npz", probabilities=p.transpose(0, 3, 2, 1))
    save(folder / "l" / f"{name}.nii.gz", labels.astype(np.uint8), affine)


def row_of_voxels(foreground, labels):
    """Two classes, a row of voxels along x."""
    one = np.array(foreground, np.float32)[:, None, None]
    return np.stack([1 - one, one]), np.array(labels)[:, None, None]


def random_case(seed, shape=(9, 8, 7), classes=3):
    rng = np.random.default_rng(seed)
    labels = np.zeros(shape, int)
    labels[2:6, 2:6, 2:5] = 1
    labels[5:8, 3:7, 3:6] = classes - 1
    scores = np.stack([labels == k for k in range(classes)]) * 2.0 + rng.normal(size=(classes, *shape))
    p = np.exp(scores)
    return (p / p.sum(0)).astype(np.float32), labels


def values_of(path, **chosen):
    rows = table.read(path).rows
    for column, value in chosen.items():
        rows = rows[rows[column.rstrip("_")] == value]
    return rows["value"].tolist()


def spoil(change):
    p, labels = random_case(0)
    change(p)
    return p, labels
