r"""Equal-mass calibration bins of one case, exact, in two streaming passes.

    statistics = equal_mass_statistics(scores, labels, kind="logits")
    AECE().value(statistics.on("predicted"))

The first pass fills the fine histogram, which tells which of its buckets are parted by a cut; the second collects the
voxels in those, a few per cent of all. Sorting them, probability and label packed into one integer, gives every cut
exactly. See `fine_histogram` for the definition, and for what happens when cases are added.
"""

import itertools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from calibseg.binning_torch import TorchSums, torch_sums
from calibseg.curves import Bins, carried, chosen_cells
from calibseg.fine_histogram import (
    RULES,
    EqualMassCurves,
    EqualMassStatistics,
    bucket_ranges,
    cut_places,
    first_of_bucket,
    parted,
)
from calibseg.probabilities import Kind
from calibseg.spans import Route, Spans, takes_numba
from calibseg.types import Activation, Array, BadInput

if TYPE_CHECKING:
    from calibseg.fine_kernel import FineTables

__all__ = ["EqualMassCurves", "EqualMassStatistics", "equal_mass_statistics"]

Found = list[tuple[Array, Array]]  # 4 row + cell, and keys: p's bits << 33 | round(y 2^32)
Keys = dict[tuple[int, int], Array]  # (row, cell) -> keys


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
    spans = Spans(scores, target, kind, activation, ignore_label)
    refuse_too_many(spans)
    threads = threads or torch.get_num_threads()
    empty = EqualMassStatistics(spans.classes, bins, threshold, activation)
    if takes_numba(spans, route):
        from calibseg.binning_kernel import numba_sums

        return exact_by_numba(spans, empty, numba_sums(spans, Bins(), threads, threshold)[1], threads)
    return exact_by_torch(spans, empty, torch_sums(spans, Bins(1, threshold), threshold), threads)


def refuse_too_many(spans: Spans) -> None:
    """Keys count voxels in 31 bits."""
    if np.prod(spans.space) >= 2**31:
        raise BadInput(f"equal-mass bins take up to 2^31 voxels, not {' x '.join(map(str, spans.space))}")


def exact_by_numba(
    spans: Spans, empty: EqualMassStatistics, fine: "list[FineTables]", threads: int
) -> EqualMassStatistics:
    """The exact bins, given the fine histograms that the numba pass over the volume has filled."""
    from calibseg.equal_mass_kernel import keys_of

    count, confidence, hits = np.sum([own.table for own in fine], axis=0)
    reach = {piece: blocks for own in fine for piece, blocks in own.reach.items()}
    histogram = _histogram(empty, count, confidence, hits << 32)
    return _exact(histogram, lambda wanted: keys_of(spans, empty.threshold, wanted, reach, threads), threads)


def exact_by_torch(
    spans: Spans, empty: EqualMassStatistics, parts: list[TorchSums], threads: int
) -> EqualMassStatistics:
    """The exact bins, given what the torch pass over the volume has found."""
    from calibseg.equal_mass_torch import keys_of

    tables = [part.fine for part in parts if part.fine is not None]
    histogram = _histogram(empty, *np.sum(tables, axis=0)) if tables else empty
    reach = {step: ends for part in parts for step, ends in part.reach.items()}
    return _exact(histogram, lambda wanted: keys_of(spans, empty.threshold, wanted, reach), threads)


def _exact(histogram: EqualMassStatistics, keys_in: Callable[[Array], Found], threads: int) -> EqualMassStatistics:
    """Find the buckets that a cut parts, fetch their keys and place every cut."""
    bins, threshold = histogram.bins, histogram.threshold
    rows = {rule: histogram.rows(rule) for rule in RULES}
    cut = np.array([[parted(count, bins, threshold) for count, _, _ in rows[rule]] for rule in RULES])
    chosen = np.array([chosen_cells(rule).reshape(4) for rule in RULES])
    wanted = np.stack([cut[chosen[:, cell]].any(0) for cell in range(4)])
    keys = _grouped(keys_in(wanted)) if wanted.any() else {}
    places = [(row, rule) for rule in RULES for row in range(len(rows[rule]))]
    with ThreadPoolExecutor(threads) as pool:
        exact = list(pool.map(lambda at: _cuts(at[0], at[1], rows[at[1]][at[0]], keys, bins, threshold), places))
    return replace(histogram, exact=np.stack(exact).reshape(len(RULES), -1, 3, bins + 1), cases=1)


def _histogram(empty: EqualMassStatistics, count: Array, confidence: Array, hits: Array) -> EqualMassStatistics:
    words = {
        name: carried(name, np.stack([np.zeros_like(a), a])) for name, a in (("confidence", confidence), ("hits", hits))
    }
    return replace(empty, **{name: a.reshape(empty.shapes[name]) for name, a in (words | {"count": count}).items()})


def _grouped(found: Found) -> Keys:
    """The keys of each row and cell side by side."""
    if not found:
        return {}
    places, keys = (np.concatenate(arrays) for arrays in zip(*found, strict=True))
    ends = np.cumsum(np.bincount(places))
    keys = keys[np.argsort(places.astype(np.uint16), kind="stable")]
    return {divmod(i, 4): keys[a:b] for i, (a, b) in enumerate(itertools.pairwise([0, *ends])) if b > a}


def _cuts(row: int, rule: Any, counts: tuple[Array, Array, Array], keys: Keys, bins: int, threshold: float) -> Array:
    """Voxels, sum of probabilities and sum of labels [3 cut] below each cut of one row."""
    cuts, bucket, inside = cut_places(counts[0], bins)
    before = [np.concatenate([[0], np.cumsum(part)]) for part in counts]
    share = inside / np.maximum(counts[0][bucket], 1)
    below = np.stack([cuts, *(before[i][bucket] + share * counts[i][bucket] for i in (1, 2))]).astype(np.float64)
    chosen = chosen_cells(rule).reshape(4)
    key = np.concatenate([np.zeros(0, np.int64), *(keys[row, c] for c in range(4) if chosen[c] and (row, c) in keys)])
    key.sort()
    single = bucket_ranges(threshold)[2]
    for j in np.flatnonzero((inside > 0) & (inside < counts[0][bucket]) & ~single[bucket]):
        start = int(np.searchsorted(key, first_of_bucket(int(bucket[j]), threshold) << 33))
        at = start + int(inside[j])
        tie = key[at] >> 33 << 33  # the same probability, label 0
        left, right = (int(i) for i in np.searchsorted(key, [tie, tie + (1 << 33)]))
        tied = (at - left) / (right - left) * _labels(key[left:right])
        below[1, j] = before[1][bucket[j]] + _probabilities(key[start:at])
        below[2, j] = before[2][bucket[j]] + _labels(key[start:left]) + tied
    return below


def _probabilities(key: Array) -> float:
    """The sum of the probabilities, each rounded to a multiple of 2^-32."""
    p = (key >> 33).astype(np.int32).view(np.float32)
    return float(np.rint(p * 2.0**32, dtype=np.float64).sum()) / 2.0**32


def _labels(key: Array) -> float:
    return int((key & ((1 << 33) - 1)).sum()) / 2.0**32
