r"""TransUNet: a ResNet-50 whose coarsest maps pass through a vision transformer before they are upsampled.

Encoder: ResNet-50 without its last stage (weight-standardised convolutions, group normalisation), 1/16 of the image;
each position is one token of ViT-B (12 layers, 768 numbers, 12 heads). Decoder: four times bilinear upsampling by 2,
concatenation with the ResNet's maps at 1/8, 1/4 and 1/2, and two 3x3 convolutions with batch normalisation and ReLU.
Positions are learnt on a 14 x 14 grid (224 pixels) and interpolated, so that any size works.

Paper: Chen et al., arXiv 2102.04306 (2021); encoder R50+ViT-B/16 of Dosovitskiy et al., ICLR 2021.
Parameters: 105,276,356 (1 channel, 4 classes).
Differs: the encoder is Google's, from which the public weights come, down to its padding (one voxel more behind than in
front), weight standardisation by std + 1e-5, tanh GELU and 32 groups everywhere; the authors' port pads evenly and
normalises each map of a projection by itself. Upsampling keeps decoder and encoder aligned (align_corners is off), and
positions are interpolated at every call, not once for the training size. Nothing is downloaded: `weights` is a file.
"""

from collections.abc import Iterator
from typing import ClassVar, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import conv2d, gelu, interpolate, max_pool2d, pad, relu, scaled_dot_product_attention

from calibseg.core.options import one_of
from calibseg.core.types import BadInput
from calibseg.networks import Network
from calibseg.networks._vit_weights import fill


class _Size(NamedTuple):
    units: tuple[int, int, int]  # residual units per stage
    width: int  # maps after the first convolution
    groups: int  # of the group normalisations
    hidden: int  # numbers per token
    heads: int
    mlp: int
    layers: int
    grid: int  # positions are learnt on grid x grid
    decoder: tuple[int, int, int, int, int]  # maps at 1/16, 1/8, 1/4, 1/2, 1


SIZES = {
    "base": _Size((3, 4, 9), 64, 32, 768, 12, 3072, 12, 14, (512, 256, 128, 64, 16)),
    "tiny": _Size((1, 1, 2), 16, 8, 32, 2, 64, 2, 4, (32, 32, 16, 16, 8)),
}


