"""Views: off by default, exact in what they move, and undone by their inverse."""

import numpy as np
import pytest
import torch
from scipy.ndimage import affine_transform

from calibseg.core.types import BadInput
from calibseg.data.augmentation import Augmentation
from calibseg.data.views import Views, inside, inverse, recoloured, warped, warped_labels


def matrices_of(augmentation, rng, n):
    return torch.from_numpy(augmentation.matrices(rng, n))


def smooth(n, h, w):
    rows, columns = torch.meshgrid(torch.linspace(0, 3, h), torch.linspace(0, 4, w), indexing="ij")
    return torch.stack([torch.sin(rows + number) * torch.cos(columns) for number in range(n)])[:, None]


def test_nothing_happens_by_default():
    nothing, image, rng = Augmentation(), torch.rand(3, 1, 8, 8), np.random.default_rng(0)
    assert not nothing.geometric
    assert torch.equal(matrices_of(nothing, rng, 3), torch.eye(2).expand(3, 2, 2))
    assert recoloured(image, nothing, rng) is image


@pytest.mark.parametrize("shape", [(24, 24), (20, 31)])
def test_a_view_is_scipys_affine_transform(shape):
    image = np.random.default_rng(0).random(shape).astype(np.float32)
    matrices = matrices_of(Augmentation(flip=0.5, rotate_deg=40, scale=0.3), np.random.default_rng(1), 6)
    views = warped(torch.from_numpy(image).expand(6, 1, *shape), matrices)
    centre = (np.array(shape) - 1) / 2
    shown = inside(matrices, *shape).numpy()
    for view, matrix, seen in zip(views[:, 0].numpy(), matrices.double().numpy(), shown, strict=True):
        expected = affine_transform(image.astype(float), matrix, centre - matrix @ centre, order=1)
        assert seen.mean() > 0.3
        np.testing.assert_allclose(view[seen], expected[seen], atol=2e-4)


def test_a_matrix_and_its_inverse_cancel():
    matrices = matrices_of(Augmentation(flip=0.5, rotate_deg=180, scale=0.5), np.random.default_rng(0), 50)
    torch.testing.assert_close(matrices @ inverse(matrices), torch.eye(2).expand(50, 2, 2), atol=1e-5, rtol=0)


@pytest.mark.parametrize("shape", [(16, 16), (15, 22)])
def test_flips_are_undone_without_loss(shape):
    image = torch.rand(32, 3, *shape)
    matrices = matrices_of(Augmentation(flip=0.5), np.random.default_rng(0), 32)
    assert {tuple(m.diagonal().tolist()) for m in matrices} == {(1, 1), (1, -1), (-1, 1), (-1, -1)}
    torch.testing.assert_close(warped(warped(image, matrices), inverse(matrices)), image, atol=1e-5, rtol=0)
    assert inside(inverse(matrices), *shape).all()


def test_logits_of_two_views_come_back_to_the_same_place():
    """What BWCR needs: two different views of each picture, mapped back, agree where both showed it."""
    image = smooth(3, 64, 80)
    views = Views(image, Augmentation(rotate_deg=25, scale=0.2, flip=0.5), np.random.default_rng(3))
    assert views.image.shape == (6, 1, 64, 80)
    assert not torch.allclose(views.image[:3], views.image[3:], atol=0.1)
    back, valid = views.back(views.image)
    # A pixel near the border was mixed with the black outside on the way out.
    valid[:, :3] = valid[:, -3:] = valid[:, :, :3] = valid[:, :, -3:] = False
    first, second = back[:3, 0], back[3:, 0]
    both = valid[:3] & valid[3:]
    assert both.float().mean() > 0.5
    assert (first - second)[both].abs().max() < 0.01
    assert (first - image[:, 0])[both].abs().max() < 0.01


def test_gradients_flow_back_through_the_way_home():
    image = torch.rand(1, 2, 8, 8)
    views = Views(image, Augmentation(rotate_deg=30), np.random.default_rng(0))
    logits = views.image.clone().requires_grad_()
    views.back(logits)[0].sum().backward()
    assert logits.grad is not None
    assert logits.grad.abs().sum() > 0


def test_labels_move_with_the_image_and_what_comes_in_from_outside_is_ignored():
    labels = torch.zeros(4, 32, 32, dtype=torch.long)
    labels[:, 8:20, 5:16] = 2
    labels[:, 0, 0] = -100
    matrices = matrices_of(Augmentation(rotate_deg=30, scale=0.2), np.random.default_rng(0), 4)
    image = (labels == 2).float()[:, None]
    views, moved = warped(image, matrices), warped_labels(labels, matrices, -100)
    assert set(moved.unique().tolist()) == {-100, 0, 2}
    sure = (views[:, 0] - 0.5).abs() > 0.49
    assert torch.equal((moved == 2)[sure], (views[:, 0] > 0.5)[sure])
    outside = warped(torch.ones(4, 1, 32, 32), matrices)[:, 0] == 0
    assert outside.any()
    assert (moved[outside] == -100).all()


def test_gamma_keeps_values_that_were_not_scaled_in_their_own_range():
    image = torch.tensor([[[[-800.0, 0.0, 400.0]]], [[[0.0, 0.25, 1.0]]]])
    brighter = recoloured(image, Augmentation(gamma=0.5), np.random.default_rng(1))
    assert brighter[0].flatten()[[0, 2]].tolist() == [-800, 400]
    assert -800 < brighter[0, 0, 0, 1] < 400
    power = torch.from_numpy(Augmentation(gamma=0.5).powers(np.random.default_rng(1), 2))[1]
    assert brighter[1].flatten().tolist() == pytest.approx((torch.tensor([0.0, 0.25, 1.0]) ** power).tolist())


def test_gamma_and_noise_stay_within_their_range():
    image, rng = torch.full((200, 1, 40, 40), 0.5), np.random.default_rng(0)
    darker = recoloured(image, Augmentation(gamma=0.5), rng)[:, 0, 0, 0]
    power = torch.log(darker) / np.log(0.5)
    assert 1 / 1.5 - 1e-4 < power.min() < 0.75
    assert 1.4 < power.max() < 1.5 + 1e-4
    noise = recoloured(image, Augmentation(noise=0.2), rng) - image
    sigma = noise.std((1, 2, 3))
    assert sigma.max() < 0.21
    assert sigma.mean() == pytest.approx(0.1, abs=0.015)
    assert abs(noise.mean()) < 0.002


@pytest.mark.parametrize(
    ("options", "said"), [({"noise": -1}, "noise must be a number from 0"), ({"flip": 2}, "a probability")]
)
def test_impossible_views_are_refused(options, said):
    with pytest.raises(BadInput, match=said):
        Augmentation(**options)
