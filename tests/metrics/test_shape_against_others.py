"""Shape metrics against MedPy, MONAI and surface-distance: equal, or how far apart and why."""

import warnings
from math import hypot, inf, isnan

import numpy as np
import pytest
import torch
from scipy.ndimage import binary_dilation, gaussian_filter

from calibseg.metrics import ASD, ASSD, DSC, HD, HD95, NSD, IoU, VolumeError
from calibseg.metrics.statistics.overlap import OverlapStatistics
from calibseg.metrics.statistics.surfaces import SurfaceStatistics
from support.real_data import DATA

medpy = pytest.importorskip("medpy.metric.binary")
monai = pytest.importorskip("monai.metrics")

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*always_return_as_numpy:FutureWarning"),  # MONAI calling itself
    pytest.mark.filterwarnings("ignore:Please import:DeprecationWarning"),  # surface-distance calling scipy
]
SPACINGS = [(1.0, 1.0, 1.0), (3.0, 0.7, 0.7)]


def ball(shape, centre, radius) -> np.ndarray:
    grid = np.ogrid[tuple(slice(size) for size in shape)]
    return sum((g - c) ** 2 for g, c in zip(grid, centre, strict=True)) <= radius**2


def random_pair():
    rng = np.random.default_rng(0)
    return rng.random((10, 16, 18)) < 0.3, rng.random((10, 16, 18)) < 0.3


def smooth_pair():
    one, other = (gaussian_filter(np.random.default_rng(s).normal(size=(16, 30, 32)), 3) for s in (1, 2))
    return one > 0.02, one + 0.4 * other > 0.02


def noisy_pair():
    rng, truth = np.random.default_rng(3), ball((16, 40, 40), (8, 20, 18), 7)
    return truth, truth ^ (rng.random(truth.shape) < 0.01)


def thin_pair():
    truth, predicted = np.zeros((8, 30, 30), bool), np.zeros((8, 30, 30), bool)
    truth[4, 3:27, 15] = True
    predicted[1:7, 20, 2:28] = True
    return truth, predicted


def border_pair():
    truth, predicted = np.zeros((8, 20, 22), bool), np.zeros((8, 20, 22), bool)
    truth[:, :9, :] = True
    predicted[:5, :, 13:] = True
    return truth, predicted


def disjoint_pair():
    return ball((20, 40, 44), (4, 6, 6), 3), ball((20, 40, 44), (15, 32, 36), 5)


def voxel_pair():
    truth, predicted = np.zeros((4, 5, 6), bool), np.zeros((4, 5, 6), bool)
    truth[0, 0, 0] = predicted[3, 4, 5] = True
    return truth, predicted


def single_slice_pair():
    one, other = (gaussian_filter(np.random.default_rng(s).normal(size=(1, 40, 42)), (0, 4, 4)) for s in (4, 5))
    return one > 0.02, one + 0.5 * other > 0.02


VOLUMES = [random_pair, smooth_pair, noisy_pair, thin_pair, border_pair, disjoint_pair, voxel_pair]
EVERY = pytest.mark.parametrize("pair", VOLUMES, ids=lambda pair: pair.__name__)
SPACED = pytest.mark.parametrize("spacing", SPACINGS, ids=["isotropic", "anisotropic"])


def one(metric, truth, predicted, spacing=(1.0, 1.0, 1.0)) -> float:
    kind = SurfaceStatistics if metric.needs == "surface" else OverlapStatistics
    options = {"spacing_mm": spacing} if metric.needs == "surface" else {}
    return metric.value(kind.of(truth, predicted, 2, **options))[1]


