r"""The tree of convolutions that gives every voxel its own temperature.

$$ u = g_1 a_1 + (1 - g_1) a_2, \quad v = g_2 a_3 + (1 - g_2) a_4, \quad w = g_3 u + (1 - g_3) v $$
$$ T = 0.05 + \mathrm{softplus}(s + g_4 w + (1 - g_4) b), \qquad g = \sigma(\mathrm{conv}(f)), \quad
   a = \mathrm{conv}(f), \quad b = \mathrm{conv}(x) $$

f are the log-probabilities of the K classes, those below -20 taken as -20, and x is the image with C channels, both
standardised by the mean and the deviation of each class and channel over the cases learnt from. Every convolution has a
side of 5, a dilation of 2, a bias and one output: 8 (25 K + 1) + 25 C + 1 numbers in 2-D. The constant s makes T = 1
where a = b = 0. Without an image, T = 0.05 + softplus(s + w): 7 (25 K + 1) numbers.
"""

import math

import torch
import torch.nn.functional as F
from numpy import ndarray as Array
from torch import Tensor, nn

from calibseg.calibrators.fitted.module import bordered
from calibseg.core.types import BadInput

SIDE, DILATION = 5, 2
HALO = DILATION * (SIDE - 1) // 2  # how far a convolution sees: 4 voxels
LOWEST = 0.05  # no temperature is lower
START = math.log(math.expm1(1 - LOWEST))  # s: softplus(s) = 0.95
LEAVES, GATES = 4, 3  # and a fourth gate where there is an image
LEAST = -20.0  # a log-probability below tells nothing more, and would outweigh its neighbours


class Tree(nn.Module):
    """Scores [n k *padded] and image [n c *padded] (or None where channels = 0) -> temperatures [n *space].

    Both come padded by HALO voxels on each side. The leaves begin at 0, so T = 1 everywhere; the gates begin at
    random, because with equal gates the four leaves would get equal gradients and stay equal for ever.
    """

    def __init__(self, classes: int, channels: int, dimensions: int, generator: torch.Generator | None = None):
        super().__init__()
        gates = GATES + (channels > 0)
        window = (SIDE,) * dimensions
        reach = 1 / math.sqrt(classes * SIDE**dimensions)
        self.leaf_weight = nn.Parameter(torch.zeros(LEAVES, classes, *window))
        self.leaf_bias = nn.Parameter(torch.zeros(LEAVES))
        self.gate_weight = nn.Parameter((torch.rand(gates, classes, *window, generator=generator) * 2 - 1) * reach)
        self.gate_bias = nn.Parameter(torch.zeros(gates))
        if channels:
            self.image_weight = nn.Parameter(torch.zeros(1, channels, *window))
            self.image_bias = nn.Parameter(torch.zeros(1))
        for name, size in (("score", classes), ("image", channels)):
            self.register_buffer(f"{name}_mean", torch.zeros(size))
            self.register_buffer(f"{name}_scale", torch.ones(size))
        self.channels = channels

    def forward(self, scores: Tensor, image: Tensor | None = None) -> Tensor:
        weight, bias = torch.cat([self.leaf_weight, self.gate_weight]), torch.cat([self.leaf_bias, self.gate_bias])
        a1, a2, a3, a4, *gates = _convolve(self._standard("score", scores.clamp(min=LEAST)), weight, bias).unbind(1)
        g1, g2, g3, *last = (torch.sigmoid(gate) for gate in gates)
        w = torch.lerp(torch.lerp(a4, a3, g2), torch.lerp(a2, a1, g1), g3)
        if image is not None:
            b = _convolve(self._standard("image", image), self.image_weight, self.image_bias)[:, 0]
            w = torch.lerp(b, w, last[0])
        return LOWEST + F.softplus(w + START)

    def standardise(self, score: tuple[Array, Array], image: tuple[Array, Array]) -> None:
        """Say the mean and the deviation of every class's clipped log-probability and of every image channel."""
        for name, moments in (("score", score), ("image", image)):
            for kind, values in zip(("mean", "scale"), moments, strict=True):
                self.get_buffer(f"{name}_{kind}").copy_(torch.from_numpy(values))

    def _standard(self, name: str, x: Tensor) -> Tensor:
        shape = (-1, *[1] * (x.ndim - 2))
        mean, scale = self.get_buffer(f"{name}_mean"), self.get_buffer(f"{name}_scale")
        return (x - mean.view(shape)) / scale.view(shape)


class BorderedTree(nn.Module):
    """Scores [n k *space] and image -> probabilities. In 2-D every slice of a volume is an image of its own."""

    def __init__(self, tree: Tree) -> None:
        super().__init__()
        self.tree, self.dimensions = tree, tree.leaf_weight.ndim - 2

    def forward(self, scores: Tensor, image: Tensor | None = None) -> Tensor:
        return torch.softmax(scores / self.temperature(scores, image), 1)

    def temperature(self, scores: Tensor, image: Tensor | None) -> Tensor:
        """[n 1 *space]"""
        channels = 0 if image is None else image.shape[1]
        if channels != self.tree.channels:
            raise BadInput(f"local_temperature was fitted with {self.tree.channels} image channels, not {channels}")
        around = None if image is None else self._around(image)
        t = self.tree(self._around(scores), around)
        return t.view(scores.shape[0], 1, *scores.shape[2:])  # len() would fix the number of cases

    def _around(self, part: Tensor) -> Tensor:
        """As the tree reads it, with a border."""
        if part.ndim == 5 and self.dimensions == 2:
            part = part.transpose(1, 2).flatten(0, 1)
        elif part.ndim == 4 and self.dimensions == 3:
            part = part.unsqueeze(2)
        return bordered(part, HALO, self.dimensions)


class BorderedTrees(nn.Module):
    """Logits of channels [n k *space] and image -> probabilities, each channel by the tree of its two classes."""

    def __init__(self, trees: list[BorderedTree]) -> None:
        super().__init__()
        self.trees = nn.ModuleList(trees)

    def forward(self, scores: Tensor, image: Tensor | None = None) -> Tensor:
        probabilities = []
        for z, tree in zip(scores.split(1, 1), self.trees, strict=True):
            assert isinstance(tree, BorderedTree)
            log_p = torch.log_softmax(torch.cat([torch.zeros_like(z), z], 1), 1)
            probabilities.append(torch.sigmoid(z / tree.temperature(log_p, image)))
        return torch.cat(probabilities, 1)


def _convolve(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    convolution = F.conv2d if weight.ndim == 4 else F.conv3d
    return convolution(x, weight, bias, dilation=DILATION)
