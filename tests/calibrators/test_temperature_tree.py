"""The tree of temperatures starts at T = 1, is its equation, and does not depend on how a volume is cut."""

import math

import numpy as np
import pytest
import torch

from calibseg.calibrators.solvers.patches import padded, surroundings
from calibseg.calibrators.solvers.temperature_tree import HALO, LOWEST, Tree
from support.local_temperature import lively, plain_softmax, restored, voxel_temperatures


@pytest.mark.parametrize(("classes", "channels", "count"), [(4, 1, 834), (3, 1, 634), (2, 4, 8 * 51 + 101)])
def test_the_2d_tree_has_as_many_numbers_as_the_papers(classes, channels, count):
    tree = Tree(classes, channels, 2)
    assert sum(part.numel() for part in tree.parameters()) == count == 8 * (25 * classes + 1) + 25 * channels + 1


def test_without_an_image_its_branch_and_gate_are_absent():
    assert sum(part.numel() for part in Tree(4, 0, 2).parameters()) == 7 * (25 * 4 + 1)


def test_in_3d_windows_are_cubes():
    assert sum(part.numel() for part in Tree(3, 1, 3).parameters()) == 8 * (125 * 3 + 1) + 125 + 1


@pytest.mark.parametrize("dimensions", [2, 3])
@pytest.mark.parametrize("channels", [0, 2])
def test_at_the_start_every_temperature_is_one(dimensions, channels):
    rng = np.random.default_rng(0)
    scores = rng.normal(size=(3, 7, 9, 11)).astype(np.float32) * 8
    image = rng.normal(size=(channels, 7, 9, 11)).astype(np.float32) if channels else None
    calibrator = restored(Tree(3, channels, dimensions, torch.Generator().manual_seed(1)), dimensions)
    np.testing.assert_allclose(voxel_temperatures(calibrator, scores, image), 1, atol=1e-6)
    np.testing.assert_allclose(calibrator.transform(scores, image), plain_softmax(scores), atol=1e-6)


def test_every_part_of_the_tree_gets_a_gradient_of_its_own_after_one_step():
    tree = Tree(3, 1, 2, torch.Generator().manual_seed(0))
    generator = torch.Generator().manual_seed(1)
    scores = torch.log_softmax(torch.randn(2, 3, 20, 20, generator=generator) * 3, 1)
    image = torch.randn(2, 1, 20, 20, generator=generator)
    aim = 1 + torch.rand(2, 12, 12, generator=generator)
    optimiser = torch.optim.Adam(tree.parameters(), lr=0.01)
    for _ in range(2):
        optimiser.zero_grad()
        (tree(scores, image) - aim).square().mean().backward()
        optimiser.step()
    for part in (tree.leaf_weight, tree.gate_weight):
        assert part.grad is not None
        flat = part.grad.flatten(1)
        assert (flat.abs().amax(1) > 0).all()
        assert torch.unique(flat, dim=0).shape[0] == len(flat)  # no two leaves, no two gates move alike


@pytest.mark.parametrize("dimensions", [2, 3])
def test_the_temperature_map_has_the_right_gradients(dimensions):
    side = 2 * HALO + (2 if dimensions == 2 else 1)
    tree = lively(2, 1, dimensions).double()
    generator = torch.Generator().manual_seed(3)
    space = (side,) * dimensions
    scores = torch.log_softmax(torch.randn(1, 2, *space, generator=generator, dtype=torch.float64), 1)
    image = torch.randn(1, 1, *space, generator=generator, dtype=torch.float64)
    names = [name for name, _ in tree.named_parameters()]

    def temperatures(*values):
        return torch.func.functional_call(tree, dict(zip(names, values, strict=True)), (scores, image))

    values = [part.detach().clone().requires_grad_() for part in tree.parameters()]
    assert torch.autograd.gradcheck(temperatures, values)