def one_hot(mask: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(np.stack([~mask, mask]))[None]


@EVERY
@SPACED
def test_medpy_says_the_same_surface_distances(pair, spacing):
    truth, predicted = pair()
    assert one(HD(), truth, predicted, spacing) == pytest.approx(medpy.hd(predicted, truth, spacing))
    assert one(HD95(), truth, predicted, spacing) == pytest.approx(medpy.hd95(predicted, truth, spacing))
    assert one(ASD(), truth, predicted, spacing) == pytest.approx(medpy.asd(predicted, truth, spacing))
    assert one(ASSD(), truth, predicted, spacing) == pytest.approx(medpy.assd(predicted, truth, spacing))


@EVERY
def test_medpy_says_the_same_overlap(pair):
    truth, predicted = pair()
    assert one(DSC(), truth, predicted) == pytest.approx(medpy.dc(predicted, truth))
    assert one(IoU(), truth, predicted) == pytest.approx(medpy.jc(predicted, truth))
    assert one(VolumeError(sign="signed"), truth, predicted) == pytest.approx(medpy.ravd(predicted, truth))


def test_a_volume_of_one_slice_is_what_medpy_sees_in_a_2d_image():
    truth, predicted = single_slice_pair()
    for ours, theirs in ((HD(), medpy.hd), (HD95(), medpy.hd95), (ASD(), medpy.asd), (ASSD(), medpy.assd)):
        flat = theirs(predicted[0], truth[0], (0.7, 1.2))
        assert one(ours, truth, predicted, (9.0, 0.7, 1.2)) == pytest.approx(flat)


@EVERY
@SPACED
def test_monai_says_the_same_surface_distances(pair, spacing):
    truth, predicted = pair()
    maps = {"y_pred": one_hot(predicted), "y": one_hot(truth), "spacing": spacing}
    ours = {
        "hd": one(HD(), truth, predicted, spacing),
        "hd95": one(HD95(definition="max_directed"), truth, predicted, spacing),
        "asd": one(ASD(), truth, predicted, spacing),
        "assd": one(ASSD(), truth, predicted, spacing),
    }
    theirs = {
        "hd": monai.compute_hausdorff_distance(**maps),
        "hd95": monai.compute_hausdorff_distance(**maps, percentile=95),
        "asd": monai.compute_average_surface_distance(**maps),
        "assd": monai.compute_average_surface_distance(**maps, symmetric=True),
    }
    assert ours == pytest.approx({name: value.item() for name, value in theirs.items()}, rel=1e-5)


@EVERY
@pytest.mark.parametrize("tolerance", [0.5, 1.5, 4.5])
def test_monai_says_the_same_surface_dice(pair, tolerance):
    truth, predicted = pair()
    theirs = monai.compute_surface_dice(one_hot(predicted), one_hot(truth), [tolerance], spacing=(3.0, 0.7, 0.7))
    assert one(NSD(tolerance), truth, predicted, (3.0, 0.7, 0.7)) == pytest.approx(theirs.item(), rel=1e-5)


def test_the_two_definitions_of_hd95_differ_where_one_surface_is_much_larger():
    truth, predicted = thin_pair()
    pooled, directed = one(HD95(), truth, predicted), one(HD95("max_directed"), truth, predicted)
    assert directed > 1.05 * pooled


def test_a_missed_object_is_an_error_in_medpy_and_infinite_or_undefined_in_monai():
    truth, nothing = ball((8, 20, 20), (4, 10, 10), 3), np.zeros((8, 20, 20), bool)
    with pytest.raises(RuntimeError, match="does not contain any binary object"):
        medpy.hd95(nothing, truth)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs = monai.compute_hausdorff_distance(one_hot(nothing), one_hot(truth), percentile=95).item()
    assert isnan(theirs) or theirs == inf
    assert isnan(one(HD95(), truth, nothing))
    assert one(HD95(empty="worst"), truth, nothing) == hypot(8, 20, 20)
    assert one(HD95(empty="released"), truth, nothing) == 0.0
    assert one(DSC(), truth, nothing) == 0.0


@EVERY
@SPACED
def test_surface_distance_is_at_most_a_voxels_diagonal_away(pair, spacing):
    """Its surface elements sit on voxel corners: each is half a diagonal from one of our voxels, and the reverse."""
    surface_distance = pytest.importorskip("surface_distance")
    truth, predicted = pair()
    theirs = surface_distance.compute_surface_distances(truth, predicted, spacing)
    largest = surface_distance.compute_robust_hausdorff(theirs, 100)
    assert abs(one(HD(), truth, predicted, spacing) - largest) <= hypot(*spacing) + 1e-9
    truth_to_predicted, predicted_to_truth = surface_distance.compute_average_surface_distance(theirs)
    assert abs(one(ASD(), truth, predicted, spacing) - predicted_to_truth) <= hypot(*spacing)
    assert abs(one(ASD(), predicted, truth, spacing) - truth_to_predicted) <= hypot(*spacing)


@pytest.mark.parametrize("tolerance", [0.5, 1.0, 1.5, 2.0, 2.5])
def test_surface_distance_says_another_surface_dice_and_a_moved_ball_says_which_is_closer(tolerance):
    """A sphere moved by 3 is 3 |cos| away from itself, and cos is uniform on a sphere: the share is tolerance / 3."""
    surface_distance = pytest.importorskip("surface_distance")
    truth, predicted = ball((50, 60, 60), (25, 30, 28), 20), ball((50, 60, 60), (25, 30, 31), 20)
    elements = surface_distance.compute_surface_distances(truth, predicted, (1.0, 1.0, 1.0))
    theirs = surface_distance.compute_surface_dice_at_tolerance(elements, tolerance)
    ours = one(NSD(tolerance), truth, predicted)
    assert abs(ours - tolerance / 3) < 0.11
    assert abs(ours - tolerance / 3) < abs(theirs - tolerance / 3) < 0.22


def test_real_outlines_of_the_hippocampus_agree_with_medpy_and_monai():
    files = sorted((DATA / "Task04_Hippocampus" / "labelsTr").glob("hippocampus_*.nii.gz"))[:3]
    if not files:
        pytest.skip("the hippocampus labels of the Medical Segmentation Decathlon are not on this machine")
    nibabel = pytest.importorskip("nibabel")
    for file in files:
        labels = np.asarray(nibabel.load(file).dataobj).astype(np.uint8).T
        moved = np.roll(labels, (1, 0, 2), (0, 1, 2))
        predicted = np.where((moved == 0) & binary_dilation(labels == 2), 2, moved)
        statistics = SurfaceStatistics.of(labels, predicted, 3, {"whole": (1, 2)}, (1.0, 1.0, 1.0))
        for row, members in ((1, [1]), (2, [2]), ("whole", [1, 2])):
            truth, guess = np.isin(labels, members), np.isin(predicted, members)
            assert HD95().value(statistics)[row] == pytest.approx(medpy.hd95(guess, truth))
            assert ASSD().value(statistics)[row] == pytest.approx(medpy.assd(guess, truth))
            theirs = monai.compute_hausdorff_distance(one_hot(guess), one_hot(truth), percentile=95).item()
            assert HD95("max_directed").value(statistics)[row] == pytest.approx(theirs, rel=1e-5)
