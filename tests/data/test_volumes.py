"""Putting cases on a grid and predictions back: against scipy, against torch, and against themselves."""

from dataclasses import replace

import nibabel as nib
import numpy as np
import pytest
import torch

from calibseg.core import registry
from calibseg.core.types import IGNORED, BadInput, Case
from calibseg.data.preprocessing import (
    Preprocessing,
    interpolation_matrix,
    preprocess,
    resampled,
    resampled_labels,
    scale_intensity,
)
from calibseg.io.images import read_volume
from support.raw_trees import LPS, blocks, make_tree, spaced, write_nifti
from support.whole_volumes import from_ras, to_original


def make_case(shape=(6, 20, 24), spacing=(3.0, 1.0, 0.5), classes=3, seed=0):
    rng = np.random.default_rng(seed)
    labels = blocks(shape, list(range(1, classes))).astype(np.uint8)
    affine = spaced(np.eye(4), spacing[::-1], (10.0, -20.0, 5.0))
    original = {"file": "x", "shape": list(shape[::-1]), "affine": affine.tolist(), "orientation": "RAS"}
    return Case(
        id="a",
        patient="a",
        image=rng.gamma(2, 100, (1, *shape)).astype(np.float32),
        channels=("MR",),
        labels=labels[None],
        spacing_mm=spacing,
        classes=tuple("abcdef"[:classes]),
        affine=affine,
        header={"original": original},
    )


@pytest.mark.parametrize(("n_in", "n_out"), [(10, 10), (10, 20), (7, 16), (30, 12), (512, 192), (5, 1), (1, 4)])
def test_weights_sum_to_one_and_keep_the_mean_place(n_in, n_out):
    matrix = interpolation_matrix(n_in, n_out)
    np.testing.assert_allclose(matrix.sum(1), 1)
    assert (matrix >= 0).all()
    centres = (np.arange(n_out) + 0.5) * n_in / n_out - 0.5
    inner = (centres > n_in / n_out) & (centres < n_in - 1 - n_in / n_out)
    # Exact for a linear ramp where the triangle lies on the grid symmetrically; never more than a hair off otherwise.
    np.testing.assert_allclose((matrix @ np.arange(n_in))[inner], centres[inner], atol=0.06)


def test_enlarging_is_torchs_linear_interpolation():
    values = np.random.default_rng(0).normal(size=(2, 5, 9, 7)).astype(np.float32)
    expected = torch.nn.functional.interpolate(torch.from_numpy(values)[None], (8, 16, 13), mode="trilinear")[0]
    np.testing.assert_allclose(resampled(values, (8, 16, 13)), expected.numpy(), atol=1e-5)


def test_shrinking_is_torchs_antialiased_interpolation_in_the_plane():
    values = np.random.default_rng(0).normal(size=(3, 4, 50, 37)).astype(np.float32)
    flat = torch.from_numpy(values).flatten(0, 1)[None]
    expected = torch.nn.functional.interpolate(flat, (20, 16), mode="bilinear", antialias=True)[0]
    np.testing.assert_allclose(resampled(values, (4, 20, 16)), expected.numpy().reshape(3, 4, 20, 16), atol=1e-5)


def test_labels_take_the_class_with_the_largest_share():
    labels = np.zeros((1, 4, 4), np.uint8)
    labels[0, :2, :2] = 2
    labels[0, 2:, 2:] = 1
    found = resampled_labels(labels, (1, 2, 2), 3)
    assert found[0].tolist() == [[2, 0], [0, 1]]
    assert resampled_labels(labels, (1, 8, 8), 3)[0, 0, 0] == 2


def test_labels_of_equal_share_go_to_the_smaller_id():
    labels = np.array([[[2, 1]]], np.uint8)
    assert resampled_labels(labels, (1, 1, 1), 3).item() == 1


def test_ignored_voxels_stay_ignored_when_resampled():
    labels = np.full((1, 4, 4), IGNORED, np.uint8)
    labels[0, :, :2] = 1
    assert resampled_labels(labels, (1, 2, 2), 2)[0].tolist() == [[1, IGNORED]] * 2


