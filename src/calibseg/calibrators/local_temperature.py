r"""A temperature for every voxel, from the scores and the image around it (LTS).

$$ p_i = \mathrm{softmax}(l_i / T_i), \qquad T = 0.05 + \mathrm{softplus}(s + \mathrm{tree}(l, x)), \qquad
   \min \sum_i \mathrm{NLL}_i(T_i) $$

The tree is a small network of nine gated convolutions (`solvers/temperature_tree.py` has its equations). Labels stay
as they are. It learns from stored scores by Adam, in 2-D slice by slice along the prediction's slice axis or in 3-D,
until the NLL of held-out patients stops falling; the best state is kept, and where no state is better than none, T = 1
everywhere. With sigmoid scores every channel has a tree of its own, which sees the log-probabilities of its two
classes.

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
from collections.abc import Mapping
from typing import Any, Literal, Self

import numpy as np
import torch
from torch import nn

from calibseg.calibrators import Calibrator, ScoreChunk, VoxelStream
from calibseg.calibrators.solvers.log_scores import LogScores, log_softmax, probability, softmax
from calibseg.calibrators.solvers.patches import STEP_VOXELS, Pieces, Volume, padded, runs, surroundings
from calibseg.calibrators.solvers.temperature_training import held_out_patients, train
from calibseg.calibrators.solvers.temperature_tree import BorderedTree, BorderedTrees, Tree
from calibseg.core.options import at_least, whole_number
from calibseg.core.types import Array, BadInput, Prediction


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
    activations = ("softmax", "sigmoid")

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
        self.takes_slices = dimensions == 2
        self.learning_rate = at_least("learning_rate", learning_rate, 0, above=True)
        self.epochs = whole_number("epochs", epochs, 1)
        self.held_out = at_least("held_out", held_out, 0, above=True)
        if self.held_out >= 1:
            raise BadInput(f"held_out must be less than 1, not {held_out!r}")
        self.trees: list[Tree] = []  # one; with sigmoid one for each channel

    def _fit(self, stream: VoxelStream) -> None:
        sigmoid = stream.activation == "sigmoid"
        fits = [self._fit_tree(stream, channel) for channel in (range(stream.classes) if sigmoid else [None])]
        self.trees = [tree for tree, _ in fits]
        facts_of_trees = [facts for _, facts in fits]
        if not sigmoid:
            self.facts = facts_of_trees[0]
            return
        common = {name: facts_of_trees[0][name] for name in ("image_channels", "held_out_patients")}
        self.facts = {name: [facts[name] for facts in facts_of_trees] for name in facts_of_trees[0]} | common
        remarks = enumerate(self.facts["fallbacks"])
        self.facts["fallbacks"] = [f"channel {r}: {text}" for r, texts in remarks for text in texts]

    def _fit_tree(self, stream: VoxelStream, channel: int | None) -> tuple[Tree, dict[str, Any]]:
        """The tree of all classes (None), or of one channel and its complement; and how it was learnt."""
        watch = self.watch if channel is None else lambda text: self.watch(f"channel {channel}, {text}")
        with Pieces(self.dimensions) as pieces:
            cases = _Cases(pieces, self.dimensions, channel)
            stream.case_context = cases.open  # called as each case is opened; it takes the case and gives no context
            for chunk in stream:
                cases.add(chunk)
                del chunk  # it holds a part of the case
            images = cases.close()
            held = held_out_patients(pieces.patients, self.held_out, self.seed)
            classes = stream.classes if channel is None else 2
            tree = Tree(classes, images, self.dimensions, torch.Generator().manual_seed(self.seed))
            tree.standardise(pieces.score.mean_and_deviation(), pieces.image.mean_and_deviation())
            record = train(tree, pieces, held, self.learning_rate, self.epochs, self.seed, watch)
        fallbacks = [] if held else ["one patient only: its own NLL said when to stop"]
        if record["best_epoch"] == 0:
            fallbacks.append("no state had a lower held-out NLL than T = 1, which is kept")
        facts = {"image_channels": images, "held_out_patients": sorted(held), **record, "fallbacks": fallbacks}
        return tree, facts

    def case_context(self, scores: LogScores, image: Any, spacing_mm: Any, slice_axis: int) -> Array:
        """The temperature of every voxel, flat; with sigmoid of every channel [k n]."""
        image = read_image(image, scores)
        channels, fitted = 0 if image is None else len(image), self.trees[0].channels
        if channels != fitted:
            raise BadInput(
                f"local_temperature was fitted with {_channels(fitted)}, {scores.name} comes with {_channels(channels)}"
            )
        axis = slice_axis if self.dimensions == 2 else 0
        log_p, image = scores.all(), None if image is None else _slices_first(image, axis)
        if scores.activation == "softmax":
            return self._temperatures(self.trees[0], log_p.reshape(scores.shape), image, axis)
        temperatures = [
            self._temperatures(tree, two_classes(z).reshape(2, *scores.space), image, axis)
            for tree, z in zip(self.trees, log_p, strict=True)
        ]
        return np.stack(temperatures)

    @torch.no_grad()
    def _temperatures(self, tree: Tree, log_p: Array, image: Array | None, axis: int) -> Array:
        """Of log-probabilities [k z y x] and an image whose slices come first, flat."""
        temperatures = np.empty(log_p.shape[1:], np.float32)
        slices, log_p = np.moveaxis(temperatures, axis, 0), _slices_first(log_p, axis)
        for run in runs(np.arange(len(slices)), math.prod(slices.shape[1:]), self.dimensions, STEP_VOXELS):
            around = run if self.dimensions == 2 else surroundings(run, len(slices))
            shown = None if image is None else padded(image[:, around], self.dimensions)
            t = tree(padded(log_p[:, around], self.dimensions), shown)
            slices[run] = t.reshape(len(run), *slices.shape[1:]).numpy()
        return temperatures.reshape(-1)

    def apply(self, scores: Array, case_context: Any, where: slice | Array) -> Array:
        scores /= case_context[..., where]
        return softmax(scores) if self.activation == "softmax" else probability(scores, "sigmoid")

    def temperatures(self, prediction: Prediction) -> Array:
        """The temperature of every voxel [z y x] of a case, as it is used; with sigmoid of every channel [k z y x]."""
        scores = self.open_scores(prediction)
        flat = self._case_context(scores, prediction)
        return flat.reshape(*flat.shape[:-1], *scores.space)

    def _module(self, spacing_mm: Any) -> nn.Module:
        made = [BorderedTree(copy.deepcopy(tree).requires_grad_(False)) for tree in self.trees]
        return made[0] if self.activation == "softmax" else BorderedTrees(made)

    def state(self) -> tuple[dict[str, Any], dict[str, Array]]:
        """With sigmoid the arrays of channel r begin with `r.`."""
        arrays = {}
        for r, tree in enumerate(self.trees):
            before = "" if self.activation == "softmax" else f"{r}."
            arrays |= {before + name: tensor.numpy().copy() for name, tensor in tree.state_dict().items()}
        return self.facts, arrays

    def parameters(self) -> int:
        return sum(number.numel() for tree in self.trees for number in tree.parameters())

    def load_state(self, facts: Mapping[str, Any], arrays: Mapping[str, Array]) -> Self:
        self.facts, self.trees = dict(facts), []
        for before in [""] if self.activation == "softmax" else [f"{r}." for r in range(self.classes)]:
            own = {name.removeprefix(before): arrays[name] for name in arrays if name.startswith(before)}
            tree = Tree(len(own["score_mean"]), len(own["image_mean"]), self.dimensions)
            tree.load_state_dict({name: torch.from_numpy(np.array(array)) for name, array in own.items()})
            self.trees.append(tree)
        return self


class _Cases:
    """Cases on their way into pieces. Of the one that is open, arrays are held, and what its slabs said so far.

    channel: of sigmoid scores; None: softmax
    """

    def __init__(self, pieces: Pieces, dimensions: int, channel: int | None) -> None:
        self.pieces, self.dimensions, self.channel = pieces, dimensions, channel
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
        axis = (prediction.slice_axis or 0) if self.dimensions == 2 else 0
        space = scores.space
        log_p = scores.all() if self.channel is None else two_classes(scores.all()[self.channel])
        self.expected, self.weight = np.zeros((2, math.prod(space)), np.float32)
        self.now = (
            prediction.patient,
            Volume(
                _slices_first(log_p.reshape(-1, *space), axis),
                None if image is None else _slices_first(image, axis),
                np.moveaxis(self.expected.reshape(space), axis, 0),
                np.moveaxis(self.weight.reshape(space), axis, 0),
            ),
        )

    def add(self, chunk: ScoreChunk) -> None:
        """What a slab says about the voxels that count."""
        if self.channel is not None:
            y = chunk.target[self.channel]
            chunk = chunk._replace(scores=two_classes(chunk.scores[self.channel]), target=np.stack([1 - y, y]))
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


def two_classes(z: Array) -> Array:
    """The log-probabilities [2 n] of a channel's complement and of itself, from its logits [n]."""
    return log_softmax(np.stack([np.zeros_like(z), z]))


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


def _slices_first(array: Array, axis: int) -> Array:
    """[c z y x] with its slice axis at the place of z."""
    return np.moveaxis(array, 1 + axis, 1)


def _channels(number: int) -> str:
    return "no image" if number == 0 else f"an image of {number} channel{'s' if number > 1 else ''}"
