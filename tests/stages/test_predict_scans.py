"""A scan goes into a network whose answer is known, and the maps must say exactly that."""

import json
import math
import shutil
import tracemalloc
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest

from calibseg.api import predict
from calibseg.core.types import BadInput, Case
from calibseg.data.original_grid import original_slices
from calibseg.data.preprocessing import AXES, Preprocessing, preprocess
from calibseg.io.images import to_ras
from calibseg.io.predictions import match_files
from calibseg.metrics.ece import ECE
from calibseg.metrics.statistics.binning import calibration_statistics
from calibseg.stages.predict.maps import Maps
from support.known_network import TURNED, make_run, make_scan
from support.map_files import cut_short, everything_below, load
from support.real_data import DATA
from support.whole_volumes import from_ras, to_original

GRIDS = [{}, {"resize": (9, 20, 11)}, {"crop": (20, 8, 30)}, {"resize": (25, 7, 12), "crop": (9, 16, 16)}]


# Back to the grid of the file


@pytest.mark.parametrize("axis", AXES)
@pytest.mark.parametrize("grid", GRIDS)
def test_slice_by_slice_is_the_same_as_the_whole_volume_at_once(axis, grid):
    rng = np.random.default_rng(0)
    turned, affine = to_ras(rng.random((13, 17, 10)), TURNED)
    image = turned.T[None].astype(np.float32)
    header = {"original": {"affine": TURNED.tolist()}}
    case = Case("a", "a", image, ("x",), None, (2.0, 1.25, 0.75), ("b", "c", "d"), affine, header=header)
    case = preprocess(case, Preprocessing(slice_axis=axis, **grid))
    p = np.moveaxis(rng.dirichlet([0.5] * 3, case.image.shape[1:]), -1, 0).astype(np.float32)
    slices = np.moveaxis(p, 1 + AXES[axis], 0)
    found = np.moveaxis(np.stack(list(original_slices(slices, 3, case.header))), 0, 1 + AXES[axis])
    np.testing.assert_allclose(from_ras(found, header["original"]), to_original(p, case.header), atol=3e-7)
    with pytest.raises(BadInput, match="slices, probabilities were given for"):
        list(original_slices(slices[:-1], 3, case.header))


