"""Every loss as a loop over voxels in plain Python numbers, written from the equations: what the fast code must equal.

A scene is logits [n k *space], and at every voxel (image, *place) the shares of the classes; None: it is ignored.
"""

import itertools
import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

Shares = list[float] | None
Place = tuple[int, ...]


class Scene(NamedTuple):
    logits: np.ndarray  # float64 [n k *space]
    shares: dict[Place, Shares]
    hard: bool  # whether the target was integer labels
    class_weight: list[float] | None = None

    @property
    def classes(self) -> int:
        return self.logits.shape[1]

    def counted(self) -> list[Place]:
        return [place for place, share in self.shares.items() if share is not None]

    def share(self, place: Place) -> list[float]:
        found = self.shares[place]
        assert found is not None
        return found

    def row(self, place: Place) -> list[float]:
        return [float(self.logits[(place[0], k, *place[1:])]) for k in range(self.classes)]

    def log_softmax(self, place: Place) -> list[float]:
        row = self.row(place)
        log_sum = max(row) + math.log(math.fsum(math.exp(v - max(row)) for v in row))
        return [v - log_sum for v in row]

    def weights(self) -> list[float]:
        return self.class_weight or [1.0] * self.classes

    def label(self, place: Place) -> int:
        share = self.share(place)
        return share.index(max(share))

    def divisor(self) -> float:
        """What a cross-entropy is divided by: the voxels, or the weights of their labels where these are integers."""
        if self.hard and self.class_weight is not None:
            return math.fsum(self.weights()[self.label(place)] for place in self.counted())
        return len(self.counted())


def scene(logits: Any, target: Any, ignore_index: int = -100, class_weight: list[float] | None = None) -> Scene:
    values, labels = logits.detach().double().numpy(), target.numpy()
    n, k, *space = values.shape
    hard, shares = labels.ndim < values.ndim, {}
    for place in np.ndindex(n, *space):
        if hard:
            label = int(labels[place])
            shares[place] = None if label == ignore_index else [float(c == label) for c in range(k)]
        else:
            row = [float(labels[(place[0], c, *place[1:])]) for c in range(k)]
            shares[place] = row if any(row) else None
    return Scene(values, shares, hard, class_weight)


def per_voxel(s: Scene, cost: Callable[[Place], float]) -> float:
    """The mean over the voxels that count."""
    return math.fsum(cost(place) for place in s.counted()) / max(len(s.counted()), 1)


def weighted(
    s: Scene, q: Callable[[Place], list[float]], cost: Callable[[float], float] = lambda log_s: -log_s
) -> float:
    """sum_k w_k q_k cost(log s_k) over all voxels, divided as a cross-entropy is."""
    total = math.fsum(
        w * share * cost(log_s)
        for place in s.counted()
        for w, share, log_s in zip(s.weights(), q(place), s.log_softmax(place), strict=True)
        if share
    )
    return total / max(s.divisor(), 1e-300)


def ce(s: Scene) -> dict[str, float]:
    return {"ce": weighted(s, s.share)}


def ls(s: Scene, smoothing: float = 0.1) -> dict[str, float]:
    return {"ls": weighted(s, lambda p: [(1 - smoothing) * q + smoothing / s.classes for q in s.share(p)])}


def focal(s: Scene, gamma: float = 3.0) -> dict[str, float]:
    return {"focal": weighted(s, s.share, lambda log_s: -((1 - math.exp(log_s)) ** gamma) * log_s)}


def ecp(s: Scene, weight: float = 0.1) -> dict[str, float]:
    minus_entropy = per_voxel(s, lambda p: math.fsum(math.exp(v) * v for v in s.log_softmax(p)))
    return ce(s) | {"entropy": weight / s.classes * minus_entropy}


def focal_brier(s: Scene, gamma: float = 3.0, weight: float = 0.1) -> dict[str, float]:
    def cost(place: Place) -> float:
        return math.fsum((math.exp(v) - q) ** 2 for v, q in zip(s.log_softmax(place), s.share(place), strict=True))

    return focal(s, gamma) | {"brier": weight / s.classes * per_voxel(s, cost)}


def meep(s: Scene, weight: float = 0.3, form: str = "kl") -> dict[str, float]:
    wrong = [place for place in s.counted() if s.row(place).index(max(s.row(place))) != s.label(place)]
    total = 0.0
    for place in wrong:
        p = [math.exp(v) for v in s.log_softmax(place)]
        total += {
            "kl": -math.fsum(math.log(v) for v in p) / s.classes,
            "entropy": math.fsum(v * math.log(v) for v in p),
            "released": math.fsum(v * math.log(v) + (1 - v) * math.log(1 - v) for v in p) / s.classes,
        }[form]
    return ce(s) | {"meep": weight * total / max(len(wrong), 1)}


def cals(
    s: Scene, lambdas: list[list[float]], rhos: list[list[float]], margin: float = 10.0, penalty: str = "phr"
) -> dict:
    def cost(place: Place) -> float:
        row = s.row(place)
        h = [(max(row) - v - margin) / margin for v in row]
        return math.fsum(penalty_value(penalty, z, r[0], lam[0]) for z, r, lam in zip(h, rhos, lambdas, strict=True))

    return ce(s) | {"penalty": per_voxel(s, cost) / s.classes}


