"""The torch route of the second pass that equal-mass bins need: the voxels in the buckets that a cut parts.

The first pass noted between which numbers each class lies in every block of voxels; this one looks only at classes and
blocks that reach a wanted bucket. Most of their pairs go by the high bits of min(p, 1 - p), which are quickly had and
name a bucket next to 0 and one next to 1; the few that are left are looked at closely.
"""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from calibseg.core.labels import likeliest
from calibseg.core.scores import ChunkRange
from calibseg.core.types import Array
from calibseg.metrics.statistics.binning.bin_index import BinIndex
from calibseg.metrics.statistics.binning.chunk import BLOCK
from calibseg.metrics.statistics.binning.equal_mass.histogram import HALF, first_bits, high_bits
from calibseg.metrics.statistics.binning.packed_sums import fixed
from calibseg.metrics.statistics.binning.reader import VoxelReader
from calibseg.metrics.statistics.binning.torch_pass import BucketRange, in_blocks

TOGETHER = 1 << 16  # candidates that are looked at together


def keys_of(
    reader: VoxelReader, threshold: float, wanted: Array, bucket_range: BucketRange, add: Callable[[Array, Array], None]
) -> None:
    """Hand over places 4 row + cell, and keys, of the voxels in the buckets [cell row g] that are wanted."""
    want = torch.from_numpy(wanted).to(reader.device)
    classes, sigmoid = reader.classes, reader.activation == "sigmoid"
    anywhere = (want[:, :classes] | want[:, classes:]).any(0)  # [k g]
    before = torch.nn.functional.pad(anywhere.long().cumsum(1), (1, 0))  # how many wanted buckets lie below each
    wanted_at, buckets = want.reshape(-1), BinIndex(None, threshold, reader.device)
    near_flags = _by_high_bits(anywhere, threshold)
    flags, bits = near_flags.reshape(-1).to(torch.uint8), near_flags.shape[1]

    low, high = torch.cat(list(bucket_range.values()), 2)  # [k block]
    active = before.gather(1, buckets.of(high).long() + 1) > before.gather(1, buckets.of(low).long())
    blocks = [ends.shape[2] for ends in bucket_range.values()]
    active_of = dict(zip(bucket_range, active.split(blocks, 1), strict=True))

    def hand_over(waiting: list[tuple[Tensor, ...]]) -> None:
        if waiting:
            for places, keys in chosen(*(torch.cat(parts, -1) for parts in zip(*waiting, strict=True))):
                add(places, keys)

    def candidates(at: ChunkRange) -> tuple[Tensor, Tensor, Tensor]:
        """The class of each pair that may lie in a wanted bucket; all p and the target of its voxel."""
        k, block = active_of[at].nonzero(as_tuple=True)
        p, y = reader.rounded(at)
        own = in_blocks(p).reshape(-1, BLOCK).index_select(0, k * active_of[at].shape[1] + block)
        own = own.clamp_(0, 1).abs_()  # -0.0 has other bits than 0
        near = torch.minimum(own, 1 - own).view(torch.int32).__irshift__(16).add_((k * bits).int()[:, None])
        few = _places_of(flags.index_select(0, near.reshape(-1)))
        row = few // BLOCK
        i = block[row] * BLOCK + few % BLOCK
        if p.shape[1] % BLOCK:  # the last block was filled up
            row, i = row[i < p.shape[1]], i[i < p.shape[1]]
        return k[row], p[:, i].clamp_(0, 1), y[..., i]

    def chosen(k: Tensor, p: Tensor, y: Tensor) -> list[tuple[Array, Array]]:
        """Those that are wanted in their own cell: as pairs above the threshold, and as part of the row of all."""
        own, voxel = p.gather(0, k[None])[0], torch.arange(len(k), device=k.device)
        g = buckets.of(own).long()
        label = y[k, voxel] if y.ndim == 2 else (y == k).double()
        if sigmoid:
            row, counts = k + classes, torch.ones_like(k, dtype=torch.bool)
            cell = 2 * (label > 0.5).long() + (own > 0.5).long()
        else:
            top = likeliest(p)
            row, counts = torch.full_like(k, classes), top == k
            cell = 2 * (y if y.ndim == 1 else likeliest(y)).clamp_max(1) + top.clamp_max(1)
        key = (own.view(torch.int32).long() << 33) | fixed(label)
        above, whole = (wanted_at.index_select(0, (cell * want.shape[1] + r) * want.shape[2] + g) for r in (k, row))
        above, whole = above & (g > 0), whole & counts
        return [((4 * r + cell)[mask].cpu().numpy(), key[mask].cpu().numpy()) for mask, r in ((above, k), (whole, row))]

    waiting, number = [], 0
    for at in bucket_range:
        waiting.append(candidates(at))
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


def _by_high_bits(flags: Tensor, threshold: float) -> Tensor:
    """Flags [k g] of buckets as flags [k bits] of the high bits of min(p, 1 - p) that occur in them."""
    bits = torch.from_numpy(high_bits(threshold)[0]).to(flags.device)
    counts = torch.zeros(len(flags), HALF + 1, dtype=torch.int64, device=flags.device)
    counts.scatter_add_(1, bits[1:].expand(len(flags), -1), flags[:, 1:].long())
    counts[:, : first_bits(threshold) + 1] += flags[:, :1]  # all up to the threshold
    return counts > 0
