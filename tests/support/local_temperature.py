"""Cases whose right temperature depends on place, and calibrators with a given tree of temperatures."""

import numpy as np
import torch

from calibseg.calibrators import LocalTemperature
from calibseg.calibrators.solvers.log_scores import softmax
from calibseg.calibrators.solvers.temperature_tree import Tree
from calibseg.core.types import Prediction

MM = (1.0, 1.0, 1.0)


def overconfident_left(seed: int, shape=(6, 24, 24), factor=3.0, image=True, kind="half") -> Prediction:
    """Labels drawn from known probabilities; the left half's logits are multiplied by a factor, and the image shows it.

    kind: only the left half, or all of it.
    """
    rng = np.random.default_rng(seed)
    honest = rng.normal(size=(3, *shape)) * 1.5
    p = softmax(honest.reshape(3, -1).copy()).reshape(honest.shape)
    labels = (rng.random(shape) > p.cumsum(0)[:-1]).sum(0).astype(np.uint8)
    left = np.zeros(shape, bool)
    left[..., : shape[2] // 2] = True
    by = np.where(left | (kind == "all"), factor, 1.0)
    shown = (left[None] + 0.05 * rng.normal(size=(1, *shape))).astype(np.float32)
    name = f"case{seed}"
    return Prediction(
        name, name, (honest * by).astype(np.float32), "logits", MM, labels=labels, image=shown if image else None
    )


def plain_softmax(scores: np.ndarray) -> np.ndarray:
    return softmax(scores.reshape(len(scores), -1).astype(np.float64)).reshape(scores.shape)


def nll(p: np.ndarray, labels: np.ndarray) -> float:
    return float(-np.log(np.take_along_axis(p, labels[None].astype(int), 0)).mean())


def restored(tree: Tree, dimensions=2) -> LocalTemperature:
    """A calibrator that has a given tree."""
    calibrator = LocalTemperature(dimensions=dimensions)
    calibrator.classes = len(tree.state_dict()["score_mean"])
    return calibrator.load_state({}, {name: part.numpy() for name, part in tree.state_dict().items()})


def lively(classes: int, channels: int, dimensions: int, seed=0) -> Tree:
    """A tree with leaves that are not zero."""
    generator = torch.Generator().manual_seed(seed)
    tree = Tree(classes, channels, dimensions, generator)
    with torch.no_grad():
        for part in tree.parameters():
            part.copy_(torch.randn(part.shape, generator=generator) * 0.05)
    return tree


def voxel_temperatures(calibrator: LocalTemperature, scores, image=None, slice_axis=0) -> np.ndarray:
    return calibrator.temperatures(Prediction("a", "a", scores, "logits", MM, image=image, slice_axis=slice_axis))