def test_the_map_is_the_equation_by_hand():
    """Every convolution written as a sum over its window, at one pixel."""
    tree = lively(3, 1, 2)
    rng = np.random.default_rng(0)
    scores = np.log(plain_softmax(rng.normal(size=(3, 1, 12, 13)) * 9)).astype(np.float32)
    image = rng.normal(size=(1, 1, 12, 13)).astype(np.float32)
    found = voxel_temperatures(restored(tree), scores, image)[0, 5, 7]
    parts = {name: part.numpy().astype(np.float64) for name, part in tree.state_dict().items()}
    window = np.maximum(scores[:, 0, 1:10:2, 3:12:2], -20)  # 5 x 5 around (5, 7), two apart
    a1, a2, a3, a4 = (parts["leaf_weight"] * window).sum((1, 2, 3)) + parts["leaf_bias"]
    gates = (parts["gate_weight"] * window).sum((1, 2, 3)) + parts["gate_bias"]
    g1, g2, g3, g4 = 1 / (1 + np.exp(-gates))
    b = (parts["image_weight"] * image[:, 0, 1:10:2, 3:12:2]).sum() + parts["image_bias"][0]
    w = g3 * (g1 * a1 + (1 - g1) * a2) + (1 - g3) * (g2 * a3 + (1 - g2) * a4)
    expected = 0.05 + np.log1p(np.exp(g4 * w + (1 - g4) * b + math.log(math.expm1(0.95))))
    assert found == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("dimensions", [2, 3])
@pytest.mark.parametrize("shape", [(1, 1, 1), (3, 2, 4), (5, 4, 30), (2, 5, 5)])
def test_tiny_volumes_are_padded_too(dimensions, shape):
    rng = np.random.default_rng(0)
    scores = rng.normal(size=(2, *shape)).astype(np.float32)
    calibrator = restored(lively(2, 0, dimensions), dimensions)
    t = voxel_temperatures(calibrator, scores)
    assert t.shape == shape
    assert np.isfinite(t).all()
    assert (t > LOWEST).all()


def test_the_border_is_mirrored_as_numpy_does_and_repeated_where_it_is_too_short():
    part = np.random.default_rng(0).normal(size=(2, 3, 6, 5)).astype(np.float32)
    around = [(0, 0), (0, 0), (HALO, HALO), (HALO, HALO)]
    np.testing.assert_array_equal(padded(part, 2).numpy().swapaxes(0, 1), np.pad(part, around, mode="reflect"))
    short = part[:, :, :4, :2]
    np.testing.assert_array_equal(padded(short, 3).numpy()[0], np.pad(short, around, mode="edge"))
    both = [np.pad(np.arange(5), HALO, mode="reflect"), np.pad(np.arange(4), HALO, mode="edge")]
    for size, expected in zip((5, 4), both, strict=True):
        np.testing.assert_array_equal(surroundings(np.arange(size), size), expected)


@pytest.mark.parametrize("dimensions", [2, 3])
def test_how_a_volume_is_cut_changes_nothing(dimensions, monkeypatch):
    rng = np.random.default_rng(0)
    scores = rng.normal(size=(2, 40, 6, 7)).astype(np.float32) * 4
    calibrator = restored(lively(2, 0, dimensions), dimensions)
    whole = voxel_temperatures(calibrator, scores)
    monkeypatch.setattr("calibseg.calibrators.local_temperature.STEP_VOXELS", 100)
    np.testing.assert_allclose(voxel_temperatures(calibrator, scores), whole, rtol=1e-5)


@pytest.mark.parametrize("axis", [1, 2])
def test_slices_are_taken_along_the_given_axis(axis):
    rng = np.random.default_rng(0)
    scores = rng.normal(size=(2, 6, 7, 8)).astype(np.float32)
    image = rng.normal(size=(1, 6, 7, 8)).astype(np.float32)
    calibrator = restored(lively(2, 1, 2))
    found = voxel_temperatures(calibrator, scores, image, slice_axis=axis)
    turned = voxel_temperatures(
        calibrator,
        np.ascontiguousarray(np.moveaxis(scores, 1 + axis, 1)),
        np.ascontiguousarray(np.moveaxis(image, 1 + axis, 1)),
    )
    np.testing.assert_allclose(found, np.moveaxis(turned, 0, axis), rtol=1e-6)


def test_in_3d_neighbouring_planes_are_seen():
    rng = np.random.default_rng(0)
    scores = rng.normal(size=(2, 12, 9, 9)).astype(np.float32)
    changed = scores.copy()
    changed[:, 4] += rng.normal(size=(2, 9, 9)).astype(np.float32)
    for dimensions, moved in ((2, [4]), (3, [0, 2, 4, 6, 8])):  # in 3-D: planes up to 4 away, two apart
        calibrator = restored(lively(2, 0, dimensions), dimensions)
        difference = np.abs(voxel_temperatures(calibrator, changed) - voxel_temperatures(calibrator, scores)).max(
            (1, 2)
        )
        assert (difference > 1e-6).nonzero()[0].tolist() == moved
