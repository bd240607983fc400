r"""Equal-mass calibration bins of one case, exact, in two streaming passes.

    statistics = equal_mass_statistics(scores, labels, kind="logits")
    AECE().value(statistics.on("predicted"))

The first pass fills the fine histogram, which tells which of its buckets are parted by a cut; the second collects the
voxels in those, a few per cent of all. Sorting them, probability and label packed into one integer, gives every cut
exactly. See `fine_histogram` for the definition, and for what happens when cases are added.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from calibseg.core.types import Activation, Array, BadInput
from calibseg.metrics.statistics.binning.equal_mass.histogram import (
    RULES,
    EqualMassCurves,
    EqualMassStatistics,
    bucket_ranges,
    bucket_starts,
    cut_places,
    parted,
)
from calibseg.metrics.statistics.binning.equal_mass.sort_keys import Keys, KeyStore
from calibseg.metrics.statistics.binning.probabilities import Kind
from calibseg.metrics.statistics.binning.reader import Route, VoxelReader, takes_numba
from calibseg.metrics.statistics.binning.torch_pass import TorchSums, torch_sums
from calibseg.metrics.statistics.calibration import Bins, chosen_cells

if TYPE_CHECKING:
    from calibseg.metrics.statistics.binning.numba.histogram import FineTables

__all__ = ["EqualMassCurves", "EqualMassStatistics", "equal_mass_statistics"]

FindKeys = Callable[[Array, Callable[[Array, Array], None]], None]  # of wanted buckets; hands places and keys over


def equal_mass_statistics(
    scores: Any,
    target: Any,
    *,
    kind: Kind,
    activation: Activation = "softmax",
    bins: int = 15,
    threshold: float = 1e-3,
    ignore_label: int | None = None,
    route: Route = "auto",
    threads: int | None = None,
) -> EqualMassStatistics:
    """Exact equal-mass bins of one case for the rules truth, predicted, union and all; arguments as in `binning`."""
    reader = VoxelReader(scores, target, kind, activation, ignore_label)
    refuse_too_many(reader)
    threads = threads or torch.get_num_threads()
    empty = EqualMassStatistics(reader.classes, bins, threshold, activation)
    if takes_numba(reader, route):
        from calibseg.metrics.statistics.binning.numba.one_pass import numba_sums

        return exact_by_numba(reader, empty, numba_sums(reader, Bins(1, threshold), threads, threshold)[1], threads)
    return exact_by_torch(reader, empty, torch_sums(reader, Bins(1, threshold), threshold), threads)


def refuse_too_many(reader: VoxelReader) -> None:
    """Keys count voxels in 31 bits."""
    if np.prod(reader.space) >= 2**31:
        raise BadInput(f"equal-mass bins take up to 2^31 voxels, not {' x '.join(map(str, reader.space))}")


def exact_by_numba(
    reader: VoxelReader, empty: EqualMassStatistics, fine: "FineTables | None", threads: int
) -> EqualMassStatistics:
    """The exact bins, given the fine histogram that the numba pass over the volume has filled."""
    from calibseg.metrics.statistics.binning.equal_mass.numba_keys import keys_of

    assert fine is not None
    reach, histogram = fine.reach, _histogram(empty, fine.sums[1])
    return _exact(histogram, lambda wanted, add: keys_of(reader, empty.threshold, wanted, reach, threads, add), threads)


def exact_by_torch(
    reader: VoxelReader, empty: EqualMassStatistics, parts: list[TorchSums], threads: int
) -> EqualMassStatistics:
    """The exact bins, given what the torch pass over the volume has found."""
    from calibseg.metrics.statistics.binning.equal_mass.torch_keys import keys_of

    tables = [part.fine for part in parts if part.fine is not None]
    histogram = _histogram(empty, _words(*np.sum(tables, axis=0))) if tables else empty
    reach = {step: ends for part in parts for step, ends in part.reach.items()}
    return _exact(histogram, lambda wanted, add: keys_of(reader, empty.threshold, wanted, reach, add), threads)


def _exact(histogram: EqualMassStatistics, find_keys: FindKeys, threads: int) -> EqualMassStatistics:
    """Find the buckets that a cut parts, fetch their keys and place every cut."""
    bins, threshold = histogram.bins, histogram.threshold
    chosen = np.array([chosen_cells(rule).reshape(4) for rule in RULES])
    rows = {rule: histogram.rows(rule) for rule in RULES}
    cut = np.array([[parted(count, bins, threshold) for count, _, _ in rows[rule]] for rule in RULES])
    wanted = np.stack([cut[chosen[:, cell]].any(0) for cell in range(4)])
    keys: Keys = {}
    if wanted.any():
        places = [(row, cell) for row in range(wanted.shape[1]) for cell in range(4)]
        found = KeyStore(np.array([histogram.number(row, cell, wanted[cell, row]) for row, cell in places]))
        find_keys(wanted, found.add)
        keys = found.sorted(threads)
    exact = [_cuts(row, rule, counts, keys, bins, threshold) for rule in RULES for row, counts in enumerate(rows[rule])]
    return replace(histogram, exact=np.stack(exact).reshape(len(RULES), -1, 3, bins + 1), cases=1)


def _histogram(empty: EqualMassStatistics, words: Array) -> EqualMassStatistics:
    """The histogram of a case, from counts and the two words of confidences and of hits [5, (t p m k g)]."""
    parts = {"count": words[0], "confidence": words[1:3], "hits": words[3:5]}
    return replace(empty, **{name: part.reshape(empty.shapes[name]) for name, part in parts.items()})


def _words(count: Array, confidence: Array, hits: Array) -> Array:
    """Sums in units of 2^-32 as whole part and fraction."""
    return np.stack([count, confidence >> 32, confidence & 0xFFFFFFFF, hits >> 32, hits & 0xFFFFFFFF])


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
        cells = np.flatnonzero(chosen_cells(rule).reshape(4)).tolist()
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
    found = np.zeros(len(numbers) + 1, np.int64)
    np.cumsum(numbers, dtype=np.int64, out=found[1:])
    return found