class TransUNet(Network):
    """TransUNet, two-dimensional.

    in_channels: >= 1, channels of the image; one channel is shown three times, like a grey photograph.
    num_classes: >= 2, channels of the logits.
    size: "base" (R50 + ViT-B/16) or "tiny", which is for tests.
    dropout: 0 to 1 (excluded), inside the transformer.
    weights: path of the public ImageNet-21k weights, R50+ViT-B_16.npz; without it the encoder starts at random.
        With other than 1 or 3 channels, the three kernels of the first convolution are used in turn.
    """

    small: ClassVar = {"size": "tiny"}
    only_to_start = ("weights",)
    multiple = (16, 16)
    positions = 2

    def __init__(
        self,
        in_channels: int,
        num_classes: int,
        size: Literal["base", "tiny"] = "base",
        dropout: float = 0.1,
        weights: str | None = None,
    ):
        super().__init__(in_channels, num_classes)
        if not 0 <= dropout < 1:
            raise BadInput(f"dropout must be at least 0 and less than 1, not {dropout!r}")
        s = SIZES[one_of("size", size, tuple(SIZES))]
        self.conv_root = _StandardConv(3 if in_channels == 1 else in_channels, s.width, 7, 2)
        self.gn_root = nn.GroupNorm(s.groups, s.width, eps=1e-6)
        stages = [s.width << stage for stage in range(3)]
        into = [s.width, *(4 * width for width in stages)]
        self.stages = nn.ModuleList(
            nn.Sequential(
                *(
                    _Unit(4 * width if unit else into[stage], width, 2 if stage and not unit else 1, s.groups)
                    for unit in range(s.units[stage])
                )
            )
            for stage, width in enumerate(stages)
        )
        self.embedding = nn.Conv2d(into[-1], s.hidden, 1)
        self.position = nn.Parameter(0.02 * torch.randn(1, s.hidden, s.grid, s.grid))
        self.dropout = nn.Dropout(dropout)
        self.layers = nn.ModuleList(_Layer(s.hidden, s.heads, s.mlp, dropout) for _ in range(s.layers))
        self.encoder_norm = nn.LayerNorm(s.hidden, eps=1e-6)
        self.bridge = _convolution(s.hidden, s.decoder[0])
        skipped = (into[2], into[1], s.width, 0)
        self.up = nn.ModuleList(
            nn.Sequential(_convolution(coarse + skip, own), _convolution(own, own))
            for coarse, own, skip in zip(s.decoder, s.decoder[1:], skipped, strict=False)
        )
        self.head = nn.Conv2d(s.decoder[-1], num_classes, 3, padding=1)
        if weights is not None:
            fill(_weight_views(self), weights)

    def segment(self, image: Tensor) -> Tensor:
        x = relu(self.gn_root(self.conv_root(image.expand(-1, 3, -1, -1) if self.in_channels == 1 else image)))
        skipped = [x]
        x = max_pool2d(x, 3, 2, ceil_mode=True)
        for stage in self.stages:
            x = stage(x)
            skipped.append(x)
        x = self.bridge(self.transform(self.embedding(skipped.pop())))
        for up in self.up:
            x = interpolate(x, scale_factor=2, mode="bilinear")
            x = up(torch.cat([x, skipped.pop()], 1) if skipped else x)
        return self.head(x)

    def transform(self, maps: Tensor) -> Tensor:
        """The vision transformer, maps [n hidden y x] in and out."""
        space = maps.shape[2:]
        position = interpolate(self.position, size=space, mode="bilinear")  # without a branch: sizes stay free in ONNX
        tokens = self.dropout((maps + position).flatten(2).transpose(1, 2))
        for layer in self.layers:
            tokens = layer(tokens)
        return self.encoder_norm(tokens).transpose(1, 2).unflatten(2, space)


class _StandardConv(nn.Conv2d):
    """A convolution whose kernels have mean 0 and variance 1, padded as the public weights expect."""

    def __init__(self, into: int, out: int, size: int, stride: int = 1):
        super().__init__(into, out, size, bias=False)
        self.every = stride

    def forward(self, input: Tensor) -> Tensor:
        variance, mean = torch.var_mean(self.weight, (1, 2, 3), correction=0, keepdim=True)
        weight = (self.weight - mean) / (variance.sqrt() + 1e-5)
        size, stride = self.kernel_size[0], self.every
        if size == 1:  # subsampling first, since a strided 1x1 convolution is not safe on every CPU: see nnunet.py
            return conv2d(input[..., ::stride, ::stride], weight)
        before = (size - stride) // 2
        after = size - stride - before
        return conv2d(pad(input, (before, after, before, after)), weight, stride=stride)


class _Unit(nn.Module):
    """A bottleneck of three convolutions beside a short cut."""

    def __init__(self, into: int, width: int, stride: int, groups: int):
        super().__init__()
        self.conv1, self.gn1 = _StandardConv(into, width, 1), nn.GroupNorm(groups, width, eps=1e-6)
        self.conv2, self.gn2 = _StandardConv(width, width, 3, stride), nn.GroupNorm(groups, width, eps=1e-6)
        self.conv3, self.gn3 = _StandardConv(width, 4 * width, 1), nn.GroupNorm(groups, 4 * width, eps=1e-6)
        self.projects = into != 4 * width or stride != 1
        if self.projects:
            self.conv_proj = _StandardConv(into, 4 * width, 1, stride)
            self.gn_proj = nn.GroupNorm(groups, 4 * width, eps=1e-6)

    def forward(self, x: Tensor) -> Tensor:
        short = self.gn_proj(self.conv_proj(x)) if self.projects else x
        x = relu(self.gn1(self.conv1(x)))
        x = relu(self.gn2(self.conv2(x)))
        return relu(short + self.gn3(self.conv3(x)))


