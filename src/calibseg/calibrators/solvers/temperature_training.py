r"""How a tree of temperatures learns: Adam on pieces of cases, until the NLL of held-out patients stops falling.

$$ \mathrm{NLL}_i = \log \sum_k e^{l_{ik} / T_i} - \frac{1}{T_i} \sum_k q_{ik} l_{ik} $$

with log-probabilities l and the target's shares q. The best state is kept, and T = 1 where none is better.
"""

import math
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from calibseg.calibrators.solvers.patches import Piece, Pieces
from calibseg.calibrators.solvers.temperature_tree import HALO, Tree

Watch = Callable[[str], None]
STEPS = 40  # of an epoch at least: pieces that are fewer are seen several times
PATIENCE = 5  # epochs without a better held-out NLL before the learning rate falls
FALL = 0.3  # to this share
FALLS = 3  # and so often; then training stops
BETTER = 1e-4  # a relative gain in NLL below this is none


def held_out_patients(patients: list[str], share: float, seed: int) -> set[str]:
    """Who says when to stop: a share of the patients, at least one; nobody where there is only one."""
    known = sorted(set(patients))
    if len(known) < 2:
        return set()
    number = min(max(1, round(share * len(known))), len(known) - 1)
    return {known[at] for at in np.random.default_rng(seed).permutation(len(known))[:number]}


def train(
    tree: Tree, pieces: Pieces, held: set[str], learning_rate: float, epochs: int, seed: int, watch: Watch
) -> dict[str, Any]:
    """Adam over the pieces in random order; the tree ends in the state with the lowest NLL of those held out."""
    began = time.monotonic()
    judges = [number for number, patient in enumerate(pieces.patients) if patient in held]
    learnt_from = [number for number, patient in enumerate(pieces.patients) if patient not in held]
    judges, rounds = judges or learnt_from, -(-STEPS // max(1, len(learnt_from)))
    optimiser = torch.optim.Adam(
        [{"params": [part], "lr": learning_rate / math.sqrt(part[0].numel())} for part in tree.parameters()]
    )
    order = np.random.default_rng(seed)
    before = best = judge(tree, pieces, judges)
    state, best_epoch, waited, falls, epoch = _copy(tree), 0, 0, 0, 0
    while epoch < epochs and falls <= FALLS:
        epoch += 1
        for number in np.concatenate([order.permutation(learnt_from) for _ in range(rounds)]):
            piece = pieces.piece(number)
            loss = (voxel_nll(tree, piece)[0] * piece.weight).sum() / piece.weight.sum()
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
        now = judge(tree, pieces, judges)
        watch(f"epoch {epoch}/{epochs}, held-out NLL {now.nll:.5f}, {time.monotonic() - began:.0f} s")
        waited += 1
        if now.nll < best.nll * (1 - BETTER):
            best, state, best_epoch, waited = now, _copy(tree), epoch, 0
        elif waited == PATIENCE:
            tree.load_state_dict(state)
            for group in optimiser.param_groups:
                group["lr"] *= FALL
            waited, falls = 0, falls + 1
    tree.load_state_dict(state)
    return {
        "epochs_run": epoch,
        "best_epoch": best_epoch,
        "nll_before": before.nll,
        "nll_after": best.nll,
        "temperature_mean": best.mean,
        "temperature_min": best.low,
        "temperature_max": best.high,
    }


class _Judged(NamedTuple):
    """The NLL of voxels that count, and their temperatures."""

    nll: float
    mean: float
    low: float
    high: float


@torch.no_grad()
def judge(tree: Tree, pieces: Pieces, numbers: list[int]) -> _Judged:
    total = weights = temperatures = 0.0
    low, high = math.inf, -math.inf
    for number in numbers:
        piece = pieces.piece(number)
        nll, t = voxel_nll(tree, piece)
        weight = piece.weight.double()
        total += float((nll * weight).sum())
        temperatures += float((t * weight).sum())
        weights += float(weight.sum())
        counted = t[piece.weight > 0]
        low, high = min(low, float(counted.min())), max(high, float(counted.max()))
    return _Judged(total / weights, temperatures / weights, low, high)


def voxel_nll(tree: Tree, piece: Piece) -> tuple[Tensor, Tensor]:
    """The NLL and the temperature of every voxel [n *space]."""
    t = tree(piece.scores, piece.image)
    inner = piece.scores[(..., *[slice(HALO, -HALO)] * (piece.scores.ndim - 2))]
    return torch.logsumexp(inner / t.unsqueeze(1), 1) - piece.expected / t, t


def _copy(tree: Tree) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in tree.state_dict().items()}
