"""The networks are the ones their papers used: parameters counted, layers recomputed by hand, MONAI's own output."""

import pytest
import torch
from monai.networks.nets.basic_unetplusplus import BasicUNetPlusPlus
from monai.networks.nets.dynunet import DynUNet
from torch.nn.functional import conv2d, max_pool2d, relu

from calibseg.core.types import BadInput
from calibseg.networks import NNUNet, UNet, UNetPP


def image(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(3))


@pytest.mark.parametrize(("channels", "classes", "parameters"), [(1, 4, 7_846_180), (1, 5, 7_846_213)])
def test_the_unet_has_the_papers_number_of_parameters(channels, classes, parameters):
    with torch.device("meta"):
        assert sum(p.numel() for p in UNet(channels, classes).parameters()) == parameters


def test_the_unet_is_the_layers_of_the_papers():
    torch.manual_seed(0)
    network = UNet(2, 3, width=2).double()
    pairs = list(network.parameters())
    weights = list(zip(pairs[::2], pairs[1::2], strict=True))  # ten convolutions down, eight up, the head
    assert [tuple(w.shape[:2]) for w, _ in weights[10:18:2]] == [(2, 6), (4, 12), (8, 24), (16, 48)]

    def level(x, first):
        for w, b in weights[first : first + 2]:
            x = relu(conv2d(x, w, b, padding=1))
        return x

    x, skipped = image(1, 2, 64, 32).double(), []
    expected_input = x
    for i, pool in enumerate([2, 2, 2, 4]):
        x = level(x, 2 * i)
        skipped.append(x)
        x = max_pool2d(x, pool)
    x = level(x, 8)
    assert x.shape == (1, 32, 2, 1)
    for i, factor in zip([3, 2, 1, 0], [4, 2, 2, 2], strict=True):
        x = x.repeat_interleave(factor, 2).repeat_interleave(factor, 3)
        x = level(torch.cat([x, skipped[i]], 1), 10 + 2 * i)
    torch.testing.assert_close(network(expected_input), conv2d(x, *weights[18]))


@pytest.mark.parametrize(("depth", "multiple"), [(2, 4), (3, 8), (5, 32)])
@pytest.mark.parametrize("dimensions", [2, 3])
def test_a_unet_of_any_depth_pools_by_two_and_at_last_by_four(depth, multiple, dimensions):
    network = UNet(1, 2, width=1, depth=depth, dimensions=dimensions)
    assert network.multiple == (multiple,) * dimensions
    assert network.padded((1,) * dimensions) == (multiple,) * dimensions


@pytest.mark.parametrize("norm", ["batch", "instance"])
@pytest.mark.parametrize("dimensions", [2, 3])
def test_normalised_unets_train_on_a_single_tiny_image(norm, dimensions):
    network = UNet(1, 2, width=2, depth=3, norm=norm, dimensions=dimensions)
    logits = network(image(1, 1, *[3] * dimensions))
    logits.square().mean().backward()
    assert all(p.grad is not None and torch.isfinite(p.grad).all() for p in network.parameters())
    assert network.padded((3,) * dimensions)[-1] == 16, "one position is too few for a variance"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"width": 0}, "width must be a whole number of at least 1, not 0"),
        ({"depth": 1}, "depth must be a whole number of at least 2, not 1"),
        ({"width": 10**8}, "a network of width 100000000 and depth 5 has 1600000000 maps .* GiB of memory"),
        ({"width": 10**30}, r"width must be below 2\^63"),
        ({"depth": 200}, "a network of width 32 and depth 200 has .* GiB of memory"),
        ({"norm": "group"}, "norm must be one of 'none', 'batch', 'instance', not 'group'"),
    ],
)
def test_an_impossible_unet_is_refused(options, message):
    with pytest.raises(BadInput, match=message):
        UNet(1, 2, **options)


@pytest.mark.parametrize("dimensions", [2, 3])
def test_nnunet_computes_what_dynunet_computes(dimensions):
    torch.manual_seed(0)
    ours = NNUNet(2, 3, width=16, patch_size=32, dimensions=dimensions)
    torch.manual_seed(0)
    theirs = DynUNet(
        dimensions, 2, 3, [3] * 4, [1, 2, 2, 2], [2] * 3, [16, 32, 64, 128], norm_name="instance", res_block=True
    )
    x = image(1, 2, *[16] * dimensions)
    torch.testing.assert_close(ours(x), theirs(x))
    ours(x).square().mean().backward()
    theirs(x).square().mean().backward()
    expected = [*theirs.skip_layers.parameters(), *theirs.output_block.parameters()]
    for mine, other in zip(ours.parameters(), expected, strict=True):
        torch.testing.assert_close(mine.grad, other.grad, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("patch_size", "multiple"),
    [
        (None, (32, 32)),
        (192, (32, 32)),  # 192 96 48 24 12 6: five halvings, as in the papers
        (64, (16, 16)),
        ([48, 64], (8, 16)),
        ([320, 20], (64, 4)),
    ],
)
def test_nnunet_halves_an_axis_as_long_as_eight_voxels_are_left(patch_size, multiple):
    with torch.device("meta"):
        assert NNUNet(1, 2, width=2, patch_size=patch_size).multiple == multiple


def test_nnunet_has_at_most_512_maps_and_320_in_three_dimensions():
    with torch.device("meta"):
        for dimensions, most in [(2, 512), (3, 320)]:
            parameters = NNUNet(1, 2, patch_size=256, dimensions=dimensions).parameters()
            assert max(len(p) for p in parameters) == most


@pytest.mark.parametrize(
    ("patch_size", "message"),
    [
        ([64, 64, 64], r"one number or 2, one per axis, not \[64, 64, 64\]"),
        (15, "at least 16 along one axis, so that it can be halved twice, not 15"),
        ([64, 0], "patch_size must be a whole number of at least 1, not 0"),
    ],
)
def test_an_impossible_patch_size_is_refused(patch_size, message):
    with pytest.raises(BadInput, match=message):
        NNUNet(1, 2, patch_size=patch_size)


def test_unetpp_without_its_unused_heads_computes_what_monai_computes():
    torch.manual_seed(0)
    ours = UNetPP(2, 3, width=4)
    torch.manual_seed(0)
    theirs = BasicUNetPlusPlus(2, 2, 3, (4, 8, 16, 32, 64, 4))
    x = image(1, 2, 32, 48)
    torch.testing.assert_close(ours(x), theirs(x)[0])