def ml1_ace(
    s: Scene,
    weight: float = 1.0,
    bins: int = 20,
    binning: str = "hard",
    released: bool = False,
    include_background: bool = True,
) -> dict[str, float]:
    """Bin by bin; a probability is compared with every edge or centre."""
    errors, pairs = [], 0
    for image in range(s.logits.shape[0]):
        places = [place for place in s.counted() if place[0] == image]
        for k in range(0 if include_background else 1, s.classes):
            pairs += 1
            if not any(s.share(place)[k] for place in places):
                continue
            held: list[list[tuple[float, float]]] = [[] for _ in range(bins)]
            for place in places:
                p = math.exp(s.log_softmax(place)[k])
                for b in range(bins):
                    centre = (b + 0.5) / bins
                    if binning == "hard":
                        w = float((b / bins < p or b == 0) and p <= (b + 1) / bins)
                    elif (p < centre and b == 0) or (p > centre and b == bins - 1):
                        w = 1.0
                    else:
                        w = max(0.0, 1 - bins * abs(p - centre))
                    held[b].append((w, p - s.share(place)[k]))
            sums = [(math.fsum(w for w, _ in one), math.fsum(w * d for w, d in one)) for one in held]
            filled = [abs(d) / w for w, d in sums if w >= 0.01]
            errors.append(math.fsum(filled) / len(filled))
    return ce(s) | {"ace": weight * math.fsum(errors) / max(pairs if released else len(errors), 1)}


def mbls(s: Scene, margin: float = 10.0, weight: float = 0.1, penalty: str = "l1") -> dict[str, float]:
    def cost(place: Place) -> float:
        row = s.row(place)
        beyond = [max(row) - v - margin for v in row]
        if penalty == "l2_released":
            return math.fsum(b**2 for b in beyond)
        return math.fsum(max(b, 0.0) ** (1 if penalty == "l1" else 2) for b in beyond)

    return ce(s) | {"margin": weight / s.classes * per_voxel(s, cost)}


