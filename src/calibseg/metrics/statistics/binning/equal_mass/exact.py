"""The second pass of exact equal-mass bins: open the buckets that a cut parts, and place every cut."""

from dataclasses import replace
from typing import Any

import numpy as np

from calibseg.core.types import Array, BadInput
from calibseg.metrics.statistics.binning.equal_mass.histogram import (
    RULES,
    EqualMassStatistics,
    bucket_ranges,
    bucket_starts,
    cut_places,
    parted,
)
from calibseg.metrics.statistics.binning.equal_mass.sort_keys import Keys, KeyStore
from calibseg.metrics.statistics.binning.reader import VoxelReader
from calibseg.metrics.statistics.binning.route import FirstPass
from calibseg.metrics.statistics.calibration import cells_of_rule


def exact_bins(reader: VoxelReader, empty: EqualMassStatistics, first: FirstPass, threads: int) -> EqualMassStatistics:
    """The exact equal-mass bins of a volume, given what the first pass over it has found."""
    if np.prod(reader.space) >= 2**31:  # keys count voxels in 31 bits
        raise BadInput(f"equal-mass bins take up to 2^31 voxels, not {' x '.join(map(str, reader.space))}")
    histogram = empty
    if first.histogram is not None:
        count, *words = first.histogram
        parts = {"count": count, "confidence": np.stack(words[:2]), "hits": np.stack(words[2:])}
        histogram = replace(empty, **{name: part.reshape(empty.shapes[name]) for name, part in parts.items()})
    bins, threshold = histogram.bins, histogram.threshold
    chosen = np.array([cells_of_rule(rule).reshape(4) for rule in RULES])
    rows = {rule: histogram.rows(rule) for rule in RULES}
    cut = np.array([[parted(count, bins, threshold) for count, _, _ in rows[rule]] for rule in RULES])
    wanted = np.stack([cut[chosen[:, cell]].any(0) for cell in range(4)])
    keys: Keys = {}
    if wanted.any():
        places = [(row, cell) for row in range(wanted.shape[1]) for cell in range(4)]
        store = KeyStore(np.array([histogram.number(row, cell, wanted[cell, row]) for row, cell in places]))
        if first.route == "numba":
            from calibseg.metrics.statistics.binning.equal_mass.numba_keys import keys_of

            keys_of(reader, threshold, wanted, first.bucket_range, threads, store.add)
        else:
            from calibseg.metrics.statistics.binning.equal_mass.torch_keys import keys_of

            keys_of(reader, threshold, wanted, first.bucket_range, store.add)
        keys = store.sorted(threads)
    exact = [_cuts(row, rule, counts, keys, bins, threshold) for rule in RULES for row, counts in enumerate(rows[rule])]
    return replace(histogram, exact=np.stack(exact).reshape(len(RULES), -1, 3, bins + 1), cases=1)


def _cuts(row: int, rule: Any, counts: tuple[Array, Array, Array], keys: Keys, bins: int, threshold: float) -> Array:
    """Voxels, sum of probabilities and sum of labels [3 cut] below each cut of one row."""
    cuts, bucket, inside = cut_places(counts[0], bins)
    before = [np.concatenate([[0], np.cumsum(part)]) for part in counts]
    share = inside / np.maximum(counts[0][bucket], 1)
    below = np.stack([cuts, *(before[i][bucket] + share * counts[i][bucket] for i in (1, 2))]).astype(np.float64)
    j = np.flatnonzero((inside > 0) & (inside < counts[0][bucket]) & ~bucket_ranges(threshold)[2][bucket])
    if len(j):  # the cuts that part a bucket: look inside
        first = bucket_starts(threshold) << 33
        opened = np.unique(bucket[j])
        cells = np.flatnonzero(cells_of_rule(rule).reshape(4)).tolist()
        key = _keys_between(
            [keys[row, cell] for cell in cells if (row, cell) in keys], first[opened], first[opened + 1]
        )
        p, labels = _sums_below(_probability(key)), _sums_below(key & ((1 << 33) - 1))
        start = np.searchsorted(key, first[bucket[j]])
        at = start + inside[j]
        tie = key[at] >> 33 << 33  # the same probability, label 0
        left, right = np.searchsorted(key, tie), np.searchsorted(key, tie + (1 << 33))
        tied = (at - left) / (right - left) * ((labels[right] - labels[left]) / 2.0**32)
        below[1, j] = before[1][bucket[j]] + (p[at] - p[start]) / 2.0**32
        below[2, j] = before[2][bucket[j]] + (labels[left] - labels[start]) / 2.0**32 + tied
    return below


def _keys_between(parts: list[Array], first: Array, end: Array) -> Array:
    """What lies in some ranges [first, end) of sorted arrays, all together in order."""
    ends = np.stack([first, end], 1)
    key = np.concatenate([part[a:b] for part in parts for a, b in np.searchsorted(part, ends).tolist()])
    key.sort(kind="stable")  # merges what is in order already
    return key


def _probability(key: Array) -> Array:
    """round(p 2^32), which float32 holds: where it has a fraction to round off it is small."""
    p = (key >> 33).astype(np.int32).view(np.float32)
    p *= np.float32(2.0**32)
    return np.rint(p, out=p)


def _sums_below(numbers: Array) -> Array:
    """The sum of the numbers before each place, and of all."""
    sums = np.zeros(len(numbers) + 1, np.int64)
    np.cumsum(numbers, dtype=np.int64, out=sums[1:])
    return sums