def test_resampling_labels_needs_no_class_in_between():
    """Interpolating the numbers 0 and 2 would invent a 1 at the border."""
    labels = np.zeros((1, 8, 8), np.uint8)
    labels[0, :, 3:] = 2
    assert set(np.unique(resampled_labels(labels, (1, 11, 13), 3))) == {0, 2}


def test_intensities_are_clipped_at_the_stated_percentiles_per_channel():
    image = np.stack([np.linspace(0, 1000, 10_001).reshape(1, 73, 137), np.full((1, 73, 137), 5.0)]).astype(np.float32)
    found = scale_intensity(image, Preprocessing())
    assert found.dtype == np.float32
    assert (found[0].min(), found[0].max()) == (0, 1)
    # The 0.5th and 99.5th percentile of the ramp are 5 and 995.
    np.testing.assert_allclose(found[0], np.clip((image[0] - 5) / 990, 0, 1), atol=1e-6)
    assert (found[1] == 0).all()  # a constant channel


def test_a_volume_that_is_nearly_all_air_keeps_its_object():
    image = np.zeros((1, 1, 100, 100), np.float32)
    image[0, 0, 0, :10] = 50
    assert scale_intensity(image, Preprocessing()).sum() == 10


def test_a_window_clips_in_the_files_own_unit():
    image = np.array([-1000, -160, 40, 240, 3000], np.float32).reshape(1, 1, 1, 5)
    found = scale_intensity(image, Preprocessing(intensity="window", range=(-160, 240)))
    np.testing.assert_allclose(found.ravel(), [0, 0, 0.5, 1, 1])


def test_acdc_is_resized_to_224_and_its_centre_kept_from_16_to_208():
    case = make_case((3, 216, 256))
    whole = preprocess(case, Preprocessing(resize=(None, 224, 224)))
    cropped = preprocess(case, Preprocessing(resize=(None, 224, 224), crop=(None, 192, 192)))
    assert whole.image.shape == (1, 3, 224, 224)
    np.testing.assert_array_equal(cropped.image, whole.image[:, :, 16:208, 16:208])
    np.testing.assert_array_equal(cropped.labels, whole.labels[:, :, 16:208, 16:208])


@pytest.mark.parametrize(
    "protocol",
    [
        Preprocessing(),
        Preprocessing(resize=(None, 32, 48), crop=(4, 20, 60)),
        Preprocessing(spacing_mm=(None, 0.7, 0.7), crop=(None, 21, 11)),
    ],
)
def test_a_voxel_keeps_its_place_in_the_patient(protocol):
    """Resample the coordinates themselves: they must be what the new affine says."""
    case = make_case()
    z, y, x = np.meshgrid(*map(np.arange, case.image.shape[1:]), indexing="ij")
    places = nib.affines.apply_affine(case.affine, np.stack([x, y, z], -1)).astype(np.float32)
    found = preprocess(replace(case, image=np.moveaxis(places, -1, 0)), replace(protocol, intensity="keep"))
    inner = (found.labels[0] != IGNORED).nonzero()
    expected = nib.affines.apply_affine(found.affine, np.stack(inner[::-1], -1))
    told = found.image[:, *inner].T
    middle = np.abs(told - told.mean(0)).max(1) < 3  # away from the border, where linear resampling flattens
    np.testing.assert_allclose(told[middle], expected[middle], atol=0.02)
    np.testing.assert_allclose(found.spacing_mm, np.sqrt((found.affine[:3, :3] ** 2).sum(0))[::-1])


def test_padding_adds_ignored_voxels_and_black():
    case = make_case((2, 10, 10))
    found = preprocess(case, Preprocessing(crop=(None, 14, 8)))
    assert found.image.shape == (1, 2, 14, 8)
    assert (found.labels[:, :, [0, 1, 12, 13]] == IGNORED).all()
    assert (found.labels[:, :, 2:12] != IGNORED).all()
    assert (found.image[:, :, [0, 1, 12, 13]] == 0).all()
    assert found.ignore_label == IGNORED


def one_hot(labels, classes):
    return (labels == np.arange(classes)[:, None, None, None]).astype(np.float32)


