"""Window sums, priors, regions and distances against a loop over voxels."""

import itertools
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.ndimage import distance_transform_edt

from calibseg.core import registry
from calibseg.core.labels import Target
from calibseg.core.types import BadInput
from calibseg.losses.maths.neighbourhood import class_counts, distance_to_boundary, inner_region


def windows(labels: np.ndarray, kernel: tuple[int, ...], border: str):
    """Every voxel of [*space] with the labels in its window, ignored (-100) ones left out."""
    radius = [size // 2 for size in kernel]
    for voxel in np.ndindex(labels.shape):
        seen = []
        for offset in itertools.product(*(range(-r, r + 1) for r in radius)):
            at = [v + o for v, o in zip(voxel, offset, strict=True)]
            inside = all(0 <= a < size for a, size in zip(at, labels.shape, strict=True))
            if inside or border == "replicate":
                clamped = tuple(min(max(a, 0), size - 1) for a, size in zip(at, labels.shape, strict=True))
                seen.append(int(labels[clamped]))
            else:
                seen.append(0)
        yield voxel, [label for label in seen if label != -100]


ORACLES = {
    "mean": lambda seen, k: [seen.count(c) / len(seen) for c in range(k)],
    "max": lambda seen, k: np.eye(k)[max(seen)],
    "min": lambda seen, k: np.eye(k)[min(seen)],
    "median": lambda seen, k: np.eye(k)[sorted(seen)[(len(seen) - 1) // 2]],
    "mode": lambda seen, k: np.eye(k)[min(Counter(seen), key=lambda c: (-Counter(seen)[c], c))],
}

label_maps = st.builds(
    lambda space, k, seed, ignore: (
        np.where(
            np.random.default_rng(seed).random(space) < ignore,
            -100,
            np.random.default_rng(seed + 1).integers(0, k, space),
        ),
        k,
    ),
    st.lists(st.integers(1, 5), min_size=2, max_size=3).map(tuple),
    st.integers(2, 30),
    st.integers(0, 10_000),
    st.sampled_from([0.0, 0.3]),
)


@pytest.mark.parametrize("border", ["replicate", "background"])
@pytest.mark.parametrize("key", sorted(ORACLES))
@settings(max_examples=25, deadline=None)
@given(made=label_maps, size=st.sampled_from([1, 3, 5]))
def test_a_prior_is_what_a_loop_over_the_window_finds(key, border, made, size):
    labels, classes = made
    prior = registry.build("priors", key, {"kernel_size": size, "border": border})
    target = Target.read(torch.from_numpy(labels)[None], classes, -100)
    tau = prior.tau(target, torch.float64).dense()[0].numpy()
    for voxel, seen in windows(labels, (size,) * labels.ndim, border):
        if labels[voxel] != -100:
            np.testing.assert_allclose(tau[(slice(None), *voxel)], ORACLES[key](seen, classes), atol=1e-12)


@settings(max_examples=40, deadline=None)
@given(made=label_maps, size=st.sampled_from([1, 3]), border=st.sampled_from(["replicate", "background"]))
def test_inner_means_that_minimum_and_maximum_of_the_window_agree(made, size, border):
    labels, classes = made
    target = Target.read(torch.from_numpy(labels)[None], classes, -100)
    inner = inner_region(class_counts(target, size, border))[0, 0]
    for voxel, seen in windows(labels, (size,) * labels.ndim, border):
        if labels[voxel] != -100:
            assert inner[voxel].item() == (min(seen) == max(seen))


def test_a_straight_edge_between_classes_three_ids_apart_is_outer():
    """The released region test calls it inner, because the mean of its window is an integer."""
    labels = torch.zeros(1, 4, 6, dtype=torch.long)
    labels[..., 3:] = 3
    inner = inner_region(class_counts(Target.read(labels, 4, -100), 3, "replicate"))[0, 0]
    assert inner[1].tolist() == [1, 1, 0, 0, 1, 1]


def test_windows_of_more_than_255_voxels_do_not_overflow():
    labels = torch.zeros(1, 20, 20, dtype=torch.long)
    window = class_counts(Target.read(labels, 2, -100), 17, "replicate")
    assert window.counts[0, 0].unique().tolist() == [289]
    volume = torch.zeros(1, 3, 3, 3, dtype=torch.long)
    assert class_counts(Target.read(volume, 2, -100), 7, "replicate").counts[0, 0].unique().tolist() == [343]


def test_anisotropic_windows_look_along_their_own_axes_only(batch):
    _, labels = batch(3, (4, 6, 5))
    by_volume = class_counts(Target.read(labels, 3, -100), (1, 3, 3), "replicate").counts
    for z in range(4):
        by_slice = class_counts(Target.read(labels[:, z], 3, -100), 3, "replicate").counts
        assert torch.equal(by_volume[:, :, z], by_slice)


def test_soft_labels_are_averaged_as_they_are(batch):
    logits, _ = batch(3)
    soft = torch.softmax(logits, 1)
    tau = registry.build("priors", "mean").tau(Target.read(soft, 3, -100), torch.float64).dense()
    padded = torch.nn.functional.pad(soft, (1, 1, 1, 1), mode="replicate")
    torch.testing.assert_close(tau, torch.nn.functional.avg_pool2d(padded, 3, 1))


@pytest.mark.parametrize("key", ["max", "min", "median", "mode"])
def test_order_statistics_depend_on_class_numbers_and_say_so(key):
    assert registry.load("priors", key).depends_on_class_order  # pyright: ignore[reportAttributeAccessIssue]
    assert not registry.load("priors", "mean").depends_on_class_order  # pyright: ignore[reportAttributeAccessIssue]


@pytest.mark.parametrize("size", [2, 0, -3, (3, 4), (), 3.0, "3"])
def test_a_window_without_a_centre_is_refused(size):
    with pytest.raises(BadInput, match="kernel_size must be odd"):
        registry.build("priors", "mean", {"kernel_size": size})


def test_a_window_of_the_wrong_rank_is_refused(batch):
    logits, labels = batch(3)
    with pytest.raises(BadInput, match=r"kernel_size \(1, 3, 3\) has 3 sizes but the image has 2 spatial axes"):
        registry.build("losses", "nacl", {"kernel_size": (1, 3, 3)})(logits, labels)


def test_an_unknown_prior_is_refused_with_the_known_ones():
    with pytest.raises(BadInput, match=r"no prior named 'men'. Did you mean 'me.*'\? Known: gaussian, max, mean"):
        registry.build("losses", "nacl", {"prior": "men"})


@pytest.mark.parametrize("space", [(23, 31), (9, 14, 12), (1, 7)], ids=str)
@pytest.mark.parametrize("radius", [1, 4, 10])
def test_the_distance_to_the_boundary_is_the_exact_one_up_to_the_cut(space, radius, batch):
    _, labels = batch(3, space, n=1, seed=1)
    rim = np.zeros(space, bool)
    array = labels[0].numpy()
    for axis in range(len(space)):
        differ = np.diff(array, axis=axis) != 0
        rim |= np.pad(differ, [(0, int(a == axis)) for a in range(len(space))])
        rim |= np.pad(differ, [(int(a == axis), 0) for a in range(len(space))])
    expected = np.minimum(distance_transform_edt(~rim), radius)
    distance = distance_to_boundary(Target.read(labels, 3, -100), radius)[0]
    np.testing.assert_allclose(distance.numpy(), expected, rtol=1e-6)


def test_without_a_boundary_everything_is_far():
    target = Target.read(torch.zeros(1, 5, 5, dtype=torch.long), 2, -100)
    assert distance_to_boundary(target, 10).unique().tolist() == [10]
