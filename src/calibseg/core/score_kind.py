"""Whether scores are what the caller says they are: refused where their values prove the contrary, never guessed.

NaN proves nothing: whoever reads the scores refuses it, unless the voxel is ignored.
"""

from collections.abc import Sequence
from typing import Any, get_args

import numpy as np
from numpy import ndarray as Array

from calibseg.core.types import TOLERANCE, Activation, BadInput, ScoreKind

# The score of a sigmoid channel above which it is predicted
EVEN: dict[ScoreKind, float] = {"logits": 0.0, "log_probabilities": float(np.log(0.5)), "probabilities": 0.5}
NO_LOGITS = (
    "are called logits, but all of them lie between 0 and 1 and sum to 1 at every voxel: they are probabilities, so"
    " say kind probabilities"
)


def check_kind(cases: Sequence[Array], kind: ScoreKind, activation: Activation = "softmax") -> None:
    """Refuse scores whose values prove that they are not what the caller says they are.

    Values outside [0, 1], or sums other than 1, are no probabilities, and a log-probability is at most 0. Numbers that
    all lie in [0, 1] and sum to 1 at every voxel of every case are no logits.
    """
    if kind not in get_args(ScoreKind):
        raise BadInput(f"kind must be logits, log_probabilities or probabilities, not {kind!r}")
    if activation not in get_args(Activation):
        raise BadInput(f"activation must be softmax or sigmoid, not {activation!r}")
    if kind == "probabilities":
        for number, scores in enumerate(cases):
            check_probabilities(scores, activation, f"case {number}")
    elif kind == "log_probabilities":
        for number, scores in enumerate(cases):
            if scores.size and scores.max() > TOLERANCE:
                raise BadInput(
                    f"case {number}: log-probabilities are at most 0, not {float(scores.max()):.6g}; if they are"
                    " logits, say kind='logits'"
                )
    elif activation == "softmax" and cases and all(map(are_probabilities, cases)):
        raise BadInput(f"the scores {NO_LOGITS}")


def are_probabilities(scores: Any) -> bool:
    """Whether every voxel of [k *space] holds numbers in [0, 1] that sum to 1. Logits say no at their first plane."""
    all_nan = True
    for plane in (np.asarray(scores[:, at]) for at in range(scores.shape[1])):
        low, high = (end.reduce(plane, axis=None, initial=0) for end in (np.fmin, np.fmax))
        if low < 0 or high > 1:
            return False
        distance = np.abs(plane.sum(0, dtype=np.float64) - 1)
        if (distance > TOLERANCE).any():
            return False
        all_nan = all_nan and bool(np.isnan(distance).all())
    return not all_nan


def check_probabilities(scores: Array, activation: Activation, name: str) -> None:
    """Refuse numbers [k *space] outside of [0, 1], and softmax's that do not sum to 1."""
    for plane in np.moveaxis(scores, 1, 0):
        low, high = (end.reduce(plane, axis=None, initial=0) for end in (np.fmin, np.fmax))
        if low < -TOLERANCE or high > 1 + TOLERANCE:
            outside = float(low if low < -TOLERANCE else high)
            raise BadInput(
                f"{name}: probabilities lie between 0 and 1, not {outside:.6g}; if they are logits, say kind='logits'"
            )
        total = plane.sum(0, dtype=np.float64)
        wrong = np.abs(total - 1) > TOLERANCE
        if activation == "softmax" and wrong.any():
            raise BadInput(
                f"{name}: the probabilities of a voxel sum to 1, not {float(total[wrong][0]):.6g}; if they are logits,"
                " say kind='logits'"
            )