def test_a_prediction_on_an_unchanged_grid_goes_back_bit_for_bit(tmp_path):
    array = np.random.default_rng(0).integers(0, 3, (7, 8, 9)).astype(np.uint8)
    for number, codes in enumerate(("RAS", "LPS", "SAR", "PIL", "ASL")):
        turn = nib.orientations.axcodes2ornt(codes)
        affine = nib.orientations.inv_ornt_aff(turn, (7, 8, 9)) @ np.diag([1.0, 2.0, 3.0, 1.0])
        path = write_nifti(tmp_path / f"{number}.nii.gz", array, affine, np.uint8)
        volume = read_volume(path)
        np.testing.assert_array_equal(from_ras(volume.array, volume.original), array)
        np.testing.assert_allclose(np.array(volume.original["affine"]), nib.load(path).affine)


@pytest.mark.parametrize(
    "key", ["acdc", "flare", "brats19", "mrbrains18", "prostate", "promise12", "hippocampus", "busi"]
)
def test_labels_prepared_and_taken_back_are_nearly_the_raw_labels(key, tmp_path):
    """One-hot labels as a prediction: back on the file's grid they overlap with what was drawn."""
    made = make_tree(key, tmp_path)
    reader = registry.build("datasets", key)
    case = next(reader.cases(made.root))
    found = preprocess(case, Preprocessing(**reader.protocol))
    back = to_original(one_hot(found.labels[0], len(case.classes)), found.header)
    assert back.shape == (*case.header["original"]["shape"], len(case.classes))
    np.testing.assert_allclose(back.sum(-1), 1, atol=1e-5)
    raw = from_ras(case.labels[0], case.header["original"])
    seen = to_original(one_hot(np.zeros_like(found.labels[0]), 2), found.header)  # everything is background
    assert (seen[..., 0] == 1).all()
    predicted = back.argmax(-1)
    if not any(found.header["geometry"]["start"]):  # nothing was cropped away
        pairs = [(predicted == k, raw == k) for k in range(1, len(case.classes))]
        overlap = [2 * (a & b).sum() / (a.sum() + b.sum()) for a, b in pairs]
        assert min(overlap) > 0.9


def test_outside_the_crop_is_background_for_certain():
    case = make_case((2, 10, 10), classes=2)
    found = preprocess(case, Preprocessing(crop=(None, 4, 4)))
    ones = np.zeros((2, 2, 4, 4), np.float32)
    ones[1] = 1
    back = to_original(ones, found.header)  # [x y z k]
    assert back[3:7, 3:7, :, 1].min() == 1
    assert back[..., 1].sum() == 2 * 16


def test_a_prediction_of_another_shape_is_refused():
    found = preprocess(make_case(), Preprocessing())
    with pytest.raises(BadInput, match=r"probabilities have shape \(1, 1, 1\), the case \(6, 20, 24\)"):
        to_original(np.ones((2, 1, 1, 1), np.float32), found.header)


def test_flare_is_read_left_to_right_whatever_the_file_says(tmp_path):
    """LPS on disk: the case runs to the right and to the front."""
    affine = spaced(LPS, (1, 1, 1), (0, 0, 0))
    array = np.arange(24).reshape(2, 3, 4)
    volume = read_volume(write_nifti(tmp_path / "a.nii.gz", array, affine, np.int16))
    np.testing.assert_array_equal(volume.array, array[::-1, ::-1].T)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"slice_axis": "diagonal"}, "no slice axis named 'diagonal'. Known: axial, coronal, sagittal"),
        ({"intensity": "zscore"}, "no intensity rule named 'zscore'"),
        ({"resize": (1, 2, 3), "spacing_mm": (1, 1, 1)}, "not to both"),
        ({"crop": (0, 1, 1)}, "three positive numbers"),
        ({"range": (99.5, 0.5)}, "must rise"),
        ({"range": (0.0, 200.0)}, "0..100"),
    ],
)
def test_an_impossible_protocol_is_refused(fields, said):
    with pytest.raises(BadInput, match=said):
        Preprocessing(**fields)
