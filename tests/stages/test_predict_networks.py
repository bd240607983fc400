"""Several networks, mirror images and noise: what is asked of networks whose answer is known."""

import math

import numpy as np
import pytest
import torch

from calibseg.core.types import Case
from calibseg.data.noise import Noisy
from calibseg.data.slices import CaseSlices
from calibseg.stages.predict.options import InferenceOptions
from calibseg.stages.predict.slice_inference import slice_scores


def answers(*logits):
    """Networks that say the same of every pixel."""

    class Constant(torch.nn.Module):
        def __init__(self, values):
            super().__init__()
            self.values = torch.tensor(values)

        def forward(self, image):
            return self.values.view(1, -1, 1, 1).expand(len(image), -1, *image.shape[2:])

    return [Constant(values) for values in logits]


def in_memory(shape=(1, 3, 4, 5), seed=0):
    image = np.random.default_rng(seed).random(shape).astype(np.float32)
    return CaseSlices(Case("a", "a", image, ("x",), None, (1.0, 1.0, 1.0), ("b", "c"), np.eye(4)))


def test_means_of_probabilities_and_of_logits_are_those_computed_by_hand():
    """(0.9, 0.1) and (0.5, 0.5): their mean is 0.7; their geometric means are as 3 to 1."""
    networks = answers([math.log(0.9), math.log(0.1)], [7.0, 7.0])
    for average, wanted in (("probabilities", 0.7), ("logits", 0.75)):
        for scores in slice_scores(networks, in_memory(), InferenceOptions(average), batch_size=2):
            torch.testing.assert_close(scores.softmax(1)[:, 0], torch.full((len(scores), 4, 5), wanted))


def test_one_network_alone_says_its_own_logits():
    (scores,) = slice_scores(answers([3.0, -4.0]), in_memory())
    assert scores[0, :, 0, 0].tolist() == [3.0, -4.0]


class Ramp(torch.nn.Module):
    """Likes what is at the bottom and on the right, whatever it shows."""

    def forward(self, image):
        n, _, h, w = image.shape
        right = torch.arange(w).float().expand(n, 1, h, w)
        down = 10 * torch.arange(h).float().view(h, 1).expand(n, 1, h, w)
        return torch.cat([right + down, torch.zeros_like(right)], 1)


def test_mirror_images_are_asked_about_and_turned_back():
    """Of columns 0..4 and their mirror image the mean is 2; of rows 0, 10, 20, 30 it is 15."""
    rows, columns = 10 * torch.arange(4.0).view(4, 1).expand(4, 5), torch.arange(5.0).expand(4, 5)
    wanted = {
        "none": rows + columns,
        "columns": rows + 2,
        "rows": 15 + columns,
        "both": torch.full((4, 5), 17.0),
    }
    for flips, answer in wanted.items():
        (scores,) = slice_scores([Ramp()], in_memory(), InferenceOptions("logits", flips))
        torch.testing.assert_close(scores[1, 0], answer)


def test_a_slice_is_shown_in_the_frame_that_the_network_learnt_in_and_its_mirror_image_too():
    """The black is at the bottom and on the right, also of a mirror image; the answer has the slice's own size."""
    shown = []

    class Watching(Ramp):
        def forward(self, image):
            shown.append(image.clone())
            return super().forward(image)

    case = in_memory()
    (scores,) = slice_scores([Watching()], case, InferenceOptions("logits", "both"), at_least=(6, 8))
    assert scores.shape == (3, 2, 4, 5)
    torch.testing.assert_close(scores[1, 0], torch.full((4, 5), 17.0))
    slices = torch.from_numpy(case.case.image).movedim(1, 0)
    for image, axes in zip(shown, ((), (2,), (3,), (2, 3)), strict=True):
        assert image.shape == (3, 1, 6, 8)
        assert not image[:, :, 4:].any()
        assert not image[:, :, :, 5:].any()
        assert torch.equal(image[:, :, :4, :5], slices.flip(axes))


def test_noise_depends_on_seed_case_and_slice_only_and_grows_with_sigma():
    case = in_memory((2, 3, 40, 50))
    clean = case.read("image", 1)
    weak, strong = (Noisy(case, sigma, 5).read("image", 1) - clean for sigma in (0.01, 0.05))
    np.testing.assert_allclose(strong, 5 * weak, atol=1e-6)
    assert strong.std() == pytest.approx(0.05, rel=0.05)
    np.testing.assert_array_equal(Noisy(case, 0.05, 5).read("image", 1) - clean, strong)
    assert np.abs(Noisy(case, 0.05, 6).read("image", 1) - clean - strong).max() > 0.01
    assert np.abs(Noisy(case, 0.05, 5).read("image", 0) - case.read("image", 0) - strong).max() > 0.01
