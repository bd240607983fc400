r"""A temperature for every voxel, from the scores and the image around it (LTS).

$$ p_i = \mathrm{softmax}(l_i / T_i), \qquad T = 0.05 + \mathrm{softplus}(s + \mathrm{tree}(l, x)), \qquad
   \min \sum_i \mathrm{NLL}_i(T_i) $$

The tree is a small network of nine gated convolutions (`solvers/temperature_tree.py` has its equations). Labels stay
as they are. It learns from stored scores by Adam, in 2-D slice by slice along the prediction's slice axis or in 3-D,
until the NLL of held-out patients stops falling; the best state is kept, and where no state is better than none, T = 1
everywhere.

Paper: Ding et al., Local temperature scaling for probability calibration, ICCV 2021.
Differs: the released code takes T = relu(. + 1) + 1e-8, which starts at T = 2 and has no gradient once it is 0; here T
    starts at 1 and never falls below 0.05. There leaves and gates all start at 0, get equal gradients and stay equal;
    here the gates start at random. Log-probabilities (not below -20) and image are standardised, so that a larger
    learning rate than the paper's 1e-4 can be used; it falls where the held-out NLL no longer does. On hippocampus
    logits 1e-4 had made two thirds of the gain in NLL after 40 epochs; 0.03 for a bias and 0.0035 for a weight need
    some 15. Of a case with more than half a million voxels, evenly spaced slices of about so many are learnt from. The
    border is mirrored where the slice has 5 voxels or more, else repeated.

>>> import numpy as np
>>> l = np.stack([np.zeros((8, 8, 8)), np.full((8, 8, 8), 2.0)])                  # says 88 % everywhere
>>> y = (np.arange(512).reshape(8, 8, 8) % 4 > 0).astype(np.uint8)                # is right at three of four
>>> calibrator = LocalTemperature(epochs=5).fit([l, l], [y, y], kind="logits")
>>> round(float(calibrator.transform(l)[1].mean()), 2)
0.75
"""

import copy
import math
import time
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor, nn

from calibseg.calibrators import Calibrator, ScoreChunk, VoxelStream, Watch
from calibseg.calibrators.solvers.log_scores import LogScores, softmax
from calibseg.calibrators.solvers.patches import STEP_VOXELS, Piece, Pieces, Volume, padded, runs, surroundings
from calibseg.calibrators.solvers.temperature_tree import HALO, BorderedTree, Tree
from calibseg.core.options import at_least
from calibseg.core.types import Array, BadInput, Prediction

STEPS = 40  # of an epoch at least: pieces that are fewer are seen several times
PATIENCE = 5  # epochs without a better held-out NLL before the learning rate falls
FALL = 0.3  # to this share
FALLS = 3  # and so often; then training stops
BETTER = 1e-4  # a relative gain in NLL below this is none


class LocalTemperature(Calibrator):
    """Local temperature scaling.

    dimensions: 2 sees a slice at a time, 3 the volume.
    learning_rate: Adam's at the start, for a bias; that of a weight is divided by the root of the window's size.
    epochs: at most so many.
    held_out: share of the patients that say when to stop; at least one, unless there is only one.
    """

    keeps_argmax = True
    contract_options = ({"dimensions": 3}, {"held_out": 0.4, "learning_rate": 0.01})
    reach = "volume"
    uses_image = True

    def __init__(
        self,
        dimensions: Literal[2, 3] = 2,
        learning_rate: float = 0.03,
        epochs: int = 60,
        held_out: float = 0.2,
        **common: Any,
    ):
        super().__init__(**common)
        self.dimensions = dimensions
        if dimensions not in (2, 3):
            raise BadInput(f"dimensions must be 2 or 3, not {dimensions!r}")
        self.learning_rate = at_least("learning_rate", learning_rate, 0, above=True)
        self.epochs = int(at_least("epochs", epochs, 1))
        self.held_out = at_least("held_out", held_out, 0, above=True)
        if self.held_out >= 1:
            raise BadInput(f"held_out must be less than 1, not {held_out!r}")
        self.tree: Tree | None = None

    def _fit(self, stream: VoxelStream) -> None:
        with Pieces(self.dimensions) as pieces:
            cases = _Cases(pieces, self.dimensions)
            stream.case_context = cases.open
            for chunk in stream:
                cases.add(chunk)
                del chunk  # it holds a part of the case
            channels = cases.close()
            held = held_out_patients(pieces.patients, self.held_out, self.seed)
            tree = Tree(stream.classes, channels, self.dimensions, torch.Generator().manual_seed(self.seed))
            tree.standardise(pieces.score.mean_and_deviation(), pieces.image.mean_and_deviation())
            record = train(tree, pieces, held, self.learning_rate, self.epochs, self.seed, self.watch)
        fallbacks = [] if held else ["one patient only: its own NLL said when to stop"]
        if record["best_epoch"] == 0:
            fallbacks.append("no state had a lower held-out NLL than T = 1, which is kept")
        self.tree = tree
        self.facts = {
            "image_channels": channels,
            "parameters": sum(part.numel() for part in tree.parameters()),
            "held_out_patients": sorted(held),
            **record,
            "fallbacks": fallbacks,
        }

    def case_context(self, scores: LogScores, image: Any, spacing_mm: Any, slice_axis: int) -> Array:
        """The temperature of every voxel, flat."""
        tree = self.tree
        assert tree is not None
        image = read_image(image, scores)
        channels = 0 if image is None else len(image)
        if channels != tree.channels:
            raise BadInput(
                f"local_temperature was fitted with {_channels(tree.channels)}, {scores.name} comes with"
                f" {_channels(channels)}"
            )
        axis = slice_axis if self.dimensions == 2 else 0
        found = np.empty(scores.shape[1:], np.float32)
        slices, log_p = np.moveaxis(found, axis, 0), _slices_first(scores.all().reshape(scores.shape), axis)
        image = None if image is None else _slices_first(image, axis)
        with torch.no_grad():
            for run in runs(np.arange(len(slices)), math.prod(slices.shape[1:]), self.dimensions, STEP_VOXELS):
                around = run if self.dimensions == 2 else surroundings(run, len(slices))
                parts = [None if part is None else padded(part[:, around], self.dimensions) for part in (log_p, image)]
                assert parts[0] is not None
                slices[run] = tree(parts[0], parts[1]).reshape(len(run), *slices.shape[1:]).numpy()
        return found.reshape(-1)

    def apply(self, scores: Array, case_context: Any, where: slice | Array) -> Array:
        scores /= case_context[where]
        return softmax(scores)

    def temperatures(self, prediction: Prediction) -> Array:
        """The temperature of every voxel [z y x] of a case, as `transform_prediction` uses it."""
        scores = self.open_scores(prediction)
        return self._case_context(scores, prediction).reshape(scores.shape[1:])

    def _module(self, spacing_mm: Any) -> nn.Module:
        assert self.tree is not None
        return BorderedTree(copy.deepcopy(self.tree).requires_grad_(False))

    def state(self) -> tuple[dict[str, Any], dict[str, Array]]:
        assert self.tree is not None
        return self.facts, {name: tensor.numpy().copy() for name, tensor in self.tree.state_dict().items()}

    def load_state(self, facts: Mapping[str, Any], arrays: Mapping[str, Array]) -> Self:
        self.tree = Tree(len(arrays["score_mean"]), len(arrays["image_mean"]), self.dimensions)
        self.tree.load_state_dict({name: torch.from_numpy(np.array(array)) for name, array in arrays.items()})
        self.facts = dict(facts)
        return self


