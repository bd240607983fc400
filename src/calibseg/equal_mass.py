r"""Equal-mass calibration bins of one case, exact, in two streaming passes.

    statistics = equal_mass_statistics(scores, labels, kind="logits")
    AECE().value(statistics.on("predicted"))

The first pass fills the fine histogram, which tells which of its buckets are parted by a cut; the second collects the
voxels in those, a few per cent of all. Sorting them, probability and label packed into one integer, gives every cut
exactly. See `fine_histogram` for the definition, and for what happens when cases are added.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from calibseg.binning_torch import fixed, predicted_class
from calibseg.curves import carried, chosen_cells
from calibseg.fine_histogram import (
    RULES,
    EqualMassCurves,
    EqualMassStatistics,
    bucket_index,
    bucket_ranges,
    cut_places,
    parted,
)
from calibseg.spans import Kind, Span, Spans
from calibseg.types import Activation, Array

__all__ = ["EqualMassCurves", "EqualMassStatistics", "equal_mass_statistics"]

Keys = dict[tuple[int, int], list[Array]]  # (row, cell) -> arrays of p's bits << 33 | round(y 2^32)


def equal_mass_statistics(
    scores: Any,
    target: Any,
    *,
    kind: Kind,
    activation: Activation = "softmax",
    bins: int = 15,
    threshold: float = 1e-3,
    ignore_label: int | None = None,
) -> EqualMassStatistics:
    """Exact equal-mass bins of one case for the rules truth, predicted, union and all; arguments as in `binning`."""
    spans = Spans(scores, target, kind, activation, ignore_label)
    empty = EqualMassStatistics(spans.classes, bins, threshold, activation)
    histogram = _first_pass(spans, empty)
    rows = {rule: histogram.rows(rule) for rule in RULES}
    wanted = np.any([[parted(count, bins, threshold) for count, _, _ in rows[rule]] for rule in RULES], axis=0)
    keys = _second_pass(spans, threshold, wanted) if wanted.any() else {}
    exact = np.stack(
        [[_cuts(row, rule, counts, keys, bins, threshold) for row, counts in enumerate(rows[rule])] for rule in RULES]
    )
    return replace(histogram, exact=exact, cases=1)


def _first_pass(spans: Spans, empty: EqualMassStatistics) -> EqualMassStatistics:
    tables = {name: torch.zeros(empty.count.size, dtype=torch.int64, device=spans.device) for name in empty.shapes}
    classes = torch.arange(spans.classes, device=spans.device)[:, None]
    size = empty.shapes["count"][-1]
    for span in spans:
        cell, top = _cells(span, spans.activation)
        state = cell * 2 + (top if spans.activation == "sigmoid" else top == classes)
        index = (
            (state * spans.classes + classes) * size + bucket_index(span.rounded.float(), empty.threshold)
        ).flatten()
        tables["count"] += torch.bincount(index, minlength=empty.count.size)
        tables["confidence"].scatter_add_(0, index, fixed(span.rounded).flatten())
        y = span.y if span.y.ndim == 2 else (span.y == classes).double()
        tables["hits"].scatter_add_(0, index, fixed(y).flatten())
    found = {name: table.cpu().numpy() for name, table in tables.items()}
    for name in ("confidence", "hits"):
        found[name] = carried(name, np.stack([np.zeros_like(found[name]), found[name]]))
    return replace(empty, **{name: table.reshape(empty.shapes[name]) for name, table in found.items()})


def _second_pass(spans: Spans, threshold: float, wanted: Array) -> Keys:
    """The keys of the voxels in the buckets [row g] that are wanted."""
    keys: Keys = {}
    want = torch.from_numpy(wanted).to(spans.device)
    for span in spans:
        cell, top = _cells(span, spans.activation)
        for row, p, y, cells in _row_values(span, spans.activation, cell, top):
            chosen = want[row][bucket_index(p, threshold)]
            if not chosen.any():
                continue
            key = (p[chosen].view(torch.int32).long() << 33) | fixed(y[chosen].double())
            for c in range(4):
                keys.setdefault((row, c), []).append(key[cells[chosen] == c].cpu().numpy())
    return keys


def _cells(span: Span, activation: Activation) -> tuple[Tensor, Tensor]:
    """2 * (truth is foreground) + (prediction is foreground), and the predicted class; with sigmoid per channel."""
    if activation == "sigmoid":
        predicted = (span.rounded > 0.5).long()
        return 2 * (span.y > 0.5).long() + predicted, predicted
    top = predicted_class(span.rounded)
    truth = span.y if span.y.ndim == 1 else predicted_class(span.y)
    return 2 * (truth > 0).long() + (top > 0).long(), top


def _row_values(
    span: Span, activation: Activation, cell: Tensor, top: Tensor
) -> Iterator[tuple[int, Tensor, Tensor, Tensor]]:
    """Row, probabilities, labels and cells, in the order of `EqualMassCurves`."""
    p = span.rounded.float()
    classes = len(p)
    for k in range(classes):
        y = span.y[k] if span.y.ndim == 2 else span.y == k
        yield k, p[k], y, cell[k] if cell.ndim == 2 else cell
        if activation == "sigmoid":
            yield classes + k, p[k], y, cell[k]
    if activation == "softmax":
        y = span.y.gather(0, top[None])[0] if span.y.ndim == 2 else span.y == top
        yield classes, p.gather(0, top[None])[0], y, cell


def _cuts(row: int, rule: Any, counts: tuple[Array, Array, Array], keys: Keys, bins: int, threshold: float) -> Array:
    """Voxels, sum of probabilities and sum of labels [3 cut] below each cut of one row."""
    cuts, bucket, inside = cut_places(counts[0], bins)
    before = [np.concatenate([[0], np.cumsum(part)]) for part in counts]
    share = inside / np.maximum(counts[0][bucket], 1)
    below = np.stack([cuts, *(before[i][bucket] + share * counts[i][bucket] for i in (1, 2))]).astype(np.float64)
    chosen = chosen_cells(rule).reshape(4)
    found = [array for c in range(4) if chosen[c] for array in keys.get((row, c), [])]
    key = np.sort(np.concatenate(found)) if found else np.zeros(0, np.int64)
    p = (key >> 33).astype(np.int32).view(np.float32)
    place = bucket_index(torch.from_numpy(p), threshold).numpy()
    parts = (np.rint(p.astype(np.float64) * 2.0**32).astype(np.int64), key & ((1 << 33) - 1))
    sums = [np.concatenate([[0], np.cumsum(part)]) / 2.0**32 for part in parts]
    single = bucket_ranges(threshold)[2]
    for j in np.flatnonzero((inside > 0) & (inside < counts[0][bucket]) & ~single[bucket]):
        start = np.searchsorted(place, bucket[j])
        at = start + inside[j]
        left, right = np.searchsorted(p, p[at], "left"), np.searchsorted(p, p[at], "right")  # those that tie at the cut
        tied = sums[1][left] + (at - left) / (right - left) * (sums[1][right] - sums[1][left])
        below[1, j] = before[1][bucket[j]] + sums[0][at] - sums[0][start]
        below[2, j] = before[2][bucket[j]] + tied - sums[1][start]
    return below
