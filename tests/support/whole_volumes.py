"""A volume at once, the plain way: what the slice by slice code of the package must agree with."""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from nibabel.orientations import apply_orientation, io_orientation
from numpy import ndarray as Array
from torch import Tensor

from calibseg.core.types import BadInput
from calibseg.data.preprocessing import crop_overlap, resampled
from calibseg.data.slices import SliceSource


def to_original(probabilities: Array, header: Mapping[str, Any]) -> Array:
    """Probabilities [k z y x] of a prepared case -> [x y z k] on the grid of the file it came from.

    Outside the crop nothing was predicted: that is background for certain. Interpolated linearly, then renormalised.
    """
    geometry = header["geometry"]
    start, resized = geometry["start"], geometry["resized"]
    if probabilities.shape[1:] != tuple(geometry["final"]):
        raise BadInput(f"probabilities have shape {probabilities.shape[1:]}, the case {tuple(geometry['final'])}")
    whole = np.zeros((len(probabilities), *resized), np.float32)
    whole[0] = 1
    theirs, ours = crop_overlap(start, geometry["final"], resized)
    whole[:, *theirs] = probabilities[:, *ours]
    whole = resampled(whole, tuple(geometry["shape"]))
    whole /= whole.sum(0)
    return from_ras(whole, header["original"])


def from_ras(array: Array, original: dict[str, Any]) -> Array:
    """[z y x] or [c z y x] as prepared -> [x y z] or [x y z c] as the file had it: the inverse of `read_volume`."""
    turn = io_orientation(np.array(original["affine"]))
    back = np.empty_like(turn)
    for axis, (to, flip) in enumerate(turn):
        back[int(to)] = axis, flip
    return apply_orientation(array.transpose(*range(array.ndim)[::-1]), back)


def volume_scores(case: SliceSource, parts: Iterable[Tensor]) -> Array:
    """The network's answers to `volume_batches`, [n k h w] each, as one volume [k z y x] without the padding."""
    n, _, h, w = case.shape
    volume, begin = np.empty((n, 0, h, w), np.float32), 0
    for part in parts:
        if begin == 0:
            volume = np.empty((n, part.shape[1], h, w), np.float32)
        volume[begin : begin + len(part)] = part[:, :, :h, :w].float().cpu().numpy()
        begin += len(part)
    if begin != n:
        raise BadInput(f"case {case.id!r} has {n} slices, scores were given for {begin}")
    return np.moveaxis(volume, 0, 1 + case.axis)
