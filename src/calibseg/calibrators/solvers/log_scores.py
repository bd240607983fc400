r"""A case's scores in one form: natural-log scores, normalised at every voxel, read a slab of planes at a time.

$$ \text{softmax:}\; l_k - \log \sum_j e^{l_j} \qquad \text{sigmoid:}\; \log \frac{p_k}{1 - p_k} $$

What the stored numbers are (`kind`) is stated by the caller and never guessed. Logits and log-probabilities are natural
logarithms already; a probability becomes log max(p, FLOOR), with sigmoid p is kept within [FLOOR, 1 - FLOOR]. A
log-probability of minus infinity is read as LEAST. Adding a number to all scores of a voxel changes nothing.

>>> LogScores(np.array([[[[0.75]]], [[[0.25]]]]), "probabilities").all()[:, 0].round(4).tolist()
[-0.2877, -1.3863]
>>> LogScores(np.array([[[[1.0]]], [[[0.0]]]]), "probabilities").all()[:, 0].round(4).tolist()     # floored at 1e-7
[-0.0, -16.1181]
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy import ndarray as Array

from calibseg.core.types import Activation, BadInput, ScoreKind

FLOOR = 1e-7
LEAST = float(np.log(np.finfo(np.float32).tiny))  # -87.3
TOLERANCE = 1e-3  # how far probabilities may sum from 1: float16 storage of many classes stays below
SLAB = 1 << 18  # numbers in a slab: a megabyte of float32, which a processor's cache holds with its temporaries


class LogScores:
    """Scores [k z y x] of any kind as normalised log scores [k n], slab after slab along z.

    name: what a message calls the case.
    """

    def __init__(
        self, scores: Any, kind: ScoreKind, activation: Activation = "softmax", name: str = "the case"
    ) -> None:
        self.scores, self.kind, self.activation, self.name = scores, kind, activation, name
        shape = tuple(int(size) for size in np.shape(scores))
        if len(shape) != 4 or shape[0] < (2 if activation == "softmax" else 1) or np.dtype(scores.dtype).kind != "f":
            least = "at least 2 classes" if activation == "softmax" else "a channel or more"
            raise BadInput(f"{name}: scores must be floating-point [k z y x] with {least}, not {scores.dtype} {shape}")
        if kind not in ("logits", "log_probabilities", "probabilities"):
            raise BadInput(f"{name}: kind must be logits, log_probabilities or probabilities, not {kind!r}")
        self.shape: tuple[int, int, int, int] = shape
        self.dtype = np.dtype(np.float64 if np.dtype(scores.dtype).itemsize > 4 else np.float32)

    @property
    def classes(self) -> int:
        return self.shape[0]

    @property
    def plane(self) -> int:
        """Voxels of a plane (y, x)."""
        return self.shape[2] * self.shape[3]

    def stream(self, normalised: bool = True) -> Iterator[tuple[slice, Array]]:
        """Ranges of flat voxels and their log scores [k n], C-contiguous, in float32 (float64 where stored so).

        normalised=False: known only up to a number for each voxel, which is faster; then they must not be changed.
        """
        step = max(1, SLAB // max(1, self.classes * self.plane))
        for begin in range(0, self.shape[1], step):
            end = min(begin + step, self.shape[1])
            part = np.asarray(self.scores[:, begin:end]).reshape(self.classes, -1)
            if normalised or self.kind != "logits":
                read = self._normalised(part)
            else:
                read = np.ascontiguousarray(part, self.dtype)
            self._check_finite(read)
            yield slice(begin * self.plane, end * self.plane), read

    def all(self) -> Array:
        """[k n] of the whole case at once."""
        parts = [part for _, part in self.stream()]
        return np.concatenate(parts, 1) if parts else np.zeros((self.classes, 0), self.dtype)

    def labels(self) -> Array:
        """The likeliest class [z y x], ties to the smallest id; as small a type as holds it."""
        found = np.empty(int(np.prod(self.shape[1:])), np.uint8 if self.classes <= 256 else np.int32)
        for where, part in self.stream(normalised=self.activation != "softmax"):
            found[where] = likeliest(part)
        return found.reshape(self.shape[1:])

    def _normalised(self, part: Array) -> Array:
        scores = np.array(part, self.dtype, order="C")  # a copy: it is changed in place
        if self.kind == "probabilities":
            self._check_probabilities(scores)
            low = max(FLOOR, float(np.finfo(self.dtype).tiny))
            high = 1 - low if self.activation == "sigmoid" else np.inf
            np.log(np.clip(scores, low, high, out=scores), out=scores)
        elif self.kind == "log_probabilities":
            np.maximum(scores, LEAST, out=scores)  # NaN stays NaN
        if self.activation == "softmax":
            log_softmax(scores)
        elif self.kind != "logits":
            self._refuse(scores > TOLERANCE, scores, "log-probabilities of a sigmoid are at most 0, not")
            np.minimum(scores, -FLOOR, out=scores)
            scores -= np.log(-np.expm1(scores))
        return scores

    def _check_finite(self, scores: Array) -> None:
        with np.errstate(over="ignore", invalid="ignore"):
            total = scores.sum()
        if not np.isfinite(total):  # one look where all is well; a sum may overflow where no score is infinite
            count = int((~np.isfinite(scores)).any(0).sum())
            if count:
                raise BadInput(f"{self.name}: scores are NaN or infinite at {count} voxels or more")

    def _check_probabilities(self, p: Array) -> None:
        self._refuse(np.isnan(p), p, "scores are")
        self._refuse((p < -TOLERANCE) | (p > 1 + TOLERANCE), p, "probabilities lie between 0 and 1, not")
        if self.activation == "softmax":
            total = p.sum(0)
            self._refuse(np.abs(total - 1) > TOLERANCE, total, "the probabilities of a voxel sum to 1, not")

    def _refuse(self, bad: Array, values: Array, fact: str) -> None:
        if bad.any():
            hint = "" if np.isnan(values[bad].flat[0]) else "; if they are logits, say so (kind logits)"
            raise BadInput(f"{self.name}: {fact} {float(values[bad].flat[0]):.6g}{hint}")


def log_softmax(scores: Array) -> Array:
    """Scores [k n] minus the logarithm of their summed exponentials, in place."""
    scores -= scores.max(0)
    scores -= np.log(np.exp(scores).sum(0))
    return scores


def softmax(scores: Array) -> Array:
    """Probabilities of scores [k n], in place."""
    scores -= scores.max(0)
    np.exp(scores, out=scores)
    scores /= scores.sum(0)
    return scores


def likeliest(scores: Array) -> Array:
    """The class of the largest score [k n] -> [n], ties to the smallest id. Faster than argmax along the first axis."""
    best, top = scores[0].copy(), np.zeros(scores.shape[1], np.uint8 if len(scores) <= 256 else np.int32)
    for k in range(1, len(scores)):
        better = scores[k] > best
        top[better] = k
        np.maximum(best, scores[k], out=best)
    return top