class _Layer(nn.Module):
    """Self-attention and a two-layer perceptron, each behind a layer normalisation and beside a short cut."""

    def __init__(self, hidden: int, heads: int, mlp: int, dropout: float):
        super().__init__()
        self.heads = heads
        self.norm_0 = nn.LayerNorm(hidden, eps=1e-6)
        self.query_key_value = nn.Linear(hidden, 3 * hidden)
        self.out = nn.Linear(hidden, hidden)
        self.norm_2 = nn.LayerNorm(hidden, eps=1e-6)
        self.dense_0 = nn.Linear(hidden, mlp)
        self.dense_1 = nn.Linear(mlp, hidden)
        self.dropout = nn.Dropout(dropout)
        for linear in (self.query_key_value, self.out, self.dense_0, self.dense_1):
            nn.init.xavier_uniform_(linear.weight)
            nn.init.zeros_(linear.bias)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = (
            self.query_key_value(self.norm_0(x)).unflatten(2, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        )
        attended = scaled_dot_product_attention(query, key, value).transpose(1, 2).flatten(2)
        x = x + self.dropout(self.out(attended))
        inner = self.dropout(gelu(self.dense_0(self.norm_2(x)), approximate="tanh"))
        return x + self.dropout(self.dense_1(inner))


def _convolution(into: int, out: int) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(into, out, 3, padding=1, bias=False), nn.BatchNorm2d(out), nn.ReLU(inplace=True))


def _weight_views(network: TransUNet) -> Iterator[tuple[str, Tensor]]:
    """Each key of the file, and the network's parameter as a view in the file's layout."""

    def convolution(name: str, module: nn.Conv2d) -> Iterator[tuple[str, Tensor]]:
        yield f"{name}/kernel", module.weight.detach().permute(2, 3, 1, 0)

    def norm(name: str, module: nn.GroupNorm | nn.LayerNorm) -> Iterator[tuple[str, Tensor]]:
        yield f"{name}/scale", module.weight.detach()
        yield f"{name}/bias", module.bias.detach()

    yield from convolution("conv_root", network.conv_root)
    yield from norm("gn_root", network.gn_root)
    for i, stage in enumerate(network.stages, 1):
        assert isinstance(stage, nn.Sequential)
        for j, unit in enumerate(stage, 1):
            assert isinstance(unit, _Unit)
            for part in ("1", "2", "3", *(["_proj"] if unit.projects else [])):
                yield from convolution(f"block{i}/unit{j}/conv{part}", getattr(unit, f"conv{part}"))
                yield from norm(f"block{i}/unit{j}/gn{part}", getattr(unit, f"gn{part}"))
    yield from convolution("embedding", network.embedding)
    assert network.embedding.bias is not None
    yield "embedding/bias", network.embedding.bias.detach()
    yield "Transformer/posembed_input/pos_embedding", network.position.detach().permute(0, 2, 3, 1)
    for i, layer in enumerate(network.layers):
        assert isinstance(layer, _Layer)
        name, heads = f"Transformer/encoderblock_{i}", layer.heads
        yield from norm(f"{name}/LayerNorm_0", layer.norm_0)
        yield from norm(f"{name}/LayerNorm_2", layer.norm_2)
        attention = f"{name}/MultiHeadDotProductAttention_1"
        weight = layer.query_key_value.weight.detach().unflatten(0, (3, heads, -1))  # part, head, number, into
        bias = layer.query_key_value.bias.detach().unflatten(0, (3, heads, -1))
        for part, projection in enumerate(("query", "key", "value")):
            yield f"{attention}/{projection}/kernel", weight[part].permute(2, 0, 1)
            yield f"{attention}/{projection}/bias", bias[part]
        yield f"{attention}/out/kernel", layer.out.weight.detach().unflatten(1, (heads, -1)).permute(1, 2, 0)
        yield f"{attention}/out/bias", layer.out.bias.detach()
        for dense, linear in (("Dense_0", layer.dense_0), ("Dense_1", layer.dense_1)):
            yield f"{name}/MlpBlock_3/{dense}/kernel", linear.weight.detach().T
            yield f"{name}/MlpBlock_3/{dense}/bias", linear.bias.detach()
    yield from norm("Transformer/encoder_norm", network.encoder_norm)