def test_memory_holds_a_few_slices_whatever_the_volume_has(tmp_path):
    """The tall volume has 400 slices of 5 classes, 65 MB of probabilities; a slice of them takes 0.16 MB."""
    n, k, size = 400, 5, 90
    geometry = {"shape": [n, size, size], "resized": [n // 2, 45, 45], "start": [0, 0, 0], "final": [n // 2, 45, 45]}
    original = {"affine": np.eye(4).tolist(), "shape": [size, size, n]}
    header = {"geometry": geometry, "slice_axis": "axial", "original": original}
    p = np.full((k, 45, 45), 1 / k, np.float32)
    maps = Maps(tmp_path, k, header, Path("scan.mha"))
    tracemalloc.start()
    for q in original_slices((p for _ in range(n // 2)), k, header):
        maps.add(q)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    maps.close()
    assert peak < 15 * k * size * size * 4, f"{peak / 1e6:.1f} MB"


# Maps and what they say


def test_a_mirrored_grid_has_the_same_volumes_and_none_is_negative(tmp_path):
    p = np.array([[0.7, 0.4], [0.3, 0.6]], np.float32)[:, None, None]
    found = []
    for number, x in enumerate((2.0, -2.0)):  # the second has a negative determinant
        original = {"affine": np.diag([x, 3.0, 4.0, 1.0]).tolist(), "shape": [2, 1, 1]}
        (tmp_path / str(number)).mkdir()
        maps = Maps(tmp_path / str(number), 2, {"slice_axis": "axial", "original": original}, Path("scan.png"))
        maps.add(p[:, 0])
        maps.close()
        found.append(maps.structures(("background", "one"), {})["one"])
    assert found[0] == found[1]
    assert found[1]["volume_ml"] == pytest.approx(0.024)


def test_volumes_and_confidences_are_those_computed_by_hand(tmp_path):
    """Four voxels of 2 x 3 x 4 mm; class 1 is labelled in two of them, class 2 in one."""
    p = np.array([[0.7, 0.4, 0.1, 0.2], [0.2, 0.5, 0.9, 0.2], [0.1, 0.1, 0.0, 0.6]], np.float32)[:, None, None]
    affine = np.diag([2.0, 3.0, 4.0, 1.0])
    header = {"slice_axis": "axial", "original": {"affine": affine.tolist(), "shape": [4, 1, 1]}}
    maps = Maps(tmp_path, 3, header, Path("scan.png"))
    maps.add(p[:, 0])
    files = maps.close()
    found = maps.structures(("background", "one", "two"), {"both": (1, 2)})
    one = {
        "voxels": 2,
        "volume_ml": 2 * 0.024,
        "expected_volume_ml": (0.2 + 0.5 + 0.9 + 0.2) * 0.024,
        "mean_confidence": (0.5 + 0.9) / 2,
        "soft_dice_confidence": 2 * (0.5 + 0.9) / (1.8 + 2),
    }
    assert found["one"] == pytest.approx(one)
    assert found["both"]["mean_confidence"] == pytest.approx((0.6 + 0.9 + 0.8) / 3)
    assert found["both"]["expected_volume_ml"] == pytest.approx((0.3 + 0.6 + 0.9 + 0.8) * 0.024)
    assert found["both"]["soft_dice_confidence"] == pytest.approx(2 * 2.3 / (2.6 + 3))
    assert load(files["label"])[:, 0, 0].tolist() == [0, 1, 1, 2]
    np.testing.assert_array_equal(load(files["confidence"])[:, 0, 0], p[:, 0, 0].max(0))
    entropy = [-sum(x * math.log(x) for x in column if x > 0) for column in p[:, 0, 0].T.tolist()]
    np.testing.assert_allclose(load(files["entropy"])[:, 0, 0], entropy, rtol=1e-6)
    np.testing.assert_array_equal(load(files["probabilities"])[:, 0, 0], p[:, 0, 0].T)


def test_a_structure_that_is_labelled_nowhere_has_no_mean_confidence(tmp_path):
    header = {"slice_axis": "axial", "original": {"affine": np.eye(4).tolist(), "shape": [1, 1, 1]}}
    maps = Maps(tmp_path, 2, header, Path("scan.png"))
    maps.add(np.array([0.75, 0.25], np.float32).reshape(2, 1, 1))
    found = maps.structures(("background", "one"), {})["one"]
    assert found["mean_confidence"] is None
    assert (found["soft_dice_confidence"], found["expected_volume_ml"]) == (0, 0.00025)


# A scan in, maps out


@pytest.mark.parametrize("axis", AXES)
def test_a_scan_comes_back_on_its_own_grid_with_the_probabilities_that_the_network_said(axis, tmp_path):
    run = make_run(tmp_path / "run", slice_axis=axis)
    grey = make_scan(tmp_path / "scan.nii.gz")
    done = predict(run, input=tmp_path / "scan.nii.gz", output=tmp_path / "out", batch_size=3)
    wanted = 1 / (1 + np.exp(-8 * (grey.astype(float) - 0.5)))
    p = load(tmp_path / "out/probabilities/scan.nii.gz")
    np.testing.assert_allclose(p[..., 1], wanted, atol=1e-6)
    np.testing.assert_array_equal(load(tmp_path / "out/labels/scan.nii.gz"), p.argmax(-1))
    np.testing.assert_array_equal(load(tmp_path / "out/confidence/scan.nii.gz"), p.max(-1))
    for kind in ("labels", "confidence", "entropy", "probabilities"):
        image = nib.load(tmp_path / f"out/{kind}/scan.nii.gz")
        assert image.shape[:3] == grey.shape
        np.testing.assert_array_equal(image.affine, TURNED)
    told = json.loads((tmp_path / "out/scan.json").read_text())
    assert told["structures"] == done.structures
    assert done.structures["inside"]["voxels"] == (wanted > 0.5).sum()
    assert done.structures["inside"]["expected_volume_ml"] == pytest.approx(wanted.sum() * 1.25 * 2 * 0.75 / 1000)
    kinds = ("confidence", "entropy", "labels", "probabilities")
    beside = ["labels.ctbl", "labels.txt", "scan.json", "scan.png"]
    assert everything_below(tmp_path / "out") == sorted([*beside, *(f"{kind}/scan.nii.gz" for kind in kinds)])


def test_what_was_cropped_away_is_background_and_what_was_resampled_still_sums_to_one(tmp_path):
    run = make_run(tmp_path / "run", resize=(8, 13, 20), crop=(None, 9, 16), slice_axis="coronal")
    grey = make_scan(tmp_path / "scan.nii")
    predict(run, input=str(tmp_path / "scan.nii"), output=tmp_path / "out")
    p = load(tmp_path / "out/probabilities/scan.nii.gz")
    assert p.shape == (*grey.shape, 3)
    np.testing.assert_allclose(p.sum(-1), 1, atol=1e-6)
    ras = np.moveaxis(to_ras(p, TURNED)[0], -1, 0)  # [k x y z]
    assert (ras[0, 0] == 1).all()  # x was cropped from 20 to 16
    assert ras[1].max() > 0.5


def test_a_header_that_has_only_a_quaternion_is_kept_bit_for_bit(tmp_path):
    run = make_run(tmp_path / "run")
    turn = np.array([[0.36, 0.48, -0.8], [-0.8, 0.6, 0.0], [0.48, 0.64, 0.6]])
    affine = np.eye(4)
    affine[:3, :3], affine[:3, 3] = turn * [1.1, 0.9, 3.0], (0.1, 0.2, 0.3)
    image = nib.Nifti1Image(np.random.default_rng(0).random((6, 7, 5)), None)
    image.set_qform(affine, 1)
    image.set_sform(None, 0)
    nib.save(image, tmp_path / "scan.nii.gz")
    predict(run, input=tmp_path / "scan.nii.gz", output=tmp_path / "out")
    before, after = (nib.load(tmp_path / name) for name in ("scan.nii.gz", "out/labels/scan.nii.gz"))
    np.testing.assert_array_equal(before.affine, after.affine)
    assert (after.header["qform_code"], after.header["sform_code"]) == (1, 0)
    assert after.header.get_xyzt_units() == before.header.get_xyzt_units()


@pytest.mark.skipif(not (DATA / "Task04_Hippocampus").is_dir(), reason="the hippocampus data are not there")
def test_a_raw_hippocampus_comes_back_with_its_shape_and_affine_and_can_be_scored(tmp_path):
    classes = ("background", "anterior", "posterior")
    sagittal = {"slice_axis": "sagittal", "intensity": "percentile"}
    run = make_run(tmp_path / "run", classes=classes, **sagittal)
    scan = DATA / "Task04_Hippocampus" / "imagesTr" / "hippocampus_001.nii.gz"
    predict(run, input=scan, output=tmp_path / "out")
    before, after = nib.load(scan), nib.load(tmp_path / "out/labels/hippocampus_001.nii.gz")
    assert after.shape == before.shape
    np.testing.assert_array_equal(before.affine, after.affine)
    truth = tmp_path / "truth"
    truth.mkdir()
    shutil.copy(DATA / "Task04_Hippocampus" / "labelsTr" / scan.name, truth)
    matched, lonely = match_files(tmp_path / "out/probabilities", truth)
    assert not lonely
    prediction = matched[0].open()
    assert prediction.scores.shape == (3, *prediction.labels.shape)
    found = calibration_statistics(prediction.scores, prediction.labels, kind="probabilities")
    assert 0 < ECE().value(found.on("all"))[None] < 1


def test_channels_are_matched_by_name_in_any_order_and_spelling(tmp_path):
    run = make_run(tmp_path / "run", channels=("flair", "t1"), slope=16.0)
    first, second = (make_scan(tmp_path / name, seed=seed) for seed, name in enumerate(("a.nii.gz", "b.nii.gz")))
    given = [f"T1={tmp_path / 'b.nii.gz'}", f"FLAIR={tmp_path / 'a.nii.gz'}"]
    predict(run, input=given, output=tmp_path / "out")
    wanted = 1 / (1 + np.exp(-16 * ((first.astype(float) + second) / 2 - 0.5)))
    np.testing.assert_allclose(load(tmp_path / "out/probabilities/a.nii.gz")[..., 1], wanted, atol=1e-6)
    both = np.stack([first, second], -1)
    nib.save(nib.Nifti1Image(both, TURNED), tmp_path / "both.nii.gz")
    predict(run, input=tmp_path / "both.nii.gz", output=tmp_path / "out")
    np.testing.assert_array_equal(*(load(tmp_path / f"out/labels/{name}.nii.gz") for name in ("a", "both")))


def with_nan(path):
    grey = load(path).copy()
    grey[3, 2, 1] = np.nan
    nib.save(nib.Nifti1Image(grey, TURNED), path)


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        (["flair=a.nii.gz"], "lacks t1: the network was trained on flair, t1"),
        (["flair=a.nii.gz", "t2=b.nii.gz"], "no channel named 't2'. Did you mean 't1'?"),
        (["a.nii.gz"], "found 1 channels, expected 2 (flair, t1)"),
        (["a.nii.gz", "b.nii.gz"], "say which channel each file is, as CHANNEL=FILE. Channels: flair, t1"),
        (["flair=a.nii.gz", "flair=b.nii.gz"], "the channel 'flair' is given twice"),
        (["flair=a.nii.gz", "t1=none.nii.gz"], "none.nii.gz: no such file"),
        (["flair=a.nii.gz", "t1=nan.nii.gz"], "1 image voxels of case 'a' are NaN or infinite"),
        (["flair=a.nii.gz", "t1=cut.nii.gz"], "cut.nii.gz is damaged or not a NIfTI file"),
        (["flair=a.nii.gz", "t1=other.nii.gz"], "they must share one grid"),
    ],
)
def test_a_scan_that_cannot_be_used_is_one_sentence_and_leaves_nothing(inputs, message, tmp_path, monkeypatch):
    run = make_run(tmp_path / "run", channels=("flair", "t1"))
    monkeypatch.chdir(tmp_path)
    for name in ("a.nii.gz", "b.nii.gz", "nan.nii.gz", "cut.nii.gz"):
        make_scan(tmp_path / name)
    make_scan(tmp_path / "other.nii.gz", (13, 17, 11))
    with_nan(tmp_path / "nan.nii.gz")
    cut_short(tmp_path / "cut.nii.gz")
    with pytest.raises(BadInput) as caught:
        predict(run, input=inputs, output="out")
    assert message in str(caught.value)
    assert "--skip-bad" not in str(caught.value)
    assert not Path("out").exists()


def test_a_network_that_fails_half_way_leaves_neither_maps_nor_scratch(tmp_path):
    run = make_run(tmp_path / "run")
    make_scan(tmp_path / "scan.nii.gz")
    grey = load(tmp_path / "scan.nii.gz").copy()
    grey[..., -1] = 1e38  # 8 times that is beyond float32
    nib.save(nib.Nifti1Image(grey, np.eye(4)), tmp_path / "scan.nii.gz")
    with pytest.raises(BadInput, match="answer to case 'scan' is NaN or infinite"):
        predict(run, input=tmp_path / "scan.nii.gz", output=tmp_path / "out", batch_size=1)
    assert everything_below(tmp_path / "out") == []
