"""The torch route of the second pass that equal-mass bins need: the voxels in the buckets that a cut parts.

The first pass noted between which numbers each class lies in every span; this one opens only spans that reach a wanted
bucket, and there only such classes.
"""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from calibseg.binning.places import Places
from calibseg.binning.spans import Spans, Step
from calibseg.binning.tally import fixed
from calibseg.binning.torch_route import Reach, predicted_class
from calibseg.types import Array

TOGETHER = 1 << 16  # candidates that are looked at together


def keys_of(spans: Spans, threshold: float, wanted: Array, reach: Reach, add: Callable[[Array, Array], None]) -> None:
    """Hand over places 4 row + cell, and keys, of the voxels in the buckets [cell row g] that are wanted."""
    want = torch.from_numpy(wanted).to(spans.device)
    classes, sigmoid = spans.classes, spans.activation == "sigmoid"
    anywhere = (want[:, :classes] | want[:, classes:]).any(0)  # [k g]
    before = torch.nn.functional.pad(anywhere.long().cumsum(1), (1, 0))  # how many wanted buckets lie below each
    flags = anywhere.reshape(-1).to(torch.uint8)
    buckets = Places(None, threshold, spans.device)

    steps = list(reach)
    low, high = (torch.stack([reach[step][end] for step in steps], 1) for end in (0, 1))  # [k step]
    active = before.gather(1, buckets.of(high).long() + 1) > before.gather(1, buckets.of(low).long())
    rows_of = {step: rows.nonzero()[:, 0] for step, rows in zip(steps, active.T, strict=True) if rows.any()}

    def hand_over(waiting: list[tuple[Tensor, ...]]) -> None:
        if waiting:
            for places, keys in chosen(*(torch.cat(parts, -1) for parts in zip(*waiting, strict=True))):
                add(places, keys)

    def candidates(step: Step, rows: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Class and bucket of each pair in a bucket that is wanted somewhere; all p and the target of its voxel."""
        p, y = spans.rounded(step)
        bucket = buckets.of(p if len(rows) == classes else p[rows])
        few = _places_of(flags.index_select(0, (bucket + (rows * buckets.size).int()[:, None]).reshape(-1)))
        i = few % p.shape[1]
        return rows[few // p.shape[1]], bucket.reshape(-1)[few].long(), p[:, i].clamp_(0, 1), y[..., i]

    def chosen(k: Tensor, g: Tensor, p: Tensor, y: Tensor) -> list[tuple[Array, Array]]:
        """Those that are wanted in their own cell: as pairs above the threshold, and as part of the row of all."""
        own, voxel = p.gather(0, k[None])[0], torch.arange(len(k), device=k.device)
        label = y[k, voxel] if y.ndim == 2 else (y == k).double()
        if sigmoid:
            row, counts = k + classes, torch.ones_like(k, dtype=torch.bool)
            cell = 2 * (label > 0.5).long() + (own > 0.5).long()
        else:
            top = predicted_class(p)
            row, counts = torch.full_like(k, classes), top == k
            cell = 2 * (y if y.ndim == 1 else predicted_class(y)).clamp_max(1) + top.clamp_max(1)
        key = (own.view(torch.int32).long() << 33) | fixed(label)
        above, whole = want[cell, k, g] & (g > 0), want[cell, row, g] & counts
        return [((4 * r + cell)[mask].cpu().numpy(), key[mask].cpu().numpy()) for mask, r in ((above, k), (whole, row))]

    waiting, number = [], 0
    for step, rows in rows_of.items():
        waiting.append(candidates(step, rows))
        number += len(waiting[-1][0])
        if number > TOGETHER:
            hand_over(waiting)
            waiting, number = [], 0
    hand_over(waiting)


def _places_of(flags: Tensor) -> Tensor:
    """Where uint8 flags are 1. (numpy finds them four times faster on the CPU.)"""
    if flags.device.type == "cpu":
        return torch.from_numpy(np.flatnonzero(flags.numpy().view(bool)))
    return flags.nonzero()[:, 0]
