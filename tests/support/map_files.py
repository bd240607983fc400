"""The files that prediction reads and leaves: contents, names, and one that is damaged."""

import nibabel as nib
import numpy as np


def load(path):
    return np.asanyarray(nib.load(path).dataobj)


def everything_below(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def cut_short(path):
    path.write_bytes(path.read_bytes()[:-500])
