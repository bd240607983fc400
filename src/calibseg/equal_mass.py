r"""Equal-mass calibration bins of one case, exact, in two streaming passes.

    statistics = equal_mass_statistics(scores, labels, kind="logits")
    AECE().value(statistics.on("predicted"))

The first pass fills the fine histogram, which tells which of its buckets are parted by a cut; the second collects the
voxels in those, a few per cent of all. Sorting them, probability and label packed into one integer, gives every cut
exactly. See `fine_histogram` for the definition, and for what happens when cases are added.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from calibseg.binning_torch import SERIAL, fixed, predicted_class
from calibseg.curves import Bins, carried, chosen_cells
from calibseg.fine_histogram import (
    RULES,
    EqualMassCurves,
    EqualMassStatistics,
    bucket_index,
    bucket_ranges,
    cut_places,
    first_of_bucket,
    parted,
)
from calibseg.spans import Kind, Route, Span, Spans, Step, takes_numba
from calibseg.types import Activation, Array, BadInput

if TYPE_CHECKING:
    from calibseg.fine_kernel import FineTables

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
    return exact_by_torch(spans, empty, threads)


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
    return _exact(
        _histogram(empty, count, confidence, hits << 32),
        lambda wanted: keys_of(spans, empty.threshold, wanted, reach, threads),
        threads,
    )


def exact_by_torch(spans: Spans, empty: EqualMassStatistics, threads: int) -> EqualMassStatistics:
    """The exact bins, by two passes of the torch route."""
    tables = np.sum(_in_threads(spans, threads, lambda steps: _tables(spans, empty, steps)), axis=0)
    return _exact(
        _histogram(empty, *tables), lambda wanted: _second_pass(spans, empty.threshold, wanted, threads), threads
    )


def _exact(histogram: EqualMassStatistics, keys_in: Callable[[Array], Keys], threads: int) -> EqualMassStatistics:
    """Find the buckets that a cut parts, fetch their keys and place every cut."""
    bins, threshold = histogram.bins, histogram.threshold
    rows = {rule: histogram.rows(rule) for rule in RULES}
    cut = np.array([[parted(count, bins, threshold) for count, _, _ in rows[rule]] for rule in RULES])
    chosen = np.array([chosen_cells(rule).reshape(4) for rule in RULES])
    wanted = np.stack([cut[chosen[:, cell]].any(0) for cell in range(4)])
    keys = keys_in(wanted) if wanted.any() else {}
    places = [(row, rule, counts) for rule in RULES for row, counts in enumerate(rows[rule])]
    with ThreadPoolExecutor(threads) as pool:
        exact = list(pool.map(lambda place: _cuts(*place, keys, bins, threshold), places))
    return replace(histogram, exact=np.stack(exact).reshape(len(RULES), -1, 3, bins + 1), cases=1)


def _histogram(empty: EqualMassStatistics, count: Array, confidence: Array, hits: Array) -> EqualMassStatistics:
    words = {
        name: carried(name, np.stack([np.zeros_like(a), a])) for name, a in (("confidence", confidence), ("hits", hits))
    }
    return replace(empty, **{name: a.reshape(empty.shapes[name]) for name, a in (words | {"count": count}).items()})


def _in_threads(spans: Spans, threads: int, share: Callable[[list[Step]], Any]) -> list[Any]:
    """One result per thread; spans so short that torch runs an operation in the thread that asks for it."""
    steps = spans.steps(max(1 << 11, SERIAL // spans.classes) if spans.device.type == "cpu" else 1 << 20)
    threads = max(1, min(threads, len(steps))) if spans.device.type == "cpu" else 1
    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(share, [steps[i::threads] for i in range(threads)]))


def _tables(spans: Spans, empty: EqualMassStatistics, steps: list[Step]) -> Array:
    """count, confidence and hits [3, (t p m k g)]; with softmax without the pairs below the threshold."""
    tables = torch.zeros(3, empty.count.size, dtype=torch.int64, device=spans.device)
    size, sigmoid = empty.shapes["count"][-1], spans.activation == "sigmoid"
    for step in steps:
        span = spans.read(step)
        if span is None:
            continue
        cell, top = _cells(span, spans.activation)
        k, i = _pairs(span, top, empty.threshold, sigmoid)
        p = span.rounded[k, i]
        state = (cell[k, i] * 2 + top[k, i]) if sigmoid else cell[i] * 2 + (top[i] == k)
        index = (state * spans.classes + k) * size + bucket_index(p.float(), empty.threshold)
        y = span.y[k, i] if span.y.ndim == 2 else (span.y[i] == k).double()
        tables[0].scatter_add_(0, index, torch.ones_like(index))
        tables[1].scatter_add_(0, index, fixed(p))
        tables[2].scatter_add_(0, index, fixed(y))
    return tables.cpu().numpy()


def _second_pass(spans: Spans, threshold: float, wanted: Array, threads: int) -> Keys:
    """The keys of the voxels in the buckets [cell row g] that are wanted."""
    want = torch.from_numpy(wanted).to(spans.device)
    sigmoid, classes, size, flat = spans.activation == "sigmoid", spans.classes, want.shape[-1], want.reshape(-1)

    def share(steps: list[Step]) -> Keys:
        found: Keys = {}
        for step in steps:
            span = spans.read(step)
            if span is None:
                continue
            cell, top = _cells(span, spans.activation)
            k, i = _pairs(span, top, threshold, sigmoid)
            p = span.rounded[k, i].float()
            bucket = bucket_index(p, threshold)
            cells = cell[k, i] if sigmoid else cell[i]
            at = cells * want[0].numel() + bucket  # of row 0
            above = flat.take(at + k * size) & (bucket > 0)
            whole = flat.take(at + (k + classes if sigmoid else classes) * size)
            whole = whole if sigmoid else whole & (top[i] == k)
            few = (above | whole).nonzero()[:, 0]  # a few per cent
            k, i, cells, above, whole = k[few], i[few], cells[few], above[few], whole[few]
            y = span.y[k, i] if span.y.ndim == 2 else (span.y[i] == k).double()
            key = (p[few].view(torch.int32).long() << 33) | fixed(y)
            for chosen, rows in ((above, k), (whole, k + classes if sigmoid else torch.full_like(k, classes))):
                place = (rows * 4 + cells)[chosen]
                for one in place.unique().tolist():
                    found.setdefault(divmod(one, 4), []).append(key[chosen][place == one].cpu().numpy())
        return found

    keys: Keys = {}
    for part in _in_threads(spans, threads, share):
        for place, arrays in part.items():
            keys.setdefault(place, []).extend(arrays)
    return keys


def _pairs(span: Span, top: Tensor, threshold: float, sigmoid: bool) -> tuple[Tensor, Tensor]:
    """The (class, voxel) pairs that matter: above the threshold, or predicted; with sigmoid all of them."""
    matter = span.rounded > (-1.0 if sigmoid else float(np.float32(threshold)))
    if not sigmoid and len(matter) >= 1 / threshold:  # only then can a predicted class lie below
        matter |= top == torch.arange(len(matter), device=top.device)[:, None]
    k, i = matter.nonzero(as_tuple=True)
    return k, i


def _cells(span: Span, activation: Activation) -> tuple[Tensor, Tensor]:
    """2 * (truth is foreground) + (prediction is foreground), and the predicted class; with sigmoid per channel."""
    if activation == "sigmoid":
        predicted = (span.rounded > 0.5).long()
        return 2 * (span.y > 0.5).long() + predicted, predicted
    top = predicted_class(span.rounded)
    truth = span.y if span.y.ndim == 1 else predicted_class(span.y)
    return 2 * (truth > 0).long() + (top > 0).long(), top


def _cuts(row: int, rule: Any, counts: tuple[Array, Array, Array], keys: Keys, bins: int, threshold: float) -> Array:
    """Voxels, sum of probabilities and sum of labels [3 cut] below each cut of one row."""
    cuts, bucket, inside = cut_places(counts[0], bins)
    before = [np.concatenate([[0], np.cumsum(part)]) for part in counts]
    share = inside / np.maximum(counts[0][bucket], 1)
    below = np.stack([cuts, *(before[i][bucket] + share * counts[i][bucket] for i in (1, 2))]).astype(np.float64)
    chosen = chosen_cells(rule).reshape(4)
    found = [array for c in range(4) if chosen[c] for array in keys.get((row, c), [])]
    key = np.concatenate(found) if found else np.zeros(0, np.int64)
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