def votes(s: Scene, place: Place, kernel: Any, border: str) -> Iterator[tuple[Place, list[float]]]:
    """(offset, shares) of every voxel of the window that has a vote."""
    space = s.logits.shape[2:]
    background = [1.0] + [0.0] * (s.classes - 1)
    for offset in itertools.product(*(range(-(size // 2), size // 2 + 1) for size in _sizes(s, kernel))):
        at = [p + o for p, o in zip(place[1:], offset, strict=True)]
        nearest = tuple(min(max(a, 0), size - 1) for a, size in zip(at, space, strict=True))
        outside = nearest != tuple(at)
        shares = background if outside and border == "background" else s.shares[(place[0], *nearest)]
        if shares is not None:
            yield offset, shares


def tau(
    s: Scene, place: Place, prior: str, kernel: Any = 3, border: str = "replicate", sigma: float = 1.0
) -> list[float]:
    seen = list(votes(s, place, kernel, border))
    if prior in ("max", "min", "median", "mode"):
        ids = sorted(share.index(max(share)) for _, share in seen)
        counts = {i: ids.count(i) for i in ids}
        chosen = {
            "max": ids[-1],
            "min": ids[0],
            "median": ids[(len(ids) - 1) // 2],
            "mode": min(counts, key=lambda i: (-counts[i], i)),
        }[prior]
        return [float(k == chosen) for k in range(s.classes)]
    every = list(itertools.product(*(range(-(n // 2), n // 2 + 1) for n in _sizes(s, kernel))))
    g = {o: math.exp(-sum(v**2 for v in o) / (2 * sigma**2)) if prior != "mean" else 1.0 for o in every}
    centre = tuple(0 for _ in every[0])
    if prior == "gaussian" and len(every) > 1:
        g[centre] = math.fsum(w for o, w in g.items() if o != centre)
    total = math.fsum(g[o] for o, _ in seen)
    return [math.fsum(g[o] * share[k] for o, share in seen) / total for k in range(s.classes)]


def _sizes(s: Scene, kernel: Any) -> tuple[int, ...]:
    return (kernel,) * (s.logits.ndim - 2) if isinstance(kernel, int) else tuple(kernel)


def svls(s: Scene, sigma: float = 2.0, kernel_size: Any = 3) -> dict[str, float]:
    soft = s._replace(hard=False)  # divided by the voxels, whatever the class weights
    return {"svls": weighted(soft, lambda p: tau(s, p, "gaussian", kernel_size, sigma=sigma))}


def nacl(
    s: Scene,
    weight: float = 0.1,
    prior: str = "mean",
    kernel_size: Any = 3,
    penalty: str = "l1",
    space: str = "logits",
    prior_scale: float = 1.0,
    border: str = "replicate",
) -> dict[str, float]:
    def cost(place: Place) -> float:
        compared = s.row(place) if space == "logits" else [math.exp(v) for v in s.log_softmax(place)]
        target = tau(s, place, prior, kernel_size, border)
        distances = [abs(prior_scale * t - v) for t, v in zip(target, compared, strict=True)]
        return math.fsum(d if penalty == "l1" else d**2 for d in distances)

    return ce(s) | {"penalty": weight / s.classes * per_voxel(s, cost)}


def penalty_value(name: str, z: float, rho: float, lam: float) -> float:
    if name == "phr":
        return lam * z + rho / 2 * z**2 if lam + rho * z >= 0 else -(lam**2) / (2 * rho)
    if z < 0:
        return lam * z / (1 - rho * z)
    return lam * z + lam * rho * z**2 + (rho**2 * z**3 / 6 if name == "p2" else 0.0)


def crac(
    s: Scene,
    lambdas: list[list[float]],
    rhos: list[list[float]],
    *,
    kernel_size: Any = 3,
    penalty: str = "phr",
    residual: str = "absolute",
    tolerance: float = 0.0,
    inner_scale: float = 5.0,
    outer_scale: float = 1.0,
    scale: str = "2k",
    border: str = "replicate",
) -> dict[str, float]:
    def cost(place: Place) -> float:
        seen = [share for _, share in votes(s, place, kernel_size, border)]
        r = 0 if len({share.index(max(share)) for share in seen}) == 1 else 1  # of soft labels the likeliest counts
        total = 0.0
        for k, (t, logit) in enumerate(zip(tau(s, place, "mean", kernel_size, border), s.row(place), strict=True)):
            difference = (inner_scale, outer_scale)[r] * t - logit
            z = (abs(difference) if residual == "absolute" else difference) - tolerance
            total += penalty_value(penalty, z, rhos[k][r], lambdas[k][r])
        return total

    return ce(s) | {"penalty": per_voxel(s, cost) / (s.classes * (2 if scale == "2k" else 1))}


def dice(
    s: Scene,
    include_background: bool = True,
    kind: str = "soft",
    gamma: float = 1.0,
    alpha: float = 0.5,
    beta: float = 0.5,
) -> float:
    """Of each image and class: 1 - (2 TP + eps) / (2 TP + 2 alpha FP + 2 beta FN + eps); the mean."""
    losses = []
    for image in range(s.logits.shape[0]):
        places = [place for place in s.counted() if place[0] == image]
        for k in range(0 if include_background else 1, s.classes):
            p = [math.exp(s.log_softmax(place)[k]) for place in places]
            y = [s.share(place)[k] for place in places]
            both = [*zip(p, y, strict=True)]
            if kind == "soft":
                tp, fp, fn = ([a * b for a, b in both], [a * (1 - b) for a, b in both], [b * (1 - a) for a, b in both])
            else:
                tp, fp, fn = ([min(a, b) for a, b in both], *([max(c, 0) for c in d] for d in _differences(both)))
            false, missed = (math.fsum(v**gamma for v in part) for part in (fp, fn))
            whole = 2 * math.fsum(tp) + 2 * alpha * false + 2 * beta * missed
            losses.append(1 - (2 * math.fsum(tp) + 1e-5) / (whole + 1e-5))
    return math.fsum(losses) / len(losses)


def _differences(both: list[tuple[float, float]]) -> tuple[list[float], list[float]]:
    return [a - b for a, b in both], [b - a for a, b in both]


def bwcr(
    s: Scene,
    valid: np.ndarray,
    weight: float = 1.0,
    min_weight: float = 0.01,
    max_weight: float = 1.0,
    radius_px: int = 10,
) -> dict[str, float]:
    """s: logits of both views [2n k *space], and the target given twice; valid [2n *space]: what the views saw."""
    n = s.logits.shape[0] // 2
    both = s._replace(shares={p: share if valid[p] else None for p, share in s.shares.items()})
    labels = {p: s.label(p) if share is not None else None for p, share in s.shares.items() if p[0] < n}
    rim = [p for p in labels if any(_differs(labels, p, axis, step) for axis in range(1, len(p)) for step in (-1, 1))]
    total = 0.0
    for p, label in labels.items():
        other = (p[0] + n, *p[1:])
        if label is not None and valid[p] and valid[other]:
            near = min([math.dist(p, q) for q in rim if q[0] == p[0]], default=math.inf)
            w = max_weight * max(radius_px - near, 0.0) / radius_px + min_weight
            total += w * math.fsum((a - b) ** 2 for a, b in zip(s.row(p), s.row(other), strict=True))
    return ce(both) | {"consistency": weight * total / (len(labels) * s.classes)}


def _differs(labels: dict[Place, int | None], place: Place, axis: int, step: int) -> bool:
    other = labels.get((*place[:axis], place[axis] + step, *place[axis + 1 :]))
    return other is not None and labels[place] is not None and other != labels[place]


LOSSES: dict[str, Callable[..., dict[str, float]]] = {
    "ce": ce, "ls": ls, "focal": focal, "ecp": ecp, "mbls": mbls, "svls": svls, "nacl": nacl,
    "focal_brier": focal_brier, "meep": meep,
}  # fmt: skip
