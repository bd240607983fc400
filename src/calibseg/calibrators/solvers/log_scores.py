r"""A case's scores in one form: natural-log scores, normalised at every voxel, read a chunk of planes at a time.

$$ \text{softmax:}\; l_k - \log \sum_j e^{l_j} \qquad \text{sigmoid:}\; \log \frac{p_k}{1 - p_k} $$

What the stored numbers are (`kind`) is stated by the caller and never guessed. Logits and log-probabilities are natural
logarithms already; a probability becomes log max(p, e) with e = 2^-24 as in NLL, with sigmoid p is kept within
[e, 1 - e]. A log-probability of minus infinity is read as LEAST. Adding a number to all scores of a voxel changes
nothing.

>>> LogScores(np.array([[[[0.75]]], [[[0.25]]]]), "probabilities").all()[:, 0].round(4).tolist()
[-0.2877, -1.3863]
>>> LogScores(np.array([[[[1.0]]], [[[0.0]]]]), "probabilities").all()[:, 0].round(4).tolist()     # floored at 2^-24
[-0.0, -16.6355]
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy import ndarray as Array

from calibseg.core.labels import likeliest_class
from calibseg.core.scores import ChunkRange, ScoreReader
from calibseg.core.types import LEAST_PROBABILITY, TOLERANCE, Activation, BadInput, ScoreKind, VoxelName

LEAST = float(np.log(np.finfo(np.float32).tiny))  # -87.3
CHUNK = 1 << 18  # numbers in a chunk: a megabyte of float32, which a processor's cache holds with its temporaries


class LogScores(ScoreReader):
    """Scores [k z y x] of any kind as normalised log scores [k n], chunk after chunk along z.

    name: what a message calls the case.
    """

    def __init__(
        self,
        scores: Any,
        kind: ScoreKind,
        activation: Activation = "softmax",
        name: str = "the case",
        voxel: VoxelName | None = None,
    ) -> None:
        super().__init__(scores, kind, activation, name, voxel)
        if len(self.shape) != 4:
            raise BadInput(f"{name}: scores have the shape {self.shape}; expected [k z y x]")
        self.dtype = np.dtype(np.float64 if np.dtype(scores.dtype).itemsize > 4 else np.float32)

    def stream(self, normalised: bool = True) -> Iterator[tuple[slice, Array]]:
        """Ranges of flat voxels and their log scores [k n], C-contiguous, in float32 (float64 where stored so).

        normalised=False: known only up to a number for each voxel, which is faster; then they must not be changed.
        """
        for at in self.chunks(CHUNK // self.classes):
            stored = self.part(self.scores, at, leading=True)
            if normalised or self.kind != "logits":
                scores = np.array(stored, self.dtype, order="C")  # a copy: it is changed in place
                if self.kind == "probabilities":
                    self._refuse(self._impossible(scores), stored, at)
                self._normalise(scores)
            else:
                scores = np.ascontiguousarray(stored, self.dtype)
            with np.errstate(over="ignore", invalid="ignore"):
                total = scores.sum()
            if not np.isfinite(total):  # one look where all is well; a sum may overflow where no score is infinite
                self._refuse(~np.isfinite(scores).all(0), stored, at)
            yield slice(at[0] * self.plane, at[1] * self.plane), scores

    def all(self) -> Array:
        """[k n] of the whole case at once."""
        parts = [part for _, part in self.stream()]
        return np.concatenate(parts, 1) if parts else np.zeros((self.classes, 0), self.dtype)

    def labels(self) -> Array:
        """The likeliest class [z y x], ties to the smallest id; as small a type as holds it."""
        labels = np.empty(int(np.prod(self.space)), np.uint8 if self.classes <= 256 else np.int32)
        for where, scores in self.stream(normalised=self.activation != "softmax"):
            labels[where] = likeliest_class(scores)
        return labels.reshape(self.space)

    def _normalise(self, scores: Array) -> None:
        """Stored numbers become normalised log scores, in place."""
        if self.kind == "probabilities":
            high = 1 - LEAST_PROBABILITY if self.activation == "sigmoid" else np.inf
            np.log(np.clip(scores, LEAST_PROBABILITY, high, out=scores), out=scores)
        elif self.kind == "log_probabilities":
            np.maximum(scores, LEAST, out=scores)  # NaN stays NaN
        if self.activation == "softmax":
            log_softmax(scores)
        elif self.kind != "logits":
            scores[scores > TOLERANCE] = np.nan  # no log-probability: refused with what is not finite
            np.minimum(scores, -LEAST_PROBABILITY, out=scores)
            scores -= np.log(-np.expm1(scores))

    def _impossible(self, p: Array) -> Any:
        """Voxels [n] whose stored probabilities cannot be any."""
        bad = ~((p >= -TOLERANCE) & (p <= 1 + TOLERANCE)).all(0)
        return bad if self.activation == "sigmoid" else bad | ~(np.abs(p.sum(0) - 1) <= TOLERANCE)

    def _refuse(self, bad: Any, stored: Array, at: ChunkRange) -> None:
        if bad.any():
            i = int(bad.argmax())
            raise self.wrong_scores(stored[:, i], self.where(at, i))


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


def probability(z: Array, activation: Activation) -> Array:
    """The probability that one log score (softmax) or logit (sigmoid) stands for."""
    if activation == "softmax":
        return np.exp(z)
    with np.errstate(over="ignore"):  # far below 0, 1 / infinity is the 0 that is meant
        return 1 / (1 + np.exp(-z))