class _Cases:
    """Cases on their way into pieces. Of the one that is open, arrays are held, and what its slabs said so far."""

    def __init__(self, pieces: Pieces, dimensions: int) -> None:
        self.pieces, self.dimensions = pieces, dimensions
        self.channels: int | None = None
        self.now: tuple[str, Volume] | None = None
        self.expected = self.weight = np.zeros(0, np.float32)

    def open(self, scores: LogScores, prediction: Prediction) -> None:
        """Cut the case before this one, which is whole now, then read this one."""
        self.close()
        image = read_image(prediction.image, scores)
        channels = 0 if image is None else len(image)
        if self.channels is not None and channels != self.channels:
            raise BadInput(f"{scores.name} has {_channels(channels)}, those before it had {_channels(self.channels)}")
        self.channels = channels
        axis = prediction.slice_axis if self.dimensions == 2 else 0
        space = scores.shape[1:]
        self.expected, self.weight = np.zeros((2, math.prod(space)), np.float32)
        self.now = (
            prediction.patient,
            Volume(
                _slices_first(scores.all().reshape(scores.shape), axis),
                None if image is None else _slices_first(image, axis),
                np.moveaxis(self.expected.reshape(space), axis, 0),
                np.moveaxis(self.weight.reshape(space), axis, 0),
            ),
        )

    def add(self, chunk: ScoreChunk) -> None:
        """What a slab says about the voxels that count."""
        self.expected[chunk.where] = mean_log_score(chunk)
        self.weight[chunk.where] = 1 if chunk.weight is None else chunk.weight

    def close(self) -> int:
        """Cut the case that is open; return how many channels images have."""
        if self.now is not None:
            patient, volume = self.now
            self.now = None
            if volume.weight.any():
                self.pieces.add(volume, patient)
        return self.channels or 0


def mean_log_score(chunk: ScoreChunk) -> Array:
    """sum_k q_k log p_k of every voxel: all that the NLL needs to know about its target."""
    if chunk.target.ndim == 1:
        return np.take_along_axis(chunk.scores, chunk.target[None], 0)[0]
    return np.einsum("kn,kn->n", chunk.target, chunk.scores)


def read_image(image: Any, scores: LogScores) -> Array | None:
    """An image [c z y x] on the grid of the scores, in float32."""
    if image is None:
        return None
    image = np.asarray(image, np.float32)
    if image.ndim != 4 or image.shape[1:] != scores.shape[1:] or not len(image):
        raise BadInput(
            f"{scores.name}: the image must be [c z y x] on the grid {list(scores.shape[1:])} of the scores, not"
            f" {list(image.shape)}"
        )
    if not np.isfinite(image).all():
        raise BadInput(f"{scores.name}: the image is NaN or infinite at {int((~np.isfinite(image)).sum())} voxels")
    return image


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
    _fit = [number for number, patient in enumerate(pieces.patients) if patient not in held]
    judges, rounds = judges or _fit, -(-STEPS // max(1, len(_fit)))
    optimiser = torch.optim.Adam(
        [{"params": [part], "lr": learning_rate / math.sqrt(part[0].numel())} for part in tree.parameters()]
    )
    order = np.random.default_rng(seed)
    before = best = judge(tree, pieces, judges)
    state, best_epoch, waited, falls, epoch = _copy(tree), 0, 0, 0, 0
    while epoch < epochs and falls <= FALLS:
        epoch += 1
        for number in np.concatenate([order.permutation(_fit) for _ in range(rounds)]):
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


def _slices_first(array: Array, axis: int) -> Array:
    """[c z y x] with its slice axis at the place of z."""
    return np.moveaxis(array, 1 + axis, 1)


def _copy(tree: Tree) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in tree.state_dict().items()}


def _channels(number: int) -> str:
    return "no image" if number == 0 else f"an image of {number} channel{'s' if number > 1 else ''}"
